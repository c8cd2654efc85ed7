console.debug("page");
