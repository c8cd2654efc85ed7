"""``--budget``: the most accurate plan within a cost, found by trying every plan too; full INT8 keeps its verdict."""

import shlex
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.goal_cases import JUDGED, WISHES, costs_of, engines_of, planted
from tests.support.networks import plant_between
from tests.support.records import kinds
from trt_bisect.answer import recipe_search
from trt_bisect.answer.validation import Checked, Recipe
from trt_bisect.builder.base import BuildOptions
from trt_bisect.driver import search_space
from trt_bisect.driver.search_space import Space
from trt_bisect.model.network import load_network
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.report.answer import OWN
from trt_bisect.report.next_step import SEARCH
from trt_bisect.report.parts import FAILS, PASSES
from trt_bisect.report.summary import BUDGET, CULPRITS, RECIPE
from trt_bisect.report.words import NO_RECIPE

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32


def test_the_most_accurate_plan_within_a_budget_is_judged_on_all_inputs(tmp_path):
    """One convolution can be paid for: no other one alone is better on the worst of the inputs."""
    model = networks.chain(5)
    for pair, factor in ((("conv0", "conv1"), 60.0), (("conv2", "conv3"), 90.0)):
        plant_between(model, *pair, factor=factor)
    network = load_network(networks.save(model, tmp_path))
    samples = networks.samples(model, 9)["x"]
    ranges = trt_bisect.calibrate(network, networks.feeds(samples), "minmax")
    builder = trt_bisect.make_builder("onnxruntime", "strong", network, ranges.scales, BuildOptions())
    costs = costs_of(network, {"x": samples[:1]})
    most = max(costs.values())

    def worst(high):
        with builder.reference() as exact, builder.build(trt_bisect.all_but(len(network.layers), high)) as engine:
            pairs = [(exact.infer({"x": x[None]})["y"], engine.infer({"x": x[None]})["y"]) for x in samples]
        return min(trt_bisect.similarity(one, other, "sqnr") for one, other in pairs)

    report = trt_bisect.run(network, ranges, {"x": samples}, budget=most, **JUDGED)
    payable = [high for n in range(3) for high in combinations(costs, n) if sum(costs[k] for k in high) <= most]
    assert report.answer.cost <= most + 1e-9
    assert report.similarity.recipe >= max(map(worst, payable)) - 0.2
    assert report.recipe.high
    assert not report.recipe.meets
    assert report.culprits == (), "with these layers high the target does not hold"


def test_full_int8_that_passes_keeps_its_verdict_within_a_budget(tmp_path):
    """The plan is the most accurate one of all that can be paid for, and no layer of it is to blame for anything."""
    network = load_network(networks.save(networks.chain(5), tmp_path))
    ranges, feeds, sqnr = engines_of(network, networks.samples(networks.chain(5)))
    costs, most = costs_of(network, feeds), 1.0
    threshold = sqnr(()) - 3.0
    wishes = {**JUDGED, "calibrator": "auto", "threshold": threshold}
    report = trt_bisect.run(network, ranges, feeds, budget=most, output=tmp_path / "run", **wishes)
    payable = [
        high for n in range(len(costs)) for high in combinations(costs, n) if sum(costs[k] for k in high) <= most
    ]
    assert len(payable) > 15
    assert (report.verdict, report.exit_code, report.recipe.meets) == (PASSES, 0, True)
    assert report.similarity.int8 == pytest.approx(sqnr(()))
    assert report.similarity.recipe == pytest.approx(max(map(sqnr, payable)), abs=0.2)
    assert report.answer.cost <= most + 1e-9
    assert BUDGET in kinds(report.lines)
    assert not {CULPRITS, NO_RECIPE} & kinds(report.lines)
    assert report.culprits == ()
    assert report.recipe.added == report.recipe.high != ()
    high = {network.layer_named(name).index for name in report.recipe.high}
    for row in report.layers:
        if row.index in high:
            assert row.put_back == pytest.approx(sqnr(high - {row.index}), abs=0.05)
    assert report.next.kind == RECIPE
    assert trt_bisect.Report.load(tmp_path / "run") == report


def test_what_the_budget_leaves_over_makes_the_plan_more_accurate(tmp_path):
    """The culprit is one; the other layers that stay high are not needed for the threshold, and are not blamed."""
    path, data, (bad,) = planted("chain-1", tmp_path)
    cheapest = trt_bisect.run(path, data, **WISHES)
    report = trt_bisect.run(path, data, budget="80%", **JUDGED)
    assert (report.goal.most, report.verdict, report.recipe.meets) == (0.8, FAILS, True)
    assert cheapest.recipe.high == report.culprits == (bad,)
    assert set(report.recipe.added) == set(report.recipe.high) - {bad} != set()
    assert cheapest.answer.cost < report.answer.cost <= 0.8
    assert report.similarity.recipe > cheapest.similarity.recipe
    back = {row.name: row.put_back for row in report.layers if row.name in report.recipe.high}
    assert [name for name, figure in back.items() if figure < 20.0] == [bad]
    assert {BUDGET, CULPRITS} <= kinds(report.lines)


def test_within_a_budget_calibrators_are_compared(tmp_path):
    """Full INT8 loses least with a percentile that clips; the plan within the budget, with min-max."""
    path, data, _ = planted("chain-1", tmp_path)
    by_minmax = trt_bisect.run(path, data, budget="80%", **JUDGED)
    report = trt_bisect.run(path, data, budget="80%", **{**JUDGED, "calibrator": "auto"})
    (chosen,) = [row.calibrator for row in report.answer.calibrators if row.chosen]
    assert chosen == "minmax"
    assert report.similarity == by_minmax.similarity
    assert report.recipe.high == by_minmax.recipe.high
    assert max(report.answer.calibrators, key=lambda row: row.similarity).calibrator == "percentile 99.9"


def test_full_int8_goes_on_to_pass_with_the_ranges_of_the_plan(tmp_path):
    """Full INT8 passes with min-max alone; the plan within the budget would lose less with another calibrator."""
    path, data = networks.given(networks.chain(5), tmp_path, 4)
    wishes = {**JUDGED, "calibrator": "auto", "threshold": 40.2}
    report = trt_bisect.run(path, data, budget=0.5, **wishes)
    assert {row.calibrator for row in report.answer.calibrators if row.meets} >= {"minmax"}
    assert "mse" in {row.calibrator for row in report.answer.calibrators if not row.meets}
    assert (report.verdict, report.similarity.int8 > 40.2) == (PASSES, True)
    assert report.similarity.recipe > report.similarity.int8


def test_a_budget_of_nothing_is_full_int8(tmp_path):
    path, data, _ = planted("chain-1", tmp_path)
    report = trt_bisect.run(path, data, budget=0, **JUDGED)
    assert (report.recipe.high, report.answer.cost, report.recipe.meets) == ((), 0.0, False)
    assert report.similarity.recipe == report.similarity.int8


def test_a_budget_that_is_too_small_leads_to_the_recipe(command, tmp_path, monkeypatch):
    """The command that is named next finds what the culprits cost, and the one after it says what they cost."""
    monkeypatch.chdir(tmp_path)
    path, data, bad = planted("chain-1", tmp_path)
    np.savez("data.npz", **data)
    how = ["--calibration", "data.npz", "--engine", "onnxruntime", "--calibrator", "minmax", "--metric", "sqnr"]
    how += ["--threshold", "20", "--explain", "none", "--history", "none", "-o", "run"]
    code, out, _ = command("run", path, *how, "--budget", "5%")
    report = trt_bisect.Report.load("run")
    assert (code, report.recipe.meets, report.next.kind) == (1, False, SEARCH)
    assert NO_RECIPE in kinds(report.lines)
    assert report.next.command in out
    words = shlex.split(report.next.command)
    assert "--budget" not in words
    assert command(*words[1:])[0] == 1
    free = trt_bisect.Report.load("run")
    assert (set(free.recipe.high), free.recipe.meets, free.goal.most) == (bad, True, None)
    assert free.next.kind == (SEARCH if free.answer.cost > 0.5 else RECIPE)


def test_a_recipe_that_is_slower_than_fp16_leads_to_fp16(command, tmp_path, monkeypatch):
    """By multiply-adds, conv1 is 8 of 11 parts: in FP32 it takes twice what all takes in FP16.

    Planted by 3,000,000 FP16 overflows, and a search names its layers. Where it passes it is shipped: test_choices.
    """
    monkeypatch.chdir(tmp_path)
    model = networks.planted(networks.chain(2), ("conv0", "conv1"), factor=3e6)
    np.savez("data.npz", **networks.samples(model, 4))
    how = ["--calibration", "data.npz", "--engine", "onnxruntime", "--calibrator", "minmax"]
    how += ["--threshold", "0.99", "--precision", "fp32"]
    path = networks.save(model, tmp_path)
    assert command("run", path, *how, "--explain", "none", "--history", "none", "-o", "run")[0] == 1
    slow = trt_bisect.Report.load("run")
    assert (slow.recipe.high, slow.recipe.meets) == (("conv1",), True)
    assert slow.answer.cost == pytest.approx(3 * 8 / 11, rel=0.05)
    words = shlex.split(slow.next.command)
    fp16 = next(choice for choice in slow.choices if choice.plan == "fp16")
    assert fp16.meets is False
    assert (slow.next.kind, words[words.index("--low") + 1]) == (SEARCH, "fp16")
    assert command(*words[1:])[0] == 1
    in_fp16 = trt_bisect.Report.load("run-fp16")
    assert (in_fp16.low, in_fp16.recipe.meets) == ("fp16", True)
    assert in_fp16.culprits


def test_of_many_layers_neighbours_stay_high_together_within_a_budget(tmp_path, monkeypatch):
    """With three units at most: each is a few neighbours, and those of the planted layer are high."""
    monkeypatch.setattr(recipe_search, "MANY_UNITS", 3)
    monkeypatch.setattr(search_space, "MANY_UNITS", 3)
    path, data, bad = planted("chain-1", tmp_path)
    report = trt_bisect.run(path, data, budget="80%", **{**JUDGED, "precision": "fp16"})
    names = [row.name for row in report.layers if row.quantizable]
    size = -(-len(names) // 3)
    groups = [set(names[start : start + size]) for start in range(0, len(names), size)]
    high = set(report.recipe.high)
    assert bad <= high
    assert all(group <= high or group.isdisjoint(high) for group in groups)


@pytest.mark.parametrize(
    ("precision", "unit", "loss", "cost"),
    [
        (None, 0, 0.01, 0.1),
        (None, 0, 0.02, 0.3),  # it misses in FP16
        (None, 1, 0.01, 0.04),  # FP16 saves 2 % of the speedup
        ("mixed", 1, 0.01, 0.02),
        ("fp32", 0, 0.01, 0.3),
        (None, 2, 0.01, 0.5),  # no cost in FP16 is known
    ],
)
def test_the_recipe_within_a_budget_is_in_fp16_where_that_holds_and_saves_three_percent(precision, unit, loss, cost):
    costs = {0: {FP32: 0.3, FP16: 0.1}, 1: {FP32: 0.04, FP16: 0.02}, 2: {FP32: 0.5}}
    layers = [SimpleNamespace(dtype="float32")] * 3
    network = SimpleNamespace(base_type=None, layers=layers, quantizable=[0, 1, 2])
    options, experiment = SimpleNamespace(precision=precision), SimpleNamespace(network=network)
    plans = SimpleNamespace(options=options, experiment=experiment, costs=costs)
    space = Space(PrecisionPlan((INT8,) * 3), ((0,), (1,), (2,)), (0.3, 0.04, 0.5), budget=0.015)
    target = SimpleNamespace(check=lambda experiment, plan: Checked({OWN: loss}))
    recipe = Recipe(space, frozenset({unit}), experiment, 0.015, Checked({OWN: 0.0}))
    found = recipe_search.in_fp16(recipe, plans, target)
    assert (found.kept, found.cost) == (recipe.kept, cost)
    assert found.plan.precisions[unit] is (FP32 if found.cost == costs[unit][FP32] else FP16)
