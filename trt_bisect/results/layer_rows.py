"""The report's layers and figures: before anything is measured, and from what was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from trt_bisect.analyzer.judge import Rule
from trt_bisect.driver.culprits.search import Step
from trt_bisect.errors import NothingMeasured
from trt_bisect.evaluator.trial import MEASURED, PASSING, Trial
from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.precision import Precision
from trt_bisect.results.run_report import FOLLOWS, NOT_TRIED, LayerRow, Report, RoundedTensor
from trt_bisect.results.search_result import Measured

Rounds = Callable[[LayerRow], tuple[RoundedTensor, ...]]
"""What is rounded at a culprit."""


def filled_report(blank: Report, measured: Measured, rule: Rule, rounds: Rounds) -> Report:
    """A blank report with the figures that were measured: all of them, or as far as a search has come."""
    plans, builds, inferences = counts(measured.trials.values())
    return replace(
        blank,
        layers=_filled_rows(measured, blank.layers, rule, rounds),
        culprits=_names(blank, measured.findings.culprits),
        similarity={"int8": rule.similarity(measured.full), "recipe": rule.similarity(measured.restored)},
        by_input={
            plan: found.facts()
            for plan, trial in (("int8", measured.full), ("recipe", measured.restored))
            if (found := rule.by_input(trial)) is not None
        },
        outputs={"int8": _figures(measured.full), "recipe": _figures(measured.restored)},
        recipe={
            "high": list(_names(blank, measured.recipe.kept)),
            "added": list(_names(blank, measured.recipe.added)),
            "meets": measured.recipe.meets,
        },
        plans=plans,
        builds=builds,
        inferences=inferences,
    )


def exit_code(measured: Measured, rule: Rule) -> int:
    """0 if full INT8 meets the threshold, 1 if not; 3 if no plan could be measured, or full INT8 not at this moment.

    Pieces that are other engines than the whole do not count.
    """
    wholes = [trial for key, trial in measured.trials.items() if not TrialKey.from_text(key).in_pieces]
    if all(trial.failed for trial in wholes) or measured.full.outcome in PASSING:
        return NothingMeasured.exit_code
    return 0 if rule.meets(measured.full) else 1


def counts(trials: Collection[Trial]) -> tuple[int, int, int]:
    """How many plans, engines and inferences trials stand for."""
    return len(trials), sum(trial.builds for trial in trials), sum(trial.inferences for trial in trials)


def _names(report: Report, layers: Iterable[int]) -> tuple[str, ...]:
    return tuple(report.layers[k].name for k in layers)


def _figures(trial: Trial) -> dict[str, Mapping[str, float]]:
    return {name: dict(figures.values) for name, figures in trial.outputs.items()}


def _filled_rows(measured: Measured, blank: Sequence[LayerRow], rule: Rule, rounds: Rounds) -> tuple[LayerRow, ...]:
    at_boundary: dict[int, Step] = {step.layers[-1]: step for step in measured.findings.steps}
    set_aside = set(measured.findings.set_aside)
    standing: Trial | None = measured.nothing if not measured.nothing.failed else None
    rows = []
    for row in blank:
        step = at_boundary.get(row.index)
        trial = measured.trial_of_step(step) if step else None
        if step is None and not row.quantizable:
            filled = _filled(measured, row, rule, standing, FOLLOWS, 0.0 if standing else None)
        elif step is None or trial is None:
            standing = None
            outcome = "not judged" if row.index in set_aside else NOT_TRIED
            filled = _filled(measured, row, rule, None, outcome, None)
        else:
            drop = step.drop if len(step.layers) == 1 and step.loss is not None else None
            filled = _filled(measured, row, rule, trial, trial.outcome, drop)
            if step.plan.precisions[row.index] is Precision.INT8:
                filled = replace(filled, asked=str(Precision.INT8))
            if not step.culprit and not trial.failed:
                standing = trial
        obeyed = filled.ran == filled.asked if filled.quantizable and filled.ran else None
        rows.append(replace(filled, obeyed=obeyed, rounds=rounds(filled) if filled.culprit and step else ()))
    return tuple(rows)


def _filled(
    measured: Measured, row: LayerRow, rule: Rule, trial: Trial | None, outcome: str, drop: float | None
) -> LayerRow:
    kept = row.index in measured.recipe.kept or not row.quantizable
    return replace(
        row,
        similarity=rule.similarity(trial),
        drop=drop,
        culprit=row.index in measured.findings.culprits,
        outcome=outcome,
        ran=trial.ran.get(row.index, "") if trial else "",
        sqnr=_worst_sqnr(rule, trial),
        output=_deciding_output(rule, trial),
        recipe=row.recipe if kept else str(Precision.INT8),
        message=trial.message if trial and trial.outcome != MEASURED else "",
        whole=_on_whole_engines(measured, row.index, rule),
    )


def _on_whole_engines(measured: Measured, layer: int, rule: Rule) -> dict[str, float | None] | None:
    trials = [measured.whole_trial_of(plan) for plan in measured.sides.get(layer, ())]
    if not any(trials):
        return None
    return {side: rule.similarity(trial) for side, trial in zip(("without", "with"), trials, strict=True)}


def _worst_sqnr(rule: Rule, trial: Trial | None) -> float | None:
    if trial is None:
        return None
    found = [figures.values["sqnr"] for figures in rule.judged(trial).values() if "sqnr" in figures.values]
    return min(found, default=None)


def _deciding_output(rule: Rule, trial: Trial | None) -> str:
    judged = rule.judged(trial) if trial is not None else {}
    if not judged:
        return ""
    return max(judged, key=lambda name: rule.output_loss(judged[name]))
