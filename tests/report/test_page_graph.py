"""The network's graph and the layer's panel on a run's page in Chromium."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import trt_bisect
from tests.support import networks, pages
from tests.support.page_parts import plotted, row_of, selected
from tests.support.records import EMPTY
from trt_bisect.report.network_graph import graph_of
from trt_bisect.report.page import page_data
from trt_bisect.report.parts import FAILS, LayerRow


def test_the_graph_has_every_edge_of_the_network_and_goes_from_left_to_right_in_rows(opened, strange_model):
    """An edge within a row goes to the right; no row is longer than the canvas at a scale that can be read."""
    model = onnx.load(str(strange_model))
    makers = {name: node.name for node in model.graph.node for name in node.output}
    makers |= {value.name: value.name for value in model.graph.input}
    edges = {(makers[name], node.name) for node in model.graph.node for name in node.input if name in makers}
    edges |= {(makers[value.name], value.name) for value in model.graph.output}
    assert opened.locator("#graph .edge").count() == len(edges)
    boxes = dict(
        opened.locator("#graph [data-layer]").evaluate_all(
            """nodes => nodes.map(node => {
              const { width } = node.querySelector('.box').getBBox();
              const [, left, top] = /translate\\(([-.0-9e]+),([-.0-9e]+)/.exec(node.getAttribute('transform'));
              return [node.dataset.layer, [Number(left), Number(top), width]];
            })"""
        )
    )
    between = [(boxes[one], boxes[other]) for one, other in edges if one in boxes and other in boxes]
    assert sum(one[0] < other[0] for one, other in between) > 0.7 * len(between)
    assert all(one[0] < other[0] or one[1] < other[1] for one, other in between)
    width = opened.locator("#graph").evaluate("graph => graph.clientWidth")
    assert max(left + wide for left, _, wide in boxes.values()) <= width / 0.62 + 60


def test_nodes_do_not_overlap(opened):
    boxes = opened.locator("#graph .node > .box").evaluate_all(
        "boxes => boxes.map(box => box.getBoundingClientRect()).map(({ x, y, width, height }) => [x, y, width, height])"
    )
    for place, (x, y, width, height) in enumerate(boxes):
        for left, top, wide, high in boxes[:place]:
            assert x + width <= left or left + wide <= x or y + height <= top or top + high <= y


def test_a_click_in_the_graph_selects(opened, report):
    row = next(row for row in report.layers if row.name == "block1.conv1")
    opened.locator('#graph [data-layer="block1.conv1"]').click()
    assert selected(opened) == {"panel": row.name, "table": row.name, "curve": row.index}


def test_the_panel_says_what_the_network_says(opened, strange_run):
    row_of(opened, "block1.conv1").click()
    panel = opened.locator("#details-body")
    panel.get_by_text("Attributes").wait_for()
    facts = json.loads((strange_run / "network.json").read_text())
    layer = next(layer for layer in facts["layers"] if layer["name"] == "block1.conv1")
    text = panel.inner_text()
    for name, value in layer["attributes"].items():
        assert name in text
        assert value in text
    for tensor in (*layer["inputs"], *layer["outputs"]):
        assert tensor in text
    scale = facts["tensors"][layer["inputs"][0]]["scale"]
    assert f"scale {float(f'{scale:.4g}'):.4g}" in text


def test_histograms_are_the_explanations(opened, strange_run, report):
    (culprit,) = report.culprits
    explained = json.loads((strange_run / "explanation.json").read_text())["layers"][culprit]
    (weight,) = explained["weights"]
    drawn = []
    for place in range(opened.locator("#details-body .plot").count()):
        plot = plotted(opened, f"#details-body .plot >> nth={place}")
        drawn.append(plot.evaluate("plot => plot.data.map(trace => trace.y)"))
    counts = [[size or None for size in weight["histogram"][run]] for run in ("fp32", "int8")]
    assert counts in drawn
    ends = zip(weight["channels"]["min"], weight["channels"]["max"], strict=True)
    spans = pytest.approx([high - low for low, high in ends])
    assert any(len(traces) == 1 and traces[0] == spans for traces in drawn)


BLAMED = "/stage1/block15/conv1"
"""The layer that the page of ``grouped`` calls a culprit."""


@pytest.fixture(scope="module")
def grouped(tmp_path_factory) -> Path:
    """The page of 36 residual blocks, more than are drawn at once, in stages of 9, 9 and 18."""
    folder = tmp_path_factory.mktemp("grouped")
    model = networks.residual(blocks=36)
    for node in model.graph.node:
        block = re.match(r"block(\d+)\.(.*)", node.name)
        if block:
            node.name = f"/stage{min(int(block[1]) // 9, 2)}/block{block[1]}/{block[2]}"
    network = trt_bisect.load_network(model)
    rows = tuple(
        LayerRow(layer.index, layer.name, layer.op_type, layer.shape, True, 0.9, 0.1, layer.name == BLAMED, "measured",
                 "int8", "int8")
        for layer in network.layers
    )  # fmt: skip
    report = replace(EMPTY, layers=rows, culprits=(BLAMED,), verdict=FAILS)
    return pages.drawn(folder, page_data(report, graph_of(network, {})))


SELECTS = """new MutationObserver(() => {
  const state = document.getElementById('graph-state');
  if (state?.textContent !== 'Laying out …' || window.selected) return;
  window.selected = true;
  document.querySelector('#table-body [role=row]').click();
}).observe(document, { childList: true, subtree: true })"""
"""Clicks the first row of the table when the graph is laid out for the first time."""


def test_groups_fold_and_unfold(tab, grouped):
    """A folded group names its culprit; what is selected is unfolded. A selection does not end how the page opens."""
    devtools = tab.watched.page.context.new_cdp_session(tab.watched.page)
    devtools.send("Page.enable")
    script = devtools.send("Page.addScriptToEvaluateOnNewDocument", {"source": SELECTS})
    with tab.shown(grouped) as page:
        devtools.send("Page.removeScriptToEvaluateOnNewDocument", script)
        assert page.evaluate("window.selected")
        folded = page.locator("#graph .node.group")
        assert folded.count() > 0
        parts = page.locator("#graph .edge path").evaluate_all("paths => paths.map(path => path.getTotalLength())")
        assert min(parts) > 0  # a line that turns where a row ends goes on in the next one, and has its arrow there
        assert_the_later_of_two_clicks_decides(page)
        page.locator("body").press("Escape")
        page.get_by_role("button", name="Fold all").click()
        page.wait_for_function("() => !document.querySelector('#graph .frame, #graph .fold')")
        assert page.locator("#graph .hidden-culprit").get_attribute("data-layer") == BLAMED
        inside = folded.first.get_attribute("data-id")
        before = page.locator("#graph .node").count()
        folded.first.click()
        page.wait_for_function("count => document.querySelectorAll('#graph .node').length > count", arg=before)
        page.locator(f'#graph .fold[data-id="{inside}"]').click()
        page.wait_for_function("count => document.querySelectorAll('#graph .node').length === count", arg=before)
        page.get_by_role("button", name="Unfold", exact=True).click()
        page.wait_for_function("count => document.querySelectorAll('#graph .layer').length > count", arg=100)
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


def assert_the_later_of_two_clicks_decides(page) -> None:
    """Also if it is done sooner. All is folded in the end."""
    for first, later, is_folded in (("fold", "unfold", "false"), ("unfold", "fold", "true")):
        page.locator(f"#{later}").click()
        drawn = f"() => Boolean(document.querySelector('#graph .node.group')) === {is_folded}"
        page.wait_for_function(drawn)
        page.evaluate("ids => ids.forEach(id => document.getElementById(id).click())", [first, later])
        page.wait_for_function("() => document.getElementById('graph-state').textContent !== 'Laying out …'")
        assert page.evaluate(drawn)


def test_nodes_are_coloured(opened, report):
    (culprit,) = report.culprits
    nodes = opened.locator("#graph .node.heated")
    for shade in ("loss", "similarity"):
        opened.get_by_label("Colour").select_option(shade)
        assert nodes.count() == sum(row.quantizable for row in report.layers)
        heats = dict(
            nodes.evaluate_all(
                "nodes => nodes.map(node => [node.dataset.layer, node.style.getPropertyValue('--heat')])"
            )
        )
        assert heats.pop(culprit) == "100%"
        assert "100%" not in heats.values()


def test_the_graph_zooms_and_goes_by_keyboard(opened):
    transform = "document.querySelector('#graph > g').getAttribute('transform')"
    before = opened.evaluate(transform)
    opened.get_by_role("button", name="Zoom in").click()
    assert opened.evaluate(transform) != before
    node = opened.locator("#graph [tabindex='0']")
    assert node.get_attribute("data-layer") == selected(opened)["panel"]
    node.focus()
    opened.keyboard.press("ArrowDown")
    assert opened.evaluate("document.activeElement.getAttribute('aria-label')") == "block2, fold"
    opened.keyboard.press("ArrowDown")
    name = opened.evaluate("document.activeElement.dataset.layer")
    assert name == "block2.conv1"
    opened.keyboard.press("Enter")
    assert selected(opened)["panel"] == name
