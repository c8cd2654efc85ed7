"""The page in a real Chromium: it opens from a file, asks nobody for anything, and does what is clicked and typed."""

from __future__ import annotations

import http.server
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
import pytest

import trt_bisect
from tests.support import networks, pages
from tests.support.browser import open_page
from trt_bisect import Report
from trt_bisect.report.page.data import page_data, recipe_texts
from trt_bisect.report.page.render import render_page
from trt_bisect.results.answer import Held

LOOKS = {"light": "light", "dark": "dark"}
READABLE = 4.5
"""The contrast that WCAG 2.2 AA asks of text."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run on a network with skip connections, strange names and one culprit."""
    place = tmp_path_factory.mktemp("strange")
    model, _ = pages.strange_network(place)
    pages.run_on(model, place / "run", samples=2)
    return place / "run"


@pytest.fixture(scope="module")
def report(folder):
    return pages.read(folder)


@pytest.fixture(scope="module")
def opened(browser, folder):
    """The page of ``folder``, for the tests that leave it as it was."""
    watched = open_page(browser, folder / "report.html")
    spread_out(watched.page)
    yield watched
    watched.page.context.close()


@pytest.fixture
def fresh(browser, folder):
    """The page of ``folder``, for one test; it must not complain."""
    watched = open_page(browser, folder / "report.html")
    spread_out(watched.page)
    yield watched.page
    assert watched.complaints == []
    watched.page.context.close()


@contextmanager
def shown(browser, page: Path, **context):
    """Another page, closed again; it must not complain, nor ask for anything but itself."""
    watched = open_page(browser, page, **context)
    yield watched.page
    assert watched.complaints == []
    assert asked_others(watched, page) == []
    watched.page.context.close()


def asked_others(watched, page: Path) -> list[str]:
    """The requests of a page but for itself and the worker that it makes out of its own text."""
    return [url for url in watched.requests if url != page.as_uri() and not url.startswith("blob:null/")]


def in_order(page) -> None:
    """Has the table show all layers, in the order of execution."""
    page.get_by_label("Show", exact=True).select_option("all")
    page.locator("#table-head [data-key=index]").click()


def spread_out(page) -> None:
    """Has the table show all layers in order, and the graph unfold all groups."""
    in_order(page)
    page.get_by_role("button", name="Unfold", exact=True).click()
    page.wait_for_function("() => !document.querySelector('#graph .node.group')")


def names_in_table(page) -> list[str]:
    return page.locator("#table-body .name").all_inner_texts()


def row_of(page, name: str):
    return page.locator("#table-body [role=row]").filter(has=page.get_by_text(name, exact=True))


def selected(page) -> dict[str, str | None]:
    """What each part of the page says is selected, once the graph has caught up."""
    name = page.locator("#details-body .layer-name").text_content() if page.locator(".layer-name").count() else None
    page.wait_for_function(
        "name => (document.querySelector('#graph .selected')?.dataset.layer ?? null) === name", arg=name
    )
    in_table = page.locator('#table-body [aria-selected="true"] .name')
    return {
        "panel": name,
        "table": in_table.text_content() if in_table.count() else None,
        "curve": page.evaluate(
            "document.querySelector('#curve-plot').layout.shapes.find(s => s.name === 'selected')?.x0 ?? null"
        ),
    }


# What it asks for, and what it shows at first.


def test_it_asks_nobody_for_anything(opened, folder):
    assert asked_others(opened, folder / "report.html") == []
    assert opened.complaints == []


def test_nothing_can_go_out(browser, folder):
    heard = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with serving(Listener) as address:
        page = open_page(browser, folder / "report.html").page
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
        page.context.close()
    assert failed == [True, True]
    assert heard == []


def test_the_verdict(opened, report):
    page = opened.page
    assert page.locator("h1").inner_text() == page.evaluate(
        "JSON.parse(document.querySelector('#data').textContent).headline"
    )
    figures = [page.locator(f'[data-plan="{plan}"] .figure').inner_text() for plan in ("fp32", "int8", "recipe")]
    expected = [100.0, 100 * report.similarity["int8"], 100 * report.similarity["recipe"]]
    assert figures == [pages.percent(value / 100, report.threshold) for value in expected]
    basis = page.locator("#basis").inner_text()
    assert "emulated" in basis
    assert f"onnxruntime {report.versions['onnxruntime']}" in basis


def test_the_culprit_is_selected_at_first(opened, report):
    (culprit,) = report.culprits
    row = next(row for row in report.layers if row.name == culprit)
    assert selected(opened.page) == {"panel": culprit, "table": culprit, "curve": row.index}


def test_strange_names_are_text(opened, report):
    page = opened.page
    assert set(pages.STRANGE) <= {row.name for row in report.layers}
    assert names_in_table(page) == [row.name for row in report.layers]
    labels = page.locator("#graph [data-layer]").evaluate_all("nodes => nodes.map(node => node.dataset.layer)")
    assert set(labels) == {row.name for row in report.layers}
    assert page.locator("img, iframe, b, main a[href^=javascript]").count() == 0
    assert page.evaluate("window.injected") is None


def test_strange_names_are_text_in_a_plots_hover(fresh, report):
    hovered(fresh, next(row for row in report.layers if row.culprit))
    text = fresh.locator("#curve-plot .hoverlayer").text_content()
    (culprit,) = report.culprits
    assert culprit in text


def hovered(page, row) -> None:
    place = page.evaluate(
        """index => {
          const plot = document.querySelector('#curve-plot');
          plot.scrollIntoView({ behavior: 'instant', block: 'center' });
          for (const [number, trace] of plot.data.entries()) {
            const place = trace.mode === 'markers' ? trace.x.indexOf(index) : -1;
            if (place < 0) continue;
            const box = plot.getBoundingClientRect();
            const axis = trace.yaxis === 'y2' ? plot._fullLayout.yaxis2 : plot._fullLayout.yaxis;
            const x = plot._fullLayout.xaxis;
            return [box.x + x._offset + x.d2p(index), box.y + axis._offset + axis.d2p(trace.y[place])];
          }
        }""",
        row.index,
    )
    page.mouse.move(place[0] - 30, place[1] - 30)
    page.mouse.move(*place)
    page.wait_for_selector("#curve-plot .hoverlayer .hovertext")


def test_what_a_gpu_measured(browser, folder, report, tmp_path):
    (culprit,) = report.culprits
    plans = {"fp32": (8.0, 9.0), "fp16": (4.0, 4.5), "int8": (2.0, 2.5), "recipe": (2.5, 2.75)}
    timed = {
        plan: {"mean_ms": mean, "median_ms": mean, "p99_ms": p99, "runs": 100, "layers": []}
        for plan, (mean, p99) in plans.items()
    }
    timed["int8"]["layers"] = [{"name": "fused", "layers": [culprit, "block1.add"], "milliseconds": 0.125}]
    measured = replace(
        report,
        engine="tensorrt",
        typing="weak",
        arithmetic="measured",
        versions={"trt_bisect": "1", "tensorrt": "10.9.0", "device": "NVIDIA L4 (compute capability 8.9)"},
        latency=timed,
        layers=tuple(replace(row, ran="region") if row.culprit else row for row in report.layers),
    )
    with shown(browser, pages.written(copied(folder, tmp_path), measured)) as page:
        speeds = [page.locator(f'[data-plan="{plan}"] .speed').inner_text() for plan in ("fp32", "int8", "recipe")]
        assert speeds == ["8 ms (p99 9)", "2 ms (p99 2.5) · 4.00× FP32", "2.5 ms (p99 2.75) · 3.20× FP32"]
        said = page.locator("#basis").inner_text()
        assert "measured on NVIDIA L4 (compute capability 8.9) with tensorrt 10.9.0, weak typing" in said
        details = page.locator("#details-body").inner_text()
        assert "0.125 ms in INT8" in details
        assert "int8, unproven, in a region" in details
        assert "unproven" in row_of(page, culprit).inner_text()
        assert page.locator("#table-head").get_by_text("ms INT8").count() == 1


# The curve.


def test_the_curve_has_every_layer_once(opened, report):
    traces = opened.page.evaluate("document.querySelector('#curve-plot').data.map(t => [t.mode, t.x, t.y])")
    marked = sorted(x for mode, xs, _ in traces if mode == "markers" for x in xs)
    assert marked == [row.index for row in report.layers if row.quantizable]
    heights = {x: y for mode, xs, ys in traces if mode == "markers" for x, y in zip(xs, ys, strict=True)}
    for row in report.layers:
        if row.quantizable and 1 - row.similarity > 1e-6:
            assert heights[row.index] == pytest.approx(1 - row.similarity, rel=1e-6)


def test_the_log_scale_can_be_switched(fresh, report):
    assert fresh.evaluate("document.querySelector('#curve-plot').layout.yaxis.type") == "log"
    fresh.get_by_label("log scale").uncheck()
    traces = fresh.evaluate("document.querySelector('#curve-plot').data.map(t => [t.mode, t.x, t.y])")
    heights = {x: y for mode, xs, ys in traces if mode == "markers" for x, y in zip(xs, ys, strict=True)}
    assert heights == {row.index: row.similarity for row in report.layers if row.quantizable}


def test_a_click_in_the_curve_selects(fresh, report):
    row = next(row for row in report.layers if row.quantizable and not row.culprit)
    hovered(fresh, row)
    fresh.mouse.down()
    fresh.mouse.up()
    fresh.wait_for_function("name => document.querySelector('.layer-name').textContent === name", arg=row.name)
    assert selected(fresh)["table"] == row.name


# The table.


def test_it_sorts(fresh, report):
    fresh.locator("#table-head [data-key=drop]").click()
    drops = sorted((row.drop for row in report.layers if row.drop is not None), reverse=True)
    by_name = {row.name: row.drop for row in report.layers}
    assert [by_name[name] for name in names_in_table(fresh)][: len(drops)] == drops
    assert fresh.locator('#table-head [aria-sort="descending"]').inner_text().startswith("Drop")
    fresh.locator("#table-head [data-key=drop]").click()
    assert [by_name[name] for name in names_in_table(fresh)][: len(drops)] == drops[::-1]
    fresh.locator("#table-head [data-key=name]").click()
    assert sorted(names_in_table(fresh)) == sorted(by_name)


def test_it_filters(fresh, report):
    fresh.get_by_label("Show", exact=True).select_option("culprits")
    assert names_in_table(fresh) == list(report.culprits)
    fresh.get_by_label("Show", exact=True).select_option("all")
    fresh.get_by_label("Op", exact=True).select_option("Conv")
    assert names_in_table(fresh) == [row.name for row in report.layers if row.op_type == "Conv"]


def test_it_searches(fresh, report):
    fresh.locator("body").press("/")
    fresh.keyboard.type("BLOCK2")
    found = [row.name for row in report.layers if "block2" in row.name]
    assert found
    assert names_in_table(fresh) == found
    assert fresh.locator("#table-count").inner_text() == f"{len(found)} of {len(report.layers)} layers"
    assert fresh.locator("#graph .missed").count() == len(report.layers) - len(found)
    fresh.keyboard.press("Enter")
    assert selected(fresh)["panel"] in found
    fresh.keyboard.press("Escape")
    assert names_in_table(fresh) == [row.name for row in report.layers]


def test_it_says_when_nothing_is_found(fresh):
    fresh.locator("#search").fill("no layer has this name")
    assert fresh.locator("#table-empty").is_visible()
    assert fresh.locator("#hits").inner_text() == "No layer matches."


def test_it_goes_by_keyboard(fresh, report):
    table = fresh.locator("#table")
    table.focus()
    fresh.keyboard.press("Home")
    fresh.keyboard.press("ArrowDown")
    fresh.keyboard.press("ArrowDown")
    active = fresh.locator("#" + table.get_attribute("aria-activedescendant"))
    assert active.locator(".name").inner_text() == report.layers[2].name
    fresh.keyboard.press("Enter")
    assert selected(fresh) == {"panel": report.layers[2].name, "table": report.layers[2].name, "curve": 2}
    fresh.keyboard.press("Escape")
    assert selected(fresh) == {"panel": None, "table": None, "curve": None}


def test_thousands_of_rows_are_not_thousands_of_elements(browser, folder, report, tmp_path):
    long = pages.long_report(report, 3000)
    with shown(browser, pages.written(tmp_path, long), ready="plots") as page:
        in_order(page)
        assert page.locator("#table").get_attribute("aria-rowcount") == "3001"
        assert page.locator("#table-body [role=row]").count() < 100
        page.locator("#table").focus()
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        page.wait_for_function(
            "name => document.querySelector('.layer-name').textContent === name", arg=long.layers[-1].name
        )
        assert names_in_table(page)[-1] == long.layers[-1].name


def test_it_opens_on_what_matters(browser, folder, report):
    with shown(browser, folder / "report.html") as page:
        names = names_in_table(page)
        quantizable = [row for row in report.layers if row.quantizable]
        assert len(names) == len(quantizable) < len(report.layers)
        assert names[0] == report.culprits[0]
        others = {row.name: row.drop for row in quantizable if not row.culprit}
        assert [others[name] for name in names[1:]] == sorted(others.values(), reverse=True)


def test_columns_of_names_stay_and_the_ring_is_whole(browser, folder):
    with shown(browser, folder / "report.html", viewport={"width": 900, "height": 900}) as page:
        table = page.locator("#table")
        places = "table => [...table.querySelectorAll('.name')].map(cell => cell.getBoundingClientRect().x)"
        before = table.evaluate(places)
        table.evaluate("table => { table.scrollLeft = 300 }")
        assert table.evaluate("table => table.scrollLeft") == 300
        assert table.evaluate(places) == before
        assert len(set(before)) == 1, "title and cells of a column stand under each other"
        page.locator("#search").focus()
        page.keyboard.press("Tab")
        table.focus()
        page.keyboard.press("ArrowDown")
        rings = page.locator("#table-body .cursor > *").evaluate_all(
            "cells => cells.map(cell => getComputedStyle(cell).boxShadow)"
        )
        assert all(ring != "none" for ring in rings)


def test_a_phone_sees_name_verdict_and_drop(browser, folder):
    with shown(browser, folder / "report.html", viewport={"width": 390, "height": 800}) as page:
        heads = page.locator("#table-head [role=columnheader]")
        assert [text.split()[0] for text in heads.all_inner_texts()] == ["Layer", "Verdict", "Drop"]
        table = page.locator("#table")
        assert table.evaluate("table => table.scrollWidth <= table.clientWidth")


def test_the_search_drops_down_its_hits(browser, folder, report):
    with shown(browser, folder / "report.html") as page:
        page.locator("body").press("/")
        page.keyboard.type("Block2")
        hits = page.locator("#hits [data-place]")
        found = [row for row in report.layers if "block2" in row.name]
        assert sorted(hits.locator(".hit-name").all_inner_texts()) == sorted(row.name for row in found)
        assert set(hits.locator("mark").all_inner_texts()) == {"block2"}
        page.keyboard.press("ArrowDown")
        active = page.locator("#" + page.locator("#search").get_attribute("aria-activedescendant"))
        name = active.locator(".hit-name").inner_text()
        assert name == hits.nth(1).locator(".hit-name").inner_text()
        page.keyboard.press("Enter")
        assert page.locator("#details-body .layer-name").inner_text() == name
        assert not page.locator("#hits").is_visible()
        page.keyboard.press("Enter")
        assert page.locator("#details-body .layer-name").inner_text() != name
        page.locator("#search").fill("block2.conv1")
        hits.first.click()
        assert page.locator("#details-body .layer-name").inner_text() == "block2.conv1"


FIGURES = {
    0.2997595: "30.0%",
    0.9966012: "99.66%",
    0.99999763: "99.9998%",
    1.0: "100%",
    0.0: "0%",
    0.99: "99%",
    0.98996: "98.996%",
}


@pytest.mark.parametrize("value", FIGURES)
def test_figures_have_the_digits_that_matter(browser, report, tmp_path, value):
    """0.98996 is written with as many as tell that it is below 99 %."""
    page_file = tmp_path / "report.html"
    figures = {**report.similarity, "int8": value}
    page_file.write_text(render_page(page_data(replace(report, similarity=figures, threshold=0.99))))
    with shown(browser, page_file, ready="usable") as page:
        assert page.locator('[data-plan="int8"] .figure').inner_text() == FIGURES[value]


# The graph.


def test_a_wide_graph_goes_from_left_to_right_in_rows(opened, folder):
    """An edge within a row goes to the right; no row is longer than the canvas at a scale that can be read."""
    boxes = dict(
        opened.page.locator("#graph [data-layer]").evaluate_all(
            """nodes => nodes.map(node => {
              const { x, y, width, height } = node.querySelector('.box').getBBox();
              const [, left, top] = /translate\\(([-.0-9e]+),([-.0-9e]+)/.exec(node.getAttribute('transform'));
              return [node.dataset.layer, [Number(left), Number(top), width, height]];
            })"""
        )
    )
    network = json.loads((folder / "network.json").read_text())
    makers = {name: layer["name"] for layer in network["layers"] for name in layer["outputs"]}
    edges = [(makers[name], layer["name"]) for layer in network["layers"] for name in layer["inputs"] if name in makers]
    forwards = sum(boxes[one][0] < boxes[other][0] for one, other in edges)
    assert forwards > 0.7 * len(edges)
    assert all(boxes[one][0] < boxes[other][0] or boxes[one][1] < boxes[other][1] for one, other in edges)
    width = opened.page.locator("#graph").evaluate("graph => graph.clientWidth")
    assert max(left + wide for left, _, wide, _ in boxes.values()) <= width / 0.62 + 60


def test_a_folded_group_names_its_culprit(browser, folder, report):
    with shown(browser, folder / "report.html") as page:
        page.get_by_role("button", name="Fold all").click()
        page.wait_for_function("() => !document.querySelector('#graph .fold')")
        [culprit] = report.culprits
        chip = page.locator("#graph .hidden-culprit")
        if chip.count():
            assert chip.get_attribute("data-layer") == culprit
        assert selected(page)["panel"] == culprit


def test_the_graph_has_every_edge_of_the_network(opened, folder):
    model = onnx.load(str(folder.parent / "strange.onnx"))
    makers = {name: node.name for node in model.graph.node for name in node.output}
    makers |= {value.name: value.name for value in model.graph.input}
    wanted = {(makers[name], node.name) for node in model.graph.node for name in node.input if name in makers}
    wanted |= {(makers[value.name], value.name) for value in model.graph.output}
    assert opened.page.locator("#graph .edge").count() == len(wanted)


def test_nodes_do_not_overlap(opened):
    boxes = opened.page.locator("#graph .node > .box").evaluate_all(
        "boxes => boxes.map(box => box.getBoundingClientRect()).map(({ x, y, width, height }) => [x, y, width, height])"
    )
    for place, (x, y, width, height) in enumerate(boxes):
        for left, top, wide, high in boxes[:place]:
            assert x + width <= left or left + wide <= x or y + height <= top or top + high <= y


def test_a_click_in_the_graph_selects(fresh, report):
    row = next(row for row in report.layers if row.name == "block1.conv1")
    fresh.locator('#graph [data-layer="block1.conv1"]').click()
    assert selected(fresh) == {"panel": row.name, "table": row.name, "curve": row.index}


def test_the_panel_says_what_the_network_says(fresh, folder):
    row_of(fresh, "block1.conv1").click()
    panel = fresh.locator("#details-body")
    panel.get_by_text("Attributes").wait_for()
    facts = json.loads((folder / "network.json").read_text())
    layer = next(layer for layer in facts["layers"] if layer["name"] == "block1.conv1")
    text = panel.inner_text()
    for name, value in layer["attributes"].items():
        assert name in text
        assert value in text
    for tensor in (*layer["inputs"], *layer["outputs"]):
        assert tensor in text
    scale = facts["tensors"][layer["inputs"][0]]["scale"]
    assert f"scale {float(f'{scale:.4g}'):.4g}" in text


def test_histograms_are_the_explanations(fresh, folder, report):
    (culprit,) = report.culprits
    explained = json.loads((folder / "explanation.json").read_text())["layers"][culprit]
    (weight,) = explained["weights"]
    fresh.wait_for_selector("#details-body .plot .main-svg")
    drawn = fresh.locator("#details-body .plot").evaluate_all(
        "plots => plots.map(plot => plot.data.map(trace => trace.y))"
    )
    counts = [[size or None for size in weight["histogram"][run]] for run in ("fp32", "int8")]
    assert counts in drawn
    spans = [
        pytest.approx(high - low)
        for low, high in zip(weight["channels"]["min"], weight["channels"]["max"], strict=True)
    ]
    assert any(len(traces) == 1 and traces[0] == spans for traces in drawn)


def test_groups_fold_and_unfold(browser, folder, report, tmp_path):
    grouped = network_of_groups(tmp_path)
    with shown(browser, grouped / "report.html") as page:
        folded = page.locator("#graph .node.group")
        assert folded.count() > 0
        page.get_by_role("button", name="Fold all").click()
        page.wait_for_function("() => !document.querySelector('#graph .frame, #graph .fold')")
        inside = folded.first.get_attribute("data-id")
        before = page.locator("#graph .node").count()
        folded.first.click()
        page.wait_for_function("count => document.querySelectorAll('#graph .node').length > count", arg=before)
        page.locator(f'#graph .fold[data-id="{inside}"]').click()
        page.wait_for_function("count => document.querySelectorAll('#graph .node').length === count", arg=before)
        page.get_by_role("button", name="Unfold", exact=True).click()
        page.wait_for_function("count => document.querySelectorAll('#graph .layer').length > count", arg=100)


def network_of_groups(folder: Path) -> Path:
    """A run on 48 residual blocks, named in stages: more than are drawn at once. Full INT8 meets the threshold."""
    model = networks.residual(blocks=48)
    for node in model.graph.node:
        block = re.match(r"block(\d+)\.(.*)", node.name)
        if block:
            node.name = f"/stage{int(block[1]) // 12}/block{block[1]}/{block[2]}"
    path = folder / "grouped.onnx"
    onnx.save(model, str(path))
    pages.run_on(path, folder / "run", threshold=0.99, curve="culprits", explain="none")
    return folder / "run"


def test_what_is_selected_is_unfolded(browser, tmp_path):
    with shown(browser, network_of_groups(tmp_path) / "report.html") as page:
        page.get_by_role("button", name="Fold all").click()
        page.wait_for_function("() => !document.querySelector('#graph .fold')")
        name = "/stage2/block30/conv1"
        page.locator("#search").fill(name)
        row_of(page, name).click()
        assert selected(page)["panel"] == name
        inside = page.locator("#graph .selected .box").bounding_box()
        around = page.locator("#graph").bounding_box()
        assert around["x"] <= inside["x"] <= around["x"] + around["width"]
        assert around["y"] <= inside["y"] <= around["y"] + around["height"]


@pytest.mark.parametrize("shade", ["drop", "similarity"])
def test_nodes_are_coloured(fresh, report, shade):
    fresh.get_by_label("Colour").select_option(shade)
    (culprit,) = report.culprits
    heat = "element => element.style.getPropertyValue('--heat')"
    nodes = fresh.locator("#graph .node.heated")
    assert nodes.count() == sum(row.quantizable for row in report.layers)
    heats = dict(nodes.evaluate_all(f"nodes => nodes.map(node => [node.dataset.layer, ({heat})(node)])"))
    assert heats[culprit] == "100%"
    assert (
        heats["block0.conv1" if "block0.conv1" in heats else next(name for name in heats if name != culprit)] != "100%"
    )


def test_the_graph_zooms_and_goes_by_keyboard(fresh):
    transform = "document.querySelector('#graph > g').getAttribute('transform')"
    before = fresh.evaluate(transform)
    fresh.get_by_role("button", name="Zoom in").click()
    assert fresh.evaluate(transform) != before
    node = fresh.locator("#graph [tabindex='0']")
    assert node.get_attribute("data-layer") == selected(fresh)["panel"]
    node.focus()
    fresh.keyboard.press("ArrowDown")
    assert fresh.evaluate("document.activeElement.getAttribute('aria-label')") == "block2, fold"
    fresh.keyboard.press("ArrowDown")
    name = fresh.evaluate("document.activeElement.dataset.layer")
    assert name == "block2.conv1"
    fresh.keyboard.press("Enter")
    assert selected(fresh)["panel"] == name


# The recipe, advice, inputs.


def test_the_recipe_is_copied(browser, folder):
    watched = open_page(browser, folder / "report.html", permissions=["clipboard-read", "clipboard-write"])
    page = watched.page
    for tab, name in (("Weak typing", "trtexec.flags"), ("ModelOpt", "modelopt_nodes_to_exclude.json")):
        page.get_by_role("tab", name=tab).click()
        page.get_by_role("button", name="Copy file").click()
        page.get_by_role("button", name="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == (folder / "recipe" / name).read_text()
    page.keyboard.press("Tab")
    page.get_by_role("tab", name="ModelOpt").press("ArrowRight")
    assert page.get_by_role("tab", selected=True).inner_text() == "Plan"
    assert "plan.json" in page.locator("#recipe-panel").inner_text()
    page.context.close()


def test_the_recipe_is_copied_where_there_is_no_clipboard(browser, folder):
    """As over plain HTTP: only the old way is left, which needs the text selected."""
    watched = open_page(browser, folder / "report.html")
    page = watched.page
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.evaluate("document.addEventListener('copy', () => { window.copied = String(document.activeElement.value); })")
    page.get_by_role("tab", name="Weak typing").click()
    page.get_by_role("button", name="Copy file").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("window.copied") == (folder / "recipe" / "trtexec.flags").read_text()
    page.context.close()


@pytest.mark.parametrize(("engine", "version", "tab"), [
    ("onnxruntime", None, "Strong typing"),
    ("tensorrt", "10.9.0", "Weak typing"),
    ("tensorrt", "10.12.0", "Strong typing"),
    ("tensorrt", "8.6.1", "Weak typing"),
])  # fmt: skip
def test_the_first_form_of_the_recipe_is_that_of_the_users_tensorrt(
    browser, folder, report, tmp_path, engine, version, tab
):
    versions = {**report.versions, **({"tensorrt": version} if version else {})}
    measured = replace(report, engine=engine, typing="weak" if version else "strong", versions=versions)
    data = page_data(measured, recipe=recipe_texts(folder / "recipe"), folder="my run")
    page_file = tmp_path / "report.html"
    page_file.write_text(render_page(data))
    with shown(browser, page_file, ready="plots") as page:
        assert page.get_by_role("tab", selected=True).inner_text() == tab
        command = page.locator("#recipe-panel .command code").inner_text()
        expected = {
            "Strong typing": "trtexec '--onnx=my run/recipe/network.qdq.onnx' --stronglyTyped",
            "Weak typing": "(cd 'my run/recipe' && grep -v '^#' trtexec.flags | xargs trtexec --onnx=network.onnx)",
        }
        assert command == expected[tab]


def test_what_to_do_is_grouped_by_cause(opened, folder, report):
    explanation = json.loads((folder / "explanation.json").read_text())
    cards = opened.page.locator("article.advice:not(.everywhere)")
    assert cards.count() == len(explanation["causes"]) == 1
    [cause], [advice] = explanation["causes"], explanation["advice"]
    text = cards.first.text_content()
    assert cause["words"] in text
    assert report.culprits[0] in text
    assert advice["evidence"] in text
    for remedy in cause["remedies"]:
        assert remedy["remedy"] in text
    measured = opened.page.locator(".everywhere tbody tr, article.advice tbody tr")
    assert measured.count() == len(cause["measured"])


def test_a_cause_names_all_its_culprits(browser, folder, report, tmp_path):
    some = [row.name for row in report.layers if row.quantizable][:3]
    layers = tuple(replace(row, culprit=row.name in some) for row in report.layers)
    tried = {
        "remedy": "r",
        "culprits": some[:2],
        "what": "99.9 for these",
        "similarity": 0.98,
        "meets": False,
        "high": 1,
        "cost": 0.05,
    }
    causes = [
        {"cause": "a", "culprits": some[:2], "words": "entropy clips 2 %", "measured": [tried], "remedies": []},
        {"cause": "b", "culprits": some[2:], "words": "one channel", "measured": [], "remedies": []},
    ]
    page_file = tmp_path / "report.html"
    data = page_data(replace(report, layers=layers, culprits=tuple(some)), explanation={"causes": causes, "advice": []})
    page_file.write_text(render_page(data))
    with shown(browser, page_file, ready="plots") as page:
        titles = page.locator("article.advice h3").all_inner_texts()
        assert titles == ["2 of 3 culprits: entropy clips 2 %", "1 of 3 culprits: one channel"]
        assert page.locator("article.advice").first.locator("tbody td").all_inner_texts() == [
            "99.9 for these", "98%", "misses", "1", "5%"
        ]  # fmt: skip
        page.locator("article.advice button.link").nth(1).click()
        assert page.locator("#details-body .layer-name").inner_text() == some[1]
        page.locator("body").press("n")
        assert page.locator("#details-body .layer-name").inner_text() == some[2]
        page.locator("#details").get_by_role("button", name="Next culprit").click()
        assert page.locator("#details-body .layer-name").inner_text() == some[0]


def test_several_inputs(browser, tmp_path, lenet):
    report = trt_bisect.run(
        lenet / "lenet_planted.onnx", lenet / "calibration.npz", engine="onnxruntime", output=tmp_path, explain="none"
    )
    with shown(browser, tmp_path / "report.html") as page:
        int8, recipe = page.evaluate("document.querySelector('#inputs-plot').data.slice(0, 2).map(trace => trace.y)")
        assert recipe == sorted(report.by_input["recipe"]["values"])
        by_recipe = sorted(zip(*(report.by_input[plan]["values"] for plan in ("recipe", "int8")), strict=True))
        assert sorted(int8) == pytest.approx(sorted(value for _, value in by_recipe))
        assert int8[0] == pytest.approx(by_recipe[0][1])
        worst = page.locator("#inputs-table tbody tr").first.locator("td").all_inner_texts()
        assert worst[0] == report.answer.given.worst_input
        assert worst[2:] == [pages.percent(value, report.threshold) for value in by_recipe[0]]


# Reports that are not whole.


def test_failed_layers_are_gaps_with_their_message(browser, folder, report, tmp_path):
    folder = copied(folder, tmp_path)
    rows = [4, 5, 12]
    assert all(report.layers[k].quantizable and not report.layers[k].culprit for k in rows)
    page_file = pages.rewritten(folder, lambda row: pages.failed(row) if row.index in rows else row)
    with shown(browser, page_file) as page:
        bands = page.evaluate("document.querySelector('#curve-plot').layout.shapes.filter(s => s.type === 'rect')")
        assert [(band["x0"], band["x1"]) for band in bands] == [(3.5, 5.5), (11.5, 12.5)]
        line = page.evaluate("document.querySelector('#curve-plot').data[0]")
        assert {x for x, y in zip(line["x"], line["y"], strict=True) if y is None} == set(rows)
        hovered(page, report.layers[rows[0]])
        assert "Error Code 10: <no kernel>" in page.locator("#curve-plot .hoverlayer").text_content()
        page.get_by_label("Show", exact=True).select_option("failed")
        assert names_in_table(page) == [report.layers[k].name for k in rows]
        page.locator("#table-body [role=row]").first.click()
        assert page.locator("#details-body .message").inner_text() == "Error Code 10: <no kernel>"


def copied(folder: Path, place: Path) -> Path:
    for name in ("report.json", "network.json", "explanation.json"):
        (place / name).write_bytes((folder / name).read_bytes())
    return place


def test_layers_that_were_not_tried_are_not_drawn(browser, tmp_path):
    model, _ = pages.strange_network(tmp_path)
    report = pages.run_on(model, tmp_path / "run", strategy="bisect", explain="none")
    untried = [row.index for row in report.layers if row.outcome == "not tried"]
    assert untried
    with shown(browser, tmp_path / "run" / "report.html") as page:
        traces = page.evaluate("document.querySelector('#curve-plot').data.map(t => [t.mode, t.x])")
        marked = {x for mode, xs in traces if mode == "markers" for x in xs}
        assert marked == {row.index for row in report.layers if row.quantizable} - set(untried)
        assert f"not tried ({len(untried)})" in page.locator("#curve-legend").inner_text()
        row_of(page, report.layers[untried[0]].name).click()
        assert "not tried" in page.locator("#details-body").inner_text()


@pytest.mark.parametrize("metric", ["sqnr", "mse", "top1", "kl"])
def test_other_metrics(browser, tmp_path, metric):
    model, _ = pages.strange_network(tmp_path)
    threshold = {"mse": 1e-9}.get(metric)
    report = pages.run_on(model, tmp_path / "run", metric=metric, threshold=threshold, explain="none")
    with shown(browser, tmp_path / "run" / "report.html") as page:
        is_log = page.evaluate("document.querySelector('#curve-plot').layout.yaxis.type") == "log"
        assert is_log == (metric != "sqnr")
        assert page.get_by_label("log scale").is_visible() == (metric != "sqnr")
        shown_figure = page.locator('[data-plan="int8"] .figure').inner_text()
        number = float(shown_figure.removesuffix("%").removesuffix(" dB"))
        value = report.similarity["int8"] * (100 if metric == "top1" else 1)
        assert number == pytest.approx(value, rel=1e-2)


def test_figures_that_are_not_finite(browser, folder, report, tmp_path):
    folder = copied(folder, tmp_path)
    nothing = replace(report, similarity={"int8": None, "recipe": None}, exit_code=3, culprits=())
    layers = tuple(
        replace(row, similarity=None, drop=None, sqnr=None, outcome="not finite", message="NaN", culprit=False)
        for row in report.layers
    )
    with shown(browser, pages.written(folder, replace(nothing, layers=layers))) as page:
        assert page.locator('[data-plan="int8"] .figure').inner_text() == "–"
        assert "NaN" not in page.locator("#table").inner_text()


@pytest.mark.parametrize("missing", ["graph", "explanation", "recipe", "layers", "everything"])
def test_parts_may_be_missing(browser, folder, report, tmp_path, missing):
    data = page_data(report, json.loads((folder / "network.json").read_text()), None, {"a.txt": "x"})
    if missing == "layers":
        data["report"]["layers"] = []
    elif missing == "everything":
        data = {"report": {"model": "m", "versions": {}}, "headline": "Nothing yet", "status": "running"}
    else:
        data[missing] = None
    page_file = tmp_path / "report.html"
    page_file.write_text(render_page(data))
    has_graph = missing in ("explanation", "recipe")
    with shown(browser, page_file, ready="graph" if has_graph else "plots") as page:
        page.wait_for_timeout(300)
        assert page.locator("#graph-box").is_visible() == has_graph


# The answer.

OLD = Path(__file__).parents[1] / "files" / "report-1" / "report.json"


@pytest.fixture(scope="module")
def answered(report) -> Report:
    """The report with unseen inputs, a doubt, a suspect, and another set that will do."""
    figures = {"data/b.npz 0": 0.9, "data/b.npz 1": 0.9999}
    answer = replace(
        report.answer,
        unseen=Held("b.npz", 2, 1, 0.9, "data/b.npz 0", 0.95, 0.91, figures),
        equals=(("first", "second"),),
        doubts=("output 'y' is clipped at 25.0%",),
    )
    suspect = next(row for row in report.layers if row.quantizable and not row.culprit)
    layers = tuple(
        replace(row, suspect="later layers cancel its error") if row == suspect else row for row in report.layers
    )
    summary = f"DOUBTED: {answer.doubts[0]}\n{report.summary}"
    return replace(report, answer=answer, layers=layers, summary=summary, next_command="trtexec <b>x</b>")


@pytest.mark.parametrize("width", [390, 1360])
def test_the_answer(browser, folder, answered, tmp_path, width):
    page_file = tmp_path / "report.html"
    page_file.write_text(render_page(page_data(answered, json.loads((folder / "network.json").read_text()))))
    with shown(browser, page_file, viewport={"width": width, "height": 900}) as page:
        assert page.locator("#doubts").inner_text() == "Doubted: output 'y' is clipped at 25.0%"
        assert page.locator("#next .command code").inner_text() == "trtexec <b>x</b>"
        [row] = [row for row in answered.layers if row.culprit]
        cells = page.locator("#culprits tbody td").all_inner_texts()
        figures = [f"{100 * value:#.3g}%" for value in (row.drop, row.gain)]
        assert cells == [row.name, row.op_type, *figures, pages.percent(row.taken_back, answered.threshold), ""]
        unseen = page.locator("#held tbody tr").last.locator("td").all_inner_texts()
        assert unseen == ["unseen", "1 of 2", "95%", "91%", "90%", "data/b.npz 0"]
        worst = page.locator("#inputs-table tbody tr").filter(has_text="unseen").first
        assert worst.locator("td").all_inner_texts()[:3] == ["data/b.npz 0", "unseen", "90%"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_curve_has_lines_for_full_int8_and_the_recipe(opened, report):
    shapes = opened.page.evaluate("document.querySelector('#curve-plot').layout.shapes.filter(s => s.xref === 'paper')")
    heights = [1 - report.threshold, 1 - report.similarity["int8"], 1 - report.similarity["recipe"]]
    assert [shape["y0"] for shape in shapes] == pytest.approx(heights)
    words = " ".join(opened.page.locator("#curve-plot .annotation").all_text_contents())
    for name, value in (("full INT8", report.similarity["int8"]), ("recipe", report.similarity["recipe"])):
        assert f"{name} {pages.percent(value, report.threshold)}" in words


def test_a_suspect_has_its_reason_in_its_row(browser, folder, answered, tmp_path):
    page_file = tmp_path / "report.html"
    page_file.write_text(render_page(page_data(answered)))
    with shown(browser, page_file, ready="plots", viewport={"width": 2600, "height": 900}) as page:
        page.locator("#filter").select_option("suspects")
        [cells] = page.locator("#table-body [role=row]").evaluate_all("rows => rows.map(row => row.innerText)")
        assert "suspect" in cells
        assert "later layers cancel its error" in cells


def test_a_report_of_schema_1(browser, tmp_path):
    old = Report.from_json(json.loads(OLD.read_text()))
    page_file = tmp_path / "report.html"
    page_file.write_text(render_page(page_data(old)))
    with shown(browser, page_file, ready="plots") as page:
        assert page.locator("#doubts").inner_text() == ""
        assert page.locator("#culprits tbody td").first.inner_text() == old.culprits[0]
        assert page.locator("#calibrators, #held").count() == 0
        assert page.locator("#inputs-list").inner_text() != ""


# On other screens, for other eyes, on paper.


@pytest.mark.parametrize("look", LOOKS)
def test_colours_can_be_read(browser, folder, look):
    with shown(browser, folder / "report.html", color_scheme=look) as page:
        assert page.evaluate("document.documentElement.dataset.theme") == look
        names = ("text", "muted", "accent", "culprit", "warn", "good", "high")
        texts = {name: colour(page, name) for name in names}
        grounds = {name: colour(page, name) for name in ("background", "surface")}
        for name, text in texts.items():
            for ground in grounds.values():
                assert contrast(text, ground) >= READABLE, name
        for tint in ("int8-tint", "high-tint", "heat-tint", "row", "chosen"):
            assert contrast(texts["text"], colour(page, tint)) >= READABLE, tint
        assert contrast(texts["culprit"], colour(page, "chosen")) >= READABLE


def colour(page, name: str) -> tuple[float, ...]:
    text = page.evaluate("name => getComputedStyle(document.documentElement).getPropertyValue('--' + name)", name)
    return tuple(int(text.strip()[place : place + 2], 16) / 255 for place in (1, 3, 5))


def contrast(one, other) -> float:
    """WCAG 2.2's contrast ratio of two sRGB colours."""

    def luminance(parts):
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_theme_can_be_switched(fresh):
    ground = "getComputedStyle(document.body).backgroundColor"
    assert fresh.evaluate(ground) == "rgb(255, 255, 255)"
    fresh.get_by_role("button", name="Switch to the dark theme").click()
    assert fresh.evaluate(ground) == "rgb(17, 22, 28)"
    assert fresh.evaluate("document.querySelector('#curve-plot').layout.font.color") == "#e6ebf1"
    fresh.reload()
    assert fresh.evaluate(ground) == "rgb(17, 22, 28)"


@pytest.mark.parametrize("width", [320, 390, 768, 1024])
def test_nothing_is_wider_than_the_screen(browser, folder, width):
    with shown(browser, folder / "report.html", viewport={"width": width, "height": 800}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_tap_on_a_phone_opens_the_layer(browser, folder, report):
    with shown(browser, folder / "report.html", viewport={"width": 390, "height": 800}, has_touch=True) as page:
        assert not page.locator("#details").is_visible()
        page.locator("#table-body [role=row]").first.tap()
        assert page.locator("#details").is_visible()
        assert page.locator("#details .layer-name").inner_text() == report.culprits[0]
        page.get_by_role("button", name="Close").tap()
        assert not page.locator("#details").is_visible()


def test_it_prints(browser, folder, report):
    with shown(browser, folder / "report.html", color_scheme="dark") as page:
        pdf = page.pdf(format="A4")
        assert pdf.startswith(b"%PDF")
        page.emulate_media(media="print")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator("nav").is_visible()
        assert names_in_table(page)[0] == report.culprits[0]
        assert len(names_in_table(page)) == 12
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 3


def test_every_control_has_a_name(opened):
    unnamed = opened.page.evaluate(
        """[...document.querySelectorAll('button, select, input, [role=button], [role=tab], [role=grid]')]
          .filter(element => !element.textContent.trim() && !element.getAttribute('aria-label')
            && !element.labels?.length && !element.getAttribute('aria-labelledby'))
          .map(element => element.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []


# Live.


@contextmanager
def serving(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
        if self.state["broken"]:
            return self.answer(500, "", "text/plain")
        text = json.dumps(self.state["data"])
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


def test_a_live_page_follows_the_run(browser, folder, report):
    graph = json.loads((folder / "network.json").read_text())
    half = len(report.layers) // 2
    blank = tuple(
        replace(row, similarity=None, drop=None, outcome="not tried", culprit=False)
        if row.quantizable and row.index >= half
        else row
        for row in report.layers
    )
    so_far = replace(report, layers=blank, similarity={"int8": None, "recipe": None}, summary="", culprits=())
    progress = {"stage": "Measuring 24 plans", "done": 12, "total": 24, "seconds": 3.0}
    running = page_data(so_far, graph, status="running", progress=progress)
    state = {"data": running, "asked": [], "broken": False}
    with serving(partial(LiveServer, state)) as address:
        watched = open_page(browser, f"{address}/?token=t%2Fk")
        page = watched.page
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
        page.wait_for_function(
            "text => document.querySelector('h1').textContent === text", arg=state["data"]["headline"]
        )
        page.locator("#live.finished").wait_for()
        assert selected(page)["panel"] == name
        assert names_in_table(page) == order
        assert page.locator("#graph .node").count() == drawn
        assert page.locator("#graph .node.culprit").count() == len(report.culprits)
        assert watched.complaints == []
        page.context.close()
    data_asked = [ask for ask in state["asked"] if ask[0] == "/data.json"]
    assert {query for _, query, _ in data_asked} == {"token=t%2Fk"}
    assert any(tag for _, _, tag in data_asked)


def test_a_live_page_says_when_the_server_is_gone(browser, report):
    state = {"data": page_data(report, status="running"), "asked": [], "broken": False}
    with serving(partial(LiveServer, state)) as address:
        page = open_page(browser, address, ready="plots").page
        page.locator("#live.running").wait_for()
        state["broken"] = True
        page.locator("#live.lost").wait_for()
        assert page.locator("#live.running").count() == 0
        state["broken"] = False
        page.locator("#live.running").wait_for()
        assert page.locator("#live.lost").count() == 0
        page.context.close()
