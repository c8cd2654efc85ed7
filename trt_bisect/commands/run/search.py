"""The ways to search: they connect a driver, which asks for plans, to an evaluator, which measures them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trt_bisect.analyzer.judge import Rule
from trt_bisect.driver.adaptive import adaptive
from trt_bisect.driver.curves import ADAPTIVE, CULPRITS, FULL, bisect, exhaustive
from trt_bisect.driver.search import Findings, Loss, Question, Search, Step, drive
from trt_bisect.driver.speculative import GoodOrBad, LastRises, drive_concurrently, drive_speculatively
from trt_bisect.evaluator.evaluators import BranchEvaluator, RebuildEvaluator
from trt_bisect.evaluator.trial import UNTRIED, WHOLE, Trial
from trt_bisect.precision import PrecisionPlan
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
        measured_in: the engines of the passes: ``PIECES`` if pieces are other engines than the whole network.
        in_pieces: the findings of such pieces before whole engines decided; None without them.
        sides: the plans without and with each layer that such pieces, or whole engines after them, blamed.
    """

    findings: Findings = NOTHING_FOUND
    nothing: Trial = UNTRIED
    measured_in: str = WHOLE
    in_pieces: Findings | None = None
    sides: Mapping[int, tuple[PrecisionPlan, PrecisionPlan]] = field(default_factory=dict)


def sides_of(
    question: Question, in_pieces: Findings | None, findings: Findings
) -> dict[int, tuple[PrecisionPlan, PrecisionPlan]]:
    """Returns by layer the plans without and with it, for layers that pieces or whole engines blame."""
    steps = () if in_pieces is None else (*in_pieces.steps, *findings.steps)
    return {
        step.layers[0]: (step.plan.keeping(step.layers, question.rest), step.plan)
        for step in steps
        if step.suspect and len(step.layers) == 1
    }


@dataclass(frozen=True)
class CurveSearch:
    """Searches the suspects of a network: ``names`` are those of its layers, for the progress bar."""

    question: Question
    rule: Rule
    names: Sequence[str]
    progress: Progress

    def curve(self, curve: str, evaluator: RebuildEvaluator | BranchEvaluator) -> Curve:
        """Returns the curve, and the suspects that it shows.

        Args:
            curve: the boundaries that are measured; see ``search_for``. Whole engines have no adaptive one.
        """
        in_pieces: Findings | None = None
        measured_in = WHOLE
        if isinstance(evaluator, BranchEvaluator):
            findings, measured_in = self._in_passes(curve, evaluator), evaluator.measured_in
            if measured_in:
                in_pieces, low = findings, self.question.low.upper()
                self.progress.say(f"Whole engines decide: measuring full {low} and both sides of each suspect")
                # a suspect that they do not confirm is withdrawn; they are bisected where the pieces were wrong
                findings = in_pieces.decided_by(self._wholes(CULPRITS, evaluator.whole, in_pieces.suspects))
        else:
            findings = self._wholes(curve, evaluator)
        nothing = evaluator.measure(self.question.prefix(-1))
        return Curve(findings, nothing, measured_in, in_pieces, sides_of(self.question, in_pieces, findings))

    def _in_passes(self, curve: str, evaluator: BranchEvaluator) -> Findings:
        question, progress = self.question, self.progress
        watched, announced = list[Step](), set[int]()

        def measure_all(plans: Sequence[PrecisionPlan]) -> list[Loss]:
            for step in watched:
                if step.suspect and not announced.issuperset(step.layers):
                    announced.update(step.layers)
                    progress.say(f"Suspect: {self.names[step.layers[0]]}")
            progress.stage(f"Measuring {len(plans)} plans", evaluator.work(plans))
            return [self.rule.loss(trial) for trial in evaluator.measure_all(plans, progress.step)]

        if curve == ADAPTIVE:
            return drive(adaptive(question, watched), measure_all)
        if curve == FULL:
            return drive_speculatively(lambda: exhaustive(question), measure_all, LastRises(question))
        return drive_speculatively(lambda: bisect(question), measure_all, GoodOrBad(question), _BOUNDARIES_AT_ONCE)

    def _wholes(self, curve: str, whole: RebuildEvaluator, blamed: Sequence[int] = ()) -> Findings:
        """Returns the findings on whole engines, with all workers; ``blamed`` is that of ``bisect``."""
        question, count, every_boundary = self.question, len(self.question.quantizable), curve == FULL
        few = math.ceil(math.log2(max(count, 2))) + 4  # of a bisection with one suspect; the bar grows with more
        self.progress.stage("Measuring plans", count + 2 if every_boundary else few)

        def start() -> Search[Findings]:
            return exhaustive(question) if every_boundary else bisect(question, blamed=blamed)

        if not whole.has_workers:

            def measure(plan: PrecisionPlan) -> Loss:
                self.progress.step(self.last_low(plan))
                return self.rule.loss(whole.measure(plan))

            return drive(start(), measure)

        def loss_of(plan: PrecisionPlan, trial: Trial) -> Loss:
            self.progress.step(f"{self.last_low(plan)} ({whole.workers} workers)")
            return self.rule.loss(trial)

        if every_boundary:
            findings, in_vain = drive_concurrently(start, whole, loss_of, LastRises(question), _REACH)
        else:
            findings, in_vain = drive_concurrently(start, whole, loss_of, GoodOrBad(question))
        if in_vain:
            self.progress.say(f"{in_vain} plans measured ahead were not needed; the journal keeps them")
        return findings

    def last_low(self, plan: PrecisionPlan) -> str:
        """Returns the name of the last low layer."""
        last = max(plan.lowered, default=-1)
        return self.names[last] if last >= 0 else "FP32"
