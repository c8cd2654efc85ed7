"""One scale for each whole weight, as the DLA has them, beside one for each output channel."""

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.support.networks import chain, copied, samples, save, scale_constant
from tests.support.quantized import in_plan, plain_run
from trt_bisect.calibration.collect import calibrate
from trt_bisect.model.network import load_network
from trt_bisect.options.concerns import RunOptions
from trt_bisect.precision import Precision, PrecisionPlan


def rounded(weight, axis):
    """By hand: scale absmax / 127, half to even."""
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    scale = np.abs(weight).max(axis=others, keepdims=True) / 127
    return np.rint(weight / scale) * scale


def test_weights_are_rounded_with_one_scale():
    """The network with weights rounded by hand gives the outputs of the plan that rounds weights alone."""
    model = chain()
    network = load_network(model)
    feeds = {"x": samples(model, 1)["x"]}
    scales = calibrate(network, [feeds], "minmax").scales
    plan = PrecisionPlan((Precision.INT8_WEIGHT,) * len(network.layers))
    outputs = {}
    assert network.with_one_scale_a_weight().digest() != network.digest()
    for axis, known in ((None, network.with_one_scale_a_weight()), (0, network)):
        by_hand = copied(model)
        for tensor in by_hand.graph.initializer:
            if len(tensor.dims) > 1:
                channels = axis if len(tensor.dims) == 4 else {0: 1}.get(axis)  # Gemm's weight: inputs, outputs
                scale_constant(by_hand, tensor.name, lambda values, of=channels: rounded(values, of).astype(np.float32))
        (expected,) = plain_run(by_hand, feeds)
        found = in_plan(known, plan, feeds, scales)["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        outputs[axis] = found
    assert np.abs(outputs[None] - outputs[0]).max() > 1e-6


@pytest.mark.slow
def test_a_recipe_for_the_dla_has_one_scale_a_weight_and_fp16_beside_int8(tmp_path):
    """It is that of the two options, for the TensorRT that has the DLA again; what the user says goes before."""
    model = chain(depth=3)
    path, how = save(model, tmp_path), {"calibrator": "minmax", "explain": "none", "engine": "onnxruntime"}
    dla = trt_bisect.run(path, samples(model), dla=0, output=tmp_path / "dla", **how)
    by_hand = trt_bisect.run(path, samples(model), one_scale=["*"], base="fp16", **how)
    assert dla.similarity == by_hand.similarity
    written = onnx.load(tmp_path / "dla/recipe/network.qdq.onnx")
    scales = [t for t in written.graph.initializer if t.name.endswith("_scale")]
    assert {tuple(t.dims) for t in scales} <= {(), (1,)}
    assert {t.data_type for t in scales} == {onnx.TensorProto.FLOAT16}
    text = (tmp_path / "dla/recipe/README.md").read_text()
    for said in (
        "For TensorRT 11.4.1",
        "--stronglyTyped --noTF32",
        "--useDLACore=0 --allowGPUFallback",
        "**Unproven**",
    ):
        assert said in text
    options = RunOptions(dla=0, base="fp32", one_scale=["op:Conv"])
    assert (options.base, list(options.one_scale)) == ("fp32", ["op:Conv"])
    weak = RunOptions(dla=0, typing="weak")
    assert (weak.base, list(weak.one_scale)) == (None, [])
