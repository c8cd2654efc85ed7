"""The page in Chromium as it opens: it asks nobody for anything, tells the verdict, and shows names as text."""

from __future__ import annotations

import http.server
import shutil
from dataclasses import replace

from tests.support import pages
from tests.support.answering import answering
from tests.support.browser import asked_others
from tests.support.page_parts import names_in_table, row_of, selected


def test_the_verdict(opened, report):
    page = opened
    told = page.evaluate("JSON.parse(document.querySelector('#data').textContent).headline")
    assert page.locator("h1").inner_text() == told
    figures = [page.locator(f'[data-plan="{plan}"] .figure').inner_text() for plan in ("fp32", "int8", "recipe")]
    expected = [100.0, 100 * report.similarity.int8, 100 * report.similarity.recipe]
    assert figures == [pages.percent(value / 100, report.threshold) for value in expected]
    basis = page.locator("#basis").inner_text()
    assert "emulated" in basis
    assert f"onnxruntime {report.versions['onnxruntime']}" in basis


def test_strange_names_are_text(opened, report):
    page = opened
    assert set(pages.STRANGE) <= {row.name for row in report.layers}
    assert names_in_table(page) == [row.name for row in report.layers]
    labels = page.locator("#graph [data-layer]").evaluate_all("nodes => nodes.map(node => node.dataset.layer)")
    assert set(labels) == {row.name for row in report.layers}
    assert page.locator("img, iframe, b, main a[href^=javascript]").count() == 0
    assert page.evaluate("window.injected") is None


def test_what_a_gpu_measured(tab, strange_run, report, tmp_path):
    (culprit,) = report.culprits
    plans = {"fp32": (8.0, 9.0), "fp16": (4.0, 4.5), "int8": (2.0, 2.5), "recipe": (2.5, None)}
    blank = {"runs": 100, "layers": []}
    timed = {plan: {"mean_ms": ms, "median_ms": ms, "p99_ms": p99, **blank} for plan, (ms, p99) in plans.items()}
    timed["int8"]["layers"] = [{"name": "fused", "layers": [culprit, "block1.add"], "milliseconds": 0.125}]
    versions = {"trt_bisect": "1", "tensorrt": "8.6.1", "device": "NVIDIA L4 (compute capability 8.9)"}
    layers = tuple(replace(row, ran="region") if row.culprit else row for row in report.layers)
    engine = {"engine": "tensorrt", "typing": "weak", "arithmetic": "measured", "versions": versions}
    measured = replace(report, latency=timed, layers=layers, **engine)
    shutil.copytree(strange_run / "recipe", tmp_path / "recipe")
    with tab.shown(pages.written(pages.copied(strange_run, tmp_path), measured), ready="usable") as page:
        speeds = [page.locator(f'[data-plan="{plan}"] .speed').inner_text() for plan in ("fp32", "int8", "recipe")]
        assert speeds == ["8 ms (p99 9)", "2 ms (p99 2.5) · 4.00× FP32", "2.5 ms · 3.20× FP32"]
        said = page.locator("#basis").inner_text()
        assert "measured on NVIDIA L4 (compute capability 8.9) with tensorrt 8.6.1, weak typing" in said
        assert page.get_by_role("tab", selected=True).inner_text() == "Weak typing"
        details = page.locator("#details-body").inner_text()
        assert "0.125 ms in INT8" in details
        assert "int8, unproven" in details
        assert "unproven" in row_of(page, culprit).inner_text()
        assert page.locator("#table-head").get_by_text("ms INT8").count() == 1


def test_it_opens_on_what_matters_and_nothing_can_go_out(tab, strange_run, report):
    with tab.shown(strange_run / "report.html", height=400) as page:
        assert_plots_wait_until_they_are_near(page)
        assert asked_others(tab.watched, strange_run / "report.html") == []
        assert tab.watched.requests != []
        assert tab.watched.complaints == []
        names = names_in_table(page)
        quantizable = [row for row in report.layers if row.quantizable]
        [culprit] = [row for row in quantizable if row.culprit]
        assert page.get_by_role("tab", selected=True).inner_text() == "Strong typing"
        assert len(names) == len(quantizable) < len(report.layers)
        assert names[0] == culprit.name
        assert selected(page) == {"panel": culprit.name, "table": culprit.name, "curve": culprit.index}
        others = {row.name: row.loss for row in quantizable if not row.culprit}
        assert [others[name] for name in names[1:]] == sorted(others.values(), reverse=True)
        assert_nothing_can_go_out(page)
        tab.watched.complaints.clear()
        tab.watched.requests.clear()


def assert_plots_wait_until_they_are_near(page) -> None:
    """They take no other room then, a link to them works, and on paper all are drawn."""
    places = "() => [...document.querySelectorAll('main > section')].map(section => section.offsetTop)"
    before = page.evaluate(places)
    plots = page.locator("main .plot:visible")
    assert plots.evaluate_all("plots => plots.map(plot => plot.childElementCount)") == [0, 0]
    assert page.evaluate("typeof Plotly") == "undefined"
    page.locator("nav a[href='#inputs']").click()
    page.wait_for_function("() => document.querySelector('#inputs-plot').layout")
    assert page.locator("#curve-plot").evaluate("plot => plot.childElementCount") == 0
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert 0 not in plots.evaluate_all("plots => plots.map(plot => plot.childElementCount)")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(places) == before


def assert_nothing_can_go_out(page) -> None:
    """The page's policy holds up requests, images and scripts that somebody puts into it."""
    heard = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with answering(Listener) as address:
        failed = page.evaluate(
            """async address => {
              const refused = await fetch(address + '/fetch').then(() => false, () => true);
              const image = new Image(); image.src = address + '/image';
              await new Promise(done => { image.onerror = done; image.onload = done; });
              const script = document.createElement('script'); script.textContent = 'window.injected = 1';
              document.body.append(script);
              return [refused, window.injected === undefined];
            }""",
            address,
        )
    assert failed == [True, True]
    assert heard == []
