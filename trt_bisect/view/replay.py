"""The findings of a search under way: its driver is run again on the trials in the journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import nan

from trt_bisect.analyzer.doubts import doubts
from trt_bisect.analyzer.judge import Rule
from trt_bisect.driver.suspects.bisect import bisect
from trt_bisect.driver.suspects.curves import CULPRITS, search_for
from trt_bisect.driver.suspects.search import Findings, Loss, Search, Step
from trt_bisect.evaluator.trial import UNTRIED, Trial, of_a_pass
from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.layer_rows import filled_report, run_verdict
from trt_bisect.report.manifest import RunManifest
from trt_bisect.report.model import Report
from trt_bisect.report.precision_check import obedience_doubts
from trt_bisect.report.search_result import Curve, Measured, Recipe
from trt_bisect.report.summary import above_verdict
from trt_bisect.report.verdict import UNMEASURED, code_of

Lookup = Callable[[PrecisionPlan], Trial | None]
UNDECIDED = "not decided yet: the run has still to measure which layers the recipe needs"
"""The reason why a suspect is no culprit, as long as the search is under way."""


class _Driver:
    """A driver that runs until it needs a plan that the journal does not have.

    Attributes:
        steps: settled so far.
        losses: given to it so far, by plan.
        findings: None until the driver has ended.
        waiting: the plan whose loss it needs next.
    """

    def __init__(self, start: Callable[[list[Step]], Search[Findings]]) -> None:
        self.steps: list[Step] = []
        self.losses: dict[PrecisionPlan, Loss] = {}
        self.findings: Findings | None = None
        self._search = start(self.steps)
        self.waiting = next(self._search)

    def answer(self, loss: Loss) -> None:
        """Gives the driver the loss of the plan that it waits for."""
        self.losses[self.waiting] = loss
        try:
            self.waiting = self._search.send(loss)
        except StopIteration as end:
            self.findings = end.value

    def answer_known(self, trial_of: Lookup, rule: Rule) -> None:
        """Gives the driver the losses of the trials that it needs, until one is missing.

        Args:
            trial_of: returns the trial of a plan, None if there is none.
            rule: the rule for the losses.
        """
        while self.findings is None:
            trial = trial_of(self.waiting)
            if trial is None:
                break
            self.answer(rule.loss(trial))


class Replay:
    """The drivers of a run, run again on the trials in its journal.

    A pass may measure boundaries before full INT8, which the driver needs first. The search of every boundary then
    starts without full INT8, and starts again when it is there. Suspects that pieces of an NVIDIA engine suggest are
    decided by a second search on whole engines.
    """

    def __init__(self, manifest: RunManifest) -> None:
        self._run = manifest
        self._question = manifest.question
        self._full = self._question.all_but(())
        self._begin()

    def _begin(self) -> None:
        self._first = _Driver(partial(search_for, self._run.curve, self._question))
        self._wholes: _Driver | None = None
        self._without_full = False

    def report(self, trials: Mapping[str, Trial]) -> Report:
        """Returns the report of the search so far. It names suspects alone: culprits are decided at the end of a run.

        Args:
            trials: the trials by plan key.
        """
        measured, whole = partial(self._trial, trials), partial(self._whole_trial, trials)
        full, rule = measured(self._full), self._run.rule
        if self._without_full and full is not None:
            self._begin()
        if not self._first.losses and self._run.curve != CULPRITS and full is None:
            self._without_full = True
            self._first.answer(None)
        self._first.answer_known(measured, rule)
        if self._run.measured_in and self._first.findings is not None:
            if self._wholes is None:
                blamed = self._first.findings.suspects
                self._wholes = _Driver(partial(bisect, self._question, blamed=blamed))
            self._wholes.answer_known(whole, rule)
        return self._report_of(trials)

    def _trial(self, trials: Mapping[str, Trial], plan: PrecisionPlan) -> Trial | None:
        return of_a_pass(trials, TrialKey(plan.key(), self._run.measured_in)) or self._whole_trial(trials, plan)

    def _whole_trial(self, trials: Mapping[str, Trial], plan: PrecisionPlan) -> Trial | None:
        return trials.get(plan.key())

    def _known(self, full: Trial) -> tuple[Findings, bool]:
        """Returns the findings so far, and true if the search has ended."""
        first, rule = self._first, self._run.rule
        if first.findings is None:
            known = Findings.so_far(rule.loss(full), first.steps)
            return replace(known, steps=(*self._unsettled(known), *known.steps)), False
        if self._wholes is None or not self._wholes.losses:
            return first.findings, self._wholes is None
        if self._wholes.findings is not None:
            return first.findings.decided_by(self._wholes.findings), True
        return first.findings.decided_by(Findings.so_far(rule.loss(full), self._wholes.steps)), False

    def _report_of(self, trials: Mapping[str, Trial]) -> Report:
        rule, question = self._run.rule, self._question
        decided = self._wholes is not None and bool(self._wholes.losses)
        trial_of: Lookup = partial(self._whole_trial if decided else self._trial, trials)
        full = trial_of(self._full) or UNTRIED
        known, at_its_end = self._known(full)
        restored = (trial_of(question.all_but(known.suspects)) if at_its_end else None) or UNTRIED
        loss = rule.loss(restored)
        recipe = Recipe(
            question.all_but(known.suspects),
            kept=known.suspects,
            culprits=(),
            meets=question.meets(loss),
            reasons=dict.fromkeys(known.suspects, UNDECIDED),
        )
        measured = Measured(
            Curve(known, nothing=trial_of(question.prefix(-1)) or UNTRIED, measured_in=self._run.measured_in),
            recipe,
            full=full,
            restored=restored,
            trials=trials,
        )
        seconds = {
            "build": sum(trial.build_seconds for trial in trials.values()),
            "infer": sum(trial.infer_seconds for trial in trials.values()),
        }
        blank = self._run.blank
        layers = {row.index: row for row in blank.layers if row.quantizable}
        doubted = bool(
            above_verdict(blank.inputs)
            or doubts(rule, full)
            or (blank.typing == "weak" and obedience_doubts(layers, full))
        )
        report = filled_report(blank, measured, rule, lambda _: ())
        return replace(
            report,
            recipe={**report.recipe, "added": []},
            seconds={"calibrate": 0.0, **seconds, "total": sum(seconds.values())},
            exit_code=code_of(
                UNMEASURED if full is UNTRIED else run_verdict(measured, doubted=doubted and not self._run.accept)
            ),
        )

    def _unsettled(self, known: Findings) -> list[Step]:
        """Returns a step for each plan of a bisection that is measured but not yet part of a settled step.

        Only plans that leave the suspects and the set-aside layers high count.
        """
        if self._run.curve != CULPRITS:
            return []
        out = {*known.suspects, *known.set_aside}
        return [
            Step((max(plan.lowered),), nan, loss, plan)
            for plan, loss in self._first.losses.items()
            if plan.lowered and not plan.lowered & out
        ]
