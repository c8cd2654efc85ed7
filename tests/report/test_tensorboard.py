"""TensorBoard's logs, read back with its own event accumulator."""

from __future__ import annotations

import html
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import TensorProto, helper, numpy_helper
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_ndarray

import trt_bisect
from tests.support import networks, wording
from trt_bisect.analyzer.growing_histogram import GrowingHistogram
from trt_bisect.jobs.run import run as api
from trt_bisect.jobs.run.find_culprits import verdict
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import make_session
from trt_bisect.precision import int8_set
from trt_bisect.report.markdown import literal, table
from trt_bisect.report.tensorboard.graph import graph_of, legal_names
from trt_bisect.report.tensorboard.tags import layer_tags

LEGAL = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-/]*")


def read(folder):
    """The runs of a log folder by name."""
    everything = {"histograms": 0, "scalars": 0, "tensors": 0}
    runs = sorted(path for path in Path(folder).iterdir() if path.is_dir())
    return {path.name: EventAccumulator(str(path), size_guidance=everything).Reload() for path in runs}


def run_named(runs, beginning):
    return next(run for name, run in runs.items() if name.startswith(beginning))


def text(run, tag):
    return make_ndarray(run.Tensors(tag)[0].tensor_proto).item().decode()


def tensors_of(written, names, feeds):
    """Tensors of a written plan by name, all samples together: ONNX Runtime with them as outputs."""
    known = {value.name for value in written.model.graph.output}
    written.model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    session = make_session(written)
    runs = [session.run(names, sample) for sample in feeds]
    return {name: np.stack([run[place] for run in runs]) for place, name in enumerate(names)}


def assert_is_histogram_of(event, values):
    """NumPy counts the same values between the same edges."""
    found, values = event.histogram_value, np.asarray(values, np.float64).reshape(-1)
    edges = [found.min, *found.bucket_limit]
    assert (found.min, found.max, found.num) == (values.min(), values.max(), values.size)
    assert found.bucket == list(np.histogram(values, edges)[0])
    assert found.sum == pytest.approx(values.sum(), rel=1e-6, abs=1e-3)
    assert found.sum_squares == pytest.approx(np.sum(values**2), rel=1e-6)
    assert len(found.bucket) <= 64


@pytest.fixture(scope="module")
def planted(lenet, tmp_path_factory):
    """LeNet with its culprit: the report and the log folder."""
    folder = tmp_path_factory.mktemp("planted")
    report = trt_bisect.run(
        lenet / "lenet_planted.onnx", lenet / "calibration.npz", lenet / "digits.npz", samples=4, engine="onnxruntime",
        output=folder / "run", tensorboard=folder / "logs", tensorboard_channels=8, calibrator="entropy",
    )  # fmt: skip
    return report, folder / "logs"


def test_the_runs_and_their_scores(planted):
    report, folder = planted
    full, recipe = (f"{report.similarity[plan]:#.6g}" for plan in ("int8", "recipe"))
    runs = read(folder)
    assert set(runs) == {"baseline", f"tune_1_cosine_{full}", f"tune_2_cosine_{recipe}", "curve", "plans"}
    assert "full INT8; up to 'ip2', with it: 6 layers in INT8" in text(runs[f"tune_1_cosine_{full}"], "plan")
    said = text(runs[f"tune_2_cosine_{recipe}"], "plan")
    assert "up to 'ip2', but without it; the recipe: 5 layers in INT8" in said
    assert said.endswith("Not in INT8:\n\n- ip2")
    assert "| 7 | ip2 | Gemm |" in text(runs["curve"], "culprits")
    assert wording.IS_THE_CULPRIT in text(runs["curve"], "summary")


def test_the_tags_of_a_layer_begin_alike(planted):
    runs = read(planted[1])
    histograms = {name.split("_cosine")[0]: set(run.Tags()["histograms"]) for name, run in runs.items()}
    report = planted[0]
    outputs = {f"{row.name}/output" for row in report.layers}
    weights = {f"{name}/weights" for name in ("conv1", "conv2", "ip1", "ip2")}
    whole = {name: {tag for tag in tags if not tag.endswith("/channels")} for name, tags in histograms.items()}
    biases = {tag.replace("/weights", "/bias") for tag in weights}
    assert whole["baseline"] == {f"{tag}/fp32" for tag in outputs | weights | biases | {"data/input"}}
    rounded = {tag for tag in whole["tune_1"] if tag.endswith("/int8_rounded")}
    assert whole["tune_1"] - rounded == {f"{tag}/int8" for tag in outputs | weights | {"data/input"}}
    read_in_int8 = {"data/input", *(f"{name}/output" for name in ("conv1", "pool1", "conv2", "flatten", "relu1"))}
    assert rounded == {f"{tag}/int8_rounded" for tag in read_in_int8}
    gone = whole["tune_1"] - whole["tune_2"]
    assert gone == {"ip2/weights/int8", "relu1/output/int8_rounded"}, "ip2 is left high"
    assert whole["curve"] == set()


def test_the_curve_is_the_reports(planted):
    report, folder = planted
    curve = read(folder)["curve"]
    for tag, expected in {
        "similarity": {row.index: row.similarity for row in report.layers},
        "1 - similarity": {row.index: max(0.0, 1.0 - row.similarity) for row in report.layers},
        "drop": {row.index: row.drop for row in report.layers},
    }.items():
        assert {event.step: event.value for event in curve.Scalars(tag)} == {
            step: np.float32(value) for step, value in expected.items()
        }


def test_histograms_are_of_the_tensors_that_onnxruntime_gives(planted, lenet):
    _, folder = planted
    network = trt_bisect.load_network(lenet / "lenet_planted.onnx")
    digits = np.load(lenet / "calibration.npz")["data"]
    kept = np.delete(digits, np.s_[4::5], axis=0)  # the run holds every fifth sample out
    ranges = trt_bisect.calibrate(network, trt_bisect.open_dataset(kept, network.inputs))
    writer = PlanWriter(network, ranges.scales, GraphTarget.ONNXRUNTIME)
    names = [layer.outputs[0] for layer in network.layers]
    with np.load(folder.parent / "run/inputs.npz") as archive:
        feeds = [{"data": sample} for sample in archive["data"]]
    assert len(feeds) == 4
    ip2 = network.layer_named("ip2").index
    runs = read(folder)
    plans = {
        "baseline": ((), "fp32"),
        "tune_1": (network.quantizable, "int8"),
        "tune_2": ([k for k in network.quantizable if k != ip2], "int8"),
    }
    for beginning, (int8, kind) in plans.items():
        run = run_named(runs, beginning)
        tensors = tensors_of(writer.write(int8_set(len(network.layers), int8)), names, feeds)
        for layer in network.layers:
            (event,) = run.Histograms(f"{layer.name}/output/{kind}")
            assert_is_histogram_of(event, tensors[layer.outputs[0]])
        if kind == "int8":
            scale = ranges.scales["conv1"]
            levels = np.clip(np.rint(tensors["conv1"] / scale), -128, 127)
            assert_is_histogram_of(run.Histograms("conv1/output/int8_rounded")[0], levels.astype(np.float32) * scale)
    for name in ("conv1", "conv2", "ip1"):
        values = network.constant(f"{name}.weight")
        assert_is_histogram_of(run_named(runs, "baseline").Histograms(f"{name}/weights/fp32")[0], values)
        scales = np.abs(values).max(axis=tuple(range(1, values.ndim)), keepdims=True) / np.float32(127)
        event = run_named(runs, "tune_2").Histograms(f"{name}/weights/int8")[0]
        assert_is_histogram_of(event, np.rint(values / scales) * scales)


def test_histograms_of_the_loudest_channels(planted, lenet):
    runs = read(planted[1])
    weight = trt_bisect.load_network(lenet / "lenet_planted.onnx").constant("conv1.weight")
    peaks = np.abs(weight).max(axis=(1, 2, 3))
    events = run_named(runs, "baseline").Histograms("conv1/weights/fp32/channels")
    assert [event.step for event in events] == sorted(np.argsort(-peaks)[:8])
    for event in events:
        assert_is_histogram_of(event, weight[event.step])
    outputs = run_named(runs, "baseline").Histograms("relu1/output/fp32/channels")
    assert 477 in [event.step for event in outputs], "the planted channel"
    for tag in ("relu1/output/int8/channels", "relu1/output/int8_rounded/channels"):
        steps = [event.step for event in run_named(runs, "tune_1").Histograms(tag)]
        assert steps == [event.step for event in outputs]


def test_the_graph_has_every_layer_and_edge(planted, lenet):
    network = trt_bisect.load_network(lenet / "lenet_planted.onnx")
    model = onnx.load(lenet / "lenet_planted.onnx")
    runs = read(planted[1])
    graph = GraphDef.FromString(run_named(runs, "baseline").Graph().SerializeToString())
    nodes = {node.name: node for node in graph.node}
    assert set(nodes) == {"data", "prob_output", *(layer.name for layer in network.layers)}
    made = {tensor: node.name for node in model.graph.node for tensor in node.output}
    for node in model.graph.node:
        found = nodes[node.name]
        assert found.op == node.op_type
        assert list(found.input) == [made.get(name, name) for name in node.input if name in made or name == "data"]
    conv = next(node for node in model.graph.node if node.name == "conv1")
    kernel = next(list(attribute.ints) for attribute in conv.attribute if attribute.name == "kernel_shape")
    assert list(nodes["conv1"].attr["kernel_shape"].list.i) == kernel
    shape = nodes["conv1"].attr["_output_shapes"].list.shape[0]
    assert [dim.size for dim in shape.dim] == [1, 20, 24, 24]
    recipe = {node.name: node.device for node in run_named(runs, "tune_2").Graph().node}
    assert (recipe["ip1"], recipe["ip2"], recipe["relu1"], recipe["data"]) == ("int8", "fp32", "follows", "")


@pytest.fixture
def picture(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    return importlib.import_module("make_tensorboard_picture")


def test_plain_tensorboard_serves_all_of_it(planted, picture):
    runs = read(planted[1])
    with picture.serving(str(planted[1])) as address:

        def served(plugin):
            return json.load(urllib.request.urlopen(f"{address}/data/plugin/{plugin}/tags"))

        for plugin, tags in (("histograms", "histograms"), ("distributions", "histograms"), ("scalars", "scalars")):
            found = {run: set(each) for run, each in served(plugin).items() if each}
            assert found == {name: set(run.Tags()[tags]) for name, run in runs.items() if run.Tags()[tags]}
        assert set(served("text")["curve"]) == {"summary", "culprits", "runs", "notes"}
        graphs = json.load(urllib.request.urlopen(f"{address}/data/plugin/graphs/info"))
        assert {name for name, found in graphs.items() if found["run_graph"]} == set(runs) - {"curve", "plans"}


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    and os.environ.get("TRT_BISECT_BROWSER") != "required",
    reason="no Chromium",
)
def test_the_page_draws_the_histograms(planted, picture, tmp_path):
    from playwright.sync_api import sync_playwright

    drawn = tmp_path / "page.png"
    picture.main(str(planted[1]), str(drawn), "ip2/output")
    assert drawn.read_bytes().startswith(b"\x89PNG")
    with picture.serving(str(planted[1])) as address, sync_playwright() as player:
        chromium = next(filter(None, map(shutil.which, picture.CHROMIUM)))
        browser = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}/#histograms&tagFilter=ip2/output/(fp32|int8)$")
        page.locator("vz-histogram-timeseries path").first.wait_for()
        page.get_by_text("tag: ip2/output/fp32").first.wait_for()
        assert page.get_by_text("tag: ip2/output/int8").count() == 2
        browser.close()


def odd(names):
    """Two convolutions, a sum, a split and a concatenation, under names of the user's."""
    sketch = networks.Sketch(5)
    first = sketch.conv("x", "one", 3, 4)
    second = sketch.conv(first, "two", 4, 4)
    summed = sketch.node("Add", [first, second], "sum")
    sketch.nodes.append(helper.make_node("Split", [summed], ["left", "right"], name="split", axis=1, num_outputs=2))
    sketch.nodes.append(helper.make_node("Concat", ["right", "left"], ["y"], name="joined", axis=1))
    model = sketch.model({"x": ["n", 3, 6, 6]}, {"y": ["n", 4, 6, 6]}, opset=18)
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    return model


ODD = ["/a/<b>x</b>", "a", "/a", "a/b|c d", "^é:0"]


def test_odd_names(tmp_path):
    model = odd(ODD)
    path, feeds = networks.save(model, tmp_path), networks.samples(model, 2)
    trt_bisect.compare(path, feeds, tensorboard=tmp_path / "logs")
    runs = read(tmp_path / "logs")
    baseline, tune = run_named(runs, "baseline"), run_named(runs, "tune_1")
    tags = ["a/<b>x</b>", "a", "a_1", "a/b|c d", "^é:0"]
    outputs = {f"{tag}/output" for tag in tags} | {"a/b|c d/output_1", "x/input"}
    weights = {f"{tag}/weights" for tag in tags[:2]}
    biases = {f"{tag}/bias" for tag in tags[:2]}
    assert set(baseline.Tags()["histograms"]) == {f"{tag}/fp32" for tag in outputs | weights | biases}
    assert {f"{tag}/int8" for tag in outputs | weights} <= set(tune.Tags()["histograms"])
    nodes = {node.attr["layer_name"].s.decode(): node for node in baseline.Graph().node if "layer_name" in node.attr}
    assert set(nodes) == set(ODD)
    known = {node.name for node in baseline.Graph().node}
    assert all(LEGAL.fullmatch(name) for name in known)
    one, two, summed, split, joined = (nodes[name] for name in ODD)
    assert (list(two.input), list(summed.input)) == ([one.name], [one.name, two.name])
    assert list(joined.input) == [f"{split.name}:1", split.name]
    assert len(split.attr["_output_shapes"].list.shape) == 2


@settings(deadline=None)
@given(st.lists(st.text("ab/_ é:^", max_size=6), max_size=12))
def test_names_of_nodes(names):
    legal = legal_names(names)
    assert len(set(legal)) == len(names)
    assert all(LEGAL.fullmatch(name) and "//" not in name and not name.endswith("/") for name in legal)
    assert not any(other.startswith(f"{name}/") for name in legal for other in legal)


@settings(deadline=None)
@given(st.lists(st.text("ab/_1", max_size=5), max_size=12, unique=True))
def test_tags_of_layers(names):
    tags = layer_tags(names)
    assert list(tags) == names
    assert len(set(tags.values())) == len(names)
    assert all(tag and not tag.startswith("/") for tag in tags.values())


def test_a_graph_with_bodies(tmp_path):
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])]
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["m"], ["inner"])], name, [], [helper.make_tensor_value_info("inner", 1, None)]
        )
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }
    nodes = [
        helper.make_node("Relu", ["x"], ["m"], name="m"),
        helper.make_node("ReduceMax", ["m"], ["most"], name="most", keepdims=0),
        helper.make_node("Greater", ["most", "limit"], ["large"], name="large"),
        helper.make_node("If", ["large"], ["y"], name="choice", **branches),
    ]
    limit = numpy_helper.from_array(np.float32(1), "limit")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [limit])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network = trt_bisect.load_network(networks.save(model, tmp_path))
    choice = next(node for node in graph_of(network).node if node.name == "choice")
    assert list(choice.input) == ["large", "m"], "what the bodies read too"
    assert choice.attr["then_branch"].s == b"graph"


def blocks():
    shapes = st.tuples(st.integers(1, 3), st.integers(0, 20))
    block = shapes.flatmap(lambda shape: arrays(np.float32, shape))
    return st.lists(block, min_size=1, max_size=4)


@settings(deadline=None)
@given(blocks(), st.integers(2, 64))
def test_a_growing_histogram_counts_as_numpy_does(found, most):
    groups = len(found[0])
    found = [block for block in found if len(block) == groups]
    histogram = GrowingHistogram(groups, 128)
    for block in found:
        histogram.add(block)
    together = np.concatenate(found, axis=1).astype(np.float64)
    assert histogram.nonfinite == np.count_nonzero(~np.isfinite(together))
    for group, values in enumerate(together):
        values, seen = values[np.isfinite(values)], histogram.seen(group, most)
        assert len(seen.counts) <= most
        assert seen.counts.sum() == values.size
        if values.size:
            assert (seen.edges[0], seen.edges[-1]) == (values.min(), values.max())
            assert list(seen.counts) == list(np.histogram(values, seen.edges)[0])


def test_compare_writes_both_runs(tmp_path):
    model = networks.residual()
    networks.plant_between(model, "block2.conv1", "block2.conv2")
    path, feeds = networks.save(model, tmp_path), networks.samples(model)
    found = trt_bisect.compare(path, feeds, tensorboard=tmp_path / "logs")
    runs = read(tmp_path / "logs")
    score = next(row.figures.cosine for row in found.tensors if row.origin.tensor == "y")
    assert set(runs) == {"baseline", f"tune_1_cosine_{score:#.6g}"}
    tune = run_named(runs, "tune_1")
    for name in ("cosine", "sqnr"):
        assert {event.step: event.value for event in tune.Scalars(f"tensor {name}")} == {
            row.origin.index: np.float32(getattr(row.figures, name))
            for row in found.tensors
            if row.origin.index is not None
        }
    assert "starved range" in text(tune, "advice")
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("stem_out", "block1.add_out"))
    session = ort.InferenceSession(model.SerializeToString())
    stem, added = zip(
        *(session.run(["stem_out", "block1.add_out"], {"x": sample[None]}) for sample in feeds["x"]), strict=True
    )
    baseline = run_named(runs, "baseline")
    for tag, values in (("stem/output/fp32", stem), ("block1.add/output/fp32", added)):
        found_values = baseline.Histograms(tag)[0].histogram_value
        assert found_values.num == np.size(values)
        assert found_values.sum_squares == pytest.approx(np.sum(np.square(values, dtype=np.float64)), rel=1e-4)


def test_two_saved_runs_without_a_network(tmp_path):
    random = np.random.default_rng(3)
    for name in ("fp32", "int8"):
        np.savez(tmp_path / f"{name}.npz", **{"a": random.normal(size=(1, 4)), "b|c": random.normal(size=(2, 3))})
    saved = {name: tmp_path / f"{name}.npz" for name in ("fp32", "int8")}
    trt_bisect.compare(**saved, tensorboard=tmp_path / "logs")
    runs = read(tmp_path / "logs")
    assert set(runs) == {"baseline", "tune_1"}, "which tensors are final is not known"
    for kind, run in zip(("fp32", "int8"), runs.values(), strict=True):
        assert set(run.Tags()["histograms"]) == {f"a/output/{kind}", f"b|c/output/{kind}"}
        with np.load(saved[kind]) as archive:
            assert_is_histogram_of(run.Histograms(f"a/output/{kind}")[0], archive["a"])


def test_profile_writes_the_layers_that_were_asked_for(lenet, tmp_path):
    trt_bisect.profile(
        lenet / "lenet.onnx", inputs=lenet / "calibration.npz", prefix="conv", tensorboard=tmp_path / "logs"
    )
    runs = read(tmp_path / "logs")
    assert list(runs) == ["baseline"]
    tags = {
        "data/input",
        *(f"{layer}/{what}" for layer in ("conv1", "conv2") for what in ("output", "weights", "bias")),
    }
    assert set(runs["baseline"].Tags()["histograms"]) == {f"{tag}/fp32" for tag in tags}
    with np.load(lenet / "calibration.npz") as archive:
        assert_is_histogram_of(runs["baseline"].Histograms("data/input/fp32")[0], archive["data"])


def test_values_that_are_not_finite_are_counted_apart(tmp_path):
    sketch = networks.Sketch(6)
    logs = sketch.node("Log", [sketch.conv("x", "conv", 3, 4)], "log")
    sketch.nodes.append(helper.make_node("Abs", [logs], ["y"], name="last"))
    model = sketch.model({"x": ["n", 3, 6, 6]}, {"y": ["n", 4, 6, 6]})
    path, feeds = networks.save(model, tmp_path), networks.samples(model, 2)
    trt_bisect.profile(path, inputs=feeds, tensorboard=tmp_path / "logs")
    baseline = run_named(read(tmp_path / "logs"), "baseline")
    model.graph.output.append(onnx.ValueInfoProto(name="log_out"))
    session = ort.InferenceSession(model.SerializeToString())
    values = np.stack([session.run(["log_out"], {"x": sample[None]})[0] for sample in feeds["x"]])
    bad = np.count_nonzero(~np.isfinite(values))
    assert 0 < bad < values.size
    assert baseline.Histograms("log/output/fp32")[0].histogram_value.num == values.size - bad
    assert f"log/output/fp32: {bad} values" in text(baseline, "not_finite")


def test_a_second_writing_replaces_the_first_and_leaves_other_files(lenet, tmp_path):
    logs = tmp_path / "logs"
    others = logs / "tune_7_acc_0.5"
    others.mkdir(parents=True)
    (others / "events.out.tfevents.1.somebody").write_bytes(b"")
    (logs / "curve.txt").write_text("mine")
    given = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    trt_bisect.run(*given, engine="onnxruntime", tensorboard=logs)
    first = set(read(logs))
    assert {"curve", others.name} < first
    trt_bisect.profile(given[0], tensorboard=logs)
    assert set(read(logs)) == {"baseline", others.name}
    assert len(list((logs / "baseline").iterdir())) == 1
    assert (logs / "curve.txt").read_text() == "mine"


def test_a_failed_layer_leaves_a_gap_and_an_engine_is_told_of(lenet, tmp_path, monkeypatch):
    def on_an_engine(answering, *rest):
        report, measured, answer = verdict(answering, *rest)
        rows = (replace(row, similarity=None, drop=np.inf) if row.index == 3 else row for row in report.layers)
        return replace(report, layers=tuple(rows), arithmetic="measured", engine="tensorrt"), measured, answer

    monkeypatch.setattr(api, "verdict", on_an_engine)
    trt_bisect.run(
        lenet / "lenet.onnx", lenet / "calibration.npz", engine="onnxruntime", metric="sqnr", tensorboard=tmp_path
    )
    curve = read(tmp_path)["curve"]
    assert set(curve.Tags()["scalars"]) == {"similarity", "loss", "drop"}
    for tag in curve.Tags()["scalars"]:
        assert [event.step for event in curve.Scalars(tag)] == [0, 1, 2, 4, 5, 6, 7, 8]
    assert f"measured on tensorrt; {wording.EMULATED_HISTOGRAMS}" in text(curve, "notes")


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["C"]), max_size=30))
def test_strange_texts_stay_texts(name):
    shown = markdown_to_safe_html(table(["name"], [[f"x{name}x"]]))
    cell = shown.split("<td>")[1].split("</td>")[0]
    assert html.unescape(cell) == " ".join(f"x{name}x".split())


def test_no_tag_of_a_stranger_reaches_the_page():
    shown = markdown_to_safe_html(literal("<script>alert(1)</script> **b** [l](http://x) | `c`"))
    assert "<script" not in shown
    assert "<strong>" not in shown
    assert "<a " not in shown
    assert "<code>" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("job", [trt_bisect.compare, trt_bisect.profile])
def test_memory_does_not_grow_with_the_samples(job, tmp_path):
    model = networks.chain(depth=2, width=4)
    network = trt_bisect.load_network(networks.save(model, tmp_path))
    ranges = trt_bisect.calibrate(network, trt_bisect.open_dataset(networks.samples(model), network.inputs))

    def peak(count):
        tracemalloc.start()
        job(network, ranges, networks.streamed(count), tensorboard=tmp_path / "logs", tensorboard_channels=4)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        run = run_named(read(tmp_path / "logs"), "baseline")
        assert run.Histograms("conv0/output/fp32")[0].histogram_value.num == count * 4 * 16 * 16
        return most

    peak(1)
    assert peak(100) < 3 * peak(1), "all tensors of 100 samples are 3 MB, six times as much"


def test_neither_tensorflow_nor_pytorch_is_loaded(lenet, tmp_path):
    code = f"""
import sys
sys.modules["tensorflow"] = sys.modules["torch"] = None
import trt_bisect
assert "tensorboard" not in sys.modules
trt_bisect.profile({str(lenet / "lenet.onnx")!r}, tensorboard={str(tmp_path / "logs")!r})
assert "tensorboard" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list(read(tmp_path / "logs"))


def test_without_the_package_nothing_is_begun(command, lenet, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in ("run", "compare", "profile"):
        data = ["--calibration", lenet / "none.npz"]
        code, _, err = command(name, lenet / "lenet.onnx", *data, "--tensorboard", tmp_path / "logs")
        assert code == 2
        assert "pip install 'trt-bisect[tensorboard]'" in err, "and not that the data is missing"
        assert len(err[err.index("trt-bisect:") :].strip().splitlines()) == 2
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tensorboard", "{file}"], "Choose another with --tensorboard"),
        (["--tensorboard", "{file}/logs"], "Choose another with --tensorboard"),
        (["--tensorboard-channels", "3"], "Give --tensorboard LOGDIR too"),
        (["--tensorboard", "{folder}", "--tensorboard-channels", "-1"], "0 to 256"),
        (["--tensorboard", "{folder}", "--tensorboard-channels", "1000"], "0 to 256"),
    ],
)
@pytest.mark.parametrize("name", ["run", "compare", "profile"])
def test_bad_use(command, name, lenet, tmp_path, arguments, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = {"file": lenet / "calibration.npz", "folder": tmp_path / "logs"}
    arguments = [argument.format(**known) for argument in arguments]
    code, _, err = command(name, lenet / "lenet.onnx", "--calibration", lenet / "calibration.npz", *arguments)
    assert code == 2
    message = err[err.index("trt-bisect:") :]
    assert said in message
    assert len(message.strip().splitlines()) == 2


def test_a_full_disk_is_said_in_two_lines(command, lenet, tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordWriter, "write", full)
    code, _, err = command(
        "run", lenet / "lenet.onnx", "--calibration", lenet / "calibration.npz", "-o", tmp_path / "run",
        "--tensorboard", tmp_path / "logs",
    )  # fmt: skip
    assert code == 2
    assert "No space left on device" in err
    assert "Traceback" not in err
    assert (tmp_path / "run/report.json").is_file(), "what was measured is kept"


def test_recover_has_a_run_for_each_step(lenet, tmp_path):
    """The accuracy is the labels', and the similarity is called by its metric; only layers that moved have tensors."""
    with np.load(lenet / "digits.npz") as found:
        feeds = {name: found[name][:20] for name in found.files}
    options = {"dataset": feeds, "labels": np.load(lenet / "labels.npy")[:20], "drop": 0.5, "plans": 4}
    recovery = trt_bisect.recover(
        lenet / "lenet_planted.onnx", lenet / "calibration.npz", engine="onnxruntime", samples=1, holdout=0,
        tensorboard=tmp_path / "logs", **options,
    )  # fmt: skip
    runs = read(tmp_path / "logs")
    assert f"baseline_acc_{recovery.target['reference']:#.6g}" in runs
    steps = {name: run for name, run in runs.items() if name.startswith("tune_")}
    plans = runs["plans"]
    assert len(steps) == len(plans.Scalars("layers in low precision"))
    for name, run in steps.items():
        tags = run.Tags()["scalars"]
        if "_acc_" in name:
            assert f"{run.Scalars('accuracy')[0].value:#.6g}" == name.rpartition("_")[2]
        else:
            assert "accuracy" not in tags
    measured = [event.value for event in plans.Scalars("accuracy")]
    assert recovery.measured["recipe"] in [pytest.approx(value) for value in measured]
