"""The answer of a run: it is decided on the deployed plan, on all data given."""

import json
import threading
from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import trt_bisect
from tests.support import networks
from tests.support.by_hand import cosine, worst_cosine
from tests.support.editions import edition
from tests.support.planted_answers import MISLEADING, THRESHOLD, every_plan
from tests.support.quantized import plain_session
from tests.support.records import kinds, texts
from tests.support.statements import check_statements
from trt_bisect.answer import answer as answer_module, plans as plans_module, recipe_search
from trt_bisect.builder import onnxruntime as onnxruntime_builder
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.collect import CANDIDATES, calibrate
from trt_bisect.data.datasets import open_dataset, split
from trt_bisect.driver import search_space
from trt_bisect.errors import TrialFailed
from trt_bisect.model.network import load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import CPU, integer_sums_are_exact, make_session
from trt_bisect.precision import Precision, int8_set
from trt_bisect.report.answer import FUSED, NUDGED, OWN, PLAIN
from trt_bisect.report.summary import HELD_OUT, UNTESTED
from trt_bisect.report.words import NO_RECIPE

OFF = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
HOW = {"engine": "onnxruntime", "explain": "none", "precision": "fp32", "effort": "quick"}


WAYS = {"auto": {"strategy": "auto"}, "culprits": {"curve": "culprits"}, "bisect": {"strategy": "bisect"}}
FEW = [*product(MISLEADING, ("auto",)), *product(("masked_culprit", "absorbed_drop"), ("culprits",))]
FEW += product(("cancelling_pair", "decoys"), ("bisect",))
"""The usual way on all, and each other way on a network whose curve and whose sums of errors mislead."""


@pytest.fixture(scope="module")
def plans_of(tmp_path_factory):
    """Returns the losses of all plans of a misleading network."""
    return cache(lambda name: every_plan(MISLEADING[name](), tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="module")
def run_on(tmp_path_factory):
    """Returns the report of a run on a misleading network, one way or at another threshold."""

    @cache
    def found(name, way="auto", threshold=THRESHOLD, high=()):
        given = networks.given(MISLEADING[name]().model, tmp_path_factory.mktemp(name))
        how = {**HOW, **WAYS[way], "effort": "default"}
        return trt_bisect.run(*given, calibrator="minmax", threshold=threshold, high=list(high), **how)

    return found


@pytest.mark.parametrize(("name", "strategy"), edition(FEW, list(product(MISLEADING, WAYS))), ids=str)
def test_culprits_are_those_of_the_smallest_set_of_all_plans(name, strategy, plans_of, run_on):
    """Every plan of the network was tried in plain ONNX Runtime to find that set."""
    right = min(plans_of(name).minimal, key=len)
    found = run_on(name, strategy)
    assert set(found.culprits) == set(found.recipe.high) == set(right)
    assert found.recipe.meets
    for row in found.layers:
        assert (row.put_back is not None) == row.culprit
        assert not row.culprit or row.put_back < THRESHOLD


def test_a_suspect_of_the_curve_that_is_innocent_has_a_reason(run_on):
    (suspect,) = (row for row in run_on("absorbed_drop", "auto").layers if row.suspect)
    assert suspect.name == "conv1"
    assert suspect.loss > 1.0 - THRESHOLD
    assert not suspect.culprit


def test_the_reason_of_a_suspect_whose_input_another_layer_reads_agrees_with_its_gain(tmp_path):
    """``left`` and ``right`` read one tensor with a channel of 100; ``right`` makes nearly all of full INT8's loss. The
    accuracy passes, the threshold of a similarity would not."""
    sketch = networks.Sketch(4)
    read = sketch.node("Relu", [sketch.dense("x", "first", 16, 16)], "h")
    both = sketch.node("Add", [sketch.dense(read, name, 16, 16) for name in ("left", "right")], "sum")
    model = sketch.model({"x": ["n", 16]}, {sketch.dense(both, "last", 16, 4): ["n", 4]})
    networks.planted(model, ("first", "left"), factor=100.0)
    for name in ("left", "right"):
        networks.change_at(model, f"{name}.weight", 1, np.zeros_like)
    path, data = networks.given(model, tmp_path)
    labels = plain_session(path).run(None, data)[0].argmax(1)
    how = {**HOW, "calibrator": "minmax", "threshold": 0.99, "drop": "50%"}
    report = trt_bisect.run(path, data, dataset=data, labels=labels, output=tmp_path / "run", **how)
    (suspect,) = (row for row in report.layers if row.suspect)
    assert report.recipe.high == ()
    assert suspect.name == "right"
    assert suspect.alone > 0.5 * (1.0 - report.similarity.int8)
    check_statements(json.loads((tmp_path / "run/report.json").read_text()))


@pytest.fixture(scope="module")
def long_chain(tmp_path_factory):
    """A chain of 14 quantizable layers with a culprit of 8 % of the cost, and one input."""
    model = networks.planted(networks.chain(depth=13, width=6, size=6), ("conv6", "conv7"))
    return networks.given(model, tmp_path_factory.mktemp("long"), 1)


def test_the_gains_of_the_recipes_layers_and_of_suspects_are_those_of_sensitivity(long_chain):
    """``sensitivity`` measures each layer alone high with the rest in INT8."""
    alone = trt_bisect.sensitivity(*long_chain, engine="onnxruntime", calibrator="minmax")
    gains = {op.op_name: op.alone for op in alone.ops if op.sensitive_type == "both"}
    found = trt_bisect.run(*long_chain, threshold=0.999, calibrator="minmax", **HOW)
    measured = {row.name: row.alone for row in found.layers if row.alone is not None}
    assert found.recipe.meets
    assert "conv7" in found.culprits
    assert set(measured) == {row.name for row in found.layers if row.culprit or row.suspect}
    assert measured == pytest.approx({name: gains[name] for name in measured}, rel=1e-3, abs=1e-6)


@pytest.fixture(scope="module")
def two_kinds(tmp_path_factory):
    """A chain with a culprit that one sample in four hardly shows, since its planted channel is quiet there."""
    model = networks.planted(networks.chain(depth=4), ("conv1", "conv2"))
    return networks.given(model, tmp_path_factory.mktemp("two"), 24)


def cosines(model, recipe, samples, level, integers=False):
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    if not integers:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    sessions = [ort.InferenceSession(path, options, providers=[CPU]) for path in (model, recipe)]
    return [cosine(*(session.run(None, {"x": sample[None]})[0] for session in sessions)) for sample in samples]


def test_the_recipe_holds_on_all_data_in_plain_onnxruntime(two_kinds, tmp_path):
    path, data = two_kinds
    report = trt_bisect.run(path, data, threshold=0.999, calibrator="minmax", output=tmp_path / "run", **HOW)
    assert report.culprits == ("conv2",)
    held, unseen = report.answer.given, report.answer.held_out
    whole = open_dataset(data, load_network(path).inputs)
    _, kept_apart = split(whole, 0.2)
    held_out = {kept_apart.place(place) for place in range(kept_apart.length)}
    assert (held.inputs, held.holds, unseen.inputs) == (20, 20, 4)
    recipe = tmp_path / "run/recipe/network.qdq.onnx"
    optimised = cosines(path, recipe, data["x"], ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    assert min(optimised[place] for place in range(24) if place not in held_out) >= 0.999
    assert report.by_input.recipe.inputs == 20
    each = cosines(path, recipe, data["x"], OFF)
    assert unseen.worst == pytest.approx(min(each[place] for place in held_out), abs=1e-9)
    assert held.worst == pytest.approx(min(each[place] for place in range(24) if place not in held_out), abs=1e-9)
    (put_back,) = [row.put_back for row in report.layers if row.culprit]
    assert put_back == pytest.approx(report.similarity.int8, abs=1e-12), "the only culprit put back is full INT8"


@pytest.mark.skipif(not integer_sums_are_exact(), reason="this processor's INT8 kernels saturate")
def test_the_figure_in_a_session_with_default_options_is_told(two_kinds, tmp_path):
    path, data = two_kinds
    given = {"x": data["x"][:12]}
    report = trt_bisect.run(path, given, threshold=0.9999, calibrator="minmax", output=tmp_path / "run", **HOW)
    recipe = tmp_path / "run/recipe/network.qdq.onnx"
    each = cosines(path, recipe, given["x"], ort.GraphOptimizationLevel.ORT_ENABLE_ALL, integers=True)
    assert report.answer.settings[PLAIN] == pytest.approx(min(each), abs=1e-6)


def pooled(folder):
    """A convolution and a MaxPool in INT8, whose output no INT8 layer reads, with opset 21."""
    sketch = networks.Sketch(1)
    x = sketch.node("MaxPool", [sketch.conv("x", "conv0", 3, 8)], "pool", kernel_shape=[2, 2], strides=[2, 2])
    return networks.save(sketch.model({"x": ["n", 3, 16, 16]}, {x: ["n", 8, 8, 8]}, opset=21), folder)


def test_ranges_without_a_doubt_come_before_those_in_use(tmp_path):
    """Entropy's range ends at 70 % of the largest value: cosine does not see it, the largest values do."""
    path = pooled(tmp_path)
    data = networks.samples(onnx.load(path))
    in_use = trt_bisect.run(path, data, calibrator="entropy", **HOW)
    assert in_use.similarity.int8 >= 0.992
    assert (in_use.exit_code, bool(in_use.answer.doubts)) == (1, True)
    found = trt_bisect.run(path, data, output=tmp_path / "run", **HOW)
    assert (found.exit_code, texts(found.answer.doubts), found.answer.cost) == (0, [], 0.0)
    session = plain_session(tmp_path / "run/recipe/network.qdq.onnx", optimised=False)
    exact = plain_session(path)
    reached, largest = (max(np.abs(s.run(None, {"x": x[None]})[0]).max() for x in data["x"]) for s in (session, exact))
    assert reached >= 0.95 * largest


def test_of_calibrators_with_the_same_top1_the_outputs_decide(tmp_path):
    path, data = networks.given(networks.chain(depth=3), tmp_path, 12)
    exact, decibels = plain_session(path), {}
    network = load_network(path)
    for calibrator in CANDIDATES:
        feeds = ({"x": x[None]} for x in data["x"])
        ranges = calibrate(network, feeds, calibrator.method, calibrator.percentile)
        writer = PlanWriter(network, ranges.scales, GraphTarget.TENSORRT)
        session = make_session(writer.write(network.full(Precision.FP32)), level=OFF)
        pairs = [[s.run(None, {"x": x[None]})[0].astype(np.float64) for s in (exact, session)] for x in data["x"]]
        assert all(r.argmax() == o.argmax() for r, o in pairs)
        decibels[str(calibrator)] = min(10 * np.log10(np.sum(r**2) / np.sum((r - o) ** 2)) for r, o in pairs)
    chosen = trt_bisect.run(path, data, metric="top1", curve="culprits", **HOW)
    (row,) = [row for row in chosen.answer.calibrators if row.chosen]
    assert row.calibrator == max(decibels, key=decibels.get)


def test_a_recipe_that_the_default_session_refuses_ends_no_run(tmp_path, monkeypatch):
    """Opset 21, a MaxPool whose output no INT8 layer reads: ONNX Runtime refuses it before it chooses kernels."""
    monkeypatch.setattr(onnxruntime_builder, "integer_sums_are_exact", lambda: True)
    path = pooled(tmp_path)
    data = networks.samples(onnx.load(path))
    report = trt_bisect.run(path, data, calibrator="minmax", output=tmp_path / "run", **HOW)
    recipe = tmp_path / "run/recipe/network.qdq.onnx"
    with pytest.raises(Exception, match="output_dtype") as refused:
        ort.InferenceSession(recipe, providers=[CPU])
    assert report.exit_code == 0
    assert PLAIN not in report.answer.settings
    assert any(str(refused.value).rstrip(".") in note for note in texts(report.notes))
    basic = ort.SessionOptions()
    basic.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert ort.InferenceSession(recipe, basic, providers=[CPU])


def test_inputs_on_which_a_recipe_misses_join_the_judged_ones(two_kinds, tmp_path, monkeypatch):
    """The search begins with two inputs; what it finds is checked on all, and the others decide too."""
    path, data = two_kinds
    monkeypatch.setattr(plans_module, "_JOIN_AT_ONCE", 1)
    monkeypatch.setattr(answer_module, "JUDGED", 1)
    how = {"threshold": 0.9999, "calibrator": "minmax", **HOW}
    few = trt_bisect.run(path, data, **how)
    assert few.recipe.meets
    assert few.answer.given.holds == few.answer.given.inputs
    monkeypatch.setattr(answer_module, "JUDGED", 100)
    all_judged = trt_bisect.run(path, data, **how)
    assert set(few.culprits) == set(all_judged.culprits)
    assert few.answer.judged <= all_judged.answer.judged == 20


def test_calibrators_are_compared_and_one_that_suffices_is_the_recipe(tmp_path):
    """One value in ten thousand is large: min-max wastes its levels on it, a percentile does not."""
    model = networks.chain(depth=3)
    data = networks.samples(model, 5)
    data["x"][:, 0, 0, 0] = 300.0
    path = networks.save(model, tmp_path)
    report = trt_bisect.run(path, data, threshold=0.99, output=tmp_path / "run", **HOW)
    rows = {row.calibrator: row for row in report.answer.calibrators}
    assert set(rows) == {"entropy", "minmax", "mse", "percentile 99.9", "percentile 99.99", "percentile 99.999"}
    (chosen,) = (name for name, row in rows.items() if row.chosen)
    assert report.ranges.origin == chosen
    for name in (chosen, min(rows, key=lambda name: rows[name].similarity)):
        named = trt_bisect.run(path, data, threshold=0.99, calibrator=name.replace(" ", "="), **HOW)
        assert named.ranges.origin == name
        assert (named.exit_code == 0) == rows[name].meets == (name == chosen)
    assert report.exit_code == 0


@pytest.mark.parametrize(("threshold", "chosen"), [(0.9, "entropy"), (1.0 - 1e-4, "percentile 99.99")])
def test_of_calibrators_that_suffice_the_best_replaces_one_without_a_margin(threshold, chosen, tmp_path):
    """Alone, full INT8 loses 9.1e-5 with entropy and 8.8e-5, the least, with percentile 99.99."""
    path, data = networks.given(networks.chain(depth=4), tmp_path, 24)
    report = trt_bisect.run(path, data, threshold=threshold, output=tmp_path / "run", **HOW)
    rows = {row.calibrator: row for row in report.answer.calibrators}
    assert rows["entropy"].meets
    assert report.ranges.origin == chosen
    assert max(rows, key=lambda name: rows[name].similarity) == "percentile 99.99"
    each = cosines(path, tmp_path / "run/recipe/network.qdq.onnx", data["x"], OFF)
    assert min(abs(cosine - rows[chosen].similarity) for cosine in each) < 1e-8


def test_a_metric_of_the_users_is_called_by_one_thread(two_kinds):
    model, data = two_kinds
    threads = set()

    def metric(reference, output):
        threads.add(threading.get_ident())
        return 1.0 - float(np.abs(reference - output).max() / np.abs(reference).max())

    few = {"x": data["x"][:4]}
    trt_bisect.run(model, few, metric=metric, threshold=0.99, calibrator="minmax", **HOW)
    assert threads == {threading.get_ident()}


def test_a_pass_that_misses_on_unseen_inputs_is_doubted(tmp_path):
    """The held-out inputs are a thousand times as large: full INT8 clips them, as its file shows."""
    path, data = networks.given(networks.chain(depth=2), tmp_path, 4)
    loud = {name: 1000 * values[:2] for name, values in data.items()}
    options = {"validation": loud, "threshold": 0.995, "calibrator": "minmax", **HOW}
    found = trt_bisect.run(path, data, output=tmp_path / "run", **options)
    recipe = tmp_path / "run/recipe/network.qdq.onnx"
    assert min(cosines(path, recipe, data["x"], OFF)) >= 0.995
    assert max(cosines(path, recipe, loud["x"], OFF)) < 0.995
    assert (found.answer.given.holds, found.answer.held_out.holds) == (4, 0)
    assert any("2 of 2" in doubt for doubt in texts(found.answer.doubts))
    assert found.exit_code == 1
    assert trt_bisect.run(path, data, accept=True, **options).exit_code == 0


def test_the_figures_of_a_verdict_are_measured_where_the_search_measures(two_kinds, monkeypatch):
    """On the session of all plans: no engine of a plan with a layer in INT8 can be built."""
    path, data = two_kinds
    options = {"inputs": {"x": data["x"][:8]}, "threshold": 0.999, "calibrator": "minmax", **HOW}
    usual = trt_bisect.run(path, data, **options)
    build = OnnxRuntimeBuilder.build

    def refused(builder, plan):
        if plan.lowered:
            raise TrialFailed("build failed", "planted")
        return build(builder, plan)

    monkeypatch.setattr(OnnxRuntimeBuilder, "build", refused)
    found = trt_bisect.run(path, data, **options)
    assert found.recipe.meets
    assert (found.similarity, found.culprits) == (usual.similarity, usual.culprits)
    assert (found.answer.given, found.answer.held_out) == (usual.answer.given, usual.answer.held_out)


def test_unseen_inputs_that_are_given_too_do_not_count(tmp_path):
    """Of 25 samples numbers 4, 9, 14, 19 and 24 are held out; the first ten are named as inputs as well."""
    path, data = networks.given(networks.chain(depth=2), tmp_path, 25)
    found = trt_bisect.run(path, data, inputs={"x": data["x"][:10]}, calibrator="minmax", **HOW)
    assert (found.answer.given.inputs, found.answer.held_out.inputs) == (22, 3)
    assert any("2 held-out samples" in note for note in texts(found.notes))
    all_given = trt_bisect.run(path, data, inputs={"x": data["x"][::-1]}, calibrator="minmax", **HOW)
    assert (all_given.answer.given.inputs, all_given.answer.held_out, all_given.bound) == (25, None, None)
    assert HELD_OUT not in kinds(all_given.lines)


def test_without_a_recipe_the_setting_that_misses_is_named(two_kinds, monkeypatch):
    """Every plan is made to miss where its scales are moved; in the other settings a recipe would hold."""
    path, data = two_kinds

    def missed(plans, plan, ranges, **_):
        return 0.5, dict.fromkeys(plans.inputs.counting, 0.5)

    monkeypatch.setattr(plans_module.AnswerPlans, "nudged", missed)
    found = trt_bisect.run(path, data, threshold=0.999, calibrator="minmax", **HOW)
    assert not found.recipe.meets
    assert found.answer.settings[OWN] >= 0.999
    (line,) = [line for line in found.lines if line.kind == NO_RECIPE]
    assert f"50% with {NUDGED}" in line.text
    assert not any("margin" in sentence for sentence in texts(found.answer.confidence))


def missing(measured, usual):
    """Returns a way to measure plans in which that of the usual recipe misses, and its like without conv5 high."""

    def missed(plans, plan, experiment, *given, **more):
        trial = measured(plans, plan, experiment, *given, **more)
        high = {layer.name for layer in experiment.network.layers if layer.index not in plan.lowered}
        if not high.issuperset(usual.recipe.high) or high.issuperset({*usual.recipe.high, "conv5"}):
            return trial
        zeros = {name: replace(figures, values={"cosine": 0.0}, inputs={}) for name, figures in trial.outputs.items()}
        return replace(trial, outputs=zeros)

    return missed


def test_a_set_that_misses_on_all_inputs_together_is_replaced_by_one_that_was_measured(long_chain, monkeypatch):
    """The usual recipe's plan is made to miss on all inputs together: what the search measures does not show it."""
    options = {"threshold": 0.999, "calibrator": "minmax", **HOW}
    usual = trt_bisect.run(*long_chain, **options)
    missed = missing(plans_module.AnswerPlans.whole, usual)
    monkeypatch.setattr(plans_module.AnswerPlans, "whole", missed)
    other = trt_bisect.run(*long_chain, **options)
    assert other.recipe.meets
    assert other.recipe.high == ("conv5", "conv7")
    assert other.answer.settings[OWN] >= 0.999


def test_a_recipe_in_fp16_has_to_hold_in_its_file(long_chain, tmp_path, monkeypatch):
    """The usual recipe's plan is made to miss there."""
    options = {"threshold": 0.999, "calibrator": "minmax", **HOW, "precision": None}
    usual = trt_bisect.run(*long_chain, **options, output=tmp_path / "run")
    assert {row.recipe for row in usual.layers if row.name in usual.recipe.high} == {"fp16"}
    path, data = long_chain
    (of_file,) = cosines(
        path, tmp_path / "run/recipe/network.qdq.onnx", data["x"], ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    )
    assert usual.answer.settings[FUSED] == pytest.approx(of_file, abs=1e-9)
    missed = missing(plans_module.AnswerPlans.as_file, usual)
    monkeypatch.setattr(plans_module.AnswerPlans, "as_file", missed)
    other = trt_bisect.run(*long_chain, **options)
    assert other.recipe.meets
    assert {row.name: row.put_back_in for row in other.layers if row.name in other.recipe.high} == {
        "conv5": FUSED,
        "conv7": OWN,
    }


def test_a_file_that_onnx_runtime_refuses_is_no_setting(lenet):
    """ONNX Runtime takes no large weights in BF16."""
    path, data = lenet / "lenet_planted.onnx", lenet / "calibration.npz"
    report = trt_bisect.run(path, data, **{**HOW, "precision": None}, base="bf16")
    assert report.recipe.high == ("ip2",)
    assert report.recipe.meets
    assert FUSED not in report.answer.settings


def test_where_no_plan_in_fp16_holds_in_its_file_the_recipe_is_in_fp32(long_chain, monkeypatch):
    measured = plans_module.AnswerPlans.as_file

    def missed(plans, plan, experiment):
        trial = measured(plans, plan, experiment)
        if Precision.FP16 not in plan.precisions:
            return trial
        zeros = {name: replace(figures, values={"cosine": 0.0}, inputs={}) for name, figures in trial.outputs.items()}
        return replace(trial, outputs=zeros)

    monkeypatch.setattr(plans_module.AnswerPlans, "as_file", missed)
    report = trt_bisect.run(*long_chain, threshold=0.999, calibrator="minmax", **{**HOW, "precision": None})
    assert report.recipe.meets
    assert {row.name: row.recipe for row in report.layers if row.name in report.recipe.high} == {"conv7": "fp32"}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """A network with many layers that lose a little each, and 12 inputs."""
    return networks.given(networks.transformer(blocks=1), tmp_path_factory.mktemp("narrow"), 12)


@pytest.fixture(scope="module")
def with_margin(narrow, tmp_path_factory):
    """Returns the report and the folder of a run with a margin."""

    @cache
    def run(margin):
        path, data = narrow
        wanted = {"threshold": 1.0 - 4e-4, "validation": 0.0, "calibrator": "minmax", "as_is": True, "margin": margin}
        folder = tmp_path_factory.mktemp("margin")
        return trt_bisect.run(path, data, output=folder, **wanted, **HOW), folder

    return run


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_a_margin_is_left_on_all_inputs_given_where_that_costs_little_more(narrow, with_margin, margin):
    path, data = narrow
    budget = 4e-4
    report, folder = with_margin(margin)
    each = cosines(path, folder / "recipe/network.qdq.onnx", data["x"], OFF)
    assert 1.0 - min(each) <= (1.0 - report.answer.margin) * budget
    assert report.answer.margin in (0.0, margin)
    assert {*report.recipe.high} == {*report.culprits}
    if not margin:
        assert report.answer.cheapest is None
        assert all(row.put_back < 1.0 - budget for row in report.layers if row.culprit)


def test_units_that_go_from_fp32_to_fp16_leave_the_margin(tmp_path):
    """FP16 rounds conv1's input by up to 0.125, because an offset of 300 is added before it and taken off behind."""
    model, budget = networks.chain(6), 5e-5
    networks.plant_between(model, "conv4", "conv5", factor=3e6)  # beyond FP16, so that the search is in FP32 first
    weight = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "conv1.weight")
    networks.change_at(model, "conv0.bias", 1, lambda bias: bias + 300)
    networks.change_at(model, "conv1.bias", np.s_[:], lambda bias: bias - 300 * weight[:, 1].sum((1, 2)))
    path, data = networks.given(model, tmp_path, 12)
    wanted = {"threshold": 1.0 - budget, "validation": 0.0, "calibrator": "minmax", "as_is": True, "effort": "default"}
    wanted |= {"precision": "mixed", "margin": 0.5}
    report = trt_bisect.run(path, data, output=tmp_path / "run", **{**HOW, **wanted})
    assert report.answer.margin == 0.5
    for setting in (OWN, NUDGED, FUSED):
        assert 1.0 - report.answer.settings[setting] <= 0.5 * budget
    each = cosines(path, tmp_path / "run/recipe/network.qdq.onnx", data["x"], OFF)
    assert 1.0 - min(each) <= 0.5 * budget


def test_of_the_sets_that_cost_little_more_the_likeliest_to_hold_is_taken(with_margin):
    """It costs at most a quarter more than the cheapest set, which ``--margin 0`` takes, and loses less on average."""
    (cheapest, _), (usual, _) = with_margin(0.0), with_margin(0.5)
    cost, least = (report.answer.cost + 3e-3 * len(report.recipe.high) for report in (usual, cheapest))
    assert cost <= 1.25 * least * (1.0 + 1e-9)
    assert np.mean([*usual.answer.given.figures.values()]) >= np.mean([*cheapest.answer.given.figures.values()])


@pytest.fixture
def many(monkeypatch):
    """Networks of more than four layers are large: they are searched in at most four groups."""
    for module in (search_space, recipe_search):
        monkeypatch.setattr(module, "MANY_UNITS", 4)


def test_small_errors_of_many_layers_lead_to_a_recipe_that_holds_in_all_settings(many, narrow, tmp_path):
    path, data = narrow
    budget = 4e-4
    wanted = {"threshold": 1.0 - budget, "margin": 0.0, "validation": 0.0, "calibrator": "minmax"}
    report = trt_bisect.run(path, data, output=tmp_path / "run", **wanted, **HOW)
    assert all(report.answer.settings[setting] >= 1.0 - budget for setting in (OWN, NUDGED))
    each = cosines(path, tmp_path / "run/recipe/network.qdq.onnx", data["x"], OFF)
    assert min(each) >= 1.0 - budget
    culprits = [row for row in report.layers if row.culprit]
    assert {row.name for row in culprits} == {
        row.name for row in report.layers if row.quantizable and row.recipe == "fp32"
    }
    assert all(row.put_back < 1.0 - budget for row in culprits)
    assert UNTESTED not in kinds(report.lines)


def test_few_inputs_leave_inferences_for_the_search_itself(tmp_path):
    """70 layers and two inputs: each layer alone with four calibrators would take all that --effort allows."""
    model = networks.planted(networks.chain(70, width=4, size=6), ("conv68", "conv69"))
    report = trt_bisect.run(*networks.given(model, tmp_path, 2), **{**HOW, "effort": "default"})
    assert report.recipe.high == ("conv69",)


@pytest.mark.slow
def test_a_margin_is_searched_among_the_calibrators_that_few_inputs_leave(tmp_path):
    """Nearly all layers are needed, so no set leaves a margin, and the sets measured to hold are compared."""
    path, data = networks.given(networks.transformer(blocks=2, tokens=4), tmp_path, 2)
    asked = {**HOW, "threshold": 1 - 2e-5, "effort": "default", "curve": "culprits"}
    report = trt_bisect.run(path, data, as_is=True, validation=0, output=tmp_path / "run", **asked)
    feeds = [{name: values[k : k + 1] for name, values in data.items()} for k in range(2)]
    assert worst_cosine(path, tmp_path / "run" / "recipe" / "network.qdq.onnx", feeds) >= 1 - 2e-5
    assert report.recipe.meets


def test_groups_and_then_their_layers_lead_to_the_recipe_of_all_layers(long_chain, many, monkeypatch):
    """Of 13 convolutions one is planted. In the second run each plan takes a session of its own."""
    path, data = long_chain
    wanted = {"margin": 0.0, "validation": 0.0, "calibrator": "minmax", "curve": "culprits"}
    in_groups = [trt_bisect.run(path, data, **wanted, **HOW)]
    with monkeypatch.context() as patch:
        patch.setattr(plans_module, "switch_session", lambda *_: None)
        patch.setattr(recipe_search, "_MOST_ENGINES", 6)
        in_groups.append(trt_bisect.run(path, data, **wanted, **HOW))
    monkeypatch.undo()
    one_by_one = trt_bisect.run(path, data, **wanted, **HOW)
    assert one_by_one.recipe.high == ("conv7",)
    for found in in_groups:
        assert found.recipe.high == ("conv7",)
        assert found.culprits == one_by_one.culprits
        assert found.answer.cost == one_by_one.answer.cost


def test_a_set_that_units_in_fp16_made_more_expensive_is_not_called_cheaper(monkeypatch):
    """In FP32 a set of one unit is cheaper than two; with both in FP16, these cost half of it."""
    in_fp32 = search_space.Space(int8_set(3, ()), ((0,), (1,), (2,)), (0.6, 0.5, 0.3), 0.1)
    in_fp16 = replace(in_fp32, costs=(0.6, 0.2, 0.1), others={1: Precision.FP16, 2: Precision.FP16})
    found = recipe_search.Recipe(in_fp16, frozenset({1, 2}), None, 0.1)
    plans = SimpleNamespace(switches=True, costs={})

    def search(cheapest):
        recipe = replace(found, cheapest=replace(found, space=in_fp32, kept=cheapest))
        monkeypatch.setattr(recipe_search, "_searched", lambda *_: (recipe, {}))
        return recipe_search.searched(plans, None, in_fp32, (), "default", lambda _: None)[0].cheapest

    assert search(frozenset({0})) is None
    assert search(frozenset({1})) is None
    assert search(frozenset()).kept == frozenset()
