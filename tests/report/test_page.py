"""The page's Python side: its data, what of it is escaped, what it is made of, the notebook's views."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.support import networks, pages
from tests.support.quantized import quantized_by_onnxruntime
from trt_bisect import BadInput, Report
from trt_bisect.commands.run import run as api
from trt_bisect.report.answer import FUSED, RecipeLayers
from trt_bisect.report.html import asset, json_in_html
from trt_bisect.report.network_graph import graph_of
from trt_bisect.report.page import page_data, recipe_texts, render_page
from trt_bisect.report.parts import PASSES, UNMEASURED, WITH_DOUBTS, ByPlan
from trt_bisect.report.words import headline

ROOT = Path(__file__).parents[2]
WEB = ROOT / "tools" / "web" / "page"


@pytest.fixture(scope="module")
def report(finished) -> Report:
    return pages.read(finished)


@pytest.fixture(scope="module")
def strange(strange_run) -> Report:
    return pages.read(strange_run)


# The network.


def test_the_graph_is_the_files(finished, lenet):
    facts = json.loads((finished / "network.json").read_text())
    model = onnx.load(str(lenet / "lenet_planted.onnx"))
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]
    assert [layer["name"] for layer in facts["layers"]] == [node.name for node in nodes]
    assert [layer["outputs"] for layer in facts["layers"]] == [list(node.output) for node in nodes]
    assert [layer["inputs"][0] for layer in facts["layers"]] == [node.input[0] for node in nodes]
    conv = next(layer for layer in facts["layers"] if layer["op_type"] == "Conv")
    assert conv["attributes"]["kernel_shape"] == "[5, 5]"
    assert facts["inputs"] == [value.name for value in model.graph.input]
    assert facts["outputs"] == [value.name for value in model.graph.output]
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == conv["inputs"][1])
    assert facts["tensors"][weight.name]["shape"] == list(weight.dims)


def test_scales_are_those_of_the_recipe(finished):
    facts = json.loads((finished / "network.json").read_text())
    graph = onnx.load(str(finished / "recipe" / "network.qdq.onnx")).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    rounded = {node.input[0]: constants[node.input[1]] for node in graph.node if node.op_type == "QuantizeLinear"}
    activations = {name: scale for name, scale in rounded.items() if scale.ndim == 0}
    assert {"data", "conv1", "conv2"} <= set(activations)
    for name, scale in activations.items():
        assert np.float32(facts["tensors"][name]["scale"]) == scale


def test_scales_of_a_networks_own_pairs(tmp_path):
    quantized, sample = tmp_path / "quantized.onnx", {"x": np.ones((1, 3, 16, 16), np.float32)}
    quantized_by_onnxruntime(networks.save(networks.chain(3), tmp_path), quantized, [sample])
    scales = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(str(quantized)).graph.initializer}
    graph = graph_of(trt_bisect.load_network(quantized), {})
    assert scales["x_zero_point"] == -128  # 255 steps above zero, for which symmetric INT8 has 127
    assert graph.tensors["x"].scale == pytest.approx(float(scales["x_scale"]) * 255 / 127)


def test_it_is_there_before_anything_is_measured(tmp_path, lenet, monkeypatch):
    def stop(*_, **__):
        raise RuntimeError("stopped")

    monkeypatch.setattr(api, "answer_search", stop)
    with pytest.raises(RuntimeError, match="stopped"):
        trt_bisect.run(lenet / "lenet.onnx", lenet / "calibration.npz", engine="onnxruntime", output=tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "network.json").read_text())
    assert [layer["name"] for layer in facts["layers"]][:2] == ["conv1", "pool1"]
    asked = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [row["name"] for row in asked["layers"]] == [layer["name"] for layer in facts["layers"]]
    assert {row["outcome"] for row in asked["layers"]} == {"not tried", "follows"}


def test_a_folder_used_for_another_network_lends_it_no_graph(finished, report, strange, tmp_path):
    for name in ("network.json", "explanation.json"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    data = pages.data_of(pages.written(tmp_path, strange))
    assert data["graph"] is None
    assert data["explanation"] is None
    assert pages.data_of(pages.written(tmp_path, report))["graph"]["inputs"] == ["data"]


# The data and how it stands in the page.


def test_json_cannot_end_its_script():
    text = json_in_html({"</script>": "<!-- & -->", "\u2028": "\u00e9"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"</script>": "<!-- & -->", "\u2028": "\u00e9"}


def test_without_data_the_page_is_below_six_megabytes(report):
    data = page_data(report)
    page = render_page(data)
    assert len(page.encode()) - len(json_in_html(data).encode()) < 6e6


def test_recipe_texts_are_texts(tmp_path):
    (tmp_path / "a.flags").write_text("--int8 ü\n", encoding="utf-8")
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "c.onnx").write_text("text")
    (tmp_path / "d.txt").write_text("x" * (1 << 21))
    (tmp_path / ".hidden").write_text("x")
    expected = {"a.flags": "--int8 ü\n", "b.bin": {"bytes": 3}, "c.onnx": {"bytes": 4}, "d.txt": {"bytes": 1 << 21}}
    assert recipe_texts(tmp_path) == expected
    assert recipe_texts(tmp_path / "nowhere") == {}


def test_the_command_is_what_was_typed(tmp_path, lenet, command):
    quick = ("--calibrator", "minmax", "--explain", "none", "--effort", "quick")
    typed = ("run", lenet / "lenet.onnx", "--calibration", lenet / "calibration.npz", *quick, "-o", tmp_path / "a run")
    code, out, _ = command(*typed)
    assert code == 0
    data = pages.data_of(tmp_path / "a run" / "report.html")
    assert data["command"] == " ".join(("trt-bisect", *map(str, typed[:-1]))) + f" '{tmp_path / 'a run'}'"
    assert str(tmp_path / "a run" / "report.html") in out


def test_a_report_without_a_run_folder_is_saved_with_its_graph(tmp_path, lenet):
    how = {"engine": "onnxruntime", "calibrator": "minmax", "explain": "none", "effort": "quick"}
    report = trt_bisect.run(lenet / "lenet.onnx", lenet / "calibration.npz", **how)
    report.save(tmp_path / "a")
    data = pages.data_of(tmp_path / "a" / "report.html")
    assert data["command"] == ""
    assert len(data["graph"]["layers"]) == len(report.layers)
    pages.read(tmp_path / "a").save(tmp_path / "b")
    assert pages.data_of(tmp_path / "b" / "report.html")["graph"] is None


def test_the_page_says_in_which_setting_a_layer_put_back_misses(report):
    [culprit] = report.culprits
    rows = tuple(
        replace(row, put_back_in=FUSED, put_back_on=1) if row.name == culprit else row for row in report.layers
    )
    assert page_data(replace(report, layers=rows)).put_back_remarks == {culprit: f" or worse with {FUSED}"}


# The sentence at its head.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "misses 99%; 'ip2' is to blame, and 1 layer in FP32 restores it."),
        ({"verdict": PASSES, "culprits": (), "similarity": ByPlan(0.9999, 0.9999)}, "Full INT8 passes: it meets 99%."),
        ({"culprits": ("a", "b")}, "2 layers are to blame"),
        ({"culprits": ()}, "no single layer is to blame"),
        ({"recipe": RecipeLayers(("a",))}, "no plan tried meets it"),
        ({"similarity": ByPlan(None, None)}, "gives no figure"),
        ({"verdict": UNMEASURED}, "Nothing could be measured"),
        ({"metric": "mse", "threshold": 0.5}, "misses 0.5;"),
        ({"threshold": 0.995}, "misses 99.5%;"),
        ({"verdict": WITH_DOUBTS, "culprits": (), "recipe": RecipeLayers(meets=True)}, "passes, but doubtful"),
    ],
)
def test_headlines(report, change, words):
    assert words in headline(replace(report, **change))


def test_the_headline_of_a_run_that_goes_on(report):
    rows = [replace(row, outcome="not tried") if row.index > 1 and row.quantizable else row for row in report.layers]
    running = replace(report, layers=tuple(rows), culprits=(), verdict=UNMEASURED, lines=(), answer=None)
    assert headline(running, "running").startswith("Measuring: 2 of 6")
    assert "0 suspects" in headline(running, "running")
    assert headline(running, "interrupted").startswith("Interrupted: 2 of 6")


# What the page is made of.


def test_the_assets_are_made_of_the_sources():
    """``make assets`` was run after the last change; the digest is that of tools/web/build.mjs."""
    sha = hashlib.sha256()
    for path in sorted(WEB.iterdir()):
        sha.update(f"{path.name}\n".encode() + path.read_bytes())
    sha.update((ROOT / "tools" / "web" / "package-lock.json").read_bytes())
    assert asset("SOURCES.sha256").strip() == sha.hexdigest()


def test_every_bundled_library_has_its_licence():
    lock = json.loads((ROOT / "tools" / "web" / "package-lock.json").read_text())
    wanted = lock["packages"][""]["dependencies"]
    text = asset("LICENSES.txt")
    for name in wanted:
        version = lock["packages"][f"node_modules/{name}"]["version"]
        assert f"{name} {version}" in text
    assert all("resolved" not in about for about in lock["packages"].values())


# In a notebook.


def test_the_plot_is_the_curve(report):
    figure = report.plot()
    line, culprits, *levels = figure.data
    tried = [row for row in report.layers if row.quantizable]
    assert list(line.x) == [row.index for row in tried if not row.culprit]
    assert list(culprits.x) == [row.index for row in tried if row.culprit]
    assert list(culprits.y) == [pytest.approx(1 - row.similarity) for row in tried if row.culprit]
    full, recipe = report.similarity.int8, report.similarity.recipe
    names = ["threshold 99%", f"full INT8 {pages.percent(full, 0.99)}", f"recipe {pages.percent(recipe, 0.99)}"]
    assert [level.name for level in levels] == names
    for level, value in zip(levels, (report.threshold, full, recipe), strict=True):
        assert list(level.y) == [pytest.approx(1 - value)] * 2
    shown = dict(zip(figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True))
    assert (shown[0.01], shown[1e-4], shown[1.0]) == ("99%", "99.99%", "0%")
    linear = report.plot(log=False)
    assert list(linear.data[1].y) == [row.similarity for row in tried if row.culprit]


def test_the_plot_breaks_where_a_layer_failed_and_escapes(strange):
    broken = replace(strange, layers=tuple(pages.failed(row) if row.index == 2 else row for row in strange.layers))
    figure = broken.plot()
    assert figure.data[0].y[list(figure.data[0].x).index(2)] is None
    assert [(band.x0, band.x1) for band in figure.layout.shapes if band.type == "rect"] == [(1.5, 2.5)]
    assert not any("<script" in text for trace in figure.data for text in trace.text or ())


def test_the_plot_without_plotly(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(BadInput, match="Plotly") as refused:
        report.plot()
    assert "plotly>=" in str(refused.value)


def test_the_tables_style(report, strange):
    html = report.table().style.to_html()
    least = min(row.similarity for row in report.layers if row.similarity is not None)
    assert f"{100 * least:.2f}%" in html
    assert "font-weight: bold" in html
    shown = strange.table().style.to_html()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert "bold" not in strange.table()[["name", "op_type"]].style.to_html().split("</style>")[0]
