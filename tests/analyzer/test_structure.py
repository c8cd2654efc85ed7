"""The structure check: every kind planted, healthy networks without errors, the parser of TensorRT-RTX as witness."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import trt_bisect
from tests.support import networks
from trt_bisect.analyzer.structure.check import structure_findings
from trt_bisect.analyzer.structure.findings import KINDS
from trt_bisect.analyzer.structure.graph import FileGraph
from trt_bisect.analyzer.structure.operators import INTEGER_OPS, REFUSED

ACTIVATION, WEIGHT = 0.05, np.full(4, 0.01)


def pair(sketch, x, name, scale, zero=0, dtype=np.int8, axis=None):
    """A Q/DQ pair on ``x``; its output is ``<name>.dq_out``."""
    scales = sketch.constant(f"{name}.scale", scale)
    zeros = sketch.constant(f"{name}.zero", np.full(np.shape(scale), zero), dtype)
    attributes = {} if axis is None else {"axis": axis}
    rounded = sketch.node("QuantizeLinear", [x, scales, zeros], f"{name}.q", **attributes)
    return sketch.node("DequantizeLinear", [rounded, scales, zeros], f"{name}.dq", **attributes)


def quantized_conv(sketch, x, name, inside=4, weight_scale=WEIGHT, axis=0, bias=None, size=3):
    """A convolution with four output channels that reads ``x`` as it is and its weight through a pair."""
    weight = sketch.constant(f"{name}.weight", sketch.weight(name, 4, inside, size, size))
    rounded = pair(sketch, weight, f"{name}.weight", weight_scale, axis=axis)
    inputs = [x, rounded] if bias is None else [x, rounded, bias]
    return sketch.node("Conv", inputs, name, pads=[size // 2] * 4)


def finished(sketch, x, channels=4):
    sketch.nodes.append(helper.make_node("Relu", [x], ["y"], name="last"))
    return sketch.model({"x": [1, 3, 8, 8]}, {"y": [1, channels, 8, 8]})


def one_conv(activation=None, **options):
    sketch = networks.Sketch(1)
    x = pair(sketch, "x", "in", ACTIVATION, **(activation or {}))
    return finished(sketch, quantized_conv(sketch, x, "conv", 3, **options))


def with_scale(value):
    sketch = networks.Sketch(1)
    return finished(sketch, quantized_conv(sketch, pair(sketch, "x", "in", value), "conv", 3))


def with_axis(scale, axis):
    sketch = networks.Sketch(1)
    x = pair(sketch, "x", "in", scale, axis=axis)
    return finished(sketch, quantized_conv(sketch, x, "conv", 3))


def with_bias(scale, values, dtype, paired):
    sketch = networks.Sketch(1)
    stored = sketch.constant("conv.bias", values, dtype)
    if paired:
        bias = pair(sketch, stored, "conv.bias", scale)
    else:
        bias = sketch.node("DequantizeLinear", [stored, sketch.constant("conv.bias.scale", scale)], "conv.bias.dq")
    x = pair(sketch, "x", "in", ACTIVATION)
    return finished(sketch, quantized_conv(sketch, x, "conv", 3, bias=bias))


def unsigned_weight():
    sketch = networks.Sketch(1)
    stored = sketch.constant("stored", np.arange(108).reshape(4, 3, 3, 3), np.uint8)
    scale, zero = sketch.constant("scale", 0.01), sketch.constant("zero", 0, np.uint8)
    weight = sketch.node("DequantizeLinear", [stored, scale, zero], "weight")
    x = pair(sketch, "x", "in", ACTIVATION)
    return finished(sketch, sketch.node("Conv", [x, weight], "conv", pads=[1] * 4))


def double_pair():
    sketch = networks.Sketch(1)
    x = pair(sketch, pair(sketch, "x", "first", ACTIVATION), "second", 0.07)
    return finished(sketch, quantized_conv(sketch, x, "conv", 3))


def quantized_residual(skip_has_pair, main_has_pair=False):
    """conv1, then conv2 and the sum across it."""
    sketch = networks.Sketch(1)
    stem = quantized_conv(sketch, pair(sketch, "x", "in", ACTIVATION), "conv1", 3)
    stem = sketch.node("Relu", [stem], "relu1")
    main = quantized_conv(sketch, pair(sketch, stem, "mid", ACTIVATION), "conv2")
    skip = pair(sketch, stem, "skip", ACTIVATION) if skip_has_pair else stem
    main = pair(sketch, main, "main", ACTIVATION) if main_has_pair else main
    return finished(sketch, sketch.node("Add", [main, skip], "sum"))


def projected_residual(main_has_pair, skip_has_pair):
    """Two convolutions with a Relu between them, a projection beside them, and their sum."""
    sketch = networks.Sketch(1)
    x = pair(sketch, "x", "in", ACTIVATION)
    main = sketch.node("Relu", [quantized_conv(sketch, x, "conv1", 3)], "relu1")
    main = quantized_conv(sketch, pair(sketch, main, "mid", ACTIVATION), "conv2")
    skip = quantized_conv(sketch, x, "projection", 3)
    main = pair(sketch, main, "main", ACTIVATION) if main_has_pair else main
    skip = pair(sketch, skip, "skip", ACTIVATION) if skip_has_pair else skip
    return finished(sketch, sketch.node("Add", [skip, main], "sum"))


def pair_before_relu():
    sketch = networks.Sketch(1)
    x = quantized_conv(sketch, pair(sketch, "x", "in", ACTIVATION), "conv", 3)
    return finished(sketch, pair(sketch, x, "out", ACTIVATION))


def weight_along_inputs():
    return one_conv(weight_scale=np.full(3, 0.01), axis=1)


def one_channel_far_off():
    scales = WEIGHT.copy()
    scales[2] = 20.0
    return one_conv(weight_scale=scales)


def one_activation_far_off():
    sketch = networks.Sketch(1)
    x = "x"
    for k, scale in enumerate([0.05, 0.04, 90.0, 0.03, 0.06]):
        x = quantized_conv(sketch, pair(sketch, x, f"in{k}", scale), f"conv{k}", 4 if k else 3)
    return finished(sketch, x)


def half_quantized():
    sketch = networks.Sketch(1)
    return finished(sketch, quantized_conv(sketch, "x", "conv", 3))


def second_conv_without_pairs():
    sketch = networks.Sketch(1)
    x = quantized_conv(sketch, pair(sketch, "x", "in", ACTIVATION), "conv1", 3)
    return finished(sketch, sketch.conv(x, "conv2", 4, 4))


def shared_weight(with_bias=True):
    """Two Gemm-like convolutions on one weight; with their own biases, or none."""
    sketch = networks.Sketch(1)
    weight = sketch.constant("tied", sketch.weight("tied", 3, 3, 1, 1))
    biases = [sketch.constant(f"bias{k}", np.zeros(3)) for k in (1, 2)] if with_bias else []
    x = sketch.node("Conv", ["x", weight, *biases[:1]], "conv1")
    return finished(sketch, sketch.node("Conv", [x, weight, *biases[1:]], "conv2"), 3)


def shared_layer():
    sketch = networks.Sketch(1)
    weight = sketch.constant("tied", sketch.weight("tied", 3, 3, 1, 1))
    bias = sketch.constant("bias", np.zeros(3))
    x = sketch.node("Conv", ["x", weight, bias], "conv1")
    return finished(sketch, sketch.node("Conv", [x, weight, bias], "conv2"), 3)


def batch_norm(sketch, x, name, channels):
    ones = [sketch.constant(f"{name}.{part}", np.ones(channels)) for part in ("scale", "shift", "mean", "var")]
    return sketch.node("BatchNormalization", [x, *ones], name)


def read_beside(op):
    """The convolution's output is read by ``op`` and, beside it, by the sum."""
    sketch = networks.Sketch(1)
    x = sketch.conv("x", "conv", 3, 4)
    taken = batch_norm(sketch, x, "taken", 4) if op == "BatchNormalization" else sketch.node(op, [x], "taken")
    return finished(sketch, sketch.node("Add", [taken, x], "sum"))


def activation_before_sum():
    sketch = networks.Sketch(1)
    stem = sketch.node("Relu", [sketch.conv("x", "conv1", 3, 4)], "relu1")
    main = sketch.node("Relu", [sketch.conv(stem, "conv2", 4, 4)], "relu2")
    return finished(sketch, sketch.node("Add", [main, stem], "sum"))


def transpose_between():
    sketch = networks.Sketch(1)
    x = sketch.node("Transpose", [sketch.conv("x", "conv", 3, 8)], "turn", perm=[0, 2, 3, 1])
    sketch.nodes.append(helper.make_node("Relu", [x], ["y"], name="last"))
    return sketch.model({"x": [1, 3, 8, 8]}, {"y": [1, 8, 8, 8]})


def transposes_cancel():
    sketch = networks.Sketch(1)
    x = sketch.node("Transpose", ["x"], "there", perm=[0, 2, 3, 1])
    x = sketch.node("Transpose", [x], "back", perm=[0, 3, 1, 2])
    return finished(sketch, x, 3)


def single(op, opset=17, domain="", **attributes):
    sketch = networks.Sketch(1)
    sketch.nodes.append(helper.make_node(op, ["x"], ["y"], name="odd", domain=domain, **attributes))
    model = sketch.model({"x": [1, 3, 8, 8]}, {"y": None}, opset)
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def indices_of_pooling():
    sketch = networks.Sketch(1)
    sketch.nodes.append(helper.make_node("MaxPool", ["x"], ["p", "where"], name="odd", kernel_shape=[2, 2]))
    return finished(sketch, "p", 3)


def training_norm():
    sketch = networks.Sketch(1)
    x = batch_norm(sketch, "x", "odd", 3)
    sketch.nodes[-1].attribute.append(helper.make_attribute("training_mode", 1))
    sketch.nodes[-1].output.extend(["mean_out", "var_out"])
    return finished(sketch, x, 3)


def refused_inside_a_body():
    """The operator stands in a branch of an If."""
    x_info = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    yes = helper.make_graph([helper.make_node("Det", ["x"], ["z"], name="odd")], "yes", [], [x_info])
    no = helper.make_graph([helper.make_node("Identity", ["x"], ["z"], name="kept")], "no", [], [x_info])
    sketch = networks.Sketch(1)
    sketch.constant("condition", True, np.bool_)
    sketch.nodes.append(helper.make_node("If", ["condition"], ["y"], name="choice", then_branch=yes, else_branch=no))
    return sketch.model({"x": [1, 3, 8, 8]}, {"y": None})


def of_type(element):
    model = single("Identity")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = element
    return model


def half_floats():
    model = networks.chain(depth=1)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


PLANTED = {
    "opset too old": (lambda: single("Relu", opset=8), ""),
    "opset below 11": (lambda: single("Relu", opset=10), ""),
    "opset too new": (lambda: single("Relu", opset=27), ""),
    "operator refused": (lambda: single("Det"), "odd"),
    "operator refused in a body": (refused_inside_a_body, "odd"),
    "integer operator": (lambda: single("QLinearSigmoid", domain="com.microsoft"), "odd"),
    "operator restricted": (indices_of_pooling, "odd"),
    "operator restricted by training": (training_norm, "odd"),
    "plugin needed": (lambda: single("MyOp", domain="mine"), "odd"),
    "plugin needed without a domain": (lambda: single("MyOp"), "odd"),
    "plugin of TensorRT": (lambda: single("EfficientNMS_TRT"), "odd"),
    "type refused": (lambda: of_type(TensorProto.STRING), ""),
    "float64": (lambda: of_type(TensorProto.DOUBLE), ""),
    "shared weight": (shared_weight, "conv1, conv2"),
    "shared weight without biases": (lambda: shared_weight(False), "conv1, conv2"),
    "shared layer": (shared_layer, "conv1, conv2"),
    "norm cannot fold": (lambda: read_beside("BatchNormalization"), "conv"),
    "activation cannot fuse": (lambda: read_beside("Relu"), "conv"),
    "activation before the sum": (activation_before_sum, "sum"),
    "transpose between": (transpose_between, "turn"),
    "transposes cancel": (transposes_cancel, "there"),
    "asymmetric": (lambda: one_conv({"zero": 3}), "conv"),
    "asymmetric and unsigned": (lambda: one_conv({"zero": 128, "dtype": np.uint8}), "conv"),
    "unsigned": (lambda: one_conv({"dtype": np.uint8}), "conv"),
    "unsigned weight": (unsigned_weight, "conv"),
    "per-channel activation": (lambda: with_axis(np.full(3, 0.05), 1), "conv"),
    "per-channel axis": (weight_along_inputs, "conv"),
    "residual without pair": (lambda: quantized_residual(skip_has_pair=False), "sum"),
    "residual without pair on the skip side": (lambda: quantized_residual(False, main_has_pair=True), "sum"),
    "residual without pair on both sides": (lambda: projected_residual(False, False), "sum"),
    "residual with extra pair": (lambda: quantized_residual(True, main_has_pair=True), "sum"),
    "residual with extra pair of two": (lambda: projected_residual(True, True), "sum"),
    "integer bias": (lambda: with_bias(0.001, np.arange(4), np.int32, paired=False), "conv"),
    "pair on a bias": (lambda: with_bias(0.01, np.arange(4), np.float32, paired=True), "conv"),
    "double pair": (double_pair, "conv"),
    "pair before the activation": (pair_before_relu, "conv"),
    "scale not positive": (lambda: with_scale(0.0), "conv"),
    "scale not positive but NaN": (lambda: with_scale(np.nan), "conv"),
    "scale not positive but negative": (lambda: with_scale(-0.1), "conv"),
    "scale infinite": (lambda: with_scale(np.inf), "conv"),
    "scale denormal": (lambda: with_scale(1e-40), "conv"),
    "scale out of line": (one_channel_far_off, "conv"),
    "scale out of line among activations": (one_activation_far_off, "conv2"),
    "half quantized": (half_quantized, "conv"),
    "never quantized": (second_conv_without_pairs, "conv2"),
    "not float32": (half_floats, "conv0"),
}


def kind_of(case):
    return max((kind for kind in KINDS if case.startswith(kind)), key=len)


def findings_of(model):
    return structure_findings(FileGraph.of(model, "planted"))


@pytest.mark.parametrize("case", PLANTED)
def test_what_is_planted_is_found_where_it_is(case):
    make, layer = PLANTED[case]
    kind = kind_of(case)
    found = [finding for finding in findings_of(make()) if finding.kind == kind]
    assert [finding.layer for finding in found if finding.layer == layer], found
    assert all(finding.severity == KINDS[kind].severity and finding.what for finding in found)


def test_every_kind_is_planted():
    assert {kind_of(case) for case in PLANTED} == set(KINDS)


ALONE = [
    "residual with extra pair",
    "asymmetric",
    "double pair",
    "integer bias",
    "residual without pair",
    "unsigned weight",
    "shared layer",
]
ALONE += ["pair on a bias", "scale denormal", "half quantized", "activation before the sum", "norm cannot fold"]
ALONE += ["residual with extra pair"]


@pytest.mark.parametrize("case", ALONE)
def test_nothing_else_is_said_of_a_network_with_one_fault(case):
    assert {finding.kind for finding in findings_of(PLANTED[case][0]())} == {case}


HEALTHY = ["chain", "residual", "depthwise", "transformer"]


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_networks_have_no_findings(name):
    assert findings_of(getattr(networks, name)()) == ()


@pytest.mark.parametrize("name", HEALTHY)
def test_the_pairs_that_a_recipe_writes_are_as_they_should_be(name, tmp_path):
    model = getattr(networks, name)()
    path = networks.save(model, tmp_path)
    report = trt_bisect.run(path, networks.samples(model, 2), engine="onnxruntime", curve="culprits")
    report.save(tmp_path / "run")
    checked = trt_bisect.check(tmp_path / "run/recipe/network.qdq.onnx")
    high = set(report.recipe["high"])
    assert checked.pairs > 0
    assert [finding for finding in checked.findings if finding.layer not in high] == []


def test_a_residual_needs_one_pair():
    """On the skip, which no convolution makes; where convolutions make both sides, on either."""
    assert findings_of(quantized_residual(skip_has_pair=True)) == ()
    assert findings_of(projected_residual(main_has_pair=False, skip_has_pair=True)) == ()
    assert findings_of(projected_residual(main_has_pair=True, skip_has_pair=False)) == ()


def test_the_extra_pair_of_two_is_that_of_the_longer_branch():
    (finding,) = findings_of(projected_residual(True, True))
    assert "'conv2'" in finding.what


def quantized_by_onnx_runtime(model, folder, **options):
    """The file that ONNX Runtime's quantizer makes of a model, in Q/DQ format."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.feeds = iter([{"x": networks.samples(model, 4)["x"]}])

        def get_next(self):
            return next(self.feeds, None)

    out = folder / "q.onnx"
    quantize_static(networks.save(model, folder), out, Reader(), quant_format=QuantFormat.QDQ, **options)
    return out


def test_the_pairs_that_onnx_runtime_puts_on_a_residual_sum_are_named(tmp_path):
    """Its quantizer rounds the output of every convolution."""
    path = quantized_by_onnx_runtime(networks.residual(blocks=2), tmp_path)
    found = [each for each in trt_bisect.check(path).findings if each.kind == "residual with extra pair"]
    assert [(each.layer, each.severity) for each in found] == [("block0.add", "warning"), ("block1.add", "warning")]


def test_the_samples_have_no_errors(lenet, ocr):
    for path in (lenet / "lenet.onnx", lenet / "lenet_planted.onnx", ocr / "network.onnx"):
        report = trt_bisect.check(path)
        assert report.exit_code == 0
        assert report.pairs == 0


def test_onnx_runtimes_default_quantization_is_what_tensorrt_refuses(tmp_path):
    """Asymmetric activations and integer biases are ONNX Runtime's defaults; told otherwise, no error is left."""
    from onnxruntime.quantization import QuantType

    def kinds(**options):
        report = trt_bisect.check(quantized_by_onnx_runtime(networks.residual(blocks=1), tmp_path, **options))
        return {finding.kind for finding in report.findings if finding.severity == "error"}

    assert kinds() >= {"asymmetric", "integer bias"}
    symmetric = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}
    assert kinds(activation_type=QuantType.QInt8, weight_type=QuantType.QInt8, extra_options=symmetric) == set()


REFUSED_BY_THE_PARSER = ["asymmetric", "unsigned weight", "integer bias", "scale not positive"]
REFUSED_BY_THE_PARSER += ["scale not positive but NaN", "scale not positive but negative", "operator refused"]
REFUSED_BY_THE_PARSER += ["plugin needed"]


@pytest.fixture(scope="module")
def parses():
    """Whether the parser of TensorRT-RTX takes a network, and whether it knows an operator; it needs no GPU."""
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    builder = trt.Builder(logger)

    def parse(model):
        network = builder.create_network(0)
        return trt.OnnxParser(network, logger).parse(model.SerializeToString())

    parse.knows = trt.OnnxParser(builder.create_network(0), logger).supports_operator
    return parse


@pytest.mark.parametrize("case", REFUSED_BY_THE_PARSER)
def test_tensorrts_own_parser_refuses_it_too(case, parses):
    assert not parses(PLANTED[case][0]())
    assert parses(one_conv())


def test_the_operators_refused_are_those_that_tensorrts_parser_does_not_know(parses):
    known_to_onnx = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    unknown = {name for name in known_to_onnx if not parses.knows(name)}
    ours = (REFUSED | INTEGER_OPS) & known_to_onnx
    assert ours - unknown == set()
    assert unknown - ours <= {"DeformConv"}, "an importer of TensorRT 10, not of TensorRT-RTX"


@pytest.mark.parametrize("stored", [False, True])
def test_any_scale_will_do_for_a_channel_of_zeros(stored):
    """NVIDIA's and other toolkits write 1 there; the same scale is a finding where the channel holds a value."""
    for value, kinds in ((0, set()), (1, {"scale out of line"})):
        model = one_conv(weight_scale=np.array([1e-4, 1.0, 1e-4, 1e-4]))
        weight = next(tensor for tensor in model.graph.initializer if tensor.name == "conv.weight")
        values = numpy_helper.to_array(weight).copy()
        values[1] = value
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
        if stored:
            quantizer = next(node for node in model.graph.node if node.name == "conv.weight.q")
            levels = np.clip(np.rint(values * 100), -127, 127).astype(np.int8)
            model.graph.initializer.append(numpy_helper.from_array(levels, quantizer.output[0]))
            model.graph.node.remove(quantizer)
        assert {finding.kind for finding in findings_of(model)} == kinds


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6), st.integers(0, 5))
def test_usable_scales_are_never_called_odd(scales, place):
    """Only a channel a thousand times the median is said to be out of line: counted by hand with sorting."""
    sketch = networks.Sketch(1)
    x = pair(sketch, "x", "in", ACTIVATION)
    channels = len(scales)
    weight = sketch.constant("w", np.ones((channels, 3, 1, 1)))
    rounded = pair(sketch, weight, "w", np.array(scales, np.float32), axis=0)
    model = finished(sketch, sketch.node("Conv", [x, rounded], "conv"), channels)
    kinds = {finding.kind for finding in findings_of(model)}
    ordered = sorted(np.float32(scales).astype(float))
    middle = (ordered[(channels - 1) // 2] + ordered[channels // 2]) / 2
    assert kinds == ({"scale out of line"} if ordered[-1] / middle >= 1000 else set())


def test_nodes_that_are_out_of_order_are_put_in_order():
    model = one_conv({"zero": 3})
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(model.graph.node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert [finding.kind for finding in findings_of(model)] == ["asymmetric"]


def test_a_circle_is_bad_input():
    model = networks.chain(depth=2)
    model.graph.node[0].input[0] = model.graph.node[2].output[0]
    with pytest.raises(trt_bisect.BadInput, match="form a cycle"):
        findings_of(model)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_is_bad_input_or_is_checked(seed, tmp_path):
    random = np.random.default_rng(seed)
    content = bytearray(double_pair().SerializeToString())
    for place in random.integers(0, len(content), 6):
        content[place] = int(random.integers(0, 256))
    path = tmp_path / "network.onnx"
    path.write_bytes(content)
    said = ""
    try:
        trt_bisect.check(path)
    except trt_bisect.BadInput as error:
        said = str(error)
    assert len(said.splitlines()) in (0, 2)


def test_a_bias_that_two_layers_share_is_no_shared_weight():
    sketch = networks.Sketch(1)
    bias = sketch.constant("bias", np.zeros(4))
    x = "x"
    for name, inside in (("conv1", 3), ("conv2", 4)):
        weight = sketch.constant(f"{name}.weight", sketch.weight(name, 4, inside, 1, 1))
        x = sketch.node("Conv", [x, weight, bias], name)
    assert findings_of(finished(sketch, x)) == ()


def test_the_report_as_json_and_csv(tmp_path):
    path = tmp_path / "network.onnx"
    onnx.save(one_conv({"zero": 3}), str(path))
    report = trt_bisect.check(path, output=tmp_path / "out")
    record = json.loads((tmp_path / "out/check.json").read_text())
    assert record["counts"] == {"error": 1, "warning": 0, "note": 0}
    assert record["findings"][0]["layer"] == "conv"
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out/check.csv").read_text())))
    assert rows == record["findings"]
    assert list(rows[0]) == ["severity", "kind", "layer", "what", "why", "remedy"]
    assert report.exit_code == 1
    assert list(report.table()["kind"]) == ["asymmetric"]
    assert list(trt_bisect.check(path).table().columns) == list(rows[0])
