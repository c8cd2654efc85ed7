"""The ways to search: they connect a driver, which asks for plans, to an evaluator, which measures them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trt_bisect.driver.adaptive import adaptive
from trt_bisect.driver.curves import ADAPTIVE, CULPRITS, FULL, bisect, exhaustive
from trt_bisect.driver.search import Findings, Loss, Search, Step, drive
from trt_bisect.driver.speculative import GoodOrBad, LastRises, drive_concurrently, drive_speculatively
from trt_bisect.evaluator.evaluators import BranchEvaluator
from trt_bisect.evaluator.trial import UNTRIED, Trial
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.experiment import Experiment
from trt_bisect.support.progress import Progress

_BOUNDARIES_AT_ONCE = 9
"""For the suspects alone: full INT8, FP32, and the seven boundaries of three halvings."""
_REACH = 4
"""The number of plans for each place that are foreseen at once where every boundary is measured."""
NOTHING_FOUND = Findings(None, (), (), ())


@dataclass(frozen=True)
class Curve:
    """The curve of a search, and the suspects that it shows.

    Attributes:
        findings: decided on whole engines; the curve beside the suspects may come from pieces.
        nothing: the trial of the plan without INT8.
        in_pieces: the findings of pieces that are other engines, before whole engines decided; None without them.
    """

    findings: Findings = NOTHING_FOUND
    nothing: Trial = UNTRIED
    in_pieces: Findings | None = None

    def sides(self, rest: Precision) -> dict[int, tuple[PrecisionPlan, PrecisionPlan]]:
        """Returns by layer the plans without and with it, for layers that such pieces, or engines after them, blame.

        Args:
            rest: the precision of layers that are not low.
        """
        steps = () if self.in_pieces is None else (*self.in_pieces.steps, *self.findings.steps)
        return {
            step.layers[0]: (step.plan.keeping(step.layers, rest), step.plan)
            for step in steps
            if step.suspect and len(step.layers) == 1
        }


@dataclass(frozen=True)
class CurveSearch:
    """Searches the suspects of a network."""

    experiment: Experiment
    progress: Progress

    def curve(self) -> Curve:
        """Returns the curve, and the suspects that it shows. Whole engines have no adaptive curve."""
        experiment, in_pieces = self.experiment, None
        evaluator, question = experiment.evaluator, experiment.question
        if isinstance(evaluator, BranchEvaluator):
            findings = self._in_passes(evaluator)
            if experiment.measured_in:
                in_pieces, low = findings, question.low.upper()
                self.progress.say(f"Whole engines decide: measuring full {low} and both sides of each suspect")
                # a suspect that they do not confirm is withdrawn; they are bisected where the pieces were wrong
                findings = in_pieces.decided_by(self._wholes(CULPRITS, in_pieces.suspects))
        else:
            findings = self._wholes(experiment.curve)
        return Curve(findings, evaluator.measure(question.prefix(-1)), in_pieces)

    def _in_passes(self, evaluator: BranchEvaluator) -> Findings:
        question, curve, progress = self.experiment.question, self.experiment.curve, self.progress
        watched, announced = list[Step](), set[int]()

        def measure_all(plans: Sequence[PrecisionPlan]) -> list[Loss]:
            for step in watched:
                if step.suspect and not announced.issuperset(step.layers):
                    announced.update(step.layers)
                    progress.say(f"Suspect: {self._name(step.layers[0])}")
            progress.stage(f"Measuring {len(plans)} plans", evaluator.work(plans))
            return [self.experiment.rule.loss(trial) for trial in evaluator.measure_all(plans, progress.step)]

        if curve == ADAPTIVE:
            return drive(adaptive(question, watched), measure_all)
        if curve == FULL:
            return drive_speculatively(lambda: exhaustive(question), measure_all, LastRises(question))
        return drive_speculatively(lambda: bisect(question), measure_all, GoodOrBad(question), _BOUNDARIES_AT_ONCE)

    def _wholes(self, curve: str, blamed: Sequence[int] = ()) -> Findings:
        """Returns the findings on whole engines, with all workers; ``blamed`` is that of ``bisect``."""
        question, whole, every_boundary = self.experiment.question, self.experiment.whole, curve == FULL
        count = len(question.quantizable)
        few = math.ceil(math.log2(max(count, 2))) + 4  # of a bisection with one suspect; the bar grows with more
        self.progress.stage("Measuring plans", count + 2 if every_boundary else few)

        def start() -> Search[Findings]:
            return exhaustive(question) if every_boundary else bisect(question, blamed=blamed)

        if not whole.has_workers:

            def measure(plan: PrecisionPlan) -> Loss:
                self.progress.step(self._last_low(plan))
                return self.experiment.rule.loss(whole.measure(plan))

            return drive(start(), measure)

        def loss_of(plan: PrecisionPlan, trial: Trial) -> Loss:
            self.progress.step(f"{self._last_low(plan)} ({whole.workers} workers)")
            return self.experiment.rule.loss(trial)

        if every_boundary:
            findings, in_vain = drive_concurrently(start, whole, loss_of, LastRises(question), _REACH)
        else:
            findings, in_vain = drive_concurrently(start, whole, loss_of, GoodOrBad(question))
        if in_vain:
            self.progress.say(f"{in_vain} plans measured ahead were not needed; the journal keeps them")
        return findings

    def _last_low(self, plan: PrecisionPlan) -> str:
        """The name of the last low layer."""
        last = max(plan.lowered, default=-1)
        return self._name(last) if last >= 0 else "FP32"

    def _name(self, layer: int) -> str:
        return self.experiment.network.layers[layer].name
