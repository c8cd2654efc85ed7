"""Strong typing: real engines built by TensorRT-RTX, which needs no GPU to build."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support.fake_tensorrt import SHAPES, before_gemm
from tests.support.networks import reshaped_as_told, save
from trt_bisect.builder import tensorrt_build
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.debug_tensors import listen
from trt_bisect.builder.engines import make_builder
from trt_bisect.builder.tensorrt_build import RTX, dynamic_shapes, errors_in
from trt_bisect.builder.tensorrt_engine import TensorRTStrongBuilder
from trt_bisect.builder.tensorrt_weak import largest_constant
from trt_bisect.data.datasets import profile_of
from trt_bisect.errors import BadInput, TrialFailed
from trt_bisect.model.network import load_network
from trt_bisect.model.quantizer import BF16, FP8, FP16
from trt_bisect.precision import Precision, int8_set, prefix

trt = pytest.importorskip("tensorrt_rtx_bindings")

LAYERS = ["conv1", "relu1", "pool1", "conv2", "add", "flatten", "fc"]
QUANTIZABLE = {"conv1": 2, "pool1": 1, "conv2": 2, "add": 1, "fc": 2}
"""The layers that TensorRT can run in INT8 and how many of their inputs are rounded, written down by hand.

The sum has a pair on its skip alone: its other side comes from ``conv2``.
"""


def residual_model() -> onnx.ModelProto:
    """Conv, Relu, MaxPool, Conv, Add across the Conv, Gemm with a bias."""
    sketch, reads = before_gemm()
    sketch.node("Gemm", reads, "fc", out="y")
    return sketch.model(["n", 3, 8, 8], ["n", 5])


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return load_network(save(residual_model(), tmp_path_factory.mktemp("rtx")))


def boundary(last, high=Precision.FP32):
    """The plan with the layers up to ``last`` in INT8."""
    return prefix(len(LAYERS), last, high)


def scales_of(network, scale=0.05):
    return {name: np.float32(scale) for name in network.activations}


def strong(network, scale=0.05, options=None, shapes=SHAPES, scales=None):
    return TensorRTStrongBuilder(
        network, scales or scales_of(network, scale), options or BuildOptions(), shapes, engine=RTX
    )


@pytest.fixture(scope="module")
def builder(network):
    return strong(network)


def layers_of(definition):
    """The layers of a parsed network."""
    return [definition.network.get_layer(i) for i in range(definition.network.num_layers)]


def makers_of(layers):
    return {layer.get_output(o).name: layer for layer in layers for o in range(layer.num_outputs)}


def rounded_inputs(definition):
    """By layer name, how many inputs TensorRT sees dequantized from INT8."""
    layers = layers_of(definition)
    makers = makers_of(layers)
    found = {}
    for layer in layers:
        if layer.name not in LAYERS:
            continue
        inputs = [layer.get_input(i) for i in range(layer.num_inputs)]
        made = [makers.get(tensor.name) for tensor in inputs if tensor is not None]
        found[layer.name] = sum(m is not None and m.type == trt.LayerType.DEQUANTIZE for m in made)
    return found


@pytest.mark.parametrize("low", [*(range(k) for k in range(len(LAYERS) + 1)), (0, 1, 2, 4, 5, 6)])
def test_a_plan_rounds_the_inputs_of_exactly_its_quantizable_layers(builder, network, low):
    definition = builder.network_definition(int8_set(len(LAYERS), low))
    expected = {name: QUANTIZABLE.get(name, 0) if place in low else 0 for place, name in enumerate(LAYERS)}
    assert [layer.name for layer in network.layers] == LAYERS
    assert rounded_inputs(definition) == expected


@pytest.mark.parametrize("k", [0, 2, len(LAYERS) - 1])
def test_a_prefix_becomes_an_engine_without_a_gpu(builder, k):
    with builder.build(boundary(k)) as engine:
        assert len(engine.serialized.data) > 10_000
        assert engine.messages == ()
        low = {name for place, name in enumerate(LAYERS) if place <= k and name in QUANTIZABLE}
        assert engine.ran == {place: "int8" if name in low else "fp32" for place, name in enumerate(LAYERS)}, (
            "the pairs that were written settle what is rounded, on a machine that cannot load the engine too"
        )


@pytest.mark.slow
def test_marked_tensors_leave_the_real_engine_as_it_is(network):
    """The same kernels and the same size; the listener is one of the real module's."""
    plan = int8_set(len(network.layers), network.quantizable)
    options = (BuildOptions(debug_tensors=shown) for shown in (False, True))
    plain, marked = (strong(network, options=each).serialize(plan) for each in options)
    assert marked.layers == plain.layers
    assert len(marked.data) == len(plain.data)
    given = []
    context = SimpleNamespace(set_debug_listener=given.append)
    assert given == [listen(trt, None, context, {})]
    assert isinstance(given[0], trt.IDebugListener)
    assert context.unfused_tensors_debug_state is True


def test_the_scales_stand_in_what_tensorrt_parsed(network):
    scales = {name: np.float32(0.01 * (i + 1)) for i, name in enumerate(network.activations)}
    builder = strong(network, scales=scales)
    layers = layers_of(builder.network_definition(boundary(2)))
    makers = makers_of(layers)
    found = {}
    for layer in layers:
        if layer.type == trt.LayerType.QUANTIZE:
            constant = makers[layer.get_input(1).name]
            found[layer.get_input(0).name] = largest_constant(trt, constant, network)
    weight = network.constant("conv1.weight")
    assert found["x"] == scales["x"]
    assert found["relu1_out"] == scales["relu1_out"]
    assert found["conv1.weight_output"] == pytest.approx(np.abs(weight).max() / 127, rel=1e-6)
    assert set(found) == {"x", "relu1_out", "conv1.weight_output"}


def test_fp16_layers_are_fp16_and_the_output_stays_fp32(builder):
    plan = boundary(2, Precision.FP16)
    definition = builder.network_definition(plan)
    types = {layer.name: layer.get_output(0).dtype for layer in layers_of(definition) if layer.name in LAYERS}
    low, high = dict.fromkeys(LAYERS[:3], trt.DataType.FLOAT), dict.fromkeys(LAYERS[3:], trt.DataType.HALF)
    assert types == {**low, **high}
    assert definition.network.get_output(0).dtype == trt.DataType.FLOAT
    assert len(builder.serialize(plan).data) > 10_000


@pytest.mark.slow
def test_the_reference_has_no_int8(builder):
    definition = builder.network_definition(int8_set(len(LAYERS), ()))
    kinds = {layer.type for layer in layers_of(definition)}
    assert not kinds & {trt.LayerType.QUANTIZE, trt.LayerType.DEQUANTIZE}
    assert definition.network.get_flag(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    half = builder.build(boundary(-1, Precision.FP16)).serialized.data
    sizes = [len(builder.reference().serialized.data), len(builder.build(boundary(-1)).serialized.data)]
    assert sizes[0] == sizes[1] != len(half)


def test_options_are_taken(network, tmp_path):
    timings = tmp_path / "run" / "timing.cache"
    options = BuildOptions(workspace_bytes=1 << 26, optimization_level=1, timing_cache=timings)
    assert len(strong(network, options=options).serialize(boundary(3)).data) > 10_000
    assert not timings.exists(), "TensorRT-RTX keeps no timings"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"scale": np.nan}, "Scale coefficients must all be positive"),
        ({"options": BuildOptions(workspace_bytes=1)}, "workspace limit"),
        ({"shapes": {"x": SHAPES["x"][::-1]}}, "MIN<=OPT<=MAX"),
    ],
    ids=["scale", "workspace", "profile"],
)
def test_tensorrt_says_why_it_cannot_build(network, given, reason):
    with pytest.raises(TrialFailed, match=reason) as failure:
        strong(network, **given).build(boundary(0))
    assert failure.value.outcome == "build failed"


def test_the_reference_needs_no_scale(network):
    assert len(strong(network, np.nan).reference().serialized.data) > 10_000


def test_tensorrt_names_the_node_that_it_does_not_know(network, tmp_path):
    model = residual_model()
    model.graph.node[1].op_type, model.graph.node[1].domain = "QuickGelu", "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "odd.onnx")
    builder = strong(load_network(tmp_path / "odd.onnx"), scales=scales_of(network))
    with pytest.raises(TrialFailed, match=r"(?s)relu1.*QuickGelu.*Plugin not found") as failure:
        builder.reference()
    assert failure.value.outcome == "build failed"


def test_one_failed_build_leaves_nothing_to_the_next(network, builder):
    with pytest.raises(TrialFailed):
        strong(network, -1.0).build(boundary(0))
    assert builder.build(boundary(0)).messages == ()


def test_errors_and_warnings_are_kept_apart():
    logger, drain = tensorrt_build.logger_of(trt), tensorrt_build.drain
    drain(logger)
    said = {"WARNING": "odd", "INFO": "chatter", "ERROR": "broken\n", "INTERNAL_ERROR": "worse"}
    for severity, text in (*said.items(), ("WARNING", "odd")):
        logger.log(getattr(trt.ILogger, severity), text)
    messages = drain(logger)
    assert errors_in(messages, "nothing") == "broken\nworse"
    assert tensorrt_build.warnings_in(messages) == ("odd",)
    assert errors_in(drain(logger), "nothing") == "nothing"
    assert tensorrt_build.logger_of(trt) is logger, "TensorRT takes one logger a process"


def test_a_dynamic_input_needs_shapes_that_fit(network):
    with pytest.raises(BadInput, match=r"'x' .* is dynamic"):
        strong(network, shapes={})
    with pytest.raises(BadInput, match="1x4x8x8"):
        dynamic_shapes(network, {"x": ((1, 4, 8, 8),) * 3})
    with pytest.raises(BadInput, match=r"\b3x8x8"):
        dynamic_shapes(network, {"x": ((3, 8, 8),) * 3})
    assert dynamic_shapes(network, {**SHAPES, "unknown": ((1,),) * 3}) == SHAPES


@pytest.mark.slow
@pytest.mark.parametrize(("low", "kind"), [(FP16, "HALF"), (BF16, "BF16"), (FP8, "FP8")])
def test_every_low_precision_is_parsed_and_built(low, kind, tmp_path):
    network = load_network(save(residual_model(), tmp_path), low=low)
    scales = {tensor: np.float32(0.05) for tensor in network.rounded_activations}
    builder = make_builder("tensorrt-rtx", "strong", network, scales, BuildOptions(), SHAPES)
    for chosen in (network.quantizable, network.quantizable[::2]):
        types = {}
        for layer in layers_of(builder.network_definition(network.free_plan(chosen))):
            types.setdefault(layer.name, layer.get_output(0).dtype.name)
        quantized = {"FLOAT"} if low is FP8 else {kind}
        assert {types[network.layers[k].name] for k in chosen} == quantized
        assert {types[network.layers[k].name] for k in network.quantizable if k not in chosen} <= {"FLOAT"}
        assert (kind in types.values()) is bool(chosen)
        assert builder.serialize(network.free_plan(chosen)).data


def test_a_network_whose_input_holds_sizes_builds_with_the_values_of_the_data(tmp_path):
    """A convolution whose outputs are reshaped as an input says, TensorRT's shape tensor. TensorRT-RTX refuses it
    without values: 'no optimization profile has been defined'."""
    network = load_network(save(reshaped_as_told(), tmp_path))
    feeds = [{"x": np.zeros((1, 3, 8, 8), np.float32), "sizes": np.array(sizes)} for sizes in ((8, 32), (16, 16))]
    plan = prefix(len(network.layers), 0)
    with pytest.raises(TrialFailed, match="profile"):
        strong(network, shapes={}).serialize(plan)
    options = BuildOptions(sizes=profile_of(feeds).sizes)
    assert len(strong(network, options=options, shapes={}).serialize(plan).data) > 1000
