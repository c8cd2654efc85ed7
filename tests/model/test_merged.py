"""Networks merged into one and split again compute the same, with names of their own."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.networks import chain, model_of, residual
from tests.support.quantized import plain_run
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.errors import BadInput
from trt_bisect.model.equalise import equalise
from trt_bisect.model.merged import SAMPLE, merged, split
from trt_bisect.model.network import Pipeline, load_network
from trt_bisect.precision import Precision

X = np.random.default_rng(3).normal(size=(2, 3, 16, 16)).astype(np.float32)


def branched():
    """An If whose branches read a tensor and a constant from outside."""
    shape = [2, 3, 16, 16]
    bodies = {}
    for name, op in (("then_branch", "Add"), ("else_branch", "Mul")):
        output = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
        bodies[name] = helper.make_graph([helper.make_node(op, ["x", "two"], ["out"])], name, [], [output])
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["is_large"]),
        helper.make_node("If", ["is_large"], ["y"], name="if", **bodies),
    ]
    constants = [onnx.numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("two", 2), ("zero", 0))]
    return model_of(nodes, {"x": shape}, {"y": shape}, constants)


def pipeline_of(**models):
    networks = {name: load_network(model) for name, model in models.items()}
    return networks, merged(Pipeline(networks, lambda *_: ({}, ""), ""))


def outputs_of(network, plan, feeds):
    with OnnxRuntimeBuilder(
        network, dict.fromkeys(network.rounded_activations, np.float32(0.05)), BuildOptions()
    ).build(plan) as engine:
        return engine.infer(feeds)


@pytest.mark.parametrize("changed", [False, True])
def test_parts_compute_what_the_networks_do(changed):
    """Also with a plan, and after channels of the merged network were equalised."""
    networks, whole = pipeline_of(a=residual(1), b=branched(), c=chain(2))
    network = equalise(whole)[0] if changed else whole
    assert (network.skeleton is not whole.skeleton) is changed
    plan = network.plan(network.quantizable[1:], Precision.FP32)
    feeds = {SAMPLE: np.zeros(2, np.int64), **{f"{name}/x": X for name in networks}}
    together = outputs_of(network, plan, feeds)
    for part in split(network):
        alone = outputs_of(part.network, part.plan(plan), {"x": X})
        assert list(alone) == [spec.name for spec in networks[part.name].outputs]
        for name, array in alone.items():
            np.testing.assert_array_equal(together[f"{part.name}/{name}"], array)
        names = [layer.name for layer in part.network.layers]
        assert [network.layers[k].name for k in part.layers] == [f"{part.name}/{name}" for name in names]
    wanted = plain_run(residual(1), {"x": X})
    np.testing.assert_allclose(outputs_of(network, network.free_plan(), feeds)["a/y"], wanted[0], rtol=1e-3, atol=1e-4)


def test_what_the_user_fixes_is_split_too():
    networks, whole = pipeline_of(a=chain(2), b=chain(3))
    fixed = whole.fixing({whole.layer_named("b/conv1").index: Precision.FP16})
    fixed = replace(fixed.with_one_scale_a_weight([fixed.layer_named("b/conv0").index]), scales={"b/x": np.float32(1)})
    first, second = (part.network for part in split(fixed))
    assert [layer.name for layer in second.layers if layer.fixed] == ["conv1"]
    assert (first.one_scale, second.one_scale) == (frozenset(), {second.layer_named("conv0").index})
    assert (first.scales, second.scales) == ({}, {"x": np.float32(1)})
    assert second.weights["conv1.weight"] is networks["b"].weights["conv1.weight"]
    assert split(networks["a"]) == ()


def test_a_network_with_pairs_beside_one_without_is_refused():
    networks = {"a": load_network(chain(2)), "b": replace(load_network(chain(2)), has_pairs=True)}
    with pytest.raises(BadInput, match="'b'"):
        merged(Pipeline(networks, lambda *_: ({}, ""), ""))
