"""Weak typing: what the walk asks of a TensorRT network, on objects with TensorRT's interface."""

import numpy as np
import onnx
import pytest

from tests.support.fake_tensorrt import FLOAT, TRT, DataType, Definition, make_network, misread, parsed, with_ranges
from trt_bisect.builder.tensorrt_weak import constrain, set_ranges, walk_steps
from trt_bisect.errors import EngineUnavailable
from trt_bisect.precision import Precision, int8_set, prefix


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return make_network(tmp_path_factory.mktemp("walk"))


def laid(network, plan, definition=None, **options):
    definition = definition or parsed()
    steps = walk_steps(definition, network.layers)
    constrain(TRT, definition, steps, network, plan, **options)
    return definition


def test_every_tensorrt_layer_finds_its_owner(network):
    steps = walk_steps(parsed(), network.layers)
    assert {step.layer.name: step.owner for step in steps} == {
        "conv1": 0, "relu1": 1, "pool1": 2, "conv2": 3, "add": 4, "(Unnamed Layer* 5) [Shape]": 4, "flatten": 5,
        **dict.fromkeys(("fc.weight", "fc", "fc.bias", "(Unnamed Layer* 10) [Shuffle]", "fc_10"), 6), "softmax": 7,
    }  # fmt: skip
    assert {step.layer.name for step in steps if step.computes} == {layer.name for layer in network.layers}


def test_metadata_counts_where_a_name_was_changed(network):
    definition = Definition(["x"], ["conv1_out"])
    definition.add("renamed", "CONVOLUTION", ["x"], "conv1_out", metadata="[ONNX Layer: conv1]")
    definition.add("other", "ACTIVATION", ["conv1_out"], "relu1_out", metadata="[ONNX Layer: unknown]")
    first, second = walk_steps(definition, network.layers)
    assert (first.owner, first.named, first.computes) == (0, True, True)
    assert (second.owner, second.named, second.computes) == (0, False, False)


def test_all_high_leaves_shapes_and_constants_alone(network):
    """Everything but the layer of shapes, the two constants, and the shuffle of the second is FP32."""
    asked = laid(network, prefix(8, -1)).asked()
    expected = [layer.name for layer in parsed().layers]
    for left in ("(Unnamed Layer* 5) [Shape]", "fc.weight", "fc.bias", "(Unnamed Layer* 10) [Shuffle]"):
        expected.remove(left)
    assert asked == dict.fromkeys(expected, FLOAT)


RESULT = (None, {0: "FLOAT"})  # its kernel is free, its output is a float
HALF = ("HALF", {0: "HALF"})


@pytest.mark.parametrize(
    ("plan", "asked"),
    [
        # fc's product is a tensor of its own only until its bias is added; what follows fc is FP32
        (prefix(8, 7), {**dict.fromkeys(("conv1", "relu1", "pool1", "conv2", "add", "flatten")), "fc": RESULT}
         | {"fc_10": FLOAT, "softmax": FLOAT}),
        # nothing in INT8 reads relu1: it is high, and conv1 puts out floats
        (prefix(8, 0), {"conv1": RESULT, "relu1": FLOAT, "pool1": FLOAT, "conv2": FLOAT}),
        # pool1 is read by conv2 in INT8 and by add in FP32; conv2 by add alone
        (prefix(8, 3), {"pool1": None, "conv2": RESULT, "add": FLOAT}),
        # add is INT8, fc high; the flatten between them must not become INT8
        (prefix(8, 4), {"add": RESULT, "flatten": FLOAT}),
        (int8_set(8, {4, 6}), {"add": None, "flatten": None}),
        # softmax makes an output of the network
        (prefix(8, 0, Precision.FP16), {"conv1": RESULT, "conv2": HALF, "softmax": ("HALF", {0: "FLOAT"})}),
    ],
    ids=["all", "conv1", "to conv2", "to add", "add and fc", "conv1 and FP16"],
)  # fmt: skip
def test_a_boundary_adds_no_rounding_and_between_int8_layers_all_is_free(network, plan, asked):
    found = laid(network, plan).asked()
    assert {name: found.get(name) for name in asked} == asked


def test_what_a_plan_says_of_layers_that_only_follow_changes_nothing(network):
    unquantized = {layer.index for layer in network.layers if not layer.quantizable}
    assert unquantized == {1, 5, 7}
    for k in range(-1, 8):
        plan = prefix(8, k)
        high = plan.keeping(unquantized)
        low = int8_set(8, plan.int8 | unquantized)
        assert laid(network, plan).asked() == laid(network, high).asked() == laid(network, low).asked()


def test_a_network_output_is_made_fp32_on_the_tensor(network):
    definition = parsed()
    definition.tensors["softmax_out"].dtype = DataType.HALF
    laid(network, prefix(8, 7), definition)
    assert definition.tensors["softmax_out"].dtype is DataType.FLOAT


@pytest.mark.parametrize(("last", "forced"), [(7, {"conv1", "pool1", "conv2", "add", "fc"}), (2, {"conv1", "pool1"})])
def test_int8_can_be_forced_on_the_layers_that_compute(network, last, forced):
    asked = laid(network, prefix(8, last), force_int8=True).asked()
    assert {name for name, (precision, _) in asked.items() if precision == "INT8"} == forced


def test_integer_outputs_keep_their_type(network):
    definition = Definition(["x"], ["values", "places"])
    dtypes = [DataType.FLOAT, DataType.INT32]
    definition.add("softmax", "TOPK", ["x"], "values", "places", dtypes=dtypes)
    definition.add("flatten", "CAST", ["places"], "flags", dtypes=[DataType.BOOL])
    definition.add("relu1", "ACTIVATION", ["flags"], "more_flags", dtypes=[DataType.BOOL])
    asked = laid(network, prefix(8, -1), definition).asked()
    assert asked == {"softmax": FLOAT}
    assert definition.tensors["places"].dtype is DataType.INT32


def test_every_float_tensor_of_a_quantizable_layer_gets_a_range(network):
    definition, scales = with_ranges(network)
    for name, scale in scales.items():
        lowest, largest = definition.tensors[name].dynamic_range
        assert largest == pytest.approx(127 * float(scale), rel=1e-6)
        assert lowest == -largest
    ranges = {name: tensor.dynamic_range for name, tensor in definition.tensors.items()}
    assert ranges["product"] == ranges["fc_out"]
    assert ranges["w"] == (-2.0, 2.0)
    assert ranges["b"] == ranges["b_shuffled"] == (-0.25, 0.25)
    assert ranges["s"] is None


def weight_layers(network, name, weights):
    definition = Definition(["x"], ["softmax_out"])
    definition.add("flatten", "SHUFFLE", ["x"], "flatten_out")
    definition.add(name, "CONSTANT", [], "w", weights=weights)
    definition.add("fc", "MATRIX_MULTIPLY", ["flatten_out", "w"], "fc_out")
    return definition, walk_steps(definition, network.layers)


@pytest.mark.parametrize("name", ["fc.weight", "fc.weight_12"])
def test_a_weight_of_stride_0_has_the_range_of_the_files_constant(network, name):
    """The file says what the weight is; TensorRT's module gives its first value 320 times."""
    (weight,) = [t for t in onnx.load(network.source).graph.initializer if t.name == "fc.weight"]
    weight = onnx.numpy_helper.to_array(weight)
    definition, steps = weight_layers(network, name, misread(weight))
    set_ranges(TRT, definition, steps, network, {})
    largest = float(np.abs(weight).max())
    assert largest > 2 * abs(float(weight.flat[0])), "the first value alone would not do"
    assert definition.tensors["w"].dynamic_range == (-largest, largest)


@pytest.mark.parametrize(("name", "first"), [("(Unnamed Layer* 3) [Constant]", 0.0), ("fc.weight", 1.0)])
def test_a_constant_of_stride_0_that_only_tensorrt_has_is_refused(network, name, first):
    """It has no name, or another constant's: a network's constant of the name begins with another value."""
    definition, steps = weight_layers(network, name, misread(network.constant("fc.weight") + np.float32(first)))
    with pytest.raises(EngineUnavailable) as refused:
        set_ranges(TRT, definition, steps, network, {})
    assert name in refused.value.problem
    assert "numpy<2" in refused.value.remedy


def test_a_constant_of_one_value_may_have_any_stride(network):
    definition, steps = weight_layers(network, "alpha", misread([-0.5]))
    set_ranges(TRT, definition, steps, network, {})
    assert definition.tensors["w"].dynamic_range == (-0.5, 0.5)


def test_tensors_inside_layers_that_only_follow_get_no_made_up_range(network):
    definition = Definition(["x"], ["softmax_out"])
    definition.add("softmax_1", "ELEMENTWISE", ["x"], "inner")
    definition.add("softmax", "SOFTMAX", ["inner"], "softmax_out")
    set_ranges(TRT, definition, walk_steps(definition, network.layers), network, {"softmax_out": np.float32(1)})
    assert definition.tensors["inner"].dynamic_range is None
    assert definition.tensors["softmax_out"].dynamic_range == (-127.0, 127.0)


@pytest.mark.parametrize("scale", [0.0, np.nan, np.inf])
def test_a_scale_that_is_none_makes_no_range(network, scale):
    definition = Definition(["x"], ["conv1_out"])
    definition.add("conv1", "CONVOLUTION", ["x"], "conv1_out")
    set_ranges(TRT, definition, walk_steps(definition, network.layers), network, {"x": np.float32(scale)})
    assert definition.tensors["x"].dynamic_range is None
