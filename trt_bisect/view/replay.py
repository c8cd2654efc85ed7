"""What a search has found so far: its driver is told again what the journal holds, by the rules of the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import nan

from trt_bisect.driver.bisect import bisect
from trt_bisect.driver.exhaustive import exhaustive
from trt_bisect.driver.recipe import Recipe
from trt_bisect.driver.search import Findings, Loss, Search, Step
from trt_bisect.errors import NothingMeasured
from trt_bisect.evaluator.trial import UNTRIED, Trial
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.asked import Asked
from trt_bisect.report.measured import Measured
from trt_bisect.report.report import Report
from trt_bisect.report.rows import filled_report


class Replay:
    """The driver of a run, waiting for the next plan that it asks and the journal does not hold.

    A pass may be through with boundaries before full INT8 is measured, which the driver asks first. The search for
    every boundary goes on without it then, and begins anew once it is there.
    """

    def __init__(self, asked: Asked) -> None:
        self._run = asked
        self._question = asked.question
        self._full = self._question.all_but(())
        self._begin()

    def _begin(self) -> None:
        self._steps: list[Step] = []
        self._told: dict[PrecisionPlan, Loss] = {}
        self._found: Findings | None = None
        self._without_full = False
        self._search: Search[Findings] = (exhaustive if self._run.every_boundary else bisect)(
            self._question, self._steps
        )
        self._waiting = next(self._search)

    def go_on(self, trials: Mapping[str, Trial]) -> Report:
        """The report as far as it is known by ``trials``."""
        full = self._trial(self._full, trials)
        if self._without_full and full is not None:
            self._begin()
        while self._found is None:
            trial = self._trial(self._waiting, trials)
            if trial is None:
                if self._told or not self._run.every_boundary:
                    break
                self._without_full = True
            self._tell(None if trial is None else self._run.rule.loss(trial))
        return self._report(full or UNTRIED, trials)

    def _trial(self, plan: PrecisionPlan, trials: Mapping[str, Trial]) -> Trial | None:
        key = plan.key()
        return trials.get(self._run.mark + key) or trials.get(key)

    def _tell(self, loss: Loss) -> None:
        self._told[self._waiting] = loss
        try:
            self._waiting = self._search.send(loss)
        except StopIteration as end:
            self._found = end.value

    def _report(self, full: Trial, trials: Mapping[str, Trial]) -> Report:
        rule, question = self._run.rule, self._question
        known, restored = self._found, UNTRIED
        if known is None:
            known = Findings.so_far(rule.loss(full), self._steps)
            known = replace(known, steps=(*self._unsettled(known), *known.steps))
        else:
            restored = self._trial(question.all_but(known.culprits), trials) or UNTRIED
        loss = rule.loss(restored)
        measured = Measured(
            known,
            Recipe(question.all_but(known.culprits), loss, known.culprits, (), question.meets(loss)),
            full=full,
            restored=restored,
            nothing=self._trial(question.prefix(-1), trials) or UNTRIED,
            mark=self._run.mark,
            trials=trials,
        )
        seconds = {
            "build": sum(trial.build_seconds for trial in trials.values()),
            "infer": sum(trial.infer_seconds for trial in trials.values()),
        }
        return replace(
            filled_report(self._run.blank, measured, rule, lambda _: ()),
            seconds={"calibrate": 0.0, **seconds, "total": sum(seconds.values())},
            exit_code=NothingMeasured.exit_code if full.failed else 0 if rule.meets(full) else 1,
        )

    def _unsettled(self, known: Findings) -> list[Step]:
        """Boundaries that a bisection has measured with all it ruled out so far left high, and settled nothing by."""
        if self._run.every_boundary:
            return []
        out = {*known.culprits, *known.set_aside}
        return [
            Step((max(plan.int8),), nan, loss, plan)
            for plan, loss in self._told.items()
            if plan.int8 and not plan.int8 & out
        ]
