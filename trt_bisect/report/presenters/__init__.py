"""One module for each result that has a page, a plot or a view in a notebook; see ``results.presentable``."""
