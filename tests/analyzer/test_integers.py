"""Outputs of integers are judged by equality, and outputs whose length depends on the data by their rows."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import trt_bisect
from tests.support import networks
from tests.support.quantized import plain_session
from trt_bisect.analyzer.doubts import BY_CHANCE, LENGTH, doubts
from trt_bisect.analyzer.integers import IntegerJudge, Integers, integers_of, integers_text
from trt_bisect.analyzer.judge import Comparer, make_rule
from trt_bisect.analyzer.metrics import BUILT_IN, EQUAL, JUDGING
from trt_bisect.evaluator.trial import MEASURED, Trial
from trt_bisect.model.network import load_network

HOW = {"engine": "onnxruntime", "explain": "none", "calibrator": "minmax", "effort": "quick"}
COSINE, SHARE = make_rule(BUILT_IN["cosine"], None), make_rule(EQUAL, None)


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def network(folder, nodes, outputs, shape, constants):
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    model = networks.model_of(nodes, {"x": shape}, {}, tensors)
    model.graph.output.extend(outputs)
    return networks.save(model, folder)


def trial_of(references, outputs):
    return Trial("", MEASURED, Comparer(references)(outputs))


def test_a_share_of_equal_elements_stands_beside_kappa():
    fp32 = [np.repeat([0, 1], [973, 27]), np.repeat([0, 1], [1000, 0])]
    found = IntegerJudge(fp32).figures([np.zeros(1000, int), np.zeros(1000, int)])
    assert found.values == {"equal": 0.973, "equal_in_all": pytest.approx(0.9865), "kappa": 0.0}
    assert found.inputs["equal"] == (0.973, 1.0)
    assert IntegerJudge(fp32).figures(fp32).values == {"equal": 1.0, "equal_in_all": 1.0, "kappa": 1.0}
    assert "1.35% of the elements of 'y'" in integers_text("y", found.values)
    # By hand: 60 of 100 equal, classes in halves on both sides, by chance 50.
    halves, others = np.repeat([0, 1], 50), np.repeat([0, 1, 0, 1], [30, 20, 20, 30])
    assert IntegerJudge([halves]).figures([others]).values["kappa"] == pytest.approx(0.2)


def test_a_count_one_off_and_class_0_are_not_near():
    counts = [{"n": np.array([800 + k])} for k in range(4)]
    off = trial_of(counts, [{"n": counts[0]["n"] + 1}, *counts[1:]])
    assert SHARE.similarity(off) == 0.75  # of four inputs together: each has one element
    assert SHARE.by_input(off).values == (0.0, 1.0, 1.0, 1.0)
    classes = [{"n": np.array([k % 2])} for k in range(4)]
    wrong = trial_of(classes, [{"n": np.array([1])} for _ in classes])
    assert SHARE.by_input(wrong).inputs == 4  # class 0 is not "almost zero"
    assert SHARE.similarity(wrong) == 0.5


def test_each_input_of_a_map_is_judged_by_itself():
    maps = [{"m": np.arange(400).reshape(1, 20, 20) % 7} for _ in range(3)]
    changed = maps[1]["m"].copy()
    changed[0, 0, :8] += 1
    trial = trial_of(maps, [maps[0], {"m": changed}, maps[2]])
    assert SHARE.similarity(trial) == 0.98
    assert not SHARE.meets(trial)


@pytest.mark.parametrize(
    ("wrong", "loss", "doubted"), [(0.85, True, False), (0.6, False, True), (0.2, False, False), (0.0, False, False)]
)
def test_beside_floats_the_agreement_beyond_chance_decides(wrong, loss, doubted):
    random = np.random.default_rng(0)
    fp32 = [{"m": random.integers(0, 50, (1, 40, 40)), "f": random.normal(size=(1, 9))} for _ in range(4)]
    plan = []
    for outputs in fp32:
        places = random.random(outputs["m"].shape) < wrong
        plan.append({**outputs, "m": np.where(places, (outputs["m"] + 1) % 50, outputs["m"])})
    trial = trial_of(fp32, plan)
    assert (COSINE.loss(trial) > COSINE.budget) is loss
    assert [doubt.kind for doubt in doubts(COSINE, trial)] == [BY_CHANCE] * doubted


def test_indices_of_topk_are_sets_and_floats_in_8_bits_are_levels(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"], "s"),
        helper.make_node("TopK", ["s", "k"], ["best", "i"], "top", axis=1),
        helper.make_node("Cast", ["i"], ["places"], "places", to=TensorProto.INT32),
        helper.make_node("Cast", ["s"], ["pixels"], "pixels", to=TensorProto.UINT8),
        helper.make_node("ArgMax", ["s"], ["a"], "a", axis=1),
        helper.make_node("Cast", ["a"], ["labels"], "labels", to=TensorProto.UINT8),
        helper.make_node("Cast", ["a"], ["floats"], "floats", to=TensorProto.FLOAT),
    ]
    outputs = [
        value("places", [1, 3], TensorProto.INT32),
        value("pixels", [1, 5], TensorProto.UINT8),
        value("labels", [1, 1], TensorProto.UINT8),
        value("floats", [1, 1]),
    ]
    constants = {"w": np.eye(5, dtype=np.float32), "k": np.array([3])}
    found = integers_of(load_network(network(tmp_path, nodes, outputs, [1, 5], constants)))
    assert found == Integers({"places": 1}, frozenset({"pixels"}), as_floats=frozenset({"floats"}))
    maps = [{"floats": np.float32([[k]])} for k in (800, 801)]
    assert Comparer(maps[:1], integers=found)(maps[1:])["floats"].values["equal"] == 0.0
    judge = IntegerJudge([np.array([[4, 2, 9], [1, 2, 3]])], found.sets["places"])
    assert judge.figures([np.array([[9, 4, 2], [3, 2, 8]])]).values["equal"] == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("fp32", "plan", "similarity", "doubted"),
    [
        ([40] * 8, [30] * 8, 1.0, True),  # a quarter is still a doubt
        ([40] * 8, [29] * 8, 29 / 40, False),  # beyond it a miss
        ([40] * 8, [39] * 8, 1.0, False),
        ([2, 2, 2, 2], [1, 2, 2, 2], 1.0, False),  # one input alone says nothing
        ([2, 2, 2, 2], [1, 1, 1, 1], 0.5, False),
        ([0, 0, 3], [0, 0, 3], 1.0, False),
        ([0, 0], [1, 2], 0.0, False),  # ghosts
    ],
)
def test_rows_lost_or_won_are_counted_over_all_inputs(fp32, plan, similarity, doubted):
    rows = np.random.default_rng(0).normal(size=(50, 4)) + 5
    trial = trial_of([{"y": rows[:n]} for n in fp32], [{"y": rows[:n]} for n in plan])
    assert COSINE.similarity(trial) == pytest.approx(similarity)
    assert COSINE.meets(trial) is (similarity == 1.0)
    assert [doubt.kind for doubt in doubts(COSINE, trial)] == [LENGTH] * doubted


@pytest.mark.parametrize(
    ("metric", "kind", "worst"),
    [
        ("cosine", float, 0.0),
        ("sqnr", float, -400.0),
        ("mse", float, np.inf),
        ("top1", float, 0.0),
        ("equal", int, 0.0),
    ],
)
@pytest.mark.parametrize("rows", [([8, 8, 8, 8, 0], [0, 8, 8, 8, 0]), ([0, 8, 8, 8, 0], [8, 8, 8, 8, 0])])
def test_an_input_that_loses_all_rows_or_wins_the_first_is_the_worst(metric, kind, worst, rows):
    values = 5 + np.random.default_rng(0).integers(0, 3, (8, 4)).astype(kind)
    fp32, plan = ([{"y": values[:n]} for n in of_inputs] for of_inputs in rows)
    compare, rule = Comparer(fp32), make_rule(JUDGING[metric], 0.5)
    trial = Trial("", MEASURED, compare(plan))
    assert trial.outputs["y"].values[metric] == worst
    assert rule.loss(trial) > rule.budget
    found = rule.by_input(trial)
    assert (found.inputs, found.misses, found.worst, found.faint) == (4, 1, 0, (4,))
    lost, kept, *_, neither = (compare.at(place, outputs)["y"] for place, outputs in enumerate(plan))
    assert (lost.values[metric], rule.own_loss(neither)) == (worst, None)
    assert rule.own_loss(kept) == 0.0


def test_labels_of_which_an_input_has_few_lose_all_of_them_over_all_inputs():
    fp32 = [{"y": np.arange(3)} for _ in range(32)]
    trial = trial_of(fp32, [{"y": np.arange(0)}, *fp32[1:]])
    assert SHARE.similarity(trial) == 31 / 32
    assert SHARE.by_input(trial).values == (0.0, *(1.0,) * 31)


def test_inputs_without_rows_count_only_where_int8_gives_some(tmp_path):
    """INT8 rounds x to multiples of 7.87: 3 is lost, and 3.95 becomes 7.87."""
    gives, loses, wins, has_none = np.eye(4, dtype=np.float32) * np.array([1000, 3, 3.95, 0], np.float32)
    x = np.stack([*[gives] * 20, loses, wins, has_none, has_none])
    x[:, 3] = 1000
    nodes = [
        helper.make_node("MatMul", ["x", "eye"], ["m"], "first"),
        helper.make_node("Mul", ["m", "factors"], ["louder"], "factors"),
        helper.make_node("MatMul", ["louder", "w"], ["s"], "second"),
        helper.make_node("Reshape", ["s", "flat"], ["flat_s"], "flatten"),
        helper.make_node("Greater", ["flat_s", "least"], ["keep"], "greater"),
        helper.make_node("NonZero", ["keep"], ["at"], "nonzero"),
        helper.make_node("Reshape", ["at", "flat"], ["flat_at"], "places"),
        helper.make_node("Gather", ["flat_s", "flat_at"], ["scores"], "gather"),
    ]
    w = np.array([[0.0008] * 3, [0.0008] * 3, [0.0005] * 3, [0] * 3], np.float32)
    factors = np.array([1, 333, 100, 0], np.float32)
    constants = {"eye": np.eye(4, dtype=np.float32), "factors": factors, "w": w}
    constants |= {"flat": np.array([-1]), "least": np.float32(0.3)}
    path = network(tmp_path, nodes, [value("scores", ["n"])], [1, 4], constants)
    session = plain_session(path)
    rows = [session.run(None, {"x": sample[None]})[0].size for sample in x]
    assert rows == [3] * 21 + [0] * 3
    data = {"x": x}
    report = trt_bisect.run(path, data, inputs=data, **HOW)
    found = report.by_input.int8
    assert (found.inputs, found.misses, len(found.faint), report.similarity.int8) == (22, 2, 2, 0.0)
    assert (report.exit_code, report.culprits, report.recipe.meets) == (1, ("first",), True)
    assert (report.answer.given.inputs, report.answer.given.holds) == (21, 21)
    assert "FP32 gives no row on 3 of 24 inputs" in " ".join(note.text for note in report.notes)


def test_a_lost_row_of_indices_does_not_move_the_others():
    rows = np.arange(90).reshape(30, 3)
    found = IntegerJudge([rows, rows]).figures([rows[1:], rows])
    assert found.values["equal"] == 1.0
    assert found.values["rows_lost"] == 1
    changed = rows[1:].copy()
    changed[0, 0] = -1
    assert IntegerJudge([rows]).figures([changed]).values["equal"] == pytest.approx(28 / 29)


def test_rows_of_a_suppression_are_equal_in_any_order(tmp_path):
    nodes = [helper.make_node("NonMaxSuppression", ["boxes", "s", "most", "iou"], ["kept"], "nms")]
    boxes = np.array([[[0, 0, 1, 1], [0, 2, 1, 3], [0, 4, 1, 5]]], np.float32)
    constants = {"boxes": boxes, "most": np.array([3]), "iou": np.float32([0.5])}
    nodes.insert(0, helper.make_node("MatMul", ["x", "w"], ["s"], "s"))
    constants["w"] = np.eye(3, dtype=np.float32)
    path = network(tmp_path, nodes, [value("kept", ["n", 3], TensorProto.INT64)], [1, 1, 3], constants)
    found = integers_of(load_network(path))
    assert found == Integers(selections={"kept": 0})
    first, second = (np.array([[0, 0, place] for place in order]) for order in ([0, 1, 2], [1, 0, 2]))
    for axis, equal in ((0, 1.0), (None, 7 / 9)):
        assert IntegerJudge([first], rows=axis).figures([second]).values["equal"] == pytest.approx(equal)
    ten = np.array([[0, 0, k] for k in range(10)])
    half = np.where(np.arange(10)[:, None] < 5, ten, ten + np.array([0, 0, 50]))
    pooled = IntegerJudge([ten], rows=0).figures([half]).pooled
    assert pooled["classes"] == (15.0, 30.0)  # the zeros beside the indices are not equal by chance
    assert Comparer([{"kept": first}], integers=found)([{"kept": second}])["kept"].values["equal"] == 1.0


def test_points_of_nonzero_are_equal_one_place_earlier(tmp_path):
    """As torch.nonzero exports it, transposed, too."""
    nodes = [
        helper.make_node("Greater", ["x", "half"], ["mask"], "mask"),
        helper.make_node("NonZero", ["mask"], ["points"], "nonzero"),
        helper.make_node("Transpose", ["points"], ["turned"], "turn", perm=[1, 0]),
    ]
    outputs = [value("points", [2, "n"], TensorProto.INT64), value("turned", ["n", 2], TensorProto.INT64)]
    path = network(tmp_path, nodes, outputs, [5, 5], {"half": np.float32(0.5)})
    found = integers_of(load_network(path))
    assert found == Integers(selections={"points": 1, "turned": 0})
    mask = np.float32(np.arange(25).reshape(5, 5) % 3 == 0)
    moved = mask.copy()
    moved[0, 0], moved[4, 3] = 0, 1
    session = plain_session(path)
    fp32, plan = (dict(zip(("points", "turned"), session.run(None, {"x": x}), strict=True)) for x in (mask, moved))
    figures = Comparer([fp32], integers=found)([plan])
    assert [figures[name].values["equal"] for name in ("points", "turned")] == [8 / 9, 8 / 9]


def classifier(folder, offset, *, beside=False):
    """Class 0 where the deciding feature is -2, class 1 where it is 2; INT8 rounds both to 0 beside a large offset."""
    random = np.random.default_rng(0)
    x = random.normal(size=(30, 8)).astype(np.float32)
    x[:, 0], x[:, 1] = offset, np.where(np.arange(30) % 2 == 0, -2.0, 2.0)
    w = np.zeros((8, 2), np.float32)
    w[1, 1] = 1
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["l"], "fc"),
        helper.make_node("ArgMax", ["l"], ["y"], "am", axis=1),
        helper.make_node("ReduceSum", ["x", "axes"], ["sum"], "sum", keepdims=1),
    ]
    outputs = [value("y", ["N", 1], TensorProto.INT64), *([value("sum", ["N", 1])] if beside else [])]
    constants = {"w": w, "b": np.array([0, 0.5], np.float32), "axes": np.array([1])}
    return network(folder, nodes if beside else nodes[:2], outputs, ["N", 8], constants), {"x": x}


@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True])
def test_labels_that_int8_changes_name_the_culprit(tmp_path, beside):
    path, data = classifier(tmp_path, 1000.0, beside=beside)
    report = trt_bisect.run(path, data, inputs=data, output=tmp_path / "run", **HOW)
    assert (report.exit_code, report.culprits, report.recipe.meets) == (1, ("fc",), True)
    assert report.outputs.int8["y"]["equal_in_all"] == pytest.approx(0.5)
    assert report.outputs.int8["y"]["kappa"] == 0.0
    assert any("50% of the elements of 'y' get another value" in line.text for line in report.lines)
    if not beside:
        assert (report.metric, report.similarity.int8) == ("equal", pytest.approx(0.5))
        assert report.by_input.int8.misses == 12
    again = trt_bisect.run(path, data, inputs=data, output=tmp_path / "run", **HOW)
    assert (again.culprits, again.similarity) == (report.culprits, report.similarity)


@pytest.mark.parametrize("beside", [False, True])
def test_healthy_labels_pass_without_a_doubt(tmp_path, beside):
    path, data = classifier(tmp_path, 1.0, beside=beside)
    assert trt_bisect.run(path, data, inputs=data, **HOW).exit_code == 0
