"""A recovery as a page, a plot and HTML."""

from __future__ import annotations

from trt_bisect.report.notebook.front_plot import front as plot
from trt_bisect.report.notebook.html import compact_recovery as html
from trt_bisect.report.page.files import write_recovered_page as write_page

__all__ = ["html", "plot", "write_page"]
