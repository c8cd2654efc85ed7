"""Names, strange texts and graphs with bodies in TensorBoard's logs; counts of a growing histogram."""

import html
import re

import numpy as np
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from onnx import helper
from tensorboard.plugin_util import markdown_to_safe_html

import trt_bisect
from tests.support import networks
from tests.support.event_files import read, run_named
from trt_bisect.analyzer.histograms import GrowingHistogram
from trt_bisect.report.screen.run import table
from trt_bisect.report.tensorboard_board import layer_tags
from trt_bisect.report.tensorboard_logs import graph_of, legal_names

LEGAL = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-/]*")


def odd(names):
    """Two convolutions, a sum, a split and a concatenation, under names of the user's."""
    sketch = networks.Sketch(5)
    first = sketch.conv("x", "one", 3, 4)
    second = sketch.conv(first, "two", 4, 4)
    summed = sketch.node("Add", [first, second], "sum")
    sketch.nodes.append(helper.make_node("Split", [summed], ["left", "right"], name="split", axis=1, num_outputs=2))
    sketch.node("Concat", ["right", "left"], "joined", out="y", axis=1)
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
    inputs = {f"{tag}/input" for tag in tags} | {"a_1/input_1", "^é:0/input_1"}
    assert set(baseline.Tags()["histograms"]) == {f"{tag}/fp32" for tag in outputs | weights | biases | inputs}
    assert {f"{tag}/int8" for tag in outputs | weights} <= set(tune.Tags()["histograms"])
    nodes = {node.attr["layer_name"].s.decode(): node for node in baseline.Graph().node if "layer_name" in node.attr}
    assert set(nodes) == set(ODD)
    known = {node.name for node in baseline.Graph().node}
    assert all(LEGAL.fullmatch(name) for name in known)
    one, two, summed, split, joined = (nodes[name] for name in ODD)
    assert (list(two.input), list(summed.input)) == ([one.name], [one.name, two.name])
    assert list(joined.input) == [f"{split.name}:1", split.name]
    assert len(split.attr["_output_shapes"].list.shape) == 2


@given(st.lists(st.text("ab/_ é:^", max_size=6), max_size=12))
def test_names_of_nodes(names):
    legal = legal_names(names)
    assert len(set(legal)) == len(names)
    assert all(LEGAL.fullmatch(name) and "//" not in name and not name.endswith("/") for name in legal)
    assert not any(other.startswith(f"{name}/") for name in legal for other in legal)


@given(st.lists(st.text("ab/_1", max_size=5), max_size=12, unique=True))
def test_tags_of_layers(names):
    tags = layer_tags(names)
    assert list(tags) == names
    assert len(set(tags.values())) == len(names)
    assert all(tag and not tag.startswith("/") for tag in tags.values())


def test_a_graph_with_bodies(tmp_path):
    made, branches = [helper.make_tensor_value_info("inner", 1, None)], {}
    for name, op in (("then", "Relu"), ("else", "Neg")):
        body = [helper.make_node(op, ["m"], ["inner"])]
        branches[f"{name}_branch"] = helper.make_graph(body, name, [], made)
    sketch = networks.Sketch()
    most = sketch.node("ReduceMax", [sketch.node("Relu", ["x"], "m", out="m")], "most", keepdims=0)
    large = sketch.node("Greater", [most, sketch.constant("limit", 1)], "large", out="large")
    sketch.node("If", [large], "choice", out="y", **branches)
    network = trt_bisect.load_network(networks.save(sketch.model({"x": [2, 3]}, {"y": [2, 3]}), tmp_path))
    choice = next(node for node in graph_of(network).node if node.name == "choice")
    assert list(choice.input) == ["large", "m"], "what the bodies read too"
    assert choice.attr["then_branch"].s == b"a body of 1 nodes"


def blocks():
    shapes = st.tuples(st.integers(1, 3), st.integers(0, 20))
    block = shapes.flatmap(lambda shape: arrays(np.float32, shape))
    return st.lists(block, min_size=1, max_size=4)


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


@given(st.text(st.characters(exclude_categories=["C"]), max_size=30))
def test_strange_texts_stay_texts(name):
    shown = markdown_to_safe_html(table(["name"], [[f"x{name}x"]]))
    cell = shown.split("<td>")[1].split("</td>")[0]
    assert html.unescape(cell) == " ".join(f"x{name}x".split())
