"""The granularity of quantization: one scale a weight, chosen operators, activations in 16 bits (emulated)."""

import numpy as np
import pytest
from onnx import numpy_helper

import trt_bisect
from tests.support import networks
from tests.support.quantized import plain_run
from trt_bisect.errors import BadInput
from trt_bisect.report.given import EXPERIMENT

FAST = {"engine": "onnxruntime", "calibrator": "minmax", "explain": "none", "validation": 0.0}


def weight_of(model, name):
    return numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == name)).astype(np.float64)


def test_one_scale_for_the_weights_of_chosen_layers(tmp_path):
    model = networks.chain(3)
    path = networks.save(model, tmp_path)
    found = trt_bisect.compare(path, networks.samples(model, 2), one_scale="conv1")
    for name, one in (("conv1.weight", True), ("conv2.weight", False)):
        each = np.abs(weight_of(model, name)).max(axis=(1, 2, 3)) / 127
        wanted = np.full_like(each, each.max()) if one else each
        scales = [row.scale for row in found.channels if row.origin.tensor == name]
        assert scales == pytest.approx(wanted.tolist(), rel=1e-6)
    network = trt_bisect.load_network(path)
    digests = {network.with_one_scale_a_weight(chosen).digest() for chosen in ([2], [4], None)}
    assert len(digests | {network.digest()}) == 4
    with pytest.raises(BadInput, match="no layer 'conv9'"):
        trt_bisect.compare(path, networks.samples(model, 2), one_scale="conv9")


def test_only_layers_of_an_operator_are_quantized(tmp_path):
    model = networks.chain(3)
    path = networks.save(model, tmp_path)
    report = trt_bisect.run(path, networks.samples(model, 4), only="op:Conv", keep_low="fc", output=tmp_path, **FAST)
    asked = {row.name: row.asked for row in report.layers if row.quantizable}
    assert asked == {"conv0": "int8", "conv1": "int8", "conv2": "int8", "pool": "fp32", "fc": "int8"}
    with pytest.raises(BadInput, match="operator 'LSTM'"):
        trt_bisect.run(path, networks.samples(model, 4), only="op:LSTM", **FAST)


def test_activations_in_16_bits_beside_numpy(tmp_path):
    """One matrix product: activations rounded to 65535 levels, weights to 255, by hand."""
    sketch = networks.Sketch(3)
    weight = sketch.constant("w", sketch.random.normal(0, 1, (8, 5)))
    sketch.nodes.append(networks.helper.make_node("MatMul", ["x", weight], ["y"], name="product"))
    model = sketch.model(["n", 8], ["n", 5])
    path = networks.save(model, tmp_path)
    x = networks.normal(4, 6, 8)
    report = trt_bisect.run(path, x, x, low="int16", metric="sqnr", threshold=20.0, output=tmp_path / "r", **FAST)
    step = np.abs(x).max().astype(np.float64) / 32767
    scales = np.abs(weight_of(model, "w")).max(axis=0) / 127
    rounded = np.rint(weight_of(model, "w") / scales) * scales
    exact = x.astype(np.float64) @ weight_of(model, "w")
    ours = np.rint(x / step) * step @ rounded
    worst = min(10 * np.log10(np.sum(e**2) / np.sum((e - o) ** 2)) for e, o in zip(exact, ours, strict=True))
    assert report.similarity.int8 == pytest.approx(worst, abs=0.01)
    written = plain_run(tmp_path / "r" / "recipe" / "network.qdq.onnx", {"x": x})
    np.testing.assert_allclose(written[0], ours, rtol=1e-3, atol=1e-4)
    assert report.next is None
    assert report.lines[0].kind == EXPERIMENT
    assert "W8A16" in report.lines[0].text
    with pytest.raises(BadInput, match="INT16"):
        trt_bisect.run(path, x, x, high=[f"recipe:{tmp_path / 'r'}"], **FAST)
    eight = trt_bisect.run(path, x, x, metric="sqnr", threshold=20.0, output=tmp_path / "r", **FAST)
    assert eight.similarity.int8 < worst - 0.01
