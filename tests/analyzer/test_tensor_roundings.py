"""The quantization of each layer that ``check`` lists, beside the nodes and initializers of the files themselves."""

from __future__ import annotations

import csv

import onnx
from onnx import numpy_helper

import trt_bisect
from tests.support import networks


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


def test_a_network_with_pairs_has_those_of_the_file(lenet, tmp_path):
    """The network of a recipe, without pairs at the culprit: its DequantizeLinear nodes say what is there."""
    trt_bisect.run(
        lenet / "lenet_planted.onnx", lenet / "calibration.npz", high=["ip2"], output=tmp_path, explain="none"
    )
    file = tmp_path / "recipe" / "network.qdq.onnx"
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
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", 8))
    onnx.save(model, str(tmp_path / "old.onnx"))
    report = trt_bisect.check(tmp_path / "old.onnx")
    assert report.tensors == ()
    assert "opset" in report.unread
