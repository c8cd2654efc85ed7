"""Pages in Chromium of reports that are not whole."""

from dataclasses import replace

from tests.support import pages
from tests.support.page_parts import idle
from trt_bisect.report.model import Report
from trt_bisect.report.page import page_data
from trt_bisect.report.parts import UNMEASURED, ByPlan


def test_figures_that_are_not_finite(tab, strange_run, report, tmp_path):
    folder = pages.copied(strange_run, tmp_path)
    nothing = replace(report, similarity=ByPlan(None, None), verdict=UNMEASURED, culprits=())
    blank = {"similarity": None, "loss": None, "sqnr": None, "outcome": "not finite", "message": "NaN"}
    layers = tuple(replace(row, **blank, culprit=False) for row in report.layers)
    with tab.shown(pages.written(folder, replace(nothing, layers=layers)), ready="usable") as page:
        assert page.locator('[data-plan="int8"] .figure').inner_text() == "–"
        assert "NaN" not in page.locator("#table").inner_text()


def test_all_parts_may_be_missing(tab, tmp_path):
    """Pages without a graph or a recipe alone are among those of the answer."""
    nothing_yet = Report("m", "", "", "", "", "cosine", 0.99, 0.5, "fp32", {"trt_bisect": "0"}, "")
    data = page_data(nothing_yet, status="running")
    with tab.shown(pages.drawn(tmp_path, data), ready="usable") as page:
        idle(page)
        assert page.locator("#graph-box").is_hidden()
        assert page.locator("#front").is_hidden()
        assert page.locator('nav a[href="#front"]').is_hidden()
        assert page.locator("#front-plot").is_hidden()
