(()=>{console.debug("page");})();
