from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from trt_bisect.analyzer.hidden_nan import hidden_nan
from trt_bisect.answer.in_fp16 import may_be_in_fp16, with_units_in
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.result import Answer, figures_of, similarity_of
from trt_bisect.answer.search import EXPENSIVE_RECIPE
from trt_bisect.answer.validation import Recipe
from trt_bisect.builder.base import Builder
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.search_space import Kept, Sensitivities, Space
from trt_bisect.evaluator.each_input import GivenInputs
from trt_bisect.evaluator.trial import Trial
from trt_bisect.model.merged import prefix_of, split
from trt_bisect.model.quantizer import FLOAT_TYPES
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.report.advice import HIGH
from trt_bisect.report.answer import ExpensiveLayer, PlanFigures
from trt_bisect.report.parts import NetworkRow

_ALONE_ON = 1  # the number of inputs on which each unit is measured alone
# Most of a recipe's cost is this share; at most the second number of layers are named for it.
_MOST_OF_COST, _MOST_NAMED = 0.8, 2


class EachAlone:
    """Measures, on the input on which full INT8 loses most, the loss that each unit alone in low precision adds, and
    the loss that full INT8 wins back with this unit alone in high precision.

    Attributes:
        order: sensitivities of all units, with the ranges of the first measurement; None before.
    """

    def __init__(self, plans: AnswerPlans) -> None:
        self.order: Sensitivities | None = None
        self._plans = plans
        self._by_ranges: dict[str, Sensitivities] = {}

    def can_measure(self, space: Space) -> bool:
        """Returns false if ``space`` has too many units (over 500), or if an engine would be built for each unit."""
        return self._plans.switches and not space.has_many

    def sensitivities(self, space: Space, ranges: Ranges) -> Sensitivities | None:
        """Returns all units' sensitivities, measured once with the ranges of the first call; None if ``can_measure`` is
        false.
        """
        if self.order is None and self.can_measure(space):
            self._plans.setup.progress.stage("Each layer alone", 2 * len(space.units))
            units = range(len(space.units))
            none, *alone = self._losses([space.all, *(space.all - {unit} for unit in units)], space, ranges)
            losses = tuple(-_saved(none, loss) for loss in alone)
            self.order = Sensitivities(losses, tuple(self._gains(units, space, ranges)))
            self._by_ranges[ranges.digest()] = self.order
        return self.order

    def gains(self, answer: Answer, suspects: Collection[int]) -> dict[int, float]:
        """Returns, by index of the layer, the loss that full INT8 with the answer's ranges wins back if only this layer
        is in high precision.

        If ``sensitivities`` was measured with other ranges, the result has only the recipe's layers and those with the
        indices ``suspects``; empty if ``can_measure`` is false.
        """
        recipe, space, ranges = answer.recipe, answer.recipe.space, answer.experiment.ranges
        layers = [layer for (layer,) in space.units]
        known = self._by_ranges.get(ranges.digest())
        if known is not None:
            return dict(zip(layers, known.gains, strict=True))
        units = [unit for unit, layer in enumerate(layers) if unit in recipe.kept or layer in suspects]
        if not units or not self.can_measure(space):
            return {}
        return {layers[unit]: gain for unit, gain in zip(units, self._gains(units, space, ranges), strict=True)}

    def _gains(self, units: Sequence[int], space: Space, ranges: Ranges) -> list[float]:
        full, *without = self._losses([frozenset(), *(frozenset({unit}) for unit in units)], space, ranges)
        return [_saved(full, loss) for loss in without]

    def _losses(self, sets: Sequence[Kept], space: Space, ranges: Ranges) -> list[float]:
        worst = self._plans.worst(self._plans.full, ranges)[:_ALONE_ON]
        losses = self._plans.to_the_end([space.plan(kept) for kept in sets], ranges, worst)
        return [math.inf if loss is None or math.isnan(loss) else loss for loss in losses]


def _saved(before: float, after: float) -> float:
    return 0.0 if math.isinf(before) and math.isinf(after) else before - after


def with_fp16(plans: AnswerPlans, answer: Answer) -> Answer:
    """Returns the answer with ``fp16`` measured, and with ``fp16_held_out`` if the recipe misses on held-out inputs;
    unchanged if the low precision is a float type, or a layer is in FP16 already.
    """
    experiment = answer.of_user.experiment
    network = experiment.network
    if network.low.precision in FLOAT_TYPES or any(network.layers[k].dtype == "float16" for k in network.quantizable):
        return answer
    plan = network.all_in(Precision.FP16)

    def measured(inputs: GivenInputs | None, name: str) -> Trial | None:
        build = partial(experiment.builder.build, plan)
        trial = plans.whole(plan, experiment, inputs, f"{name}, all in FP16", "all in fp16", build)
        return None if trial.failed else trial

    fp16, on_held_out = measured(None, "all inputs"), None
    if answer.misses_held_out:
        on_held_out = measured(plans.held_out, "held-out inputs")
    return replace(answer, fp16=fp16, fp16_held_out=on_held_out)


def with_hidden_nan(plans: AnswerPlans, answer: Answer) -> Answer:
    """Returns ``answer``, from the emulation and after ``with_fp16``, with ``nan_in_fp16`` and ``nan_in_recipe``. The
    figures of ``fp16`` and ``around_fp16`` become not finite if their plan has NaN inside.
    """
    of_user, fp16, around = answer.of_user.experiment, answer.fp16, answer.around_fp16
    in_fp16 = in_recipe = ""
    if of_user.rule.meets(fp16):
        in_fp16 = _hidden_nan(plans, of_user.builder, of_user.network.all_in(Precision.FP16))
        if fp16 is None or not in_fp16:
            return answer  # what all layers in FP16 hold, some of them hold too
        fp16 = fp16.judged({name: replace(figures, finite=False) for name, figures in fp16.outputs.items()})
    experiment, plan = answer.experiment, answer.recipe.plan
    if answer.meets and (Precision.FP16 in plan.precisions or experiment.network.base is Precision.FP16):
        in_recipe = _hidden_nan(plans, experiment.builder, plan)
    if around is not None and around.meets and _hidden_nan(plans, *_around_in_fp16(plans, answer.recipe)):
        around = replace(around, similarity=None, meets=False)
    return replace(answer, fp16=fp16, around_fp16=around, nan_in_fp16=in_fp16, nan_in_recipe=in_recipe)


def _hidden_nan(plans: AnswerPlans, builder: Builder, plan: PrecisionPlan) -> str:
    if not isinstance(builder, OnnxRuntimeBuilder):
        return ""
    plans.give_back()
    return hidden_nan(builder.writer, plan, plans.inputs.given.feeds, plans.setup.progress)


def networks_alone(plans: AnswerPlans, answer: Answer) -> tuple[NetworkRow, ...]:
    """Returns a row for each network of a pipeline, measured in the emulation with only this network in low precision;
    empty for a single network.
    """
    experiment, members = answer.emulated.of_user.experiment, set(answer.of_user.members)
    network, rule = experiment.network, experiment.rule
    high = [answer.experiment.network.layers[k].name for k in answer.recipe.high]
    rows = []
    for part in split(network):
        own = set(part.layers)
        plan = network.plan([k for k in network.movable if k in own], experiment.whole.high)
        trial = plans.whole(plan, experiment, name=f"all inputs, {part.name} alone in {network.low.title}")
        rows.append(
            NetworkRow(
                part.name,
                part.network.source,
                rule.similarity(trial),
                rule.meets(trial),
                tuple(layer.name for layer in network.layers if layer.index in members & own),
                sum(name.startswith(prefix_of(part.name)) for name in high),
                sum(layer.quantizable for layer in part.network.layers),
                network.calls(prefix_of(part.name)),
            )
        )
    return tuple(rows)


def with_costs(plans: AnswerPlans, answer: Answer) -> Answer:
    """Returns the answer with ``in_fp16``, ``in_fp32``, ``around_fp16`` and ``expensive``; for full INT8 only
    ``around_fp16``. An answer by accuracy, or that misses, stays as it is.
    """
    if not answer.meets or answer.by_accuracy:
        return answer
    in_fp32, around = None, None
    recipe = answer.recipe
    in_fp16 = _all_in(plans, answer, Precision.FP16) if may_be_in_fp16(plans, recipe.space, recipe.kept) else None
    if recipe.space.others:
        in_fp32 = _all_in(plans, answer, Precision.FP32)
    if in_fp16 or in_fp32:
        around = _figures_around(plans, recipe)
    if not recipe.kept:
        return replace(answer, around_fp16=around)
    return replace(answer, in_fp16=in_fp16, in_fp32=in_fp32, around_fp16=around, expensive=_expensive(plans, recipe))


def _all_in(plans: AnswerPlans, answer: Answer, precision: Precision) -> PlanFigures | None:
    experiment, recipe = answer.experiment, answer.recipe
    kept = recipe.kept
    if not kept:
        return PlanFigures(0.0, (), experiment.rule.similarity(answer.restored), meets=True)
    changed = replace(recipe, space=with_units_in(recipe.space, kept, precision, plans.costs), kept=kept)
    trial = plans.whole(changed.plan, experiment, name=f"all inputs, its layers in {HIGH[precision]}")
    return None if trial.failed else figures_of(changed, trial)


def _figures_around(plans: AnswerPlans, recipe: Recipe) -> PlanFigures | None:
    # Engines are deployed with FP16 in place of FP32. An NVIDIA engine would have to parse the network anew.
    if recipe.experiment.builder.engine != ONNXRUNTIME:
        return None
    builder, plan = _around_in_fp16(plans, recipe)
    name, build = "all inputs, FP16 around INT8", partial(builder.build, plan)
    trial = plans.whole(plan, recipe.experiment, name=name, kind="fp16", build=build)
    changed = replace(recipe, space=with_units_in(recipe.space, recipe.kept, Precision.FP16, plans.costs))
    return None if trial.failed else figures_of(changed, trial)


def _around_in_fp16(plans: AnswerPlans, recipe: Recipe) -> tuple[Builder, PrecisionPlan]:
    experiment = recipe.experiment
    network = replace(experiment.network, base=Precision.FP16)
    plan = network.in_base(recipe.plan.keeping(recipe.high, Precision.FP16), Precision.FP16)
    return plans.setup.builder_for(network, ONNXRUNTIME, experiment.ranges, plans.inputs.given.feeds), plan


def _expensive(plans: AnswerPlans, recipe: Recipe) -> tuple[ExpensiveLayer, ...]:
    space, experiment = recipe.space, recipe.experiment
    cost, ranked = recipe.cost, sorted(recipe.kept, key=lambda unit: (-space.costs[unit], unit))
    firsts = (ranked[:count] for count in range(1, _MOST_NAMED + 1))
    few = next((units for units in firsts if sum(space.costs[unit] for unit in units) >= _MOST_OF_COST * cost), [])
    if cost <= EXPENSIVE_RECIPE or not few:
        return ()
    alone = [space.plan(space.all - {unit}) for unit in few]
    losses = plans.to_the_end(alone, experiment.ranges, plans.inputs.counting)
    return tuple(
        ExpensiveLayer(
            experiment.network.layers[space.units[unit][0]].name,
            space.costs[unit],
            None if loss is None else similarity_of(experiment.rule, plans.loss(plan, experiment.ranges)),
        )
        for unit, plan, loss in zip(few, alone, losses, strict=True)
    )
