"""Doubts on a plan that passes, and the bound on the share of inputs like the held-out ones that miss the threshold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trt_bisect.analyzer.compare_output import WHERE_ZERO
from trt_bisect.analyzer.integers import integers_text
from trt_bisect.analyzer.judge import Rule, judged_outputs
from trt_bisect.analyzer.metrics import AGREEMENT, ALL_EQUAL, BUILT_IN, EXACT_SQNR, KAPPA
from trt_bisect.analyzer.rows import rows_doubted, rows_text
from trt_bisect.analyzer.slices import output_of
from trt_bisect.analyzer.tasks.task import INVENTED_OBJECTS, LIKENESS_KEYS, LOST_OBJECTS, OBJECTS
from trt_bisect.analyzer.variation import variation_doubted
from trt_bisect.builder.base import Outputs
from trt_bisect.evaluator.trial import OutputFigures, Trial
from trt_bisect.support.text import percent

CLIPPED, SHORT, VANISHED, DISAGREE = "clipped", "short", "class vanished", "metrics disagree"
CONSTANT, HELD_OUT, NOT_LOW = "constant FP32 output", "held-out inputs miss", "not low"
BY_CHANCE, LENGTH, OBJECTS_LOST = "equal by chance", "rows lost or won", "objects lost"
OBJECTS_INVENTED = "objects invented"
VARIES_LESS, FROM_NOTHING, ELSEWHERE = "variation lost", "values where FP32 has none", "detections elsewhere"
# An output is clipped if it reaches less than the first share of FP32's largest magnitude, and at least the second
# share of FP32's large values lie beyond. An output that a task reads must be short too.
_CLIPPED_REACH, _CLIPPED_SHARE = 0.9, 0.05
_SHORT_REACH = 0.8  # An output is short if it reaches less than this share of FP32's largest magnitude.
# An error on inputs with an almost zero FP32 output is a doubt from this share of FP32's median norm on: at a cosine of
# 99 % the error has 14 % of the norm.
_FROM_NOTHING = 0.25
# A lower mean IoU or OKS of the detections kept is a doubt: good recipes have 0.9 and more.
_LEAST_LIKENESS = 0.75
_ALLOWED_DECIBELS = 3.0
_SHOWN_CLASSES = 8
# Lost or invented objects are a doubt from this number, and this share of FP32's objects, on.
_FEWEST_LOST, _LOST_SHARE = 2, 0.05
_LEAST_KAPPA = 0.5  # A lower kappa is a doubt. Single classes of good recipes had 0.73.
_LEAST_EQUAL = 0.5  # Integers too few for kappa are a doubt if a smaller share is equal.
BY_CLASS, BY_AGREEMENT = "class", "agreement"
SURE = 0.95
# The round bounds for which further held-out inputs are suggested.
_ROUND = tuple(digit / 10**power for power in (1, 2, 3) for digit in (5, 3, 2, 1))
_STEPS = 60  # Bisection steps that exhaust a double's precision.
_MOST_MORE = 10**6


@dataclass(frozen=True)
class Doubt:
    """A reason not to trust a pass.

    Attributes:
        output: the output, or a part of it such as ``output0[:, 4:84]``.
        kind: such as ``clipped``, ``class vanished`` or ``variation lost``.
    """

    output: str
    kind: str
    text: str


def is_destroyed(rule: Rule, trial: Trial) -> bool:
    """Returns true if every judged output is wrong on every input: an SQNR of at most 1 dB or, with a task, no
    agreement. An input that meets the threshold is not wrong.
    """
    by_input = rule.by_input(trial)
    if by_input is not None and by_input.misses < by_input.inputs:
        return False
    metric, least = (rule.metric, 0.0) if rule.metric is AGREEMENT else (BUILT_IN["sqnr"], 1.0)
    figures = [
        value
        for output in rule.judged(trial).values()
        for value in output.inputs.get(metric.name) or (output.values.get(metric.name),)
        if value is not None
    ]
    return bool(figures) and not any(value > least for value in figures)


def doubts(rule: Rule, trial: Trial) -> tuple[Doubt, ...]:
    """Returns the doubts on the judged outputs of a measured plan that passes and, with a task, on the outputs that the
    task reads; empty if the plan does not pass.
    """
    return tuple(_found(rule, trial)) if rule.meets(trial) else ()


def _found(rule: Rule, trial: Trial) -> Iterator[Doubt]:
    judged = rule.judged(trial)
    lost_class = any(figures.vanished for figures in trial.outputs.values())
    task_tells = any(figures.vanished for figures in judged.values()) and bool(rule.reads)
    for name, figures in trial.outputs.items():
        is_read = output_of(name) in rule.reads
        if name in judged or output_of(name) in judged or is_read:
            yield from _where_zero(name, figures)
            yield from _of_reach(name, figures, _SHORT_REACH if is_read else _CLIPPED_REACH)
            if not is_read:
                yield from _of_counts(name, figures, lost_class=lost_class)
                yield from _of_likeness(name, figures)
            if not (is_read and task_tells):
                yield from _of_classes(name, figures)
    yield from _of_metrics(rule, trial)


def _where_zero(name: str, figures: OutputFigures) -> Iterator[Doubt]:
    error = figures.values.get(WHERE_ZERO, 0.0)
    if error >= _FROM_NOTHING:
        text = f"'{name}' has values where FP32's is almost zero: an error of {percent(error)} of FP32's median norm."
        yield Doubt(name, FROM_NOTHING, text)


def _of_reach(name: str, figures: OutputFigures, least: float) -> Iterator[Doubt]:
    reach = math.inf if figures.reach is None else figures.reach
    if reach < least and figures.clipped >= _CLIPPED_SHARE:
        cut_off = f"{percent(figures.clipped)} of FP32's large values are cut off"
        yield Doubt(name, CLIPPED, f"'{name}' is clipped at {percent(reach)} of its largest FP32 magnitude: {cut_off}.")
    elif reach < _SHORT_REACH:
        yield Doubt(name, SHORT, f"'{name}' never exceeds {percent(reach)} of its largest FP32 magnitude.")


def _of_classes(name: str, figures: OutputFigures) -> Iterator[Doubt]:
    if figures.vanished:
        shown = ", ".join(map(str, figures.vanished[:_SHOWN_CLASSES]))
        more = len(figures.vanished) - _SHOWN_CLASSES
        lost = f"class {shown}" if len(figures.vanished) == 1 else f"classes {shown}"
        if more > 0:
            lost += f" and {more} more"
        yield Doubt(name, VANISHED, f"'{name}' lost {lost}: not predicted once where FP32 is confident.")
    objects, gone, new = (figures.values.get(key, 0.0) for key in (OBJECTS, LOST_OBJECTS, INVENTED_OBJECTS))
    fewest = max(_FEWEST_LOST, _LOST_SHARE * objects)
    if not figures.vanished and gone >= fewest:
        share = f"{gone:.0f} of {objects:.0f} objects (a class in an image)"
        yield Doubt(name, OBJECTS_LOST, f"'{name}' lost {share}: no pixel of them is left where FP32 is confident.")
    if new >= fewest:
        count = f"{new:.0f} objects (a class in an image; FP32 has {objects:.0f})"
        yield Doubt(name, OBJECTS_INVENTED, f"'{name}' invents {count}: FP32 has no pixel of the class in the image.")


def _of_likeness(name: str, figures: OutputFigures) -> Iterator[Doubt]:
    for likeness, key in LIKENESS_KEYS.items():
        mean = figures.values.get(key, 1.0)
        if mean < _LEAST_LIKENESS:
            yield Doubt(
                name, ELSEWHERE, f"The detections that INT8 keeps have a mean {likeness} of {percent(mean)} only."
            )


def _of_counts(name: str, figures: OutputFigures, *, lost_class: bool) -> Iterator[Doubt]:
    kappa, equal = figures.values.get(KAPPA), figures.values.get(ALL_EQUAL)
    is_task = AGREEMENT.name in figures.values
    if kappa is not None and kappa < _LEAST_KAPPA and not (is_task and lost_class):
        text = f"{integers_text(name, figures.values)}. Chance alone has kappa 0, equal outputs have 1."
        if is_task:
            text = f"Chance alone explains most of the agreement with FP32 (Cohen's kappa {kappa:.2f})."
            text += " Give data in which no class is rare."
        yield Doubt(name, BY_CHANCE, text)
    elif kappa is None and equal is not None and equal < _LEAST_EQUAL:
        yield Doubt(name, BY_CHANCE, f"{integers_text(name, figures.values)}.")
    if rows_doubted(figures.pooled):
        yield Doubt(name, LENGTH, f"{rows_text(name, figures.values)}.")
    if text := variation_doubted(name, figures):
        yield Doubt(name, VARIES_LESS, text)


def constant_outputs(rule: Rule, references: Sequence[Outputs]) -> tuple[tuple[Doubt, ...], tuple[str, ...]]:
    """Returns doubts and notes on judged outputs that do not depend on the input in FP32.

    The float outputs decide; without floats, all judged outputs. If no deciding output depends on the input, each gets
    a doubt; all other outputs that do not depend on it get notes.

    An output does not depend on the input if it has no values, is bitwise equal on all of several inputs, or is float
    and 0 everywhere.
    """
    judged = judged_outputs(rule, references[0])
    fixed = {name: text for name in judged if (text := _constant(name, [outputs[name] for outputs in references]))}
    deciding = [name for name in judged if references[0][name].dtype.kind == "f"] or judged
    wrong = "Comparing with this output means nothing. Check that the data is scaled and ordered as in training."
    found: tuple[Doubt, ...] = ()
    if fixed.keys() >= set(deciding):
        found = tuple(Doubt(name, CONSTANT, f"{fixed.pop(name)}. {wrong}") for name in deciding)
    notes = (f"{text[0].lower()}{text[1:]}: this output says nothing about the plan" for text in fixed.values())
    return found, tuple(notes)


def _constant(name: str, arrays: Sequence[np.ndarray]) -> str:
    inputs = "the input" if len(arrays) == 1 else f"all {len(arrays)} inputs"
    if not any(array.size for array in arrays):
        return f"Output '{name}' of FP32 itself has no values on {inputs}"
    # On one input, 0 may be its label.
    if (len(arrays) > 1 or arrays[0].dtype.kind == "f") and not any(array.any() for array in arrays):
        return f"Output '{name}' of FP32 itself is 0 everywhere on {inputs}"
    if len(arrays) > 1 and all(np.array_equal(array, arrays[0]) for array in arrays):
        return f"Output '{name}' of FP32 itself is the same on {inputs}"
    return ""


def _on_worst_input(figures: OutputFigures) -> tuple[float | None, float | None]:
    values = figures.values
    if "cosine" in values and "centered_sqnr" in figures.inputs:
        index = figures.inputs["cosine"].index(values["cosine"])
        return figures.inputs["centered_sqnr"][index], values["cosine"]
    return values.get("centered_sqnr"), values.get("cosine")


def _of_metrics(rule: Rule, trial: Trial) -> Iterator[Doubt]:
    # The trial meets the threshold by cosine, and misses the corresponding SQNR by more than 3 dB.
    if rule.metric.name != "cosine" or rule.budget <= 0.0:
        return
    level = -10.0 * math.log10(2.0 * rule.budget)
    for name, figures in rule.judged(trial).items():
        sqnr, value = _on_worst_input(figures)
        if sqnr is None or value is None or sqnr <= -EXACT_SQNR:
            continue
        if sqnr < level - _ALLOWED_DECIBELS:
            yield Doubt(
                name,
                DISAGREE,
                f"Output '{name}': cosine {rule.text(value)} meets the threshold, but SQNR without the mean is "
                f"{sqnr:.1f} dB, and the threshold corresponds to {level:.1f} dB. A common offset or a softmax makes "
                "cosine too high; check --metric centered_sqnr as well.",
            )
            return


@dataclass(frozen=True)
class Bound:
    """The upper bound on the share of inputs like the held-out ones that miss the threshold.

    Attributes:
        inputs: the number of held-out inputs.
        missed: the number of these that miss.
        most: the bound: with probability ``sure``, at most this share misses.
        sure: the probability of the bound.
        next: a lower, round bound that more held-out inputs could give; None without one.
        more: the number of further held-out inputs that gives ``next``, if the same share misses.
        by: how an input misses: empty: the threshold; ``class``: another class than in FP32; ``agreement``: an
            agreement below the task's threshold.
    """

    inputs: int
    missed: int
    most: float
    sure: float = SURE
    next: float | None = None
    more: int | None = None
    by: str = ""


def bound_of(inputs: int, missed: int, by: str = "") -> Bound:
    """Returns the bound if ``missed`` of ``inputs`` held-out inputs miss; ``by`` is as in ``Bound``."""
    bound = Bound(inputs, missed, upper_bound(inputs, missed), by=by)
    rounder = next((share for share in _ROUND if missed / inputs < share < bound.most), None)
    if rounder is None or (more := _further(inputs, missed, rounder)) is None:
        return bound
    return replace(bound, next=rounder, more=more)


def upper_bound(inputs: int, missed: int) -> float:
    """Returns the upper bound (Clopper and Pearson 1934), with 95 % confidence, on the share of inputs that miss; 1 if
    all miss.
    """
    least, most = missed / inputs, 1.0
    for _ in range(_STEPS):
        middle = (least + most) / 2
        if _at_most(missed, inputs, middle) > 1.0 - SURE:
            least = middle
        else:
            most = middle
    return most


def _further(inputs: int, missed: int, share: float) -> int | None:
    def is_enough(more: int) -> bool:
        count = inputs + more
        return _at_most(-(-missed * count // inputs), count, share) <= 1.0 - SURE

    enough = 1
    while not is_enough(enough):
        enough *= 2
        if enough > _MOST_MORE:
            return None
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough


def _at_most(missed: int, inputs: int, share: float) -> float:
    if missed >= inputs or share <= 0.0:
        return 1.0
    if share >= 1.0:
        return 0.0
    logs = (
        math.lgamma(inputs + 1)
        - math.lgamma(k + 1)
        - math.lgamma(inputs - k + 1)
        + k * math.log(share)
        + (inputs - k) * math.log1p(-share)
        for k in range(missed + 1)
    )
    return math.fsum(map(math.exp, logs))
