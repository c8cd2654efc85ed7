"""``branch`` against ``exhaustive``: the same curve, whatever the graph, and no matter how it is cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.support import networks
from tests.support.editions import edition
from tests.support.networks import Sketch, attached
from trt_bisect.analyzer.judge import Comparer
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import open_dataset
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator import evaluators
from trt_bisect.evaluator.evaluators import BranchEvaluator, RebuildEvaluator
from trt_bisect.evaluator.trial import TrialStore
from trt_bisect.model.network import Network, load_network
from trt_bisect.model.observe import facts_for, with_free_batch
from trt_bisect.model.pieces import Boundaries, cut
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import make_session
from trt_bisect.precision import Precision, all_but, int8_set, only

PLENTY = 1 << 30


def no_pieces(*_):
    raise AssertionError("ONNX Runtime has pieces of its own")


class Experiment:
    """A network with its ranges and inputs, measured in both ways."""

    def __init__(self, model: onnx.ModelProto, folder, count=1, high=Precision.FP32, memory=PLENTY, batch=1, few=False):
        self.network: Network = load_network(networks.save(model, folder))
        feeds = list(open_dataset(networks.samples(model, count * batch), self.network.inputs))
        self.feeds = [
            {name: np.concatenate([f[name] for f in feeds[i : i + batch]]) for name in feeds[0]}
            for i in range(0, len(feeds), batch)
        ]
        self.scales = calibrate(self.network, self.feeds, "minmax").scales
        self.options = BuildOptions(high=high)
        self.builder = OnnxRuntimeBuilder(self.network, self.scales, self.options)
        self.reference = [self.builder.reference().infer(feed) for feed in self.feeds]
        self.stores = {"whole": TrialStore(), "branch": TrialStore()}
        compare = Comparer(self.reference)
        self.whole, fallback = (
            RebuildEvaluator(self.network, self.builder, self.feeds, compare, store, high)
            for store in self.stores.values()
        )
        self.branch = BranchEvaluator.of(fallback, no_pieces, memory=memory, few_boundaries=few)

    def curve(self):
        layers, quantizable = len(self.network.layers), self.network.quantizable
        return [int8_set(layers, quantizable[:count], self.options.high) for count in range(len(quantizable) + 1)]

    def agree(self, plans, tolerance=1e-6):
        """Both ways give the same trials; ``branch`` without a whole engine."""
        trials = self.branch.measure_all(plans, lambda *_: None)
        for plan, trial in zip(plans, trials, strict=True):
            other = self.whole.measure(plan)
            assert trial.outcome == other.outcome
            assert trial.ran == other.ran
            for name, figures in other.outputs.items():
                assert trial.outputs[name].values["cosine"] == pytest.approx(figures.values["cosine"], abs=tolerance)
        return trials


CURVES = {
    **{make.__name__: (make, {}) for make in (networks.chain, networks.residual, networks.depthwise)},
    "transformer": (networks.transformer, {}),
    "fp16 as the high precision": (networks.residual, {"high": Precision.FP16}),
    "several inputs and batches of several samples": (networks.transformer, {"count": 3, "batch": 2}),
}


@pytest.mark.parametrize(("make", "options"), CURVES.values(), ids=CURVES)
def test_the_curve_of_one_pass_is_that_of_whole_engines(make, options, tmp_path):
    bench = Experiment(make(), tmp_path, **options)
    plans = bench.curve()
    trials = bench.agree(plans)
    assert sum(trial.builds for trial in trials) < len(plans)


@pytest.mark.parametrize("family", ["only", "all but"])
def test_sensitivities_come_from_one_pass(family, tmp_path):
    bench = Experiment(networks.residual(), tmp_path)
    layers, quantizable = len(bench.network.layers), bench.network.quantizable
    if family == "only":
        plans = [only(layers, k) for k in quantizable]
    else:
        plans = [all_but(layers, {k} | (set(range(layers)) - set(quantizable))) for k in quantizable]
    trials = bench.agree(plans)
    assert sum(trial.builds for trial in trials) < len(plans)


def test_where_few_boundaries_are_measured_pieces_are_larger_and_kept(tmp_path, monkeypatch):
    """Two passes with every other boundary: pieces behind the trunk are built in the first one only."""
    monkeypatch.setattr(evaluators, "_MOST_PIECES", 5)
    many, few = (Experiment(networks.chain(40), tmp_path, few=few) for few in (False, True))
    pieces = [bench.branch._stream.pieces for bench in (many, few)]
    assert len(pieces[0]) > len(pieces[1]) > 2
    assert [k for piece in pieces[1] for k in piece.layers] == list(range(len(few.network.layers)))
    first, second = (sum(trial.builds for trial in few.agree(few.curve()[start:-1:2])) for start in (0, 1))
    assert second < first


def test_little_memory_makes_groups_and_changes_nothing(tmp_path):
    roomy, tight = Experiment(networks.residual(), tmp_path), Experiment(networks.residual(), tmp_path, memory=60_000)
    plans = roomy.curve()
    trials = tight.agree(plans)
    assert sum(trial.builds for trial in trials) > sum(
        t.builds for t in roomy.branch.measure_all(plans, lambda *_: None)
    )


@pytest.mark.parametrize("memory", [20_000, 40_000, 60_000, 150_000, PLENTY])
def test_groups_and_kept_tensors_fit_into_their_shares_of_the_memory(memory, tmp_path):
    """The rows of a group hold at most half of it, counted here boundary by boundary; the kept trunk a quarter."""
    bench = Experiment(networks.residual(), tmp_path, count=2, memory=memory)
    stream = bench.branch._stream
    bench.branch.measure_all(bench.curve(), lambda *_: None)
    branches = [(number, plan) for number, plan in enumerate(bench.curve()[: len(stream.pieces)]) for _ in range(3)]
    live, inside, threads = stream._bytes_live(), stream._bytes_inside(), stream.builder.workers

    def held(group):
        for number in range(len(stream.pieces)):
            left, own = (sum(place < number for place, _ in group), sum(place == number for place, _ in group))
            yield (left + own) * live[number] + (own + min(left, threads)) * inside[number]

    groups = stream._parts(branches)
    assert [branch for group in groups for branch in group] == branches
    assert all(len(group) == 1 or max(held(group)) <= memory // 2 for group in groups)
    assert all(max(held([*one, other[0]])) > memory // 2 for one, other in pairwise(groups))
    kept = {id(value): value.nbytes for _, known in stream._trunks.values() for one in known for value in one.values()}
    assert kept
    assert stream._bytes_kept == sum(kept.values())
    assert len(stream._trunks) == 1 or stream._bytes_kept <= memory // 4


def fixed_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    return model


def attention(split, joined) -> onnx.ModelProto:
    """Two projections whose products go through Reshapes to fixed shapes."""
    sketch = Sketch(6)
    x = sketch.dense("x", "embed", 8, 8)
    for block in range(3):
        q, k = sketch.dense(x, f"q{block}", 8, 8), sketch.dense(x, f"k{block}", 8, 8)
        to, back = sketch.constant(f"to{block}", split, np.int64), sketch.constant(f"back{block}", joined, np.int64)
        q, k = sketch.node("Reshape", [q, to], f"split_q{block}"), sketch.node("Reshape", [k, to], f"split_k{block}")
        k = sketch.node("Transpose", [k], f"turn{block}", perm=[0, 2, 1])
        scores = sketch.node("Softmax", [sketch.node("MatMul", [q, k], f"scores{block}")], f"softmax{block}", axis=-1)
        x = sketch.node("Reshape", [sketch.node("MatMul", [scores, q], f"mix{block}"), back], f"join{block}")
    sketch.nodes.append(helper.make_node("Relu", [x], ["y"], name="last"))
    return fixed_batch(sketch.model({"x": [1, 6, 8]}, {"y": [1, 6, 8]}))


@pytest.mark.parametrize(
    ("split", "joined"), [([2, 6, 4], [1, 6, 8]), ([1, 12, 4], [1, -1, 8]), ([2, -1, 4], [1, 6, 8])]
)
def test_a_baked_batch_is_freed_or_rows_go_one_by_one(split, joined, tmp_path):
    """[2, 6, 4] takes heads and batch together: -1 frees it, and rows stay apart."""
    bench = Experiment(attention(split, joined), tmp_path)
    free = with_free_batch(bench.network, bench.feeds[0])
    assert free.repaired
    bench.agree(bench.curve())


def test_what_mixes_the_batch_is_found_out_and_run_row_by_row(tmp_path):
    """A mean over the batch axis gives each row of a stack the others' values: only a comparison can tell."""
    sketch = Sketch(8)
    x = sketch.conv("x", "conv0", 3, 8)
    for i in range(1, 20):
        if i % 8 == 7:
            mean = sketch.node("ReduceMean", [x], f"mean{i}", axes=[0, 2, 3], keepdims=1)
            x = sketch.node("Sub", [x, mean], f"centered{i}")
        x = sketch.conv(sketch.node("Relu", [x], f"relu{i}"), f"conv{i}", 8, 8)
    sketch.nodes.append(helper.make_node("GlobalAveragePool", [x], ["y"], name="pool"))
    bench = Experiment(fixed_batch(sketch.model({"x": [1, 3, 8, 8]}, {"y": [1, 8, 1, 1]})), tmp_path)
    bench.agree(bench.curve())
    proofs = bench.branch._stream._learned.stackable
    assert True in proofs.values()
    assert False in proofs.values()


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


def test_control_flow_inside_goes_with_its_row(tmp_path):
    """An If whose side depends on the values, in a piece with layers before it: bodies read what its own row made."""
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
    bench = Experiment(fixed_batch(sketch.model({"x": [1, 3, 8, 8]}, {"y": [1, 8, 1, 1]})), tmp_path)
    assert len(bench.branch._stream.pieces) > 2
    bench.agree(bench.curve())


def test_plans_that_share_no_trunk(tmp_path):
    bench = Experiment(networks.chain(), tmp_path)
    layers, quantizable = len(bench.network.layers), bench.network.quantizable
    plans = [int8_set(layers, quantizable[1::2]), int8_set(layers, quantizable[::3]), int8_set(layers, ())]
    assert len(bench.agree(plans)) == len(plans)


def test_a_piece_that_fails_leaves_the_plans_to_whole_engines(tmp_path, monkeypatch):
    bench = Experiment(networks.chain(), tmp_path)

    def fail(*_):
        raise TrialFailed("build failed", "no")

    monkeypatch.setattr(bench.branch._stream.builder, "rows", fail)
    bench.agree(bench.curve())
    assert bench.branch.failures == ["no"]


def test_shapes_that_depend_on_the_values(tmp_path):
    """NonZero gives each row another number of values; nothing that was foreseen of its shape holds."""
    sketch = Sketch(13)
    x = sketch.conv("x", "conv0", 3, 8)
    for i in range(1, 10):
        x = sketch.conv(sketch.node("Relu", [x], f"relu{i}"), f"conv{i}", 8, 8)
    places = sketch.node("NonZero", [sketch.node("Relu", [x], "relu")], "places")
    found = sketch.node("Transpose", [places], "turned")
    values = sketch.node("GatherND", [x, found], "values")
    most = sketch.node("ReduceMax", [values], "most", keepdims=1)
    sketch.nodes.append(helper.make_node("Div", [values, most], ["y"], name="share"))
    bench = Experiment(fixed_batch(sketch.model({"x": [1, 3, 8, 8]}, {"y": [None]}, opset=13)), tmp_path)
    bench.agree(bench.curve())
    assert bench.branch.failures == []


def test_what_is_in_the_store_is_not_measured_again(tmp_path):
    bench = Experiment(networks.chain(), tmp_path)
    plans = bench.curve()
    first = bench.branch.measure_all(plans, lambda *_: None)
    told = []
    assert bench.branch.measure_all(plans, lambda *piece: told.append(piece)) == first
    assert told == []


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
def test_branch_equals_exhaustive_on_any_graph(data, tmp_path):
    bench = Experiment(graphs(data.draw), tmp_path, count=data.draw(st.integers(1, 2)))
    assume(bench.network.quantizable)
    plans = bench.curve()
    assert len(bench.agree(plans)) == len(plans)


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
    session = ort.InferenceSession(exposed.SerializeToString(), providers=["CPUExecutionProvider"])
    values = dict(zip(names, session.run(names, feeds), strict=True))
    facts = facts_for(network, feeds)
    assert {name: facts.shapes[name] for name in names} == {name: value.shape for name, value in values.items()}
    assert all(facts.size(name) == value.nbytes for name, value in values.items())


def test_the_optimised_pieces_hold_no_integer_kernels(tmp_path):
    """With Q/DQ fusion on, ONNX Runtime turns a convolution left in FP32 between INT8 neighbours into QLinearConv."""
    model = networks.chain(depth=6)
    network = load_network(networks.save(model, tmp_path))
    scales = Ranges(calibrate(network, [networks.samples(model, 1)], "minmax").scales).scales
    writer = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME)
    plan = int8_set(len(network.layers), set(network.quantizable) - {network.quantizable[2]})
    piece = Boundaries(network).piece(0, len(network.layers))
    written = writer.write_piece(piece, plan, [int8_set(len(network.layers), network.quantizable[:3])])

    def optimised(fusion: str) -> list[str]:
        options, path = ort.SessionOptions(), tmp_path / f"optimised{fusion}.onnx"
        options.add_session_config_entry("session.disable_quant_qdq", fusion)
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 4
        arrays = {name: np.ascontiguousarray(array) for name, array in written.weights.items()}
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
        options.add_external_initializers(list(arrays), values)
        ort.InferenceSession(written.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [node.op_type for node in onnx.load(str(path), load_external_data=False).graph.node]

    assert not [op for op in optimised("1") if op.startswith("QLinear")]
    assert [op for op in optimised("0") if op.startswith("QLinear")]
    assert make_session(written).get_outputs()


def test_the_free_batch_is_where_shape_inference_sees_it(tmp_path):
    network = load_network(networks.save(fixed_batch(networks.transformer()), tmp_path))
    free = with_free_batch(network, {"x": np.zeros((1, 12, 16), np.float32)})
    assert not free.repaired
    known = network.types.shapes
    assert {free.axes[name] for layer in network.layers for name in layer.outputs if name in known} == {0}
