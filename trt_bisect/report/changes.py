"""Changes between reports of one network.

A figure has changed if it lies farther outside its earlier values than both the tolerance and their span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.doubts import upper_bound
from trt_bisect.analyzer.metrics import JUDGING, Metric, figure_text, loss_text, metric_of_facts
from trt_bisect.errors import OUT_OF_MEMORY, BadInput
from trt_bisect.evaluator.trial import BUILD_FAILED, INFERENCE_FAILED, MEASURED, NOT_FINITE, TIMED_OUT
from trt_bisect.report.parts import JudgedInputs, LayerRow
from trt_bisect.support.codec import decode, encode
from trt_bisect.support.text import listed, percent

if TYPE_CHECKING:
    from trt_bisect.report.model import Report

INT8, RECIPE = "int8", "recipe"
WORSE, BETTER, NEUTRAL = "worse", "better", "told"
SIMILARITY, LATENCY, RECIPE_LAYERS = "similarity", "latency", "recipe"
TARGET, THRESHOLD = "target", "threshold"
CULPRIT, OUTCOME, OBEYED, LOSS, CURVE, LAYER, PART = "culprit", "outcome", "obeyed", "loss", "curve", "layer", "part"
BOUND = "bound"
FAILING = (SIMILARITY, LATENCY, CULPRIT, OUTCOME, OBEYED, RECIPE_LAYERS, TARGET, THRESHOLD, PART, BOUND)
"""Kinds of changes that, for the worse, fail a nightly run; the others only explain."""
_FAILURES = (BUILD_FAILED, INFERENCE_FAILED, OUT_OF_MEMORY, TIMED_OUT, NOT_FINITE)
MODEL_OR_OPSET = "model, or its opset"
_LABELS = {
    "inputs": "data (the judged inputs)",
    "tensorrt": "TensorRT",
    "tensorrt-rtx": "TensorRT-RTX",
    "onnxruntime": "ONNX Runtime",
    "device": "GPU or processor",
    "trt_bisect": "trt-bisect",
    "python": "Python",
    "numpy": "NumPy",
    "onnx": "ONNX",
    "metric code": "the metric's function",
    "high": "option precision",
    "arithmetic": "arithmetic of trt-bisect",
    "culprits": "what the culprits are",
    **{name: name for name in ("model", "ranges", "engine", "typing", "driver", "costs")},
}
_REPORT = (
    *("engine", "typing", "strategy", "arithmetic", "metric", "threshold", "share", "precision", "versions"),
    *("fingerprint", "schema", "verdict", "low", "budget", "culprits", "similarity", "recipe", "bound", "made_of"),
    "goal",
)
_ROW = (
    *("index", "name", "op_type", "shape", "quantizable", "similarity", "loss", "culprit", "outcome", "asked", "ran"),
    "obeyed",
)
_DIGESTS = ("model", "ranges", "inputs", "metric code")
_DIGITS = 8
_ULPS = 1e-9
_Moved = Callable[[str, str, tuple[float | None, ...], float | None], Iterator["Change"]]


@dataclass(frozen=True)
class Tolerances:
    """The smallest changes that count.

    Attributes:
        similarity: the smallest change of a loss, as a share of the loss that the threshold allows.
        latency: the smallest change of a latency, as a share of the earlier one.
    """

    similarity: float = 0.1
    latency: float = 0.05


@dataclass(frozen=True)
class Change:
    """A figure that changed.

    Attributes:
        kind: the kind of the figure: ``latency``, ``culprit`` and so on.
        effect: ``worse``, ``better`` or ``told`` (neither).
        what: the subject: ``int8`` or ``recipe`` for the kinds ``similarity``, ``recipe``, ``target`` and
            ``threshold``; a plan for ``latency``; ``network`` for ``part`` and ``bound``; a layer for all others.
        before: the value in each repeat of the earlier run; for ``target`` and ``threshold`` the required figure.
        now: the later value; None if not measured.
    """

    kind: str
    effect: str
    what: str
    before: tuple[Any, ...]
    now: Any

    def fails(self, accepted: bool = False) -> bool:
        """Returns true if this change fails a nightly run; if the user ``accepted`` all, only a missed target does."""
        return self.kind == TARGET if accepted else self.effect == WORSE and self.kind in FAILING

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, effect and subject: equal in a repeated run that confirms the change."""
        return self.kind, self.effect, self.what


@dataclass(frozen=True)
class Difference:
    """A part in which two runs differ, such as the model or an option.

    Attributes:
        what: the name of the part.
        before, now: the values as text; of a digest the first eight digits.
    """

    what: str
    before: str
    now: str


@dataclass(frozen=True)
class RunChanges:
    """The changes from one report to another.

    Attributes:
        before, now: the files of the networks.
        changes: the changes of figures, culprits, recipe, latency and layers, larger than the tolerances.
        differs: the differences in network, data, engine, versions and options; None if not known.
    """

    before: str
    now: str
    metric: str
    changes: tuple[Change, ...]
    differs: tuple[Difference, ...] | None

    def __repr__(self) -> str:
        lines = [
            f"{'changed' if change.effect == NEUTRAL else change.effect}: {sentence(change, self.metric)}"
            for change in sorted(self.changes, key=lambda change: change.effect != WORSE)
        ]
        return "\n".join([*(lines or ["Nothing changed."]), f"different: {made_of_text(self.differs)}"])

    __str__ = __repr__


def compared(before: Report, now: Report, direction: str) -> RunChanges:
    """Returns the changes from one report to another; raises BadInput if their metrics differ.

    ``direction``: the better values, ``higher`` or ``lower``.
    """
    if before.metric != now.metric:
        raise BadInput(
            f"The reports were judged by '{before.metric}' and by '{now.metric}': their figures cannot be compared.",
            "Run one again with the --metric of the other.",
        )
    earlier, later = compared_part(before), compared_part(now)
    changed = changes(later, [earlier], Tolerances(), direction)
    return RunChanges(before.model, now.model, now.metric, changed, differences(earlier, later))


def changes(now: Report, runs: Sequence[Report], tolerances: Tolerances, direction: str) -> tuple[Change, ...]:
    """Returns the changes from an earlier run to a later report, judged by the same metric.

    Args:
        now, runs: the later report, and those of the earlier run's repeats, all reduced by ``compared_part``.
        direction: the better values, ``higher`` or ``lower``.
    """
    allowed = min(metric_of(report, direction).loss(report.threshold) for report in (now, *runs))
    metric, floor = metric_of(now, direction), tolerances.similarity * allowed

    def moved(kind: str, subject: str, before: tuple[float | None, ...], now: float | None) -> Iterator[Change]:
        *earlier, later = (None if value is None else metric.loss(value) for value in (*before, now))
        effect = _effect(earlier, later, floor)
        if effect:
            yield Change(kind, effect, subject, before, now)

    return (
        *_overall(now, runs, moved),
        *_bound(now, runs),
        *_latencies(now, runs, tolerances.latency),
        *_layers(now, runs, moved, floor),
    )


def missed_targets(now: Report, targets: Mapping[str, float], direction: str) -> tuple[Change, ...]:
    """Returns a change for each plan (``int8``, ``recipe``) that misses its target or was not measured.

    ``targets``: the required figures by plan. ``direction``: the better values, ``higher`` or ``lower``.
    """
    loss = metric_of(now, direction).loss
    return tuple(
        Change(TARGET, WORSE, plan, (target,), value)
        for plan, target in targets.items()
        if (value := getattr(now.similarity, plan)) is None or loss(value) > loss(target)
    )


def missed_thresholds(now: Report, direction: str) -> tuple[Change, ...]:
    """Returns a change for each of full INT8 and the recipe that misses the threshold.

    ``direction``: the better values, ``higher`` or ``lower``.
    """
    missed = missed_targets(now, {INT8: now.threshold}, direction)
    # A recipe is needed because full INT8 misses: only the recipe's miss is worse.
    full = [replace(change, kind=THRESHOLD, effect=NEUTRAL) for change in missed]
    if now.recipe.meets:
        return tuple(full)
    return (*full, Change(THRESHOLD, WORSE, RECIPE, (now.threshold,), now.similarity.recipe))


def compared_part(report: Report) -> Report:
    """Returns a report reduced to the fields that are compared."""
    latency = report.latency and {
        plan: timed and replace(timed, layers=(), computed={}) for plan, timed in report.latency.items()
    }
    rows = (LayerRow(**{name: getattr(row, name) for name in _ROW}) for row in report.layers if row.quantizable)
    part = type(report)(
        model=Path(report.model).name,
        **{name: getattr(report, name) for name in _REPORT},
        inputs=JudgedInputs(part=report.inputs.part),
        latency=latency,
        layers=tuple(rows),
    )
    return decode(type(report), encode(part))


def differences(before: Report, now: Report) -> tuple[Difference, ...] | None:
    """Returns the differences between two runs, both read from files, in model, ranges, data, engine, GPU and options.

    None if a run was stopped before it recorded these parts.
    """
    if "model" not in before.made_of or "model" not in now.made_of:
        return None
    earlier, later = _parts(before), _parts(now)
    labels = dict(_LABELS)
    if earlier.get("base") != later.get("base"):
        # A base in 16 bits may take a newer opset, in which the same file is another graph.
        labels["model"] = MODEL_OR_OPSET
    return tuple(
        Difference(
            labels.get(name) or f"option {name.replace('_', '-')}",
            _part_text(name, earlier.get(name)),
            _part_text(name, later.get(name)),
        )
        for name in dict.fromkeys((*earlier, *later))
        if earlier.get(name) != later.get(name)
    )


def metric_of(report: Report, direction: str) -> Metric:
    """Returns the metric that judged a report.

    ``direction``: ``higher`` or ``lower`` values of a user's own metric are better.
    """
    if report.metric in JUDGING:
        return JUDGING[report.metric]
    higher = direction == "higher"
    perfect = report.threshold + report.budget if higher else report.threshold - report.budget
    return metric_of_facts({"name": report.metric, "perfect": perfect, "higher": higher, "own": True})


def _effect(before: Sequence[float | None], now: float | None, floor: float) -> str:
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


def _overall(now: Report, runs: Sequence[Report], moved: _Moved) -> Iterator[Change]:
    parts = tuple(dict.fromkeys(run.inputs.part for run in runs))
    if parts != (now.inputs.part,):
        yield Change(PART, WORSE if now.inputs.part else BETTER, "network", parts, now.inputs.part)
    alike = [run for run in runs if set(run.recipe.high) == set(now.recipe.high)]
    yield from moved(SIMILARITY, INT8, tuple(run.similarity.int8 for run in runs), now.similarity.int8)
    if alike:
        before = tuple(run.similarity.recipe for run in alike)
        yield from moved(SIMILARITY, RECIPE, before, now.similarity.recipe)
    meets, met = now.recipe.meets, {run.recipe.meets for run in runs}
    if meets not in met or not alike:
        effect = NEUTRAL
        if meets not in met:
            effect = BETTER if meets else WORSE
        high = tuple(dict.fromkeys(run.recipe.high for run in runs))
        yield Change(RECIPE_LAYERS, effect, RECIPE, high, now.recipe.high)


def _bound(now: Report, runs: Sequence[Report]) -> Iterator[Change]:
    bounds = [run.bound for run in runs if run.bound is not None]
    if not bounds:
        return
    before = tuple(None if run.bound is None else run.bound.most for run in runs)
    around = [(bound.inputs, max(bound.missed, 1), max(bound.missed - 1, 0)) for bound in bounds]
    one_miss = max(upper_bound(inputs, more) - upper_bound(inputs, fewer) for inputs, more, fewer in around)
    most = None if now.bound is None else now.bound.most
    effect = _effect(before, most, one_miss + _ULPS)
    if effect:
        yield Change(BOUND, effect, "network", before, most)


def _latencies(now: Report, runs: Sequence[Report], tolerance: float) -> Iterator[Change]:
    earlier = [_medians(run) for run in runs]
    for plan, milliseconds in _medians(now).items() if any(earlier) else ():
        before = tuple(medians.get(plan) for medians in earlier)
        effect = _effect(before, milliseconds, tolerance * min(filter(None, before), default=0.0))
        if effect:
            yield Change(LATENCY, effect, plan, before, milliseconds)


def _medians(report: Report) -> dict[str, float | None]:
    return {plan: None if timed is None else timed.median_ms for plan, timed in (report.latency or {}).items()}


def _layers(now: Report, runs: Sequence[Report], moved: _Moved, floor: float) -> Iterator[Change]:
    rows, *earlier = ({row.name: row for row in report.layers if row.quantizable} for report in (now, *runs))
    names = dict.fromkeys(name for layers in earlier for name in layers)
    yield from (Change(LAYER, NEUTRAL, name, (), "new") for name in rows if name not in names)
    yield from (Change(LAYER, NEUTRAL, name, (), "gone") for name in names if name not in rows)
    for name, row in rows.items():
        yield from _layer(row, [layers[name] for layers in earlier if name in layers], moved, floor)


def _layer(now: LayerRow, before: Sequence[LayerRow], moved: _Moved, floor: float) -> Iterator[Change]:
    losses = tuple(row.loss for row in before)
    is_known = now.loss is not None and any(loss is not None for loss in losses)
    kind, effect = LOSS, _effect(losses, now.loss, floor) if is_known else ""
    was_culprit = {row.culprit for row in before}
    if now.culprit and True not in was_culprit and (effect == WORSE or not is_known):
        kind, effect = CULPRIT, WORSE
    elif not now.culprit and was_culprit == {True} and (effect == BETTER or not is_known):
        kind, effect = CULPRIT, BETTER
    if effect:
        yield Change(kind, effect, now.name, losses, now.loss)

    curve = tuple(row.similarity for row in before)
    if now.similarity is not None and any(value is not None for value in curve):
        yield from moved(CURVE, now.name, curve, now.similarity)

    outcomes = tuple(dict.fromkeys(row.outcome for row in before))
    if outcomes == (MEASURED,) and now.outcome in _FAILURES:
        yield Change(OUTCOME, WORSE, now.name, outcomes, now.outcome)
    elif outcomes and set(outcomes) <= set(_FAILURES) and now.outcome == MEASURED:
        yield Change(OUTCOME, BETTER, now.name, outcomes, now.outcome)

    if now.obeyed is not None and {row.obeyed for row in before} == {not now.obeyed}:
        yield Change(OBEYED, BETTER if now.obeyed else WORSE, now.name, (not now.obeyed,), now.obeyed)


def _parts(report: Report) -> dict[str, Any]:
    parts: dict[str, Any] = dict(report.made_of)
    versions, code = parts.pop("versions", None), parts.pop("metric", "")
    return {
        **parts,
        "metric code": code,
        **(versions or {}),
        "metric": report.metric,
        "threshold": report.threshold,
        "share": report.share,
        "strategy": report.strategy,
        "costs": "multiply-adds" if report.goal.costs == "macs" else report.goal.costs,
        "budget": "" if report.goal.most is None else percent(report.goal.most),
        "drop": report.goal.drop,
    }


def _part_text(name: str, value: Any) -> str:
    if value in (None, "", [], ()):
        return "none"
    if name not in _DIGESTS:
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    if isinstance(value, (list, tuple)):
        return str(value[0])[:_DIGITS] + (f" and {len(value) - 1} more" if len(value) > 1 else "")
    return str(value)[:_DIGITS]


PLANS = {INT8: "full INT8", RECIPE: "the recipe"}


def sentence(change: Change, metric: str, *, advises: bool = False) -> str:
    """Returns a change as a sentence; ``advises``: add to a missed threshold the advice to set a target."""
    figure, loss = partial(figure_text, metric), partial(loss_text, metric)
    kind, what, is_worse, now = change.kind, change.what, change.effect == WORSE, change.now
    if kind == SIMILARITY:
        return f"{PLANS[what]} is {change.effect}: {_moved(change, figure)}"
    if kind == BOUND:
        return f"the bound on held-out inputs that miss is {change.effect}: {_moved(change, percent)}"
    if kind == LATENCY:
        side = "slower" if is_worse else "faster"
        return f"latency of {what} is {side}: {_moved(change, lambda value: f'{value:.3f} ms')}"
    if kind == CULPRIT:
        begin = "new culprit" if is_worse else "no longer a culprit:"
        return f"{begin} '{what}', costs {_moved(change, loss)}"
    if kind == LOSS:
        more = "more" if is_worse else "less"
        return f"'{what}' costs {more}: {_moved(change, loss)}"
    if kind == CURVE:
        return f"the curve at '{what}' is {change.effect}: {_moved(change, figure)}"
    if kind == OUTCOME:
        return f"'{what}': {now}, was {' or '.join(change.before)}"
    if kind == OBEYED:
        runs = "no longer runs" if is_worse else "runs again"
        return f"'{what}' {runs} in the requested precision"
    if kind == RECIPE_LAYERS:
        means = {WORSE: "no longer meets the threshold", BETTER: "meets the threshold again"}
        meets = f", and {means[change.effect]}" if change.effect in means else ""
        after, *before = (listed(high, most=6) or "no layer" for high in (now, *change.before))
        return f"the recipe keeps {after} in high precision, was {' or '.join(before)}{meets}"
    if kind == LAYER:
        return f"layer '{what}' is {now}"
    if kind == PART and not now:
        return "the whole network was judged, before only a part"
    if kind == PART:
        return f"a different part of the network was judged than before. {now}"
    measured = "is not measured" if now is None else f"measures {figure(now)}"
    missed = f"{PLANS[what]} {measured}, the {kind} is {figure(change.before[0])}"
    if kind == TARGET:
        return missed
    if is_worse:
        return f"{missed}: only --update-baseline makes this a baseline"
    advice = ": with this baseline only worse figures fail; set a 'target' to require a figure"
    return f"{missed}{advice if advises else ''}"


def made_of_text(differs: Sequence[Difference] | None) -> str:
    """Returns the differences of a run from its baseline as text, also if not known (None)."""
    if differs is None:
        return "not known: the run of the baseline was stopped before it recorded its parts"
    if not differs:
        return "nothing: model, ranges, data, engine, versions, GPU and options are the same"
    return "; ".join(f"{part.what} ({part.before} → {part.now})" for part in differs)


def _moved(change: Change, text: Callable[[float], str]) -> str:
    now = "not measured" if change.now is None else text(change.now)
    return f"{now}, was {range_text(change.before, text)}"


def range_text(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    """Returns the smallest and the largest known value as text, such as ``98% to 99%``; ``text`` writes one value."""
    measured = sorted(value for value in values if value is not None)
    return " to ".join(dict.fromkeys(map(text, (measured[0], measured[-1])))) if measured else "not measured"
