"""One module for each result with a page, a plot or a notebook view; see ``results.presentable``."""
