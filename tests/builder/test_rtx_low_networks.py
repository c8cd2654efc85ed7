"""Networks in FP16, BF16 and FP8, and FP16's published trouble: every plan is parsed and built by TensorRT-RTX."""

from itertools import product

import numpy as np
import pytest

from tests.builder.test_tensorrt_rtx import layers_of
from tests.model.test_existing_types import fp8_network, typed
from tests.support.editions import edition
from tests.support.networks import Sketch, residual, samples, save
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.engines import make_builder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.model.network import load_network
from trt_bisect.model.quantizer import BF16, FP8, FP16, INT8
from trt_bisect.model.writing import parts_of
from trt_bisect.precision import Precision

pytest.importorskip("tensorrt_rtx_bindings")


BUILT = range(edition(3, 1000))
"""Of ``plans``: those with all low, none low and the first layer low. The others are parsed."""


def plans(network):
    """All low, none low, and each layer alone."""
    every = network.quantizable
    return [network.free_plan(chosen) for chosen in (every, (), *((k,) for k in every))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "low", "kind"),
    [
        (lambda folder: typed(folder), FP16, "HALF"),
        (lambda folder: typed(folder, inside="fp16", result="fp16", round_trip=True), FP16, "HALF"),
        (lambda folder: typed(folder, "bf16"), BF16, "BF16"),
        (lambda folder: fp8_network(folder), FP8, "FP8"),
        (lambda folder: fp8_network(folder, np.float16), FP8, "FP8"),
    ],
    ids=["fp16", "fp16 inputs", "bf16", "fp8", "fp8 in fp16"],
)
def test_every_plan_of_a_network_in_its_own_type_is_parsed_and_built(write, low, kind, tmp_path):
    network = load_network(write(tmp_path), low=low)
    builder = make_builder("tensorrt-rtx", "strong", network, {}, BuildOptions(), {})
    for place, plan in enumerate(plans(network)):
        layers = layers_of(builder.network_definition(plan))
        types = {layer.get_output(i).dtype.name for layer in layers for i in range(layer.num_outputs)}
        if low is not FP16 or plan.lowered:
            assert (kind in types) is bool(plan.lowered)
        if place in BUILT:
            assert builder.serialize(plan).data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("low", "base"),
    edition(
        [(INT8, Precision.FP16), (FP8, Precision.BF16)], list(product((INT8, FP8), (Precision.FP16, Precision.BF16)))
    ),
)
def test_low_base_and_raised_layers_are_parsed_and_built(low, base, tmp_path):
    model = residual(1)
    network = load_network(save(model, tmp_path), {"x": (1, 3, 16, 16)}, low=low, base=base)
    scales = calibrate(network, [{"x": each[None]} for each in samples(model)["x"]], "minmax").scales
    builder = make_builder("tensorrt-rtx", "strong", network, scales, BuildOptions(high=Precision.FP32), {})
    first, *others = network.quantizable
    for plan in (network.full(base), network.plan(others, Precision.FP32), network.plan((), base)):
        layers = layers_of(builder.network_definition(plan))
        made = {layer.name: layer.get_output(0).dtype.name for layer in layers}
        own, wide = {Precision.FP16: "HALF", Precision.BF16: "BF16"}[base], network.layers[first].name
        raised = plan.precisions[first] is Precision.FP32
        weighted = {network.layers[k].name for k in network.quantizable} & made.keys()
        assert {made[name] for name in weighted - {wide}} == {own}
        assert made[wide] == ("FLOAT" if raised else own)
        assert (low.title in made.values()) is bool(plan.lowered)
        assert builder.serialize(plan).data


@pytest.mark.parametrize(
    ("op", "low"), [("MatMul", FP16), ("MatMul", BF16), ("Conv", FP16), ("ConvTranspose", FP16), ("LSTM", FP16)]
)
def test_an_engine_computes_in_float32_what_the_plan_keeps_there(op, low, tmp_path):
    """Directly between Casts, TensorRT-RTX 1.7 computes the products in the low type, and does not build the LSTM."""
    sketch, shape, attributes = Sketch(), [2, 8, 8], {}
    sizes = {"MatMul": [(8, 8)], "LSTM": [(1, 32, 8), (1, 32, 8)]}.get(op, [(8, 8, 1)])
    weights = [sketch.constant(f"w{place}", sketch.random.normal(size=size)) for place, size in enumerate(sizes)]
    if op == "LSTM":
        attributes["hidden_size"] = 8
    kept = sketch.node(op, [sketch.node("Exp", ["x"], "before"), *weights], "kept", **attributes)
    sketch.node("Exp", [kept], "after", out="y")
    network = load_network(save(sketch.model(shape, [None] * (4 if op == "LSTM" else 3)), tmp_path), low=low)
    builder = make_builder("tensorrt-rtx", "strong", network, {}, BuildOptions(), {})
    plan = network.free_plan([k for k in network.quantizable if network.layers[k].name != "kept"])
    kernels = [layer for layer in builder.serialize(plan).layers if "kept" in layer.network_layers]
    assert {kind for kernel in kernels for kind in kernel.inputs} == {"fp32"}


@pytest.mark.parametrize(("op", "layers"), [
    ("ReduceL2", ["ELEMENTWISE", "REDUCE", "UNARY"]), ("ReduceSumSquare", ["ELEMENTWISE", "REDUCE"]),
    ("ReduceLogSum", ["REDUCE", "UNARY"]), ("ReduceL1", ["UNARY", "REDUCE"]), ("ReduceMean", ["REDUCE"]),
    ("Softmax", ["SOFTMAX"]), ("LayerNormalization", ["NORMALIZATION"]), ("InstanceNormalization", ["NORMALIZATION"]),
])  # fmt: skip
def test_the_emulation_takes_apart_what_the_parser_takes_apart(op, layers, tmp_path):
    """In FP16 each of these layers rounds: so many parts the emulation has, with a rounding after each."""
    sketch, shape = Sketch(), [3, 8, 4] if "Norm" in op else [3, 8]
    constants = {"LayerNormalization": [(4,)], "InstanceNormalization": [(8,), (8,)]}.get(op, [])
    reads = [sketch.constant(f"c{place}", np.ones(size)) for place, size in enumerate(constants)]
    reads += [sketch.constant("axes", [-1], np.int64)] if op.startswith("Reduce") else []
    out = sketch.node(op, ["x", *reads], "node")
    network = load_network(save(sketch.model({"x": shape}, {out: [None] * len(shape)}, 18), tmp_path), low=FP16)
    builder = make_builder("tensorrt-rtx", "strong", network, {}, BuildOptions(), {})
    layers_made = layers_of(builder.network_definition(network.free_plan(network.quantizable)))
    kinds = [layer.type.name for layer in layers_made]
    moving = ("CONSTANT", "SHUFFLE", "CAST", "SQUEEZE", "UNSQUEEZE")
    assert [kind for kind in kinds if kind not in moving] == layers
    node = network.skeleton.graph.node[0]
    assert len(parts_of(node)[0]) == len(layers)
