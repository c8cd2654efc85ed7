"""``trt-bisect view``: shows runs in a browser, also while they go on."""
