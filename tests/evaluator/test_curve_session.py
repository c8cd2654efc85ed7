"""The session that switches precisions against an engine for each plan: the same curve, whatever the graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.support import networks
from tests.support.editions import edition
from tests.support.networks import Sketch, attached
from tests.support.quantized import plain_session
from trt_bisect.analyzer.judge import Comparer
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.data.datasets import open_dataset
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.evaluators import RebuildEvaluator, SwitchEvaluator
from trt_bisect.evaluator.trial import TrialStore
from trt_bisect.model.network import Network, load_network
from trt_bisect.model.observe import facts_for
from trt_bisect.model.pieces import Boundaries, cut
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import Precision, all_but, int8_set, only

PLENTY = 1 << 28


class Experiment:
    """A network with its ranges and inputs, measured in both ways."""

    def __init__(self, model: onnx.ModelProto, folder, count=1, high=Precision.FP32, memory=PLENTY, batch=1):
        self.network: Network = load_network(networks.save(model, folder))
        feeds = list(open_dataset(networks.samples(model, count * batch), self.network.inputs))
        self.feeds = [
            {name: np.concatenate([f[name] for f in feeds[i : i + batch]]) for name in feeds[0]}
            for i in range(0, len(feeds), batch)
        ]
        self.scales = calibrate(self.network, self.feeds, "minmax").scales
        self.options = BuildOptions(high=high)
        self.builder = OnnxRuntimeBuilder(self.network, self.scales, self.options)
        compare = Comparer([self.builder.reference().infer(feed) for feed in self.feeds])
        self.whole, self.store = (
            RebuildEvaluator(self.network, self.builder, self.feeds, compare, TrialStore(), high) for _ in range(2)
        )
        self.switch = SwitchEvaluator(self.store, self.builder, self.scales, memory)

    def curve(self):
        layers, quantizable = len(self.network.layers), self.network.quantizable
        return [int8_set(layers, quantizable[:count], self.options.high) for count in range(len(quantizable) + 1)]

    def agree(self, plans, tolerance=2e-5):
        """Both ways give the same trials, but for sums in another order; the session builds no engine."""
        trials = [self.switch.measure(plan) for plan in plans]
        for plan, trial in zip(plans, trials, strict=True):
            other = self.whole.measure(plan)
            assert (trial.outcome, trial.ran, trial.builds) == (other.outcome, other.ran, 0)
            for name, figures in other.outputs.items():
                assert trial.outputs[name].values["cosine"] == pytest.approx(figures.values["cosine"], abs=tolerance)
        return trials


CURVES = {
    **{make.__name__: (make, {}) for make in (networks.chain, networks.residual, networks.depthwise)},
    "transformer": (networks.transformer, {}),
    "fp16 as the high precision": (networks.residual, {"high": Precision.FP16}),
    "several inputs and batches of several samples": (networks.transformer, {"count": 3, "batch": 2}),
    "no memory for tensors": (networks.residual, {"memory": 0}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "options"), CURVES.values(), ids=CURVES)
def test_the_curve_is_that_of_whole_engines(make, options, tmp_path):
    bench = Experiment(make(), tmp_path, **options)
    bench.agree(bench.curve())


@pytest.mark.parametrize("family", ["only", "all but"])
def test_each_layer_alone_is_that_of_whole_engines(family, tmp_path):
    bench = Experiment(networks.residual(), tmp_path)
    layers, quantizable = len(bench.network.layers), bench.network.quantizable
    if family == "only":
        plans = [only(layers, k) for k in quantizable]
    else:
        plans = [all_but(layers, {k} | (set(range(layers)) - set(quantizable))) for k in quantizable]
    bench.agree(plans)


def test_weights_alone_and_activations_alone_are_states_of_a_layer(tmp_path):
    """After plans with whole layers in INT8 the session is made anew, with both halves."""
    bench = Experiment(networks.residual(), tmp_path)
    layers, halves = len(bench.network.layers), (Precision.INT8_WEIGHT, Precision.INT8_ACTIVATION)
    plans = [only(layers, k, own=half) for half in halves for k in bench.network.quantizable[:4]]
    losses = [1 - trial.outputs["y"].values["cosine"] for trial in bench.agree([bench.curve()[-1], *plans])]
    assert len({round(loss, 9) for loss in losses}) > len(plans) // 2, "the halves are told apart"


def test_a_layer_that_the_user_fixed_is_no_choice(tmp_path):
    bench = Experiment(networks.residual(), tmp_path)
    plans = [plan.keeping(bench.network.quantizable[:1], Precision.FP16) for plan in bench.curve()[1:3]]
    trials = [bench.switch.measure(plan) for plan in plans]
    assert [trial.builds for trial in trials] == [1, 1], "without a fixed layer FP16 takes an engine"
    assert [trial.plan for trial in trials] == [plan.key() for plan in plans]


def test_a_graph_that_is_refused_leaves_the_plans_to_whole_engines(tmp_path, monkeypatch):
    bench = Experiment(networks.chain(), tmp_path)

    def refuse(*_, **__):
        raise TrialFailed("build failed", "no")

    monkeypatch.setattr(bench.builder, "switch", refuse)
    trials = [bench.switch.measure(plan) for plan in bench.curve()]
    assert trials == [bench.store.store.find(plan.key()) for plan in bench.curve()]


def test_a_plan_in_the_store_is_not_measured_again(tmp_path, monkeypatch):
    bench = Experiment(networks.chain(), tmp_path)
    first = [bench.switch.measure(plan) for plan in bench.curve()]
    monkeypatch.setattr(bench.builder, "switch", None)
    bench.switch.close()
    assert [bench.switch.measure(plan) for plan in bench.curve()] == first


def fixed_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    return model


def test_a_network_that_brings_its_own_pairs(tmp_path):
    """Q/DQ inside, and right before the output, which a layer inside reads as it was before."""
    model = networks.residual()
    first = Experiment(model, tmp_path)
    written = PlanWriter(first.network, first.scales, GraphTarget.TENSORRT).write(first.curve()[-1])
    whole = attached(written.model, written.weights)
    scale = numpy_helper.from_array(np.float32(0.01), "out.scale")
    zero = numpy_helper.from_array(np.int8(0), "out.zero")
    inside = next(node.output[0] for node in whole.graph.node if node.name == "block1.conv2")
    whole.graph.initializer.extend([scale, zero])
    whole.graph.node.append(helper.make_node("QuantizeLinear", [inside, "out.scale", "out.zero"], ["out.q"]))
    whole.graph.node.append(helper.make_node("DequantizeLinear", ["out.q", "out.scale", "out.zero"], ["out"]))
    whole.graph.output.append(helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 8, 16, 16]))
    bench = Experiment(whole, tmp_path)
    assert bench.network.has_pairs
    assert any(rounding.at_output for layer in bench.network.layers for rounding in layer.roundings)
    bench.agree(bench.curve())


def test_control_flow_inside_is_that_of_whole_engines(tmp_path):
    """An If whose side depends on the values: its bodies read what this plan made."""
    sketch = Sketch(11)
    x = sketch.conv("x", "conv0", 3, 8)
    for i in range(1, 20):
        x = sketch.conv(sketch.node("Relu", [x], f"relu{i}"), f"conv{i}", 8, 8)
        if i % 4 == 2:
            sides = []
            for side, op in (("then", "Tanh"), ("else", "Neg")):
                out = helper.make_tensor_value_info(f"{side}{i}_out", TensorProto.FLOAT, None)
                node = helper.make_node(op, [x], [f"{side}{i}_out"], name=f"{side}{i}")
                sides.append(helper.make_graph([node], side, [], [out]))
            mean = sketch.node("ReduceMean", [x], f"mean{i}", keepdims=0)
            flag = sketch.node("Greater", [mean, sketch.constant(f"zero{i}", 0.0)], f"flag{i}")
            x = sketch.node("If", [flag], f"choice{i}", then_branch=sides[0], else_branch=sides[1])
    sketch.nodes.append(helper.make_node("GlobalAveragePool", [x], ["y"], name="pool"))
    bench = Experiment(fixed_batch(sketch.model([1, 3, 8, 8], [1, 8, 1, 1])), tmp_path)
    bench.agree(bench.curve())


def test_shapes_that_depend_on_the_values(tmp_path):
    """NonZero gives each plan another number of values: no shape of the first input holds."""
    sketch = Sketch(13)
    x = sketch.conv("x", "conv0", 3, 8)
    for i in range(1, 10):
        x = sketch.conv(sketch.node("Relu", [x], f"relu{i}"), f"conv{i}", 8, 8)
    places = sketch.node("NonZero", [sketch.node("Relu", [x], "relu")], "places")
    found = sketch.node("Transpose", [places], "turned")
    values = sketch.node("GatherND", [x, found], "values")
    most = sketch.node("ReduceMax", [values], "most", keepdims=1)
    sketch.nodes.append(helper.make_node("Div", [values, most], ["y"], name="share"))
    bench = Experiment(fixed_batch(sketch.model([1, 3, 8, 8], [None], opset=13)), tmp_path)
    bench.agree(bench.curve())


def graphs(draw) -> onnx.ModelProto:
    """Layers that read any tensor before them: skips, sums, concatenations, several inputs and outputs."""
    sketch = Sketch(draw(st.integers(0, 1000)))
    inputs = {f"x{i}": ["n", 4, 6, 6] for i in range(draw(st.integers(1, 2)))}
    tensors = dict.fromkeys(inputs, 4)
    for i in range(draw(st.integers(4, 14))):
        name, kind = f"n{i}", draw(st.sampled_from(["conv", "conv", "relu", "add", "concat", "pool", "gate"]))
        one, other = (draw(st.sampled_from(sorted(tensors))) for _ in range(2))
        if kind == "conv":
            out, width = sketch.conv(one, name, tensors[one], 4), 4
        elif kind == "add" and tensors[one] == tensors[other] and one != other:
            out, width = sketch.node("Add", [one, other], name), tensors[one]
        elif kind == "concat" and one != other and tensors[one] + tensors[other] < 13:
            out, width = sketch.node("Concat", [one, other], name, axis=1), tensors[one] + tensors[other]
        elif kind == "pool":
            out = sketch.node("MaxPool", [one], name, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
            width = tensors[one]
        elif kind == "gate":
            mean = sketch.node("GlobalAveragePool", [one], f"{name}_mean")
            out = sketch.node("Mul", [one, sketch.node("Sigmoid", [mean], f"{name}_share")], name)
            width = tensors[one]
        else:
            out, width = sketch.node("Relu", [one], name), tensors[one]
        tensors[out] = width
    made = [name for name in tensors if name not in inputs]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    return sketch.model(inputs, {name: ["n", tensors[name], 6, 6] for name in outputs})


@pytest.mark.slow
@settings(max_examples=edition(8, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_curve_of_any_graph_is_that_of_whole_engines(data, tmp_path):
    bench = Experiment(graphs(data.draw), tmp_path, count=data.draw(st.integers(1, 2)))
    assume(bench.network.quantizable)
    bench.agree(bench.curve(), tolerance=1e-3)


@settings(max_examples=edition(6, 40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), layers=st.integers(1, 6))
def test_pieces_hold_every_layer_once_and_what_lives_at_their_edges(data, layers, tmp_path):
    network = load_network(networks.save(graphs(data.draw), tmp_path))
    feeds = {spec.name: np.zeros((1, 4, 6, 6), np.float32) for spec in network.inputs}
    pieces = cut(network, facts_for(network, feeds), layers)
    assert [k for piece in pieces for k in piece.layers] == list(range(len(network.layers)))
    known = {spec.name for spec in network.inputs}
    wanted = {spec.name for spec in network.outputs}
    live = Boundaries(network).live
    for piece in pieces:
        assert set(piece.reads) <= known
        known |= set(piece.leaves)
        assert set(live[piece.stop - 1]) <= known
    assert wanted <= known


def test_a_sum_is_not_parted_from_the_layer_that_makes_its_term(tmp_path):
    network = load_network(networks.save(networks.residual(), tmp_path))
    facts = facts_for(network, {"x": np.zeros((1, 3, 16, 16), np.float32)})
    starts = {network.layers[piece.start].op_type for piece in cut(network, facts, 1)}
    assert "Add" not in starts


def test_shapes_are_those_that_onnxruntime_gives(tmp_path):
    model = networks.transformer()
    network = load_network(networks.save(model, tmp_path))
    feeds = {"x": networks.samples(model, 1)["x"]}
    exposed = onnx.ModelProto()
    exposed.CopyFrom(onnx.load(str(tmp_path / "network.onnx")))
    names = [name for layer in network.layers for name in layer.outputs if name != "y"]
    exposed.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names)
    session = plain_session(exposed)
    values = dict(zip(names, session.run(names, feeds), strict=True))
    facts = facts_for(network, feeds)
    assert {name: facts.shapes[name] for name in names} == {name: value.shape for name, value in values.items()}
    assert all(facts.size(name) == value.nbytes for name, value in values.items())
