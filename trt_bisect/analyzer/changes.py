"""Changes of a network's figures against a baseline: differences larger than those between the baseline's repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trt_bisect.analyzer.figures import INT8, RECIPE, Figures, LayerFigures
from trt_bisect.errors import OUT_OF_MEMORY
from trt_bisect.evaluator.trial import BUILD_FAILED, INFERENCE_FAILED, MEASURED, NOT_FINITE, TIMED_OUT

WORSE, BETTER, NEUTRAL = "worse", "better", "told"
SIMILARITY, LATENCY, RECIPE_LAYERS = "similarity", "latency", "recipe"
TARGET, THRESHOLD = "target", "threshold"
CULPRIT, OUTCOME, OBEYED, DROP, CURVE, LAYER, PART = "culprit", "outcome", "obeyed", "drop", "curve", "layer", "part"
FAILING = (SIMILARITY, LATENCY, CULPRIT, OUTCOME, OBEYED, RECIPE_LAYERS, TARGET, THRESHOLD, PART)
"""Kinds of change for the worse that fail a nightly run. The figures of single layers only explain."""
_FAILURES = (BUILD_FAILED, INFERENCE_FAILED, OUT_OF_MEMORY, TIMED_OUT, NOT_FINITE)


@dataclass(frozen=True)
class Tolerances:
    """The smallest changes that count, even where the repeats of the baseline are equal.

    Attributes:
        similarity: as a share of the loss that the threshold allows.
        latency: as a share of the baseline's latency.
    """

    similarity: float = 0.1
    latency: float = 0.05


@dataclass(frozen=True)
class Change:
    """One difference from the baseline.

    Attributes:
        kind: the kind of the figure that changed.
        effect: ``worse``, ``better``, or ``told`` for a change that is neither.
        what: the subject. ``int8`` or ``recipe`` for the kinds ``similarity``, ``recipe``, ``target`` and
            ``threshold``; a plan for ``latency``; ``network`` for ``part``; the name of a layer for all other kinds.
        before: the baseline's values, one for each repeat. For ``target`` and ``threshold`` that figure itself.
        now: the value of this nightly run.
    """

    kind: str
    effect: str
    what: str
    before: tuple[Any, ...]
    now: Any

    @property
    def fails(self) -> bool:
        """Returns true if this change fails the nightly run."""
        return self.effect == WORSE and self.kind in FAILING

    def fails_even_if(self, accepted: bool) -> bool:
        """Returns true if this change fails the nightly run.

        Args:
            accepted: the user accepts all changes; then only a missed target fails.
        """
        return self.kind == TARGET if accepted else self.fails

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, effect and subject: equal for the same change in a repeated run."""
        return self.kind, self.effect, self.what


def changes(now: Figures, runs: Sequence[Figures], tolerances: Tolerances) -> tuple[Change, ...]:
    """Compares the figures of a nightly run with the repeats of a baseline, measured by the same metric.

    A figure has changed if it lies outside the range of the repeats by more than a margin. The margin is the width of
    that range or the tolerance, the larger of the two. Similarities are compared as losses, so that ``worse`` has the
    same meaning for every metric.
    """
    losses = _LossComparison(now.judge.loss, tolerances.similarity * _budget(now, runs))
    return (
        *_part(now, runs),
        *_overall(now, runs, losses),
        *_latencies(now, runs, tolerances.latency),
        *_layer_names(now, runs),
        *(change for name in now.layers for change in _layer_changes(name, now, runs, losses)),
    )


def missed_targets(now: Figures, targets: Mapping[str, float]) -> tuple[Change, ...]:
    """Returns a change for each target, of ``int8`` or ``recipe``, that is not met or not measured."""
    loss = now.judge.loss
    found = {plan: now.similarity.get(plan) for plan in targets}
    return tuple(
        Change(TARGET, WORSE, plan, (target,), found[plan])
        for plan, target in targets.items()
        if (value := found[plan]) is None or loss(value) > loss(target)
    )


def missed_thresholds(now: Figures) -> tuple[Change, ...]:
    """Returns a change for full INT8 and for the recipe where it misses the threshold, of a network without baseline.

    Only a miss of the recipe counts as worse: a recipe is needed because full INT8 misses.
    """
    loss, threshold = now.judge.loss, (now.threshold,)
    value = now.similarity.get(INT8)
    missed = value is None or loss(value) > loss(now.threshold)
    full = (Change(THRESHOLD, NEUTRAL, INT8, threshold, value),) if missed else ()
    recipe = () if now.meets else (Change(THRESHOLD, WORSE, RECIPE, threshold, now.similarity.get(RECIPE)),)
    return (*full, *recipe)


def confirmed(seen: Sequence[Change], again: Sequence[Change]) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Splits the changes ``seen`` into those that the repeat ``again`` has too and those that it has not (noise)."""
    keys = {change.key for change in again}
    return (
        tuple(change for change in seen if change.key in keys),
        tuple(change for change in seen if change.key not in keys),
    )


@dataclass(frozen=True)
class _LossComparison:
    """Compares losses with those of a baseline.

    Attributes:
        loss: from a value of the metric to its loss.
        floor: the smallest change of a loss that counts.
    """

    loss: Callable[[float], float]
    floor: float

    def of_values(self, before: Sequence[float | None], now: float | None) -> str:
        """Returns the effect of a change of the metric's value; empty for noise."""
        return _effect(
            [None if value is None else self.loss(value) for value in before],
            None if now is None else self.loss(now),
            self.floor,
        )

    def of_drops(self, before: Sequence[float | None], now: float | None) -> str:
        """Returns the effect of a change of a loss; empty for noise."""
        return _effect(before, now, self.floor)


def _budget(now: Figures, runs: Sequence[Figures]) -> float:
    """Returns the loss that the strictest of the thresholds allows."""
    return min(figures.judge.loss(figures.threshold) for figures in (now, *runs))


def _effect(before: Sequence[float | None], now: float | None, floor: float) -> str:
    """Returns ``worse``, ``better``, or an empty text for noise. Lower values are better; None: not measured."""
    measured = [value for value in before if value is not None]
    if now is None:
        return WORSE if measured and len(measured) == len(before) else ""
    if not measured:
        return BETTER
    least, most = min(measured), max(measured)
    margin = max(most - least, floor)
    if now > most + margin:
        return WORSE
    return BETTER if now < least - margin else ""


def _overall(now: Figures, runs: Sequence[Figures], losses: _LossComparison) -> Iterator[Change]:
    """Changes of the similarity of full INT8 and of the recipe, and of the layers that the recipe leaves high."""
    int8 = tuple(run.similarity.get(INT8) for run in runs)
    effect = losses.of_values(int8, now.similarity.get(INT8))
    if effect:
        yield Change(SIMILARITY, effect, INT8, int8, now.similarity.get(INT8))
    alike = [run for run in runs if set(run.high) == set(now.high)]
    recipe = tuple(run.similarity.get(RECIPE) for run in alike)
    effect = losses.of_values(recipe, now.similarity.get(RECIPE)) if alike else ""
    if effect:
        yield Change(SIMILARITY, effect, RECIPE, recipe, now.similarity.get(RECIPE))
    met = {run.meets for run in runs}
    if now.meets not in met or not alike:
        effect = NEUTRAL if now.meets in met else BETTER if now.meets else WORSE
        yield Change(RECIPE_LAYERS, effect, RECIPE, tuple(dict.fromkeys(run.high for run in runs)), now.high)


def _part(now: Figures, runs: Sequence[Figures]) -> Iterator[Change]:
    """A network of which another part is judged than in the baseline, or no longer a part alone."""
    before = tuple(dict.fromkeys(run.part for run in runs))
    if before != (now.part,):
        yield Change(PART, WORSE if now.part else BETTER, "network", before, now.part)


def _latencies(now: Figures, runs: Sequence[Figures], tolerance: float) -> Iterator[Change]:
    for plan, milliseconds in (now.latency or {}).items():
        before = tuple((run.latency or {}).get(plan) for run in runs)
        floor = tolerance * min((value for value in before if value is not None), default=0.0)
        effect = _effect(before, milliseconds, floor) if any(run.latency for run in runs) else ""
        if effect:
            yield Change(LATENCY, effect, plan, before, milliseconds)


def _layer_names(now: Figures, runs: Sequence[Figures]) -> Iterator[Change]:
    """Layers that the network has and the baseline has not, and the other way round."""
    before = dict.fromkeys(name for run in runs for name in run.layers)
    for name in now.layers:
        if name not in before:
            yield Change(LAYER, NEUTRAL, name, (), "new")
    for name in before:
        if name not in now.layers:
            yield Change(LAYER, NEUTRAL, name, (), "gone")


def _layer_changes(name: str, figures: Figures, runs: Sequence[Figures], losses: _LossComparison) -> Iterator[Change]:
    """Changes of the figures of one layer; none for a layer that the baseline has not."""
    now = figures.layers[name]
    before = [run.layers[name] for run in runs if name in run.layers]
    yield from _drop_change(name, now, before, losses)
    yield from _curve_change(name, now, before, losses)
    yield from _outcome_change(name, now, before)
    yield from _obeyed_change(name, now, before)


def _drop_change(
    name: str, now: LayerFigures, before: Sequence[LayerFigures], losses: _LossComparison
) -> Iterator[Change]:
    """A change of the layer's drop. Its kind is ``culprit`` if the layer became a culprit, or is one no longer."""
    drops = tuple(layer.drop for layer in before)
    is_known = now.drop is not None and any(drop is not None for drop in drops)
    kind, effect = DROP, losses.of_drops(drops, now.drop) if is_known else ""
    was_culprit = {layer.culprit for layer in before}
    if now.culprit and True not in was_culprit and (effect == WORSE or not is_known):
        kind, effect = CULPRIT, WORSE
    elif not now.culprit and was_culprit == {True} and (effect == BETTER or not is_known):
        kind, effect = CULPRIT, BETTER
    if effect:
        yield Change(kind, effect, name, drops, now.drop)


def _curve_change(
    name: str, now: LayerFigures, before: Sequence[LayerFigures], losses: _LossComparison
) -> Iterator[Change]:
    """A change of the layer's similarity on the prefix curve."""
    curve = tuple(layer.similarity for layer in before)
    if now.similarity is None or all(value is None for value in curve):
        return
    effect = losses.of_values(curve, now.similarity)
    if effect:
        yield Change(CURVE, effect, name, curve, now.similarity)


def _outcome_change(name: str, now: LayerFigures, before: Sequence[LayerFigures]) -> Iterator[Change]:
    """A layer that failed and is measured in every repeat of the baseline, or the other way round."""
    outcomes = tuple(dict.fromkeys(layer.outcome for layer in before))
    if outcomes == (MEASURED,) and now.outcome in _FAILURES:
        yield Change(OUTCOME, WORSE, name, outcomes, now.outcome)
    elif outcomes and set(outcomes) <= set(_FAILURES) and now.outcome == MEASURED:
        yield Change(OUTCOME, BETTER, name, outcomes, now.outcome)


def _obeyed_change(name: str, now: LayerFigures, before: Sequence[LayerFigures]) -> Iterator[Change]:
    """A layer for which the engine did not obey the precision and did in every repeat, or the other way round."""
    opposite = not now.obeyed
    if now.obeyed is not None and {layer.obeyed for layer in before} == {opposite}:
        yield Change(OBEYED, BETTER if now.obeyed else WORSE, name, (opposite,), now.obeyed)
