"""Networks in every form that Python takes, and networks that are compared as they run, beside ONNX Runtime itself."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, quantize_dynamic

import trt_bisect
from tests.support import networks
from tests.support.by_hand import cosine
from tests.support.quantized import in_plan, plain_session, quantized_by_onnxruntime
from trt_bisect.errors import BadInput
from trt_bisect.precision import Precision

FAST = {"engine": "onnxruntime", "calibrator": "minmax"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A chain of convolutions with a Gemm, its samples, and the folder of its file."""
    model, folder = networks.chain(2), tmp_path_factory.mktemp("made")
    samples = networks.samples(model, 6)
    return networks.save(model, folder), samples, folder


def compare(first, other, samples):
    return trt_bisect.compare(first, inputs=samples, other=other)


def outputs_of(path, samples):
    return np.concatenate([plain_session(path).run(["y"], {"x": x[None]})[0] for x in samples["x"]]).astype(float)


def static(path, out, samples, **how):
    """Quantizes a network to integer operators by its samples."""
    feeds = networks.feeds(samples["x"])
    quantized_by_onnxruntime(path, out, feeds, quant_format=QuantFormat.QOperator, **how)


def test_a_network_in_memory_is_as_good_as_its_file(made):
    path, samples, _ = made
    model = onnx.load(path)
    network = trt_bisect.load_network(model)

    def found(given):
        return (
            trt_bisect.run(given, samples, explain="none", **FAST).similarity,
            trt_bisect.worst(given, samples, **FAST).values,
            trt_bisect.sensitivity(given, samples, **FAST).ops,
            [row.figures for row in trt_bisect.compare(given, samples, calibrator="minmax").tensors],
            [row.tensor for row in trt_bisect.profile(given).tensors],
            trt_bisect.check(given).findings,
        )

    assert found(model) == found(network) == found(path)
    two = compare(model, model, samples)
    assert {row.figures.cosine for row in two.tensors} == {1.0}


def test_an_integer_network_is_compared_as_it_runs(made, command):
    path, samples, folder = made
    static(path, folder / "q.onnx", samples)
    np.savez(folder / "samples.npz", **samples)
    wanted = cosine(outputs_of(path, samples), outputs_of(folder / "q.onnx", samples))
    asked = ["compare", path, folder / "q.onnx", "--input", folder / "samples.npz"]
    assert command(*asked, "--output", folder / "out")[0] == 0
    found = trt_bisect.Comparison.load(folder / "out")
    rows = {row.origin.tensor: row.figures.cosine for row in found.tensors}
    assert rows["y"] == pytest.approx(wanted, abs=1e-4)
    assert len(rows) > 3, "tensors in between too"
    assert min(rows.values()) > 0.9
    assert found.tensors[-1].origin.layer == "fc", "with the layers of the first network"
    back = compare(folder / "q.onnx", path, samples)
    assert len(back.tensors) == len(rows)
    command(*asked, "--tensorboard", folder / "board")
    assert {each.parent.name.split("_")[0] for each in (folder / "board").rglob("events*")} == {"baseline", "tune"}


@pytest.mark.parametrize(("activation", "absorbed"), [("Relu", True), ("Clip", True), ("LeakyRelu", False)])
def test_an_activation_that_an_integer_layer_absorbed_is_compared_as_its_result(activation, absorbed, tmp_path):
    """A float BatchNormalization reads it, so that both networks have its name; one alone has the convolution's own."""
    sketch = networks.Sketch(1)
    limits = [sketch.constant("zero", 0.0), sketch.constant("six", 6.0)] if activation == "Clip" else []
    weight = sketch.constant("w", sketch.random.normal(size=(4, 3, 3, 3)))
    made = sketch.node(activation, [sketch.node("Conv", ["x", weight], "conv"), *limits], "act")
    parts = [sketch.constant(f"bn.{k}", np.full(4, float(value))) for k, value in enumerate((1, 0, 0, 1))]
    sketch.node("BatchNormalization", [made, *parts], "bn", out="y")
    path = networks.save(sketch.model([1, 3, 8, 8], [1, 4, 6, 6]), tmp_path)
    samples = {"x": networks.normal(0, 6, 3, 8, 8)}
    static(path, tmp_path / "q.onnx", samples)
    found = trt_bisect.compare(path, inputs={"x": samples["x"][:, None]}, other=tmp_path / "q.onnx")
    rows = {row.origin.tensor: row for row in found.tensors}
    assert rows["act_out"].origin.layer == "act"
    if absorbed:
        assert rows["act_out"].int8.min >= 0 > rows["conv_out"].int8.min, "as the emulation makes it, and as it is read"
    assert min(row.figures.cosine for row in rows.values()) > 0.999
    assert not [advice for advice in found.advice if advice.reason == "saturation"]


def test_the_weights_and_scales_of_an_integer_network_are_compared_by_name(made):
    """The quantizer's own initializers: levels, a scale a channel, a zero point. A Gemm's weight may be transposed."""
    path, samples, folder = made
    static(path, folder / "w.onnx", samples, per_channel=True)
    quantize_dynamic(path, folder / "d.onnx")
    for file in ("w.onnx", "d.onnx"):
        given = {each.name: numpy_helper.to_array(each) for each in onnx.load(folder / file).graph.initializer}
        found = compare(path, folder / file, samples)
        rows = {row.origin.tensor: row for row in found.weights}
        assert set(rows) == {name.removesuffix("_quantized") for name in given if ".weight_quantized" in name}
        for name, row in rows.items():
            weight = numpy_helper.to_array(next(t for t in onnx.load(path).graph.initializer if t.name == name))
            scale, zero = (given[f"{name}{end}"].astype(np.float32) for end in ("_scale", "_zero_point"))
            levels = given[f"{name}_quantized"].astype(np.float32)
            levels = levels if levels.shape == weight.shape else levels.T
            shape = () if scale.size == 1 else (-1, 1, 1, 1) if weight.ndim == 4 else (1, -1)
            rounded = (levels - zero.reshape(shape)) * scale.reshape(shape)
            assert row.figures.mse == pytest.approx(np.mean((rounded - weight).astype(float) ** 2), rel=1e-3)
            assert (row.scales, row.scale) == (scale.size, pytest.approx(float(scale.max())))
            assert row.observer == ("the network's own Q/DQ" if file == "w.onnx" else "the integer network")
    found = compare(path, folder / "w.onnx", samples)
    given = {each.name: numpy_helper.to_array(each) for each in onnx.load(folder / "w.onnx").graph.initializer}
    assert next(row.scale for row in found.tensors if row.origin.tensor == "x") == pytest.approx(given["x_scale"])


def test_two_integer_networks_are_matched_where_one_kernel_clips(made):
    """The static network has the activation in the kernel before it, under the name of what the activation reads."""
    path, samples, folder = made
    static(path, folder / "static.onnx", samples)
    quantize_dynamic(path, folder / "dyn.onnx")
    for one, other in (("static.onnx", "dyn.onnx"), ("dyn.onnx", "static.onnx")):
        found = compare(folder / one, folder / other, samples)
        assert len(found.tensors) > 3
        assert min(row.figures.cosine for row in found.tensors) > 0.9
    assert not any("FP32" in each.words for each in found.advice)


def test_dynamic_quantization_is_compared_as_it_runs(made):
    path, samples, folder = made
    quantize_dynamic(path, folder / "dynamic.onnx")
    wanted = cosine(outputs_of(path, samples), outputs_of(folder / "dynamic.onnx", samples))
    found = compare(path, onnx.load(folder / "dynamic.onnx"), samples)
    assert found.tensors[-1].figures.cosine == pytest.approx(wanted, abs=1e-4)


def test_sessions_and_functions_are_compared_by_their_outputs(made):
    path, samples, _ = made
    session = plain_session(path)

    def doubled(feeds):
        return {"y": session.run(["y"], feeds)[0] * 2}

    for first, second in ((path, session), (session, session), (session, onnx.load(path))):
        found = compare(first, second, samples)
        assert [row.origin.tensor for row in found.tensors] == ["y"]
        assert found.tensors[0].figures.cosine == pytest.approx(1.0, abs=1e-6)
    found = compare(path, doubled, samples)
    y = outputs_of(path, samples)
    assert found.tensors[0].figures.mse == pytest.approx((y**2).mean(), rel=1e-4)
    with pytest.raises(BadInput, match="cannot be run"):
        compare(path, lambda feeds: feeds["z"], samples)
    with pytest.raises(BadInput, match="name and the shape"):
        compare(path, lambda _: {"z": np.ones(3, np.float32)}, samples)
    with pytest.raises(BadInput, match="The inputs of neither"):
        compare(doubled, doubled, samples)


def test_a_network_is_judged_by_a_session_and_by_a_function(made):
    path, samples, _ = made
    session = plain_session(path)
    own = trt_bisect.run(path, samples, **FAST, explain="none").similarity
    for reference in (session, lambda feeds: {"y": session.run(["y"], feeds)[0]}):
        report = trt_bisect.run(path, samples, **FAST, explain="none", reference=reference)
        assert report.similarity.int8 == pytest.approx(own.int8, abs=1e-6)
        assert any("runs as it is" in note.text for note in report.notes)
    own, judged = (trt_bisect.worst(path, samples, **FAST, reference=each).values for each in (None, session))
    assert judged == pytest.approx(own, abs=1e-6)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float16, np.float32])
def test_a_session_is_fed_in_its_own_types(dtype):
    """The types of ONNX Runtime's session decide how the data are read: numbers of words are no floats."""
    made = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [onnx.helper.make_node("Cast", ["x"], ["c"], to=made), onnx.helper.make_node("Cast", ["c"], ["y"], to=1)]
    ends = [onnx.helper.make_tensor_value_info(name, kind, [1, 4]) for name, kind in (("x", made), ("y", 1))]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    samples = {"x": np.arange(8, dtype=dtype).reshape(2, 4)}
    found = compare(plain_session(model), plain_session(model), samples)
    assert [row.figures.max_abs for row in found.tensors if row.origin.tensor == "y"] == [0.0]


def test_a_tensor_that_is_rounded_twice_is_rounded_twice(tmp_path):
    """ONNX Runtime's optimisations would keep one of the two pairs; it computes both, as TensorRT does, without."""
    sketch = networks.Sketch()

    def paired(tensor, step, name):
        scale, zero = sketch.constant(f"{name}_s", step), sketch.constant(f"{name}_z", 0, np.int8)
        levels = sketch.node("QuantizeLinear", [tensor, scale, zero], f"{name}_q")
        return sketch.node("DequantizeLinear", [levels, scale, zero], f"{name}_dq")

    twice = paired(paired("x", 0.05, "first"), 0.011, "second")
    weight = paired(sketch.constant("w", networks.normal(3, 4, 3, 1, 1)), 0.03, "weight")
    sketch.node("Conv", [twice, weight], "conv", out="y")
    path = networks.save(sketch.model({"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 8]}), tmp_path)
    x = networks.normal(4, 6, 3, 8, 8)
    truth = [plain_session(path, optimised=False).run(None, {"x": each[None]})[0] for each in x]
    network = trt_bisect.load_network(path)
    found = [in_plan(network, network.full(Precision.FP32), {"x": each[None]})["y"] for each in x]
    assert np.allclose(found, truth, atol=1e-5)
    report = trt_bisect.run(path, inputs={"x": x}, explain="none", history="none", **FAST)
    assert report.similarity.int8 is not None
