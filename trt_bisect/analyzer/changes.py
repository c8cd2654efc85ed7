"""What differs between tonight's figures and a baseline's, beyond what the baseline's own repeats differ by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trt_bisect.analyzer.figures import INT8, RECIPE, Figures
from trt_bisect.errors import OUT_OF_MEMORY
from trt_bisect.evaluator.trial import BUILD_FAILED, INFERENCE_FAILED, MEASURED, NOT_FINITE, TIMED_OUT

WORSE, BETTER, TOLD = "worse", "better", "told"
SIMILARITY, LATENCY, RECIPE_LAYERS, TARGET = "similarity", "latency", "recipe", "target"
CULPRIT, OUTCOME, OBEYED, DROP, CURVE, LAYER = "culprit", "outcome", "obeyed", "drop", "curve", "layer"
FAILING = (SIMILARITY, LATENCY, CULPRIT, OUTCOME, OBEYED, RECIPE_LAYERS, TARGET)
"""Kinds of changes for the worse that fail a night. A layer's own figures explain, they do not convict."""
_FAILURES = (BUILD_FAILED, INFERENCE_FAILED, OUT_OF_MEMORY, TIMED_OUT, NOT_FINITE)


@dataclass(frozen=True)
class Tolerances:
    """The least changes that count, however alike the baseline's repeats are.

    Attributes:
        similarity: as a share of the loss that the threshold allows.
        latency: as a share of the baseline's latency.
    """

    similarity: float = 0.1
    latency: float = 0.05


@dataclass(frozen=True)
class Change:
    """One thing that is not as in the baseline.

    Attributes:
        kind: ``similarity`` (``what``: ``int8`` or ``recipe``), ``latency`` (a plan), ``culprit``, ``outcome``,
            ``obeyed``, ``drop``, ``curve``, ``layer`` (a layer's name), ``recipe`` (the layers it leaves high),
            ``target`` (``int8`` or ``recipe``).
        effect: ``worse``, ``better``, or ``told`` for what is neither.
        before: the baseline's values, one a repeat; of a target the target.
        now: tonight's value.
    """

    kind: str
    effect: str
    what: str
    before: tuple[Any, ...]
    now: Any

    @property
    def fails(self) -> bool:
        """Whether a night with it fails."""
        return self.effect == WORSE and self.kind in FAILING

    def fails_even_if(self, accepted: bool) -> bool:
        """The same where changes are ``accepted``: then a missed target alone fails."""
        return self.kind == TARGET if accepted else self.fails

    @property
    def key(self) -> tuple[str, str, str]:
        """What a repeat shows again if the change is none of chance."""
        return self.kind, self.effect, self.what


def changes(now: Figures, runs: Sequence[Figures], tolerances: Tolerances) -> tuple[Change, ...]:
    """Tonight's figures against the repeats of a baseline by the same metric.

    A figure has changed when it lies outside the range of the repeats by more than a pad: the width of that range, or
    the tolerance where that is more. Similarities are compared by their loss, so that ``worse`` is so for any metric.
    """
    moved = _DropChanges(now.judge.loss, tolerances.similarity * _budget(now, runs))
    return (
        *_overall(now, runs, moved),
        *_latencies(now, runs, tolerances.latency),
        *_layer_names(now, runs),
        *(change for name in now.layers for change in _layer(name, now, runs, moved)),
    )


def missed_targets(now: Figures, targets: Mapping[str, float]) -> tuple[Change, ...]:
    """The targets, by ``int8`` or ``recipe``, that are not met or not measured."""
    loss = now.judge.loss
    found = {plan: now.similarity.get(plan) for plan in targets}
    return tuple(
        Change(TARGET, WORSE, plan, (target,), found[plan])
        for plan, target in targets.items()
        if (value := found[plan]) is None or loss(value) > loss(target)
    )


def confirmed(seen: Sequence[Change], again: Sequence[Change]) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Of the changes that were seen those that a repeat shows again, and the others, which are noise."""
    keys = {change.key for change in again}
    return (
        tuple(change for change in seen if change.key in keys),
        tuple(change for change in seen if change.key not in keys),
    )


@dataclass(frozen=True)
class _DropChanges:
    """Tells a move from noise, in units of loss."""

    loss: Callable[[float], float]
    floor: float

    def of_values(self, before: Sequence[float | None], now: float | None) -> str:
        """The effect of a move of the metric's values; empty where it is noise."""
        return _effect(
            [None if value is None else self.loss(value) for value in before],
            None if now is None else self.loss(now),
            self.floor,
        )

    def of_drops(self, before: Sequence[float | None], now: float | None) -> str:
        """The effect of a move of a loss."""
        return _effect(before, now, self.floor)


def _budget(now: Figures, runs: Sequence[Figures]) -> float:
    """What the threshold allows to be lost: of two thresholds the stricter one's."""
    return min(figures.judge.loss(figures.threshold) for figures in (now, *runs))


def _effect(before: Sequence[float | None], now: float | None, floor: float) -> str:
    """Of values of which less is better; None is one that could not be measured."""
    measured = [value for value in before if value is not None]
    if now is None:
        return WORSE if measured and len(measured) == len(before) else ""
    if not measured:
        return BETTER
    least, most = min(measured), max(measured)
    pad = max(most - least, floor)
    if now > most + pad:
        return WORSE
    return BETTER if now < least - pad else ""


def _overall(now: Figures, runs: Sequence[Figures], moved: _DropChanges) -> Iterator[Change]:
    int8 = tuple(run.similarity.get(INT8) for run in runs)
    effect = moved.of_values(int8, now.similarity.get(INT8))
    if effect:
        yield Change(SIMILARITY, effect, INT8, int8, now.similarity.get(INT8))
    alike = [run for run in runs if set(run.high) == set(now.high)]
    recipe = tuple(run.similarity.get(RECIPE) for run in alike)
    effect = moved.of_values(recipe, now.similarity.get(RECIPE)) if alike else ""
    if effect:
        yield Change(SIMILARITY, effect, RECIPE, recipe, now.similarity.get(RECIPE))
    met = {run.meets for run in runs}
    if now.meets not in met or not alike:
        effect = TOLD if now.meets in met else BETTER if now.meets else WORSE
        yield Change(RECIPE_LAYERS, effect, RECIPE, tuple(dict.fromkeys(run.high for run in runs)), now.high)


def _latencies(now: Figures, runs: Sequence[Figures], tolerance: float) -> Iterator[Change]:
    for plan, milliseconds in (now.latency or {}).items():
        before = tuple((run.latency or {}).get(plan) for run in runs)
        floor = tolerance * min((value for value in before if value is not None), default=0.0)
        effect = _effect(before, milliseconds, floor) if any(run.latency for run in runs) else ""
        if effect:
            yield Change(LATENCY, effect, plan, before, milliseconds)


def _layer_names(now: Figures, runs: Sequence[Figures]) -> Iterator[Change]:
    """Layers that only tonight's network has, and those that it has no longer."""
    before = dict.fromkeys(name for run in runs for name in run.layers)
    for name in now.layers:
        if name not in before:
            yield Change(LAYER, TOLD, name, (), "new")
    for name in before:
        if name not in now.layers:
            yield Change(LAYER, TOLD, name, (), "gone")


def _layer(name: str, now: Figures, runs: Sequence[Figures], moved: _DropChanges) -> Iterator[Change]:
    tonight = now.layers[name]
    before = [run.layers[name] for run in runs if name in run.layers]
    drops = tuple(layer.drop for layer in before)
    known = any(drop is not None for drop in drops) and tonight.drop is not None
    effect = moved.of_drops(drops, tonight.drop) if known else ""
    was = {layer.culprit for layer in before}
    if tonight.culprit and True not in was and (effect == WORSE or not known):
        yield Change(CULPRIT, WORSE, name, drops, tonight.drop)
    elif not tonight.culprit and was == {True} and (effect == BETTER or not known):
        yield Change(CULPRIT, BETTER, name, drops, tonight.drop)
    elif effect:
        yield Change(DROP, effect, name, drops, tonight.drop)
    curve = tuple(layer.similarity for layer in before)
    if tonight.similarity is not None and any(value is not None for value in curve):
        effect = moved.of_values(curve, tonight.similarity)
        if effect:
            yield Change(CURVE, effect, name, curve, tonight.similarity)
    outcomes = tuple(dict.fromkeys(layer.outcome for layer in before))
    if outcomes == (MEASURED,) and tonight.outcome in _FAILURES:
        yield Change(OUTCOME, WORSE, name, outcomes, tonight.outcome)
    elif outcomes and set(outcomes) <= set(_FAILURES) and tonight.outcome == MEASURED:
        yield Change(OUTCOME, BETTER, name, outcomes, tonight.outcome)
    obeyed = {layer.obeyed for layer in before}
    if obeyed == {True} and tonight.obeyed is False:
        yield Change(OBEYED, WORSE, name, (True,), False)
    elif obeyed == {False} and tonight.obeyed:
        yield Change(OBEYED, BETTER, name, (False,), True)
