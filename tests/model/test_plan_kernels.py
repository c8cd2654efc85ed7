"""The kernels that plans make of networks: ResNet-18 as published engines have it, and engines of TensorRT-RTX.

The measured milliseconds are sums of the profiles of ResNet-18, batch 32, on an A100, from the TensorRT Engine Explorer
(NVIDIA/TensorRT, tools/experimental/trt-engine-explorer, Apache-2.0).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.networks import encoder
from tests.support import networks
from tests.support.editions import edition
from tests.support.quantized import for_tensorrt
from trt_bisect.builder.tensorrt_rtx import layers_of_file
from trt_bisect.model.cost import PRODUCTS, EngineModel
from trt_bisect.model.file import save_model
from trt_bisect.model.gpu_time import GPUS, Kind, predicted
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import facts_for
from trt_bisect.precision import Precision

A100 = GPUS["A100"]
INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
SAMPLES = Path(__file__).parents[2] / "samples"
MEASURED = {"fp32": 2.124, "fp16": 1.017}


def model_of(path):
    network = load_network(path)
    sizes = ((spec.name, [size if isinstance(size, int) else 1 for size in spec.shape]) for spec in network.inputs)
    return EngineModel(network, facts_for(network, {name: np.zeros(shape, np.float32) for name, shape in sizes}))


@pytest.fixture(scope="module")
def resnet():
    """ResNet-18 for 32 pictures of 224 x 224."""
    return model_of(networks.resnet18(32))


@pytest.fixture
def residual():
    return model_of(networks.residual(2))


def names(model, kernels):
    return [" ".join(model.network.layers[k].name for k in one.layers) or one.name for one in kernels]


def reformats(kernels):
    return [one.name for one in kernels if one.kind is Kind.REFORMAT]


def plan_of(model, high=(), precision=FP16):
    own = model.network.full(precision)
    return own.keeping([model.network.layer_named(name).index for name in high], precision)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision"), [("fp32", FP32), ("fp16", FP16)])
def test_the_network_alone_predicts_the_published_engines(resnet, name, precision):
    kernels = resnet.kernels(resnet.network.plan((), precision))
    assert predicted(kernels, A100).ms == pytest.approx(MEASURED[name], rel=0.1)


@pytest.mark.slow
def test_full_int8_of_resnet18(resnet):
    """20 convolutions with all that follows them, the classifier and the pooling; the picture is rounded."""
    kernels = resnet.kernels(plan_of(resnet))
    kinds = Counter(one.kind for one in kernels)
    assert kinds == {Kind.PRODUCT: 21, Kind.STREAM: 1, Kind.NOTHING: 1, Kind.REFORMAT: 1}
    assert names(resnet, kernels)[:3] == ["x: fp32 to int8", "stem stem.relu pool", "l0.0.c1 l0.0.r1"]
    assert "l1.0.c2 l1.0.add l1.0.r2" in names(resnet, kernels)
    assert "l1.0.down" in names(resnet, kernels)
    assert sum(one.product.macs for one in kernels if one.product) == 32 * 1_814_073_344, "ResNet-18: 1.81 G"


def test_every_layer_is_in_one_kernel(resnet):
    for precision in (FP16, FP32):
        for plan in (plan_of(resnet, precision=precision), resnet.network.plan((), precision)):
            inside = [k for one in resnet.kernels(plan) for k in one.layers]
            assert sorted(inside) == list(range(len(resnet.network.layers)))


def test_a_high_layer_between_int8_layers_brings_a_change_before_and_after(resnet):
    """Its INT8 maker stores floats in INT8's layout; its own output is rounded by a kernel."""
    changes = "l2.0.r2_out: fp16 to int8", "l2.0.r2_out: fp16 to fp16", "l2.1.r1_out: fp16 to int8"
    assert reformats(resnet.kernels(plan_of(resnet, ["l2.1.c1"])))[1:] == [*changes]


def test_a_second_high_layer_saves_a_change(resnet):
    """The whole block in FP16: the second convolution and the sum read what the first one wrote, in its layout."""
    block = ["l2.1.c1", "l2.1.c2", "l2.1.add"]
    one, both = (reformats(resnet.kernels(plan_of(resnet, high)))[1:] for high in (block[:1], block))
    assert len(both) == 2 < len(one)
    assert both == ["l2.0.r2_out: fp16 to fp16", "l2.1.r2_out: fp16 to int8"]


def test_a_sum_goes_with_the_branch_that_has_no_pair(residual):
    made = names(residual, residual.kernels(residual.network.full(FP32)))
    assert "block0.conv2 block0.add block0.relu2" in made
    assert "stem stem_relu" in made


def test_a_sum_that_reads_floats_makes_floats_as_in_the_published_engine_without_pairs_on_the_skip_branches(residual):
    """There, each of these convolutions is followed by a QuantizeLinear of its own."""
    made = residual.kernels(plan_of(residual, ["block0.add", "block1.add"]))
    assert "block0.conv2 block0.add block0.relu2" in names(residual, made)
    assert reformats(made)[:2] == ["x: fp32 to int8", "stem_relu_out: fp16 to int8"]
    assert "block0.relu2_out: fp16 to int8" in reformats(made)
    assert "block0.relu1_out: fp16 to int8" not in reformats(made)


def test_a_gate_is_a_kernel_and_the_product_that_spreads_it_over_a_picture_another():
    sketch = networks.Sketch()
    x = sketch.conv("x", "body", 3, 8)
    gate = sketch.conv(sketch.node("GlobalAveragePool", [x], "gate_pool"), "squeeze", 8, 8, 1)
    scaled = sketch.node("Mul", [x, sketch.node("Sigmoid", [gate], "sigmoid")], "scale")
    sketch.pooled_classes(sketch.conv(scaled, "next", 8, 8), 8)
    model = model_of(sketch.model([1, 3, 16, 16], [1, 10]))
    for plan in (model.network.plan((), FP16), model.network.full(FP16)):
        assert {"squeeze sigmoid", "scale"} <= {*names(model, model.kernels(plan))}


def test_what_only_moves_values_stays_in_int8():
    """The detector's Resize stands between INT8 layers: no kernel changes its type."""
    model = model_of(SAMPLES / "detector" / "detector.onnx")
    kernels = model.kernels(model.network.full(FP32))
    resize = next(one for one in kernels if one.name == "/model.9/Resize")
    layers = [model.network.layers[k] for k in resize.layers]
    values = sum(np.prod(model.facts.shapes[name]) for each in layers for name in (*each.inputs, *each.outputs))
    assert resize.moved == values
    assert not [name for name in reformats(kernels) if name.startswith(("/model.8", "/model.9", "/model.10"))]


def test_an_unknown_operator_is_a_region_and_widens_the_range(residual):
    kernels = residual.kernels(residual.network.full(FP32))
    sure = predicted(kernels, A100)
    layers = [replace(one, op_type="Unheard") if one.name == "pool" else one for one in residual.network.layers]
    odd_model = EngineModel(replace(residual.network, layers=tuple(layers)), residual.facts)
    odd = odd_model.kernels(residual.network.full(FP32))
    found = predicted(odd, A100)
    assert [one.name for one in odd if one.kind is Kind.REGION] == ["pool"]
    assert found.most / found.ms > sure.most / sure.ms


def built_by_rtx(network, plan, folder, shapes):
    """The layers in each kernel of the engine that TensorRT-RTX builds for a plan."""
    scales = {tensor: np.float32(0.02 + 1e-4 * i) for i, tensor in enumerate(network.activations)}
    made = for_tensorrt(network, scales, plan)
    save_model(made.model, made.weights, folder / "network.qdq.onnx")
    return [set(layer.network_layers) for layer in layers_of_file(folder / "network.qdq.onnx", shapes)]


@pytest.mark.slow
@pytest.mark.parametrize("name", edition(("residual", "encoder"), ("lenet", "residual", "detector", "encoder")))
def test_fusions_are_those_of_engines_that_tensorrt_rtx_builds(name, tmp_path):
    """RTX runs a product and what follows it as two kernels; the second names the layers that are fused."""
    pytest.importorskip("tensorrt_rtx_bindings")
    files = {"lenet": "lenet/lenet", "detector": "detector/detector", "encoder": "transformer/encoder"}
    source = SAMPLES / f"{files[name]}.onnx" if name in files else networks.residual(2)
    model = model_of(source)
    built = built_by_rtx(model.network, model.network.full(FP32), tmp_path, {})
    heads = [group for group in model.groups if group.head is not None]
    assert len(heads) == sum(layer.op_type in PRODUCTS for layer in model.network.layers) > 2
    for group in heads:
        inside = {model.network.layers[k].name for k in group.layers}
        assert any(inside <= names for names in built), f"{sorted(inside)} are no kernel of the engine"


ATTENTION = ["block0.scores", "block0.softmax", "block0.mix"]


@pytest.mark.slow
@pytest.mark.parametrize(("base", "high", "fused"), [
    (FP16, None, {0, 1}), (FP16, ATTENTION, {0}), *edition((), ((FP32, None, set()), (FP16, (), set()))),
    (FP16, ["block0.mix"], set()),
])  # fmt: skip
def test_attention_is_one_kernel_where_tensorrt_rtx_makes_one(base, high, fused, tmp_path):
    """In 16-bit floats without a pair inside; ``high`` is None for a network without INT8."""
    pytest.importorskip("tensorrt_rtx_bindings")
    network = load_network(SAMPLES / "transformer" / "encoder.onnx", base=base)
    model = EngineModel(network, facts_for(network, {"x": np.zeros((8, 16, 48), np.float32)}))
    plan = network.plan((), base) if high is None else plan_of(model, high, base)
    built = built_by_rtx(network, plan, tmp_path, {"x": (8, 16, 48)})
    kernels = model.kernels(plan)
    ours = [{network.layers[k].name for k in kernel.layers} for kernel in kernels]
    for block in (0, 1):
        inside = {f"block{block}.{name}" for name in ("scores", "div", "softmax", "mix")}
        assert any(inside <= names for names in built) == (block in fused)
        assert (inside in ours) == (block in fused)
    macs = sum(kernel.product.macs for kernel in kernels if kernel.product)
    assert macs == sum(kernel.product.macs for kernel in model.kernels(network.full(base)) if kernel.product)


@pytest.mark.slow
def test_attention_left_in_fp16_is_predicted_to_be_faster_than_in_int8():
    """Four blocks, width 384, six heads, 128 tokens, batch 8: the figures of docs/concepts/time.md."""
    network = load_network(encoder(4), base=FP16)
    model = EngineModel(network, facts_for(network, {network.inputs[0].name: np.zeros((8, 128, 384), np.float32)}))
    attention = [k for whole, _ in model.attentions for k in whole.layers]
    full = network.full(FP16)
    plans = {"fp16": network.plan((), FP16), "int8": full, "attention in fp16": full.keeping(attention, FP16)}
    found = {name: predicted(model.kernels(plan), A100).ms for name, plan in plans.items()}
    assert found == pytest.approx({"fp16": 0.57, "int8": 0.69, "attention in fp16": 0.587}, rel=0.01)


def test_sigmoids_kept_in_fp32_break_the_kernels_of_an_fp16_network():
    """Two published cases: 88 Sigmoids in FP32 cost a YOLO 15 % of its frames, a head in FP32 18 % of its time.

    Ultralytics issues 25920 (1,147 frames a second instead of 1,353) and 26167. The detector of the samples has fewer
    of both; each costs 10 % or more here too.
    """
    model = model_of(SAMPLES / "detector" / "detector.onnx")
    model = EngineModel(replace(model.network, base=FP16), model.facts)
    layers, t4 = model.network.layers, GPUS["T4"]
    sigmoids = [layer.index for layer in layers if layer.op_type == "Sigmoid" and layer.name.endswith("/act/Sigmoid")]
    head = [layer.index for layer in layers if layer.name.startswith("/model.13/")]
    assert len(sigmoids) > 15 < len(head)
    in_fp16, full = model.network.plan((), FP16), model.network.full(FP16)
    for plan, kept in ((in_fp16, sigmoids), (full, sigmoids), (in_fp16, head)):
        before, after = (predicted(model.kernels(one), t4).ms for one in (plan, plan.keeping(kept, FP32)))
        assert after > 1.1 * before
    broken = names(model, model.kernels(full.keeping(sigmoids, FP32)))
    assert "/model.0/conv/Conv" in broken
    assert "/model.0/act/Sigmoid /model.0/act/Mul" in broken
    inside = [k for one in model.kernels(full.keeping(sigmoids, FP32)) for k in one.layers]
    assert sorted(inside) == list(range(len(layers)))
