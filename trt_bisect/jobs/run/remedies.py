"""Remedies tried here, on all inputs: other calibrators, moves of weights and biases, culprits in FP16.

Each is measured in the deployed plan. A remedy for the whole network stands for full INT8, or where that misses for the
cheapest recipe that it leads to; one for the culprits of a cause, for the recipe with these culprits in INT8 again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trt_bisect.builder.base import EMULATED
from trt_bisect.calibration.ranges import Ranges, with_scales_of
from trt_bisect.driver.recipes.cheapest import least_cost
from trt_bisect.driver.recipes.search_space import Space
from trt_bisect.driver.suspects.search import drive
from trt_bisect.jobs.answer.facts import similarity_of
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.answer.result import Answer
from trt_bisect.jobs.answer.search import make_space
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.run.moves import BOTH, CORRECTED, EQUALISED, Move, moved_networks
from trt_bisect.precision import Precision
from trt_bisect.report.advice import BIAS_CORRECTION, CALIBRATOR, EQUALISATION, HIGH, OWN_RECIPE, Tried
from trt_bisect.report.causes import Group
from trt_bisect.support.figures import listed

REMEDIES = "remedies"
"""The folder, in the run folder, of the networks that help, and of calibration caches that no calibrator gives."""
_HELPS = 0.8
"""A move helps if at most this share of the loss is left."""
_MOVES = {
    EQUALISED: (EQUALISATION, "cross-layer equalisation"),
    CORRECTED: (BIAS_CORRECTION, "bias correction"),
    BOTH: (BIAS_CORRECTION, "cross-layer equalisation, then bias correction,"),
}
"""For each move: the remedy, and its name in sentences."""
_BY_CALIBRATION = "calibrators, equalisation and bias correction"
_WHOLE = "for the whole network"


@dataclass(frozen=True)
class Tries:
    """Tries remedies for one answer.

    Attributes:
        plans: measures on all inputs.
        answer: the recipe that remedies are compared with.
    """

    plans: AnswerPlans
    answer: Answer

    def by_recipe(self, culprits: tuple[str, ...]) -> Iterator[Tried]:
        """Yields the run's own recipe, which keeps the culprits high."""
        answer, experiment = self.answer, self.answer.experiment
        in_half = all(experiment.network.layer_named(name).dtype == "float16" for name in culprits)
        high = Precision.FP16 if in_half else experiment.whole.high
        if culprits and high in HIGH:
            figures = self._figures(experiment.rule.loss(answer.restored))
            cost = answer.space.cost(answer.kept)
            yield Tried(culprits, HIGH[high], OWN_RECIPE, *figures, high=len(answer.high), cost=cost)

    def by_calibrators(self) -> Iterator[Tried]:
        """Yields the results of each calibrator that the run measured: the recipe that it leads to, on all inputs."""
        own, space = self.answer.experiment.ranges.digest(), self.answer.space
        for one in self.answer.tried:
            calibrator, kept = one.ranges.calibrator, one.kept
            if calibrator is None or one.ranges.digest() == own:
                continue
            tried = Tried((), CALIBRATOR, f"{calibrator} {_WHOLE}", *self._figures(one.loss), calibrator=calibrator)
            if not one.meets and kept:
                loss = max(self.plans.on_all(space.plan(kept), one.ranges).values(), default=math.inf)
                tried = self.with_high(tried, space, kept, loss)
            yield tried

    def by_other_calibrators(self) -> Iterator[Tried]:
        """Yields the recipe that each other calibrator leads to, if the user named the calibrator."""
        for one in self.answer.tried[1:]:
            calibrator = one.ranges.calibrator
            if calibrator is not None and not one.meets and one.kept is None:
                found = self._cheaper(self.plans, self.answer.space, one.ranges)
                if found is not None:
                    full = Tried((), CALIBRATOR, f"{calibrator} {_WHOLE}", None, None, False, calibrator)
                    yield self.with_high(full, self.answer.space, *found)

    def by_own_ranges(self, group: Group) -> Iterator[Tried]:
        """Yields the recipe with the culprits of a group in INT8 again, their tensors' scales by other calibrators."""
        answer, space = self.answer, self.answer.space
        units = self._units(group)
        rest, ranges = answer.kept - units, answer.experiment.ranges
        tensors = self._rounded(group, ranges)
        for one in answer.tried if tensors else ():
            calibrator = one.ranges.calibrator
            if calibrator is None:
                continue
            changed = with_scales_of(ranges, {name: one.ranges for name in tensors if name in one.ranges.scales})
            if changed.digest() == ranges.digest():
                continue
            what = f"{calibrator} for what {listed(group.culprits, 3)} {'read' if len(units) > 1 else 'reads'}"
            self.plans.preparation.progress.step(what)
            loss = max(self.plans.on_all(space.plan(rest), changed).values(), default=math.inf)
            tried = Tried(group.culprits, CALIBRATOR, what, None, None, False, calibrator)
            tried = self.with_high(tried, space, rest, loss)
            places = "-".join(str(space.units[unit][0]) for unit in sorted(units)[:4])
            cache = f"{REMEDIES}/{places}-{str(calibrator).replace(' ', '-')}.cache"
            yield replace(tried, cache=cache, ranges=changed) if tried.meets else tried

    def by_fp16(self, group: Group) -> Iterator[Tried]:
        """Yields the recipe with the culprits of a group in FP16 instead of FP32, where that is emulated."""
        answer = self.answer
        experiment = answer.experiment
        if experiment.builder.arithmetic != EMULATED or experiment.whole.high is not Precision.FP32:
            return
        layers = {k for unit in self._units(group) for k in answer.space.units[unit]}
        plan = answer.plan.keeping(layers, Precision.FP16)
        trial = self.plans.whole(plan, experiment, answer.given, "all inputs")
        figures = self._figures(experiment.rule.loss(trial))
        what = f"FP16 instead of FP32 for {listed(group.culprits, 3)}"
        high = len(answer.high)
        yield Tried(
            group.culprits, HIGH[Precision.FP16], what, *figures, high=high, cost=answer.space.cost(answer.kept)
        )

    def by_move(self, move: Move) -> Tried:
        """Returns full INT8 of a network made from the user's, or the recipe that it leads to, judged by FP32 of the
        user's."""
        remedy, words = _MOVES[move.name]
        plans, experiment = self.plans, self.answer.experiment
        plans.preparation.progress.step(words)
        moved = plans.preparation.with_network(experiment, move.network, move.ranges)
        own = AnswerPlans(plans.preparation, moved, plans.inputs, list(plans.judged))
        loss = max(own.on_all(own.full, move.ranges).values(), default=math.inf)
        before = experiment.rule.loss(self.answer.full)
        helps = before is not None and loss <= _HELPS * before
        tried = Tried((), remedy, f"{words} {_WHOLE}", *self._figures(loss))
        if not tried.meets:
            space = make_space(own)
            found = self._cheaper(own, space, move.ranges)
            if found is not None:
                tried = self.with_high(tried, space, *found)
        if not (tried.meets or helps):
            return tried
        path = f"{REMEDIES}/{move.name}"
        return replace(tried, network=f"{path}.onnx", moved=moved.network, cache=f"{path}.cache", ranges=move.ranges)

    def _cheaper(self, plans: AnswerPlans, space: Space, ranges: Ranges) -> tuple[frozenset[int], float] | None:
        """Returns a recipe that is cheaper than the run's and meets the threshold on all inputs, with its loss."""
        if not plans.switches or not self.answer.meets:
            return None
        dearest = self.answer.space.cost(self.answer.kept)
        kept = drive(least_cost(space, dearest), partial(plans.losses, ranges=ranges))
        if kept is None or space.cost(kept) >= dearest:
            return None
        loss = max(plans.on_all(space.plan(kept), ranges).values(), default=math.inf)
        return (kept, loss) if loss <= space.budget else None

    def _units(self, group: Group) -> frozenset[int]:
        network, space = self.answer.experiment.network, self.answer.space
        indices = {network.layer_named(name).index for name in group.culprits}
        return frozenset(unit for unit in self.answer.kept if indices & set(space.units[unit]))

    def _rounded(self, group: Group, ranges: Ranges) -> tuple[str, ...]:
        network = self.answer.experiment.network
        layers = [network.layer_named(name) for name in group.culprits]
        names = dict.fromkeys(each.tensor for layer in layers for each in layer.roundings if not each.is_weight)
        return tuple(name for name in names if name in ranges.scales)

    def with_high(self, tried: Tried, space: Space, kept: frozenset[int], loss: float) -> Tried:
        """Returns a remedy with the figures of a plan that leaves some units high."""
        similarity, known, meets = self._figures(loss)
        return replace(
            tried, similarity=similarity, loss=known, meets=meets, high=len(space.layers(kept)), cost=space.cost(kept)
        )

    def _figures(self, loss: float | None) -> tuple[float | None, float | None, bool]:
        """The similarity and the loss, None if they are not finite, and true if the loss meets the budget."""
        rule = self.answer.experiment.rule
        if loss is None or not math.isfinite(loss):
            return None, None, False
        return similarity_of(rule, loss), loss, loss <= rule.budget


def try_remedies(plans: AnswerPlans, answer: Answer, groups: Sequence[Group]) -> tuple[tuple[Tried, ...], list[str]]:
    """Tries remedies for the culprits, each judged on all inputs.

    Args:
        plans: measures plans on the inputs given.
        answer: the answer with the recipe.
        groups: the culprits by cause.

    Returns:
        The remedies that were tried, and notes on those that could not be tried.
    """
    tries, experiment = Tries(plans, answer), answer.experiment
    why_not = _why_no_calibration(experiment)
    moves, notes = ((), ()) if why_not else moved_networks(plans.preparation, experiment)
    plans.preparation.progress.stage("Trying remedies", None)
    tried: list[Tried] = []
    if not why_not:
        tried += tries.by_other_calibrators()
        tried += [each for group in groups for each in tries.by_own_ranges(group)]
        tried += [tries.by_move(move) for move in moves]
    tried += [each for group in groups for each in tries.by_fp16(group)]
    return tuple(tried), [f"{_BY_CALIBRATION} were not tried: {why_not}"] if why_not else list(notes)


def measured_before(plans: AnswerPlans, answer: Answer, culprits: tuple[str, ...]) -> tuple[Tried, ...]:
    """Returns the remedies that every run measures: its recipe, if it has culprits, and the other calibrators."""
    tries = Tries(plans, answer)
    return (*tries.by_recipe(culprits), *tries.by_calibrators())


def best_of(tried: Sequence[Tried]) -> tuple[Tried, ...]:
    """Returns the entries that no later entry replaces: one with the same remedy for the same layers."""
    found: Mapping[tuple[object, ...], Tried] = {(each.culprits, each.what): each for each in tried}
    return tuple(found.values())


def _why_no_calibration(experiment: Experiment) -> str:
    if experiment.network.has_pairs:
        return "the scales are those of the network's own Q/DQ pairs"
    if experiment.data is None:
        return f"the ranges ({experiment.ranges.origin}) do not come from data that was given"
    return ""
