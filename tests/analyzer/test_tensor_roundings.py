"""The quantization of each layer that ``check`` lists, beside the nodes and initializers of the files themselves."""

from __future__ import annotations

import csv
import json

import numpy as np
import onnx
from onnx import numpy_helper

import trt_bisect
from tests.support import networks


def test_nodes_that_are_no_layers_are_listed_with_what_became_of_them(tmp_path, command):
    sketch = networks.Sketch(1)
    sketch.node("Constant", [], "two", out="two", value=numpy_helper.from_array(np.float32([2.0])))
    x = sketch.conv("x", "conv", 3, 4)
    x = sketch.node("Identity", [x], "same")
    sketch.node("Relu", [x], "unread")
    x = sketch.node("Mul", [x, sketch.node("Sqrt", ["two"], "root")], "scaled")
    sketch.node("Add", [x, "two"], "sum", out="y")
    path = networks.save(sketch.model([1, 3, 8, 8], [1, 4, 8, 8]), tmp_path)
    expected = [
        (None, "two", "constant", 2),
        (0, "same", "passes its input on", 2),
        (0, "unread", "no output of the network depends on it", 0),
        (0, "root", "computed once, as a constant", 1),
    ]
    assert [(each.after, each.node, each.why, each.calls) for each in trt_bisect.check(path).dropped] == expected
    _, out, _ = command("layers", path, "--all", "--json")
    rows = json.loads(out)
    assert [row["name"] for row in rows if row["index"] is not None] == ["conv", "scaled", "sum"]
    assert [(row["after"], row["name"], row["why_not"], row["calls"]) for row in rows[3:]] == expected


def test_a_float_network_has_what_a_plan_would_write(tmp_path):
    report = trt_bisect.check(networks.save(networks.chain(2), tmp_path), output=tmp_path / "found")
    rows = {(row.layer, row.tensor): row for row in report.tensors}
    x, weight = rows["conv0", "x"], rows["conv0", "conv0.weight"]
    assert (x.quantized, x.scales, x.axis, x.origin, x.dtype) == ("int8", 1, None, "planned", "float32")
    assert (weight.role, weight.scales, weight.axis) == ("weight", 8, 0)
    assert rows["conv0", "conv0.bias"].quantized == ""
    assert rows["relu1", "conv0_out"].why_not.startswith("Relu follows")
    with (tmp_path / "found" / "quantization.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(report.tensors)


def test_a_network_with_pairs_has_those_of_the_file(finished):
    """The network of a recipe, without pairs at the culprit: its DequantizeLinear nodes say what is there."""
    file = finished / "recipe" / "network.qdq.onnx"
    report = trt_bisect.check(file)
    model = onnx.load(file)
    sizes = {tensor.name: numpy_helper.to_array(tensor).size for tensor in model.graph.initializer}
    quantized = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    read = [quantized[name] for node in model.graph.node for name in node.input if name in quantized]
    found = [row for row in report.tensors if row.origin == "file"]
    assert sorted(row.scales for row in found) == sorted(sizes[node.input[1]] for node in read)
    assert "ip2" not in {row.layer for row in found}
    assert not [row for row in report.tensors if row.origin == "planned"]


def test_a_shared_weight_says_how_often_it_is_read(tmp_path):
    model = networks.chain(3)
    shared = next(node for node in model.graph.node if node.name == "conv2")
    shared.input[1] = "conv1.weight"
    report = trt_bisect.check(networks.save(model, tmp_path))
    calls = {row.tensor: row.calls for row in report.tensors if row.role == "weight"}
    assert calls["conv1.weight"] == 2
    assert calls["conv0.weight"] == 1


def test_a_file_that_run_cannot_read_says_why(tmp_path):
    model = networks.chain(2)
    model.opset_import[0].version = 8
    onnx.save(model, str(tmp_path / "old.onnx"))
    report = trt_bisect.check(tmp_path / "old.onnx")
    assert report.tensors == ()
    assert "opset" in report.unread


def test_each_tensor_has_the_number_of_layers_that_read_it(tmp_path):
    """The sum's input is read by the convolution and by the sum; the output of the network by no layer."""
    sketch = networks.Sketch(1)
    x = sketch.node("Relu", ["x"], "relu")
    sketch.node("Add", [sketch.conv(x, "conv", 4, 4), x], "sum")
    report = trt_bisect.check(networks.save(sketch.model({"x": [1, 4, 8, 8]}, {"sum_out": [1, 4, 8, 8]}), tmp_path))
    counted = {(row.layer, row.role, row.tensor): row.calls for row in report.tensors}
    assert counted["relu", "output", "relu_out"] == counted["sum", "input", "relu_out"] == 2
    assert counted["relu", "input", "x"] == counted["conv", "weight", "conv.weight"] == 1
    assert counted["sum", "output", "sum_out"] == 0
