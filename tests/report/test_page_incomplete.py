"""Pages in Chromium of reports that are old, not whole, or grow while somebody looks."""

import http.server
from dataclasses import replace
from functools import partial

from tests.support import pages
from tests.support.answering import answering
from tests.support.page_parts import idle, in_order, names_in_table, row_of, selected
from trt_bisect.report.model import Report
from trt_bisect.report.network_graph import Graph
from trt_bisect.report.page import page_data, render_page
from trt_bisect.report.parts import UNMEASURED, ByPlan
from trt_bisect.support.codec import encode, read


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


class LiveServer(http.server.BaseHTTPRequestHandler):
    """Serves a page and its data, as they are set; remembers what was asked."""

    def __init__(self, state, *arguments):
        self.state = state
        super().__init__(*arguments)

    def do_GET(self):
        path, _, query = self.path.partition("?")
        self.state["asked"].append((path, query, self.headers.get("If-None-Match")))
        if path == "/":
            return self.answer(200, render_page(self.state["data"], "data.json"), "text/html")
        if path != "/data.json":
            return self.answer(204, "", "text/plain")
        text = encode(self.state["data"]).decode()
        tag = f'"{hash(text)}"'
        if self.headers.get("If-None-Match") == tag:
            return self.answer(304, "", "text/plain")
        return self.answer(200, text, "application/json", tag)

    def answer(self, status, text, kind, tag=""):
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if tag:
            self.send_header("ETag", tag)
        if status != 304:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(b"" if status == 304 else content)

    def log_message(self, *_):
        pass


def test_a_live_page_follows_the_run(web, strange_run, report):
    graph = read(Graph, strange_run / "network.json")
    half = len(report.layers) // 2
    blank = {"similarity": None, "loss": None, "outcome": "not tried", "culprit": False}
    rows = [replace(row, **blank) if row.quantizable and row.index >= half else row for row in report.layers]
    so_far = replace(report, layers=tuple(rows), similarity=ByPlan(None, None), lines=(), culprits=(), answer=None)
    progress = {"stage": "Measuring 24 plans", "done": 12, "total": 24, "seconds": 3.0}
    running = page_data(so_far, graph, status="running", progress=progress)
    state = {"data": running, "asked": []}
    with answering(partial(LiveServer, state)) as address, web.shown(f"{address}/?token=t%2Fk") as page:
        page.get_by_text("live · Measuring 24 plans 12 of 24, 3.0 s").wait_for()
        assert page.locator("h1").inner_text().startswith("Measuring: ")
        name = report.layers[1].name
        in_order(page)
        row_of(page, name).click()
        page.locator("#table-head [data-key=name]").click()
        unfolded = page.locator("#graph .node").count()
        page.get_by_role("button", name="Fold all").click()
        page.wait_for_function("count => document.querySelectorAll('#graph .node').length < count", arg=unfolded)
        order = names_in_table(page)
        drawn = page.locator("#graph .node").count()
        state["data"] = page_data(report, graph)
        page.wait_for_function("text => document.querySelector('h1').textContent === text", arg=state["data"].headline)
        page.locator("#live.finished").wait_for()
        assert selected(page)["panel"] == name
        assert names_in_table(page) == order
        assert page.locator("#graph .node").count() == drawn
        assert page.locator("#graph .node.culprit").count() == len(report.culprits)
    data_asked = [ask for ask in state["asked"] if ask[0] == "/data.json"]
    assert {query for _, query, _ in data_asked} == {"token=t%2Fk"}
    assert any(tag for _, _, tag in data_asked)
