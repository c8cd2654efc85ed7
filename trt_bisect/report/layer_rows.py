"""The rows and figures of a report, from the trials."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.metrics import AGREEMENT
from trt_bisect.builder.base import UNPROVEN
from trt_bisect.driver.suspects.search import Step
from trt_bisect.evaluator.trial import MEASURED, PASSING, Trial
from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.report.layer_row import FOLLOWS, NOT_JUDGED, NOT_TRIED, LayerRow, RoundedTensor
from trt_bisect.report.model import Report
from trt_bisect.report.search_result import Measured
from trt_bisect.report.verdict import UNMEASURED, verdict_of

Rounds = Callable[[LayerRow], tuple[RoundedTensor, ...]]
"""Returns the tensors and weights that a culprit rounds."""


def filled_report(blank: Report, measured: Measured, rule: Rule, rounds: Rounds) -> Report:
    """Returns a blank report with the figures that were measured, of a finished search or of one under way."""
    plans, builds, inferences = counts(measured.trials.values())
    return replace(
        blank,
        layers=_filled_rows(measured, blank.layers, rule, rounds),
        culprits=_names(blank, measured.recipe.culprits),
        similarity={"int8": rule.similarity(measured.full), "recipe": rule.similarity(measured.restored)},
        by_input={
            plan: found.facts()
            for plan, trial in (("int8", measured.full), ("recipe", measured.restored))
            if (found := rule.by_input(trial)) is not None
        },
        outputs={"int8": _figures(measured.full), "recipe": _figures(measured.restored)},
        recipe={
            "high": list(_names(blank, measured.recipe.kept)),
            "added": list(_names(blank, (k for k in measured.recipe.kept if k not in measured.recipe.culprits))),
            "meets": measured.recipe.meets,
        },
        plans=plans,
        builds=builds,
        inferences=inferences,
    )


def run_verdict(measured: Measured, *, doubted: bool) -> str:
    """Returns the verdict on full INT8. Trials of pieces that are other engines than the whole network do not count.

    Args:
        measured: the plans that were measured.
        doubted: something speaks against a pass that the user has not accepted.
    """
    wholes = [trial for key, trial in measured.trials.items() if not TrialKey.from_text(key).in_pieces]
    if all(trial.failed for trial in wholes) or measured.full.outcome in PASSING:
        return UNMEASURED
    return verdict_of(meets=measured.recipe.meets and not measured.recipe.kept, doubted=doubted)


def counts(trials: Collection[Trial]) -> tuple[int, int, int]:
    """Returns the number of plans, engines built and inferences of trials."""
    return len(trials), sum(trial.builds for trial in trials), sum(trial.inferences for trial in trials)


def _names(report: Report, layers: Iterable[int]) -> tuple[str, ...]:
    return tuple(report.layers[k].name for k in layers)


def _figures(trial: Trial) -> dict[str, Mapping[str, float]]:
    return {name: dict(figures.values) for name, figures in trial.outputs.items()}


@dataclass(frozen=True)
class _Judged:
    """The search's result at one boundary.

    Attributes:
        trial: with the layer and all before it in INT8, but for earlier culprits; None where none was measured.
        outcome: as ``LayerRow`` has it.
        drop: the loss that the layer added; None where it is not known.
        step: the step of the search, that ends at the layer; None where the search asked for none, or has no trial of
            it.
    """

    trial: Trial | None
    outcome: str
    drop: float | None
    step: Step | None = None

    def trial_after(self, before: Trial | None) -> Trial | None:
        """Returns the trial that holds for a layer that follows: ``before`` if this layer stays high or failed."""
        if self.step is not None and self.trial is not None and (self.step.suspect or self.trial.failed):
            return before
        return self.trial


def _filled_rows(measured: Measured, blank: Sequence[LayerRow], rule: Rule, rounds: Rounds) -> tuple[LayerRow, ...]:
    """Returns the rows with what was measured, in execution order."""
    steps = {step.layers[-1]: step for step in measured.findings.steps}
    before = None if measured.curve.nothing.failed else measured.curve.nothing
    rows = []
    for row in blank:
        judged = _judged(measured, row, steps.get(row.index), before)
        rows.append(_filled(measured, row, rule, judged, rounds))
        before = judged.trial_after(before)
    return tuple(rows)


def _judged(measured: Measured, row: LayerRow, step: Step | None, before: Trial | None) -> _Judged:
    """Returns the search's result at a layer.

    Args:
        measured: the findings and the trials.
        row: the layer's.
        step: the step of the search, that ends at the layer.
        before: the trial that holds for the layer before; None where that was not measured.
    """
    trial = measured.trial_of_step(step) if step is not None else None
    if step is not None and trial is not None:
        is_alone = len(step.layers) == 1 and step.loss is not None
        return _Judged(trial, trial.outcome, step.drop if is_alone else None, step)
    if step is None and (row.fixed or not row.quantizable):
        return _Judged(before, FOLLOWS, None if before is None else 0.0)
    return _Judged(None, NOT_JUDGED if row.index in measured.findings.set_aside else NOT_TRIED, None)


def _filled(measured: Measured, row: LayerRow, rule: Rule, judged: _Judged, rounds: Rounds) -> LayerRow:
    trial, step = judged.trial, judged.step
    is_kept = row.index in measured.recipe.kept or row.fixed or not row.quantizable
    is_low = step is not None and row.index in step.plan.lowered
    low = str(measured.recipe.plan.low)
    asked, ran = low if is_low else row.asked, trial.ran.get(row.index, "") if trial else ""
    filled = replace(
        row,
        similarity=rule.similarity(trial),
        drop=judged.drop,
        culprit=row.index in measured.recipe.culprits,
        gain=measured.recipe.gains.get(row.index),
        taken_back=measured.recipe.taken_back.get(row.index),
        suspect=measured.recipe.reasons.get(row.index, ""),
        outcome=judged.outcome,
        asked=asked,
        ran=ran,
        obeyed=ran == asked if row.quantizable and ran and ran not in UNPROVEN else None,
        sqnr=_worst_sqnr(rule, trial),
        output=_deciding_output(rule, trial),
        recipe=row.recipe if is_kept else low,
        message=trial.message if trial and trial.outcome != MEASURED else "",
        whole=_on_whole_engines(measured, row.index, rule),
    )
    return replace(filled, rounds=rounds(filled)) if filled.culprit else filled


def _on_whole_engines(measured: Measured, layer: int, rule: Rule) -> dict[str, float | None] | None:
    trials = [measured.whole_trial_of(plan) for plan in measured.curve.sides.get(layer, ())]
    if not any(trials):
        return None
    return {side: rule.similarity(trial) for side, trial in zip(("without", "with"), trials, strict=True)}


def _worst_sqnr(rule: Rule, trial: Trial | None) -> float | None:
    if trial is None:
        return None
    judged = trial.outputs if rule.metric is AGREEMENT else rule.judged(trial)
    found = [figures.values["sqnr"] for figures in judged.values() if "sqnr" in figures.values]
    return min(found, default=None)


def _deciding_output(rule: Rule, trial: Trial | None) -> str:
    judged = rule.judged(trial) if trial is not None else {}
    if not judged:
        return ""
    return max(judged, key=lambda name: rule.output_loss(judged[name]))
