"""The cost of a recipe: in FP32 and in FP16, and the layers that make most of it; the order of its culprits."""

from functools import cache

import onnx
import pytest
from onnx import TensorProto, helper

import trt_bisect
from tests.support import networks
from tests.support.by_hand import worst_cosine
from tests.support.planted_answers import MISLEADING, PlantedAnswer, every_plan
from tests.support.records import kinds, record_of, report_from
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.report.choices import kept_speed
from trt_bisect.report.parts import FAILS
from trt_bisect.report.summary import COST, CULPRITS, RECIPE
from trt_bisect.report.words import headline

HOW = {"margin": 0.0, "engine": "onnxruntime", "explain": "none", "calibrator": "minmax", "precision": "fp32"}
BASED = {**HOW, "base": "fp16", "precision": None}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Returns the report on a planted network at a threshold, the losses of all its plans, and the files."""

    @cache
    def searched(name, threshold):
        folder, planted = tmp_path_factory.mktemp(name), MISLEADING[name]()
        path, data = networks.save(planted.model, folder), networks.samples(planted.model)
        report = trt_bisect.run(path, data, threshold=threshold, output=folder / "run", **HOW)
        return report, every_plan(planted, folder), path, data["x"]

    return searched


def line(report, kind):
    (one,) = (each for each in report.lines if each.kind == kind)
    return one.text


def in_fp16(recipe, high):
    """A recipe's file in which what some layers read and what they make is rounded to FP16 by Casts."""
    model, nodes = onnx.load(recipe), []

    def rounded(tensor, result):
        for source, target, kind in ((tensor, f"{result}.half", TensorProto.FLOAT16), (f"{result}.half", result, 1)):
            nodes.append(helper.make_node("Cast", [source], [target], to=kind))

    for node in model.graph.node:
        if node.name in high:
            for place, tensor in enumerate(node.input):
                node.input[place] = f"{node.name}.in{place}"
                rounded(tensor, node.input[place])
            made, node.output[0] = node.output[0], f"{node.name}.made"
            nodes.append(node)
            rounded(node.output[0], made)
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model.SerializeToString()


@pytest.mark.parametrize(("name", "meets"), [("decoys", True), ("masked_culprit", False)])
def test_the_recipe_is_measured_with_its_layers_in_fp16_at_a_third_of_the_cost(name, meets, found, tmp_path):
    """A multiply-add in FP32 takes 4 units, in FP16 2, in INT8 1: FP16 gives up a third of what FP32 does."""
    report, _, path, samples = found(name, 0.9999 if meets else 0.99)
    half = report.answer.in_fp16
    recipe = path.parent / "run/recipe/network.qdq.onnx"
    assert half.high == report.recipe.high
    assert half.cost == pytest.approx(report.answer.cost / 3)
    by_hand = worst_cosine(path.read_bytes(), in_fp16(recipe, half.high), networks.feeds(samples))
    assert half.similarity == pytest.approx(by_hand, abs=1e-6)
    assert (by_hand >= report.threshold) == meets == half.meets
    text = line(report, RECIPE)
    assert all(kept_speed(cost) in text for cost in (report.answer.cost, half.cost))
    assert ("misses the threshold" in text) != meets
    assert report_from(record_of(report)).answer == report.answer


def test_the_recipe_is_measured_with_fp16_in_place_of_all_fp32(found):
    """The same plan as ``--base fp16`` measures it where the user keeps the recipe's layers high."""
    report, _, path, samples = found("decoys", 0.99)
    around = report.answer.around_fp16
    based = trt_bisect.run(path, {"x": samples}, threshold=0.99, high=report.recipe.high, **BASED)
    assert around.similarity == pytest.approx(based.similarity.int8, abs=1e-9)
    assert around.similarity != report.answer.in_fp16.similarity
    assert f"{100 * around.similarity:.2f}"[:-1] in line(report, RECIPE)


def passing(folder, change=lambda model: None, depth=4, threshold=0.99):
    """A network that full INT8 keeps above the threshold, and its report."""
    model = networks.chain(depth)
    change(model)
    path, data = networks.given(model, folder)
    return trt_bisect.run(path, data, threshold=threshold, **HOW), path, data


def test_full_int8_that_passes_is_measured_with_fp16_around_it_too(tmp_path):
    report, path, data = passing(tmp_path)
    assert report.recipe.high == ()
    assert report.recipe.meets
    around = report.answer.around_fp16
    assert (around.cost, around.high, report.answer.in_fp16) == (0.0, (), None)
    based = trt_bisect.run(path, data, threshold=0.99, **BASED)
    assert around.similarity == pytest.approx(based.similarity.int8, abs=1e-9)
    (said,) = (each.text for each in report.lines if "run in FP16 (" in each.text)
    assert f"{100 * around.similarity:.2f}"[:-1] in said
    assert "misses" not in said
    assert based.answer.around_fp16 is None, "it has that base already"


def test_no_layer_is_sought_in_fp16_where_it_misses_only_together_with_int8(tmp_path):
    report, _, _ = passing(tmp_path, depth=2, threshold=0.99997)
    assert {choice.plan: choice.meets for choice in report.choices} == {"fp32": True, "fp16": True, "int8": True}
    assert not report.answer.around_fp16.meets
    (said,) = (each.text for each in report.lines if "run in FP16 (" in each.text)
    assert said.endswith("which misses the threshold.")


def test_the_layer_that_fp16_overflows_around_a_passing_int8_is_named(tmp_path):
    """Between two convolutions values of more than 65504; INT8's scale takes them, and the next weights undo them."""

    def loud(model):
        for name in ("conv1.weight", "conv1.bias"):
            networks.scale_constant(model, name, lambda values: 1e6 * values)
        networks.scale_constant(model, "conv2.weight", lambda values: 1e-6 * values)

    report, _, _ = passing(tmp_path, loud)
    assert report.recipe.high == ()
    assert report.recipe.meets
    (said,) = (each.text for each in report.lines if "run in FP16 (" in each.text)
    assert "misses the threshold ('--low fp16' names the layers)" in said
    (first, *_) = (note.text for note in report.notes if "FP16" in note.text)
    assert first.startswith("'conv1' (Conv) overflows FP16")


def test_a_remedy_in_fp16_has_the_same_cost_and_figure(found):
    report, _, path, samples = found("decoys", 0.99)
    explained = trt_bisect.run(path, {"x": samples}, threshold=0.99, **{**HOW, "explain": "remedies"})
    (tried,) = (each for each in explained.explanation.tried if each.remedy == "FP16")
    assert tried.cost == pytest.approx(report.answer.cost / 3)
    assert tried.similarity == pytest.approx(report.answer.in_fp16.similarity)


def test_where_one_layer_makes_the_cost_the_plan_with_it_alone_low_tells_that_no_other_set_helps(found):
    report, every, _, _ = found("absorbed_drop", 0.99)
    (expensive,) = report.answer.expensive
    alone = 1.0 - every.losses[frozenset(every.names) - {expensive.name}]
    assert (expensive.name,) == report.recipe.high
    assert expensive.cost == pytest.approx(report.answer.cost)
    assert expensive.alone == pytest.approx(alone, abs=1e-5)
    assert f"{100 * alone:.2f}"[:-1] in line(report, COST)
    assert "must keep it" in line(report, COST)


def test_two_layers_that_make_the_cost_are_each_measured_alone_low(found):
    report, every, _, _ = found("masked_culprit", 0.99)
    alone = {one.name: one.alone for one in report.answer.expensive}
    assert alone == {
        name: pytest.approx(1.0 - every.losses[frozenset(every.names) - {name}], abs=1e-5)
        for name in report.recipe.high
    }
    assert all(figure < 0.99 for figure in alone.values())


def test_no_layer_makes_most_of_the_cost_of_many_equal_ones(found):
    report, _, _, _ = found("decoys", 0.9999)
    assert report.answer.cost > 0.1
    assert report.answer.expensive == ()
    assert COST not in kinds(report.lines)


def test_nothing_is_said_of_other_sets_where_the_plan_without_the_expensive_layer_holds(tmp_path):
    """Full INT8 loses 2e-4, with ``block0.project`` alone in INT8 3.5e-5."""
    model, budget = networks.depthwise(blocks=1), 1e-4
    every = every_plan(PlantedAnswer(model), tmp_path)
    report = trt_bisect.run(*networks.given(model, tmp_path), threshold=1.0 - budget, **HOW)
    (expensive,) = report.answer.expensive
    assert expensive.name in report.recipe.high
    alone = every.losses[frozenset(every.names) - {expensive.name}]  # on the first four inputs
    assert alone - 1e-7 <= 1.0 - expensive.alone < budget
    assert "no set" not in line(report, COST)
    assert f"{100 * report.answer.cost:.2f}%" in line(report, COST)


def test_culprits_are_ranked_by_the_loss_without_them_and_the_weak_ones_are_counted_apart(found):
    """Noise moves a cosine's loss by a tenth: a weak culprit misses the budget of 1e-4 by less."""
    report, every, _, _ = found("decoys", 0.9999)
    high = frozenset(report.recipe.high)
    losses = {name: every.losses[high - {name}] for name in high}
    by_loss = sorted(high, key=lambda name: -losses[name])
    weak = tuple(name for name in by_loss if losses[name] < 1e-4 / 0.9)
    assert report.answer.ranked == tuple(by_loss)
    assert report.answer.weak == weak
    assert 0 < len(weak) < len(high)
    assert set(report.culprits) == high
    text = line(report, CULPRITS)
    places = [text.index(f"'{name}'") for name in by_loss]
    assert places == sorted(places)
    assert "Weak culprit" in text
    assert f"{len(weak)} weak" in headline(report)


def test_the_recipe_of_few_inputs_was_not_tested_on_others(found):
    report, _, path, _ = found("decoys", 0.99)
    assert "held out" in line(report, RECIPE)
    many = networks.samples(MISLEADING["decoys"]().model, 20)
    assert "held out" not in line(trt_bisect.run(path, many, threshold=0.99, **HOW), RECIPE)


def test_full_int8_that_misses_in_another_setting_alone_is_told_so(tmp_path, monkeypatch):
    """Full INT8 of the chain loses 2.1e-5; moved scales are made to lose more."""
    nudged = AnswerPlans.nudged

    def missed(plans, plan, ranges, **_):
        loss, by_place = nudged(plans, plan, ranges)
        return (1e-3, by_place) if plan.lowered == plans.full.lowered else (loss, by_place)

    monkeypatch.setattr(AnswerPlans, "nudged", missed)
    model = networks.chain(depth=2)
    report = trt_bisect.run(*networks.given(model, tmp_path), threshold=0.9999, **HOW)
    assert report.similarity.int8 > 0.9999
    assert report.verdict == FAILS
    assert "another setting" in line(report, FAILS)
