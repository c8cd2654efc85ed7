"""The choice among the plans that a user may ship: FP32, FP16, full INT8 and the recipe; their speeds in words.

Where FP16 passes, a recipe is worth shipping only if it keeps at least half of INT8's speedup over FP16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trt_bisect.model.cost import NO_GAIN, instead_of
from trt_bisect.precision import Precision
from trt_bisect.report.advice import CALIBRATOR
from trt_bisect.report.answer import PlanFigures
from trt_bisect.report.explanation import Tried
from trt_bisect.support.text import percent

if TYPE_CHECKING:
    from trt_bisect.report.model import Report

FP32, FP16, INT8, RECIPE = "fp32", "fp16", "int8", "recipe"
"""The plans; ``int8`` has all layers in the low precision."""
MOST_GIVEN_UP = 0.5
"""A recipe that gives up a larger share of the speedup does not pay."""
LEAST_GAIN = 0.05
"""A plan that saves a smaller share of FP16's time is not faster: two builds of one engine differ as much."""


@dataclass(frozen=True)
class Choice:
    """A plan that a user may ship.

    Attributes:
        plan: ``fp32``, ``fp16``, ``int8`` or ``recipe``.
        meets: the plan meets the goal on all given inputs; None if not measured.
        similarity: the similarity on the worst input; None for FP32, the reference.
        accuracy: the accuracy on labelled data; None without labels.
        ms: the milliseconds of an inference, measured or predicted; None if neither.
        gives_up: the share of the low precision's speedup over FP16 that the plan gives up; None for FP32.
        held_out: the plan meets the goal on held-out inputs too; None if not measured.
    """

    plan: str
    meets: bool | None
    similarity: float | None
    accuracy: float | None
    ms: float | None
    gives_up: float | None
    held_out: bool | None = None


def choice_of(plan: str, choices: Sequence[Choice]) -> Choice | None:
    """Returns the entry of a plan in ``choices``, or None."""
    return next((choice for choice in choices if choice.plan == plan), None)


def fp16_instead(choices: Sequence[Choice], low: Precision = Precision.INT8, costs: str = "macs") -> str:
    """Returns a clause on why to ship FP16; empty if FP16 misses the goal on given or held-out inputs, or if INT8 or
    the recipe is worth more.

    ``costs``: the source of costs, such as ``macs``.
    """
    fp16 = choice_of(FP16, choices)
    if fp16 is None or not fp16.meets or fp16.held_out is False:
        return ""
    recipe, int8 = choice_of(RECIPE, choices), choice_of(INT8, choices)
    best = int8 if int8 is not None and int8.meets else recipe
    if best is None or not best.meets or best.gives_up is None:
        return f"no plan in {low.upper()} that was tried does"
    name = f"full {low.upper()}" if best is int8 else "the recipe"
    if best.held_out is False and fp16.held_out:
        return f"{name} misses it on held-out inputs, on which FP16 does not"
    if fp16.ms is not None and best.ms is not None and best.ms > (1.0 - LEAST_GAIN) * fp16.ms:
        return f"{name} takes {best.ms:.3g} ms, FP16 {fp16.ms:.3g} ms"
    if best.gives_up > MOST_GIVEN_UP:
        return f"{name} {kept_speed(best.gives_up, low)} {costs_from(costs)}"
    return ""


def predicted_ms(choices: Sequence[Choice], low: Precision, costs: str) -> tuple[float, float] | None:
    """Returns the predicted milliseconds of an inference at cost 0, and the milliseconds that cost 1 adds.

    None if ``costs``, the source of costs, is not the predicted times on a GPU, or a time is missing.
    """
    full, other = choice_of(INT8, choices), choice_of(str(instead_of(low)), choices)
    if not costs.startswith("time on") or full is None or other is None or full.ms is None or other.ms is None:
        return None
    # Layers that the user fixed are no part of a cost of 0.
    fixed = full.gives_up or 0.0
    if fixed >= 1.0:
        return None
    rise = (other.ms - full.ms) / (1.0 - fixed)
    if rise < NO_GAIN * (full.ms - fixed * rise):
        rise = NO_GAIN * full.ms / (1.0 + NO_GAIN * fixed)
    return full.ms - fixed * rise, rise


def kept_speed(gives_up: float, low: Precision = Precision.INT8) -> str:
    """Returns a plan's speed as a phrase, from the share of the speedup that the plan gives up.

    >>> kept_speed(0.16)
    "keeps 84% of INT8's speedup over FP16"
    """
    other = instead_of(low).upper()
    if gives_up > 1.0:
        return f"is slower than {other}"
    if gives_up == 1.0:
        return f"is as fast as {other}"
    kept = "all" if gives_up <= 0.0 else percent(1.0 - gives_up)
    return f"keeps {kept} of {low.upper()}'s speedup over {other}"


def costs_from(costs: str) -> str:
    """Returns the source of costs as a phrase: ``(by multiply-adds)`` for ``macs``."""
    if costs == "macs":
        return "(by multiply-adds)"
    if costs == "measured":
        return "(measured layer by layer)"
    return f"(predicted {costs.removeprefix('time ')})" if costs.startswith("time on") else f"(by {costs})"


FP16_INSTEAD = "ship fp16"
"""The kind of the line that says to ship FP16."""


def ships_fp16(report: Report) -> bool:
    """Returns true if the verdict says to ship FP16."""
    return any(line.kind == FP16_INSTEAD for line in report.lines)


def why_fp16(report: Report) -> str:
    """Returns a clause on why to ship FP16; empty with ``--budget``, if TensorRT refuses the network, or if the recipe,
    also in FP16, or a cheaper remedy is worth more.
    """
    if report.refused or report.goal.most is not None or pays_in_fp16(report) is not None:
        return ""
    low, costs = Precision(report.low), report.goal.costs
    if remedies := cheaper_remedies(report):
        cost = remedies[0].cost
        cheaper = Choice(RECIPE, True, remedies[0].similarity, None, report.ms_of(cost), cost)
        if not fp16_instead((*report.choices[:-1], cheaper), low, costs):
            return ""
    return fp16_instead(report.choices, low, costs)


def cheaper_remedies(report: Report) -> list[Tried]:
    """Returns the remedies confirmed to cost less than the recipe, best first; none with ``--budget`` or ``--drop``."""
    if report.goal.drop or report.goal.most is not None or report.answer is None:
        return []
    least = report.answer.cost if report.recipe.meets else math.inf
    remedies = [
        Tried((), CALIBRATOR, row.calibrator, row.similarity, None, True, row.by, confirmed=True)
        for row in (report.answer.free_ranges if report.recipe.high else ())
        if row.by is not None
    ]
    for tried in report.explanation.tried if report.explanation else ():
        is_row = tried.calibrator is not None and not tried.culprits and not tried.high
        if tried.confirmed and tried.is_cheaper(least) and not is_row:
            remedies.append(tried)
    return sorted(remedies, key=lambda row: row.rank)


def pays_in_fp16(report: Report) -> PlanFigures | None:
    """Returns the recipe with its layers in FP16, if it is worth shipping and the recipe in FP32 is not; else None."""
    mixed, recipe = None if report.answer is None else report.answer.in_fp16, choice_of(RECIPE, report.choices)
    if mixed is None or not mixed.meets or recipe is None:
        return None
    others = [choice for choice in report.choices if choice is not recipe]
    changed = replace(recipe, gives_up=mixed.cost, ms=report.ms_of(mixed.cost))
    low, costs = Precision(report.low), report.goal.costs
    as_it_is, in_fp16 = (fp16_instead((*others, plan), low, costs) for plan in (recipe, changed))
    return mixed if as_it_is and not in_fp16 else None


def no_gain(report: Report) -> str:
    """Returns why the low precision is predicted to save no time; empty if it saves time, or times were measured."""
    return "" if report.latency or report.predicted is None else report.predicted.no_gain


def times_from(report: Report, text: str) -> str:
    """Returns the words that say if the times in ``text`` are measured, or predicted on a GPU; empty if it has none."""
    if " ms" not in text:
        return ""
    return " (measured)" if report.latency or report.predicted is None else f" (predicted on {report.predicted.gpu})"


def other_of(report: Report) -> str:
    """Returns the precision that costs are relative to, such as ``FP16``."""
    return instead_of(Precision(report.low)).upper()


def speed_of(report: Report, cost: float) -> str:
    """Returns the speed of a plan with this cost as a phrase: predicted milliseconds, else the speedup kept."""
    ms = report.ms_of(cost)
    return kept_speed(cost, Precision(report.low)) if ms is None else f"takes {ms:.3g} ms"
