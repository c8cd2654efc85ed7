"""A run's report as a page, a plot, HTML and text."""

from __future__ import annotations

import io

from rich.console import Console

from trt_bisect.report.notebook.curve_plot import curve as plot
from trt_bisect.report.notebook.html import compact as html
from trt_bisect.report.page.files import write_page
from trt_bisect.report.run_markdown import markdown
from trt_bisect.report.screen.run import print_report
from trt_bisect.results.run_report import Report

__all__ = ["html", "markdown", "plot", "text", "write_page"]


def text(report: Report) -> str:
    """Returns the tables of the terminal, 120 columns wide."""
    written = io.StringIO()
    print_report(report, Console(file=written, width=120, force_jupyter=False))
    return written.getvalue()
