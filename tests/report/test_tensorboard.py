"""A run's logs for TensorBoard: scores, curve, histograms, graph, and the page that serves them."""

import json
import urllib.request

import numpy as np
import onnx
import pytest
from tensorboard.compat.proto.graph_pb2 import GraphDef

import trt_bisect
from tests.support.compared import stacked_tensors
from tests.support.event_files import assert_is_histogram_of, read, run_named, text
from tools.make_tensorboard_picture import serving
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import int8_set


@pytest.fixture(scope="module")
def planted(recorded):
    """LeNet with its culprit: the report, the log folder and the runs in it, not to be changed."""
    folder = recorded("lenet")
    return trt_bisect.Report.load(folder / "runs/lenet"), folder / "logs", read(folder / "logs")


def test_the_runs_and_their_scores(planted):
    report, _, runs = planted
    full, recipe = (f"{value:#.6g}" for _, value in report.similarity.items())
    [fp16] = [f"{choice.similarity:#.6g}" for choice in report.choices if choice.plan == "fp16"]
    tunes = {f"tune_{number}_cosine_{figure}" for number, figure in enumerate((full, recipe, fp16), 1)}
    assert set(runs) == {"baseline", *tunes, "curve", "plans"}
    assert "FP16: 0 layers in INT8" in text(runs[f"tune_3_cosine_{fp16}"], "plan")
    assert "full INT8; up to 'ip2', with it: 6 layers in INT8" in text(runs[f"tune_1_cosine_{full}"], "plan")
    said = text(runs[f"tune_2_cosine_{recipe}"], "plan")
    assert "the recipe: 5 layers in INT8" in said
    assert said.endswith("Not in INT8:\n\n- ip2")
    assert "| 7 | ip2 | Gemm |" in text(runs["curve"], "culprits")
    assert "ip2" in text(runs["curve"], "summary")


def test_the_tags_of_a_layer_begin_alike(planted):
    report, _, runs = planted
    histograms = {name.split("_cosine")[0]: set(run.Tags()["histograms"]) for name, run in runs.items()}
    outputs = {f"{row.name}/output" for row in report.layers}
    weights = {f"{name}/weights" for name in ("conv1", "conv2", "ip1", "ip2")}
    whole = {name: {tag for tag in tags if not tag.endswith("/channels")} for name, tags in histograms.items()}
    biases = {tag.replace("/weights", "/bias") for tag in weights}
    inputs = {"data/input", *(f"{row.name}/input" for row in report.layers)}  # each layer reads one tensor
    assert whole["baseline"] == {f"{tag}/fp32" for tag in outputs | weights | biases | inputs}
    rounded = {tag for tag in whole["tune_1"] if tag.endswith("/int8_rounded")}
    assert whole["tune_1"] - rounded == {f"{tag}/int8" for tag in outputs | weights | inputs}
    read_in_int8 = {"data/input", *(f"{name}/output" for name in ("conv1", "pool1", "conv2", "flatten", "relu1"))}
    assert rounded == {f"{tag}/int8_rounded" for tag in read_in_int8}
    gone = whole["tune_1"] - whole["tune_2"]
    assert gone == {"ip2/weights/int8", "relu1/output/int8_rounded"}, "ip2 is left high"
    assert whole["curve"] == set()


def test_the_curve_is_the_reports(planted):
    report, _, runs = planted
    curve = runs["curve"]
    figures = {
        "similarity": [row.similarity for row in report.layers],
        "loss of the layer": [row.loss for row in report.layers],
    }
    figures["1 - similarity"] = [max(0.0, 1.0 - value) for value in figures["similarity"]]
    for tag, expected in figures.items():
        found = [(event.step, event.value) for event in curve.Scalars(tag)]
        assert found == [(row.index, np.float32(v)) for row, v in zip(report.layers, expected, strict=True)]


def test_histograms_are_of_the_tensors_that_onnxruntime_gives(planted, lenet):
    report, folder, runs = planted
    known = json.loads((folder.parent / "runs/lenet/network.json").read_text())["tensors"]
    scales = {name: np.float32(each["scale"]) for name, each in known.items() if each["scale"] is not None}
    network = trt_bisect.load_network(lenet / "lenet_planted.onnx")
    writer = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME)
    names = [layer.outputs[0] for layer in network.layers]
    with np.load(folder.parent / "runs/lenet/inputs.npz") as archive:
        feeds = [{"data": sample} for sample in archive["data"]]
    assert len(feeds) == report.inputs.judged
    for beginning, int8, kind in (("baseline", (), "fp32"), ("tune_1", network.quantizable, "int8")):
        run = run_named(runs, beginning)
        tensors = stacked_tensors(writer.write(int8_set(len(network.layers), int8)), names, feeds)
        for layer in network.layers:
            (event,) = run.Histograms(f"{layer.name}/output/{kind}")
            assert_is_histogram_of(event, tensors[layer.outputs[0]])
        if kind == "int8":
            levels = np.clip(np.rint(tensors["conv1"] / scales["conv1"]), -128, 127).astype(np.float32)
            assert_is_histogram_of(run.Histograms("conv1/output/int8_rounded")[0], levels * scales["conv1"])
            levels = np.clip(np.rint(tensors["relu1"] / scales["relu1"]), -128, 127).astype(np.float32)
            assert_is_histogram_of(run.Histograms("ip2/input/int8")[0], levels * scales["relu1"])
        else:
            assert_is_histogram_of(run.Histograms("ip2/input/fp32")[0], tensors["relu1"])
    for name in ("conv1", "conv2", "ip1"):
        values = network.constant(f"{name}.weight")
        assert_is_histogram_of(run_named(runs, "baseline").Histograms(f"{name}/weights/fp32")[0], values)
        steps = np.abs(values).max(axis=tuple(range(1, values.ndim)), keepdims=True) / np.float32(127)
        event = run_named(runs, "tune_2").Histograms(f"{name}/weights/int8")[0]
        assert_is_histogram_of(event, np.rint(values / steps) * steps)


def test_histograms_of_the_loudest_channels(planted, lenet):
    *_, runs = planted
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
    *_, runs = planted
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
    assert nodes["conv1"].attr["kernel_shape"].s.decode() == str(kernel)
    shape = nodes["conv1"].attr["_output_shapes"].list.shape[0]
    assert [dim.size for dim in shape.dim] == [1, 20, 24, 24]
    recipe = {node.name: node.device for node in run_named(runs, "tune_2").Graph().node}
    assert (recipe["ip1"], recipe["ip2"], recipe["relu1"], recipe["data"]) == ("int8", "fp32", "follows", "")


@pytest.mark.subprocess
def test_plain_tensorboard_serves_all_of_it(planted):
    """Each plugin of TensorBoard has the runs and the tags that were written for it."""
    _, folder, runs = planted
    with serving(str(folder)) as served:

        def tags_of(plugin):
            return json.load(urllib.request.urlopen(f"{served}/data/plugin/{plugin}/tags"))

        for plugin, tags in (("histograms", "histograms"), ("distributions", "histograms"), ("scalars", "scalars")):
            found = {run: set(each) for run, each in tags_of(plugin).items() if each}
            assert found == {name: set(run.Tags()[tags]) for name, run in runs.items() if run.Tags()[tags]}
        assert set(tags_of("text")["curve"]) == {"summary", "culprits", "runs"}
        graphs = json.load(urllib.request.urlopen(f"{served}/data/plugin/graphs/info"))
        assert {name for name, found in graphs.items() if found["run_graph"]} == set(runs) - {"curve", "plans"}
