"""One scale for each whole weight, as the DLA has them, beside one for each output channel."""

import numpy as np
import onnx

import trt_bisect
from tests.support.networks import chain, samples, save
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.model.network import load_network
from trt_bisect.options.concerns import RunOptions
from trt_bisect.precision import Precision, PrecisionPlan


def rounded(weight, axis):
    """By hand: scale absmax / 127, half to even."""
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    scale = np.abs(weight).max(axis=others, keepdims=True) / 127
    return np.rint(weight / scale) * scale


def test_weights_are_rounded_with_one_scale(tmp_path):
    """The network with weights rounded by hand gives the outputs of the plan that rounds weights alone."""
    model = chain()
    network = load_network(save(model, tmp_path))
    feeds = {"x": samples(model, 1)["x"]}
    scales = calibrate(network, [feeds], "minmax").scales
    plan = PrecisionPlan((Precision.INT8_WEIGHT,) * len(network.layers))
    outputs = {}
    for axis, known in ((None, network.with_one_scale_a_weight()), (0, network)):
        by_hand = onnx.ModelProto.FromString(model.SerializeToString())
        for tensor in by_hand.graph.initializer:
            values = onnx.numpy_helper.to_array(tensor)
            if values.ndim > 1:
                channels = axis if values.ndim == 4 else {0: 1}.get(axis)  # Gemm's weight: inputs, outputs
                tensor.CopyFrom(onnx.numpy_helper.from_array(rounded(values, channels).astype(np.float32), tensor.name))
        (tmp_path / str(axis)).mkdir()
        hand = load_network(save(by_hand, tmp_path / str(axis)))
        expected = OnnxRuntimeBuilder(hand, {}, BuildOptions()).reference().infer(feeds)
        found = OnnxRuntimeBuilder(known, scales, BuildOptions()).build(plan).infer(feeds)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
        outputs[axis] = found
    assert any(np.abs(outputs[None][name] - outputs[0][name]).max() > 1e-6 for name in outputs[0])


def test_other_scales_are_another_network(tmp_path):
    network = load_network(save(chain(), tmp_path))
    one = network.with_one_scale_a_weight()
    assert one.digest() != network.digest()


def test_a_recipe_for_the_dla_has_one_scale_a_weight_and_fp16_beside_int8(tmp_path):
    """It is that of the two options, for the TensorRT that has the DLA again; what the user says goes before."""
    model = chain(depth=3)
    path, how = save(model, tmp_path), {"calibrator": "minmax", "explain": "none", "engine": "onnxruntime"}
    dla = trt_bisect.run(path, samples(model), dla=0, output=tmp_path / "dla", **how)
    by_hand = trt_bisect.run(path, samples(model), one_scale=["*"], base="fp16", **how)
    assert dla.similarity == by_hand.similarity
    written = onnx.load(tmp_path / "dla/recipe/network.qdq.onnx")
    sizes = {t.name: t.dims for t in written.graph.initializer if t.name.endswith("_scale")}
    assert sizes
    assert all(list(dims) == [] or list(dims) == [1] for dims in sizes.values())
    kinds = {t.data_type for t in written.graph.initializer if t.name.endswith("_scale")}
    assert kinds == {onnx.TensorProto.FLOAT16}
    text = (tmp_path / "dla/recipe/README.md").read_text()
    assert "For TensorRT 11.4.1" in text
    assert "--stronglyTyped --noTF32" in text
    assert "--useDLACore=0 --allowGPUFallback" in text
    assert "**Unproven**" in text
    options = RunOptions(dla=0, base="fp32", one_scale=["op:Conv"])
    assert (options.base, list(options.one_scale)) == ("fp32", ["op:Conv"])
    weak = RunOptions(dla=0, typing="weak")
    assert (weak.base, list(weak.one_scale)) == ("", [])


def test_a_run_takes_the_option(tmp_path):
    model = chain()
    path = save(model, tmp_path)
    found = [
        trt_bisect.run(path, samples(model), one_scale=scales, calibrator="minmax", explain="none", strategy="bisect")
        for scales in ([], ["*"])
    ]
    assert found[0].made_of["model"] != found[1].made_of["model"]
    assert found[0].similarity.int8 != found[1].similarity.int8
