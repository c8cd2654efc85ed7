"""The structure check: every kind planted, healthy networks without errors, the parser of TensorRT-RTX as witness."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st
from onnx import numpy_helper
from onnxruntime.quantization import QuantType

import trt_bisect
from tests.support import networks
from tests.support.editions import edition
from tests.support.flawed_structures import (
    ACTIVATION,
    PLANTED,
    Rounded,
    concatenated,
    double_pair,
    one_conv,
    pair,
    projected_residual,
    quantized_residual,
    two_pairs,
)
from tests.support.quantized import quantized_by_onnxruntime
from trt_bisect.analyzer.blame import Evidence
from trt_bisect.analyzer.structure.check import structure_findings
from trt_bisect.analyzer.structure.findings import KINDS, found
from trt_bisect.analyzer.structure.graph import FileGraph
from trt_bisect.model.file import refill, save_model
from trt_bisect.model.network import load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import Precision


def kind_of(case):
    return max((kind for kind in KINDS if case.startswith(kind)), key=len)


def findings_of(model):
    return structure_findings(FileGraph.of(model, "planted"))


@pytest.mark.parametrize("case", PLANTED)
def test_what_is_planted_is_found_where_it_is(case):
    make, layers = PLANTED[case]
    kind = kind_of(case)
    found = [finding for finding in findings_of(make()) if finding.kind == kind]
    assert layers in [finding.layers for finding in found]
    assert all(finding.severity == KINDS[kind].severity and finding.what for finding in found)


def test_every_kind_is_planted():
    of_engines = {"engine not built", "refused by the parser", "rounded in float", "kernel for a pair", "fusion broken"}
    of_modules = {"module called again", "module never called"}
    assert {kind_of(case) for case in PLANTED} == set(KINDS) - of_engines - of_modules, "those are elsewhere"


ALONE = ["residual with extra pair", "asymmetric", "double pair", "integer bias", "residual without pair"]
ALONE += ["unsigned weight", "shared layer", "pair on a bias", "scale denormal", "half quantized", "output rounded"]
ALONE += ["activation before the sum", "norm cannot fold", "pair before the normalization", "unlike pairs"]
ALONE += ["concat of unlike scales"]


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
    network = trt_bisect.load_network(networks.save(model, tmp_path))
    ranges = trt_bisect.calibrate(network, [networks.samples(model, 2)], "minmax")
    written = PlanWriter(network, ranges.scales, GraphTarget.TENSORRT).write(network.full(Precision.FP32))
    save_model(written.model, written.weights, tmp_path / "recipe.onnx")
    checked = trt_bisect.check(tmp_path / "recipe.onnx")
    assert checked.pairs > 0
    assert checked.findings == ()


def test_a_residual_needs_one_pair():
    """On the skip, which no convolution makes; where convolutions make both sides, on either."""
    assert findings_of(quantized_residual(skip_has_pair=True)) == ()
    assert findings_of(projected_residual(main_has_pair=False, skip_has_pair=True)) == ()
    assert findings_of(projected_residual(main_has_pair=True, skip_has_pair=False)) == ()


def test_a_sum_in_float_behind_an_int8_matmul_lacks_no_pair():
    """TensorRT-RTX 1.7 computes it in the kernel of the MatMul."""
    sketch = Rounded()
    stem = sketch.node("Relu", [sketch.first()], "relu")
    weight = pair(sketch, sketch.constant("weight", sketch.weight("matmul", 8, 8)), "weight", 0.01)
    product = sketch.node("MatMul", [pair(sketch, stem, "mid"), weight], "matmul")
    biased = sketch.node("Add", [product, sketch.constant("bias", np.ones(8))], "biased")
    assert findings_of(sketch.finished(sketch.node("Add", [stem, biased], "sum"))) == ()


def test_pairs_of_one_scale_are_no_unlike_ones():
    assert findings_of(two_pairs(ACTIVATION)) == findings_of(concatenated(ACTIVATION)) == ()


def test_the_extra_pair_of_two_is_that_of_the_longer_branch():
    (finding,) = findings_of(projected_residual(True, True))
    assert "'conv2'" in finding.what


def quantized_by_onnx_runtime(model, folder, **options):
    """The file that ONNX Runtime's quantizer makes of a model, in Q/DQ format."""
    samples = [{"x": networks.samples(model, 4)["x"]}]
    quantized_by_onnxruntime(networks.save(model, folder), folder / "q.onnx", samples, **options)
    return folder / "q.onnx"


def test_the_pairs_that_onnx_runtime_puts_on_a_residual_sum_are_named(tmp_path):
    """Its quantizer rounds the output of every convolution."""
    path = quantized_by_onnx_runtime(networks.residual(blocks=2), tmp_path)
    found = [each for each in trt_bisect.check(path).findings if each.kind == "residual with extra pair"]
    assert [(each.layers, each.severity) for each in found] == [((f"block{k}.add",), "warning") for k in (0, 1)]


@pytest.mark.slow
def test_the_samples_have_no_errors(lenet, ocr):
    for path in (lenet / "lenet.onnx", lenet / "lenet_planted.onnx", ocr / "network.onnx"):
        report = trt_bisect.check(path)
        assert report.exit_code == 0
        assert report.pairs == 0


def test_onnx_runtimes_default_quantization_is_what_tensorrt_refuses(tmp_path):
    """Asymmetric activations and integer biases are ONNX Runtime's defaults; told otherwise, no error is left."""

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
    """Returns a function: does TensorRT-RTX's parser take a network? No GPU."""
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    builder = trt.Builder(logger)

    def parse(model):
        network = builder.create_network(0)
        return trt.OnnxParser(network, logger).parse(model.SerializeToString())

    def shape(model):
        network = builder.create_network(0)
        assert trt.OnnxParser(network, logger).parse(model.SerializeToString())
        return tuple(network.get_output(0).shape)

    parse.shape = shape
    return parse


@pytest.mark.parametrize("case", REFUSED_BY_THE_PARSER)
def test_tensorrts_own_parser_refuses_it_too(case, parses):
    assert not parses(PLANTED[case][0]())
    assert parses(one_conv())


GATES = {name: np.ones((1, rows, 3), np.float32) for name, rows in (("LSTM", 12), ("GRU", 9), ("RNN", 3))}


@pytest.mark.parametrize("op", GATES)
def test_a_layout_that_the_parser_ignores_is_found(op, parses):
    """Batch first: 5 samples of 2 steps give outputs 5 x 2, and the parser makes 5 x 1 x 2 of them, time first."""
    sketch = networks.Sketch()
    gates = [sketch.constant(name, GATES[op]) for name in ("w", "r")]
    sketch.node(op, ["x", *gates], "odd", out="y", hidden_size=3, layout=1)
    model = sketch.model({"x": [5, 2, 3]}, {"y": None}, 20)
    assert [each.what for each in findings_of(model)] == [f"{op} with layout 1, which the parser ignores"]
    assert onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape.dim[1].dim_value == 2
    assert parses.shape(model) == (5, 1, 2, 3)


@pytest.mark.parametrize("opset", [25, 26, 27])
def test_tensorrt_rtx_reads_later_opsets(opset, parses):
    sketch = networks.Sketch()
    sketch.node("Relu", ["x"], "relu", out="y")
    assert parses(sketch.model({"x": [1, 3, 8, 8]}, {"y": None}, opset))


@pytest.mark.parametrize("stored", [False, True])
def test_any_scale_will_do_for_a_channel_of_zeros(stored):
    """NVIDIA's and other toolkits write 1 there; the same scale is a finding where the channel holds a value."""
    for value, kinds in ((0, set()), (1, {"scale out of line"})):
        model = one_conv(weight_scale=np.array([1e-4, 1.0, 1e-4, 1e-4]))
        weight = next(tensor for tensor in model.graph.initializer if tensor.name == "conv.weight")
        values = numpy_helper.to_array(weight).copy()
        values[1] = value
        networks.scale_constant(model, "conv.weight", lambda _, new=values: new)
        if stored:
            quantizer = next(node for node in model.graph.node if node.name == "conv.weight.q")
            levels = np.clip(np.rint(values * 100), -127, 127).astype(np.int8)
            model.graph.initializer.append(numpy_helper.from_array(levels, quantizer.output[0]))
            model.graph.node.remove(quantizer)
        assert {finding.kind for finding in findings_of(model)} == kinds


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6), st.integers(0, 5))
def test_usable_scales_are_never_called_odd(scales, place):
    """Only a channel a thousand times the median is said to be out of line: counted by hand with sorting."""
    sketch, channels = Rounded(), len(scales)
    x = pair(sketch, "x", "in")
    weight = sketch.constant("w", np.ones((channels, 3, 1, 1)))
    rounded = pair(sketch, weight, "w", np.array(scales, np.float32), axis=0)
    model = sketch.finished(sketch.node("Conv", [x, rounded], "conv"), channels)
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


def test_a_choice_stands_after_what_its_branches_read():
    """ONNX Runtime runs such a file in any order."""
    sketch = networks.Sketch()
    t = sketch.node("Relu", ["x"], "before")
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in ("yes", "no")]
    nodes = [onnx.helper.make_node(op, [t], [end.name], op) for op, end in zip(("Neg", "Abs"), ends, strict=True)]
    yes, no = (onnx.helper.make_graph([node], node.name, [], [end]) for node, end in zip(nodes, ends, strict=True))
    sketch.node("If", ["flag"], "choice", out="y", then_branch=yes, else_branch=no)
    model = sketch.model([1, 4], [1, 4])
    model.graph.input.append(onnx.helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []))
    refill(model.graph.node, reversed(model.graph.node))
    assert [layer.name for layer in load_network(model).layers] == ["before", "choice"]
    assert [node.name for node in FileGraph.of(model, "file").nodes] == ["before", "choice"]


def test_a_circle_is_bad_input():
    model = networks.chain(depth=2)
    model.graph.node[0].input[0] = model.graph.node[2].output[0]
    with pytest.raises(trt_bisect.BadInput, match="cycle"):
        findings_of(model)


@pytest.mark.parametrize("seed", range(edition(10, 40)))
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


def test_a_pair_that_nothing_reads_is_not_called_the_networks_output():
    sketch = networks.Sketch()
    for name, out in (("dangling", "gone"), ("last", "y")):
        pair(sketch, "x", name, 0.05, zero=3)
        sketch.nodes[-1].output[0] = out
    found = findings_of(sketch.model([1, 3, 4, 4], [1, 3, 4, 4]))
    named = [each.layers for each in found if each.kind == "asymmetric"]
    assert named == [("(read by nothing)",), ("(the network's output)",)]


def test_a_bias_that_two_layers_share_is_no_shared_weight():
    sketch = Rounded()
    bias = sketch.constant("bias", np.zeros(4))
    x = "x"
    for name, inside in (("conv1", 3), ("conv2", 4)):
        weight = sketch.constant(f"{name}.weight", sketch.weight(name, 4, inside, 1, 1))
        x = sketch.node("Conv", [x, weight, bias], name)
    assert findings_of(sketch.finished(x)) == ()


def test_a_name_with_a_comma_is_the_name_of_one_layer():
    """Of two layers called 'a' and 'a, b', the finding on the second says nothing of the first."""
    finding = found("unsigned", ["a, b"], "'x' is quantized to uint8")
    shared = found("double pair", ["a", "c"], "'x' goes through two pairs")
    about = ((), [finding, shared], None, 1.0, 1.0, "INT8")
    concerned = {name: Evidence(SimpleNamespace(name=name), *about) for name in ("a", "a, b", "b", "c")}
    kinds = {name: [one.kind for one in each.structure] for name, each in concerned.items()}
    assert kinds == {"a": ["double pair"], "a, b": ["unsigned"], "b": [], "c": ["double pair"]}
