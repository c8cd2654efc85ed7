"""A pass says which layers stay in high precision: a cache lacks their range, or TensorRT has none in INT8."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import trt_bisect
from tests.support import networks
from trt_bisect.calibration.collect import calibrate
from trt_bisect.model.network import load_network


def test_layers_without_a_range_are_named_in_the_verdict(tmp_path):
    model = networks.chain(3)
    path, x = networks.save(model, tmp_path), networks.samples(model, 8)["x"]
    scales = dict(calibrate(load_network(path), networks.feeds(x), "minmax").scales)
    del scales["relu1_out"]
    lines = [f"{tensor}: {np.float32(scale).view(np.uint32):08x}" for tensor, scale in scales.items()]
    cache = tmp_path / "c.cache"
    cache.write_text("\n".join(["TRT-8501-EntropyCalibration2", *lines]) + "\n")
    report = trt_bisect.run(path, str(cache), inputs={"x": x}, threshold=0.5, explain="none", history="none")
    assert report.verdict == "passes"
    (reader,) = (node.name for node in model.graph.node if "relu1_out" in node.input)
    said = f"'{reader}' stays in high precision without a usable range; no other layer has to."
    assert said in report.lines[0].text


def test_recurrent_layers_are_named_with_their_share_of_the_weights(tmp_path):
    """4 * 16 * (8 + 16) weights of the LSTM, and 16 * 10 + 10 of the Gemm."""
    sketch = networks.Sketch(0)
    weights = [sketch.random.normal(0, 0.3, (1, 64, size)) for size in (8, 16)]
    read = [sketch.constant(name, values) for name, values in zip("WR", weights, strict=True)]
    sketch.nodes.append(networks.helper.make_node("LSTM", ["x", *read], ["", "hidden"], "lstm", hidden_size=16))
    rows = sketch.node("Squeeze", ["hidden", sketch.constant("axis", [0], np.int64)], "squeeze")
    sketch.node("Gemm", [rows, sketch.constant("w", sketch.random.normal(0, 1, (16, 10)))], "fc", out="z")
    path = networks.save(sketch.model({"x": [5, 1, 8]}, {"z": [1, 10]}), tmp_path)
    data = {"x": networks.normal(0, 6, 5, 1, 8)}
    report = trt_bisect.run(path, data, explain="none", history="none", calibrator="minmax", validation=0.0)
    assert report.verdict == "passes"
    assert "'lstm' stays in high precision, with 90.57% of the weights: " in report.lines[0].text
    assert {row.name: row.why_not for row in report.layers}["lstm"] == "TensorRT has no LSTM in INT8"


@pytest.mark.parametrize(("op", "share"), [("Einsum", "44.44%"), ("If", "61.54%")])
def test_products_outside_int8_are_named_with_their_share_of_the_weights(op, share, tmp_path):
    """8 * 16 weights of the Einsum, or of each branch of the If, one of which has its own; 16 * 10 of the Gemm."""
    sketch = networks.Sketch(0)
    values = sketch.random.normal(0, 0.3, (8, 16)).astype(np.float32)
    weight = sketch.constant("w", values)
    if op == "Einsum":
        rows = sketch.node("Einsum", ["x", weight], "part", equation="ij,jk->ik")
    else:
        condition = sketch.node(
            "Cast", [sketch.node("ReduceSum", ["x"], "sum", keepdims=0)], "bool", to=TensorProto.BOOL
        )
        bodies = {}
        for branch, read, own in (
            ("then_branch", weight, []),
            ("else_branch", "v", [numpy_helper.from_array(values, "v")]),
        ):
            output = helper.make_tensor_value_info(branch, TensorProto.FLOAT, [4, 16])
            bodies[branch] = helper.make_graph(
                [helper.make_node("MatMul", ["x", read], [branch])], branch, [], [output], own
            )
        rows = sketch.node("If", [condition], "part", **bodies)
    sketch.node("Gemm", [rows, sketch.constant("g", sketch.random.normal(0, 1, (16, 10)))], "fc", out="y")
    path = networks.save(sketch.model([4, 8], [4, 10]), tmp_path)
    data = {"x": networks.normal(0, 6, 4, 8)}
    report = trt_bisect.run(path, data, explain="none", history="none", calibrator="minmax", validation=0.0)
    assert report.verdict == "passes"
    assert f"'part' stays in high precision, with {share} of the weights: " in report.lines[0].text
