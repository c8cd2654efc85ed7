"""The ways to search: they connect a driver, which asks for plans, to an evaluator, which measures them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trt_bisect.analyzer.judge import Rule
from trt_bisect.driver.suspects.adaptive import adaptive
from trt_bisect.driver.suspects.curves import ADAPTIVE, CULPRITS, FULL, bisect, exhaustive
from trt_bisect.driver.suspects.search import Findings, Loss, Question, Search, Step, drive
from trt_bisect.driver.suspects.speculative import GoodOrBad, LastRises, drive_concurrently, drive_speculatively
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


def search(
    curve: str,
    question: Question,
    evaluator: RebuildEvaluator | BranchEvaluator,
    rule: Rule,
    names: Sequence[str],
    progress: Progress,
) -> Curve:
    """Returns the curve, and the suspects that it shows.

    Args:
        curve: the boundaries that are measured; see ``search_for``. Whole engines have no adaptive one.
        names: the names of the layers, for the progress bar.
    """

    in_pieces: Findings | None = None
    if isinstance(evaluator, BranchEvaluator):
        findings = _search_in_passes(curve, question, evaluator, rule, names, progress)
        if evaluator.measured_in:
            in_pieces = findings
            findings = _on_whole_engines(question, in_pieces, evaluator.whole, rule, names, progress)
    else:
        findings = _search_wholes(curve, question, evaluator, rule, names, progress)
    return Curve(
        findings,
        nothing=evaluator.measure(question.prefix(-1)),
        measured_in=evaluator.measured_in if isinstance(evaluator, BranchEvaluator) else WHOLE,
        in_pieces=in_pieces,
        sides=sides_of(question, in_pieces, findings),
    )


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


def _on_whole_engines(
    question: Question,
    in_pieces: Findings,
    whole: RebuildEvaluator,
    rule: Rule,
    names: Sequence[str],
    progress: Progress,
) -> Findings:
    """Decides on whole engines: full INT8, both sides of each suspect of the pieces, and other suspects that they show.

    A suspect that they do not confirm is withdrawn, and they are bisected where the pieces were wrong.
    """
    progress.say(f"Whole engines decide: measuring full {question.low.upper()} and both sides of each suspect")
    decided = _search_wholes(CULPRITS, question, whole, rule, names, progress, in_pieces.suspects)
    return in_pieces.decided_by(decided)


def _search_in_passes(
    curve: str, question: Question, evaluator: BranchEvaluator, rule: Rule, names: Sequence[str], progress: Progress
) -> Findings:
    watched: list[Step] = []
    said: set[int] = set()

    def measure_all(plans: Sequence[PrecisionPlan]) -> list[Loss]:
        for step in watched:
            if step.suspect and not said.issuperset(step.layers):
                said.update(step.layers)
                progress.say(f"Suspect: {names[step.layers[0]]}")
        progress.stage(f"Measuring {len(plans)} plans", evaluator.work(plans))
        return [rule.loss(trial) for trial in evaluator.measure_all(plans, progress.step)]

    if curve == ADAPTIVE:
        return drive(adaptive(question, watched), measure_all)
    if curve == FULL:
        return drive_speculatively(lambda: exhaustive(question), measure_all, LastRises(question))
    return drive_speculatively(lambda: bisect(question), measure_all, GoodOrBad(question), _BOUNDARIES_AT_ONCE)


@dataclass
class _Measurer:
    """Measures plans with the workers of an evaluator, for a driver; see ``ConcurrentMeasurer``."""

    evaluator: RebuildEvaluator
    rule: Rule
    names: Sequence[str]
    progress: Progress

    @property
    def workers(self) -> int:
        """The number of plans that can be measured at the same time now."""
        return self.evaluator.workers

    def begin(self, plan: PrecisionPlan) -> None:
        """Begins to measure a plan."""
        self.evaluator.begin(plan)

    def ended(self) -> tuple[PrecisionPlan, Loss]:
        """Waits for the next plan to be measured; returns it and its loss."""
        plan, trial = self.evaluator.ended()
        self.progress.step(f"{_last(plan, self.names)} ({self.workers} workers)")
        return plan, self.rule.loss(trial)

    def abandon(self) -> None:
        """Gives up the plans that have not ended."""
        self.evaluator.abandon()


def _search_wholes(
    curve: str,
    question: Question,
    whole: RebuildEvaluator,
    rule: Rule,
    names: Sequence[str],
    progress: Progress,
    blamed: Sequence[int] = (),
) -> Findings:
    """Returns the findings on whole engines, with all workers; ``blamed`` is that of ``bisect``."""
    count, every_boundary = len(question.quantizable), curve == FULL
    progress.stage("Measuring plans", count + 2 if every_boundary else _few(count))

    def start() -> Search[Findings]:
        return exhaustive(question) if every_boundary else bisect(question, blamed=blamed)

    if not whole.has_workers:

        def measure(plan: PrecisionPlan) -> Loss:
            progress.step(_last(plan, names))
            return rule.loss(whole.measure(plan))

        return drive(start(), measure)
    measurer = _Measurer(whole, rule, names, progress)
    if every_boundary:
        findings, in_vain = drive_concurrently(start, measurer, LastRises(question), _REACH)
    else:
        findings, in_vain = drive_concurrently(start, measurer, GoodOrBad(question))
    if in_vain:
        progress.say(f"{in_vain} plans measured ahead were not needed; the journal keeps them")
    return findings


def _last(plan: PrecisionPlan, names: Sequence[str]) -> str:
    """The name of the last low layer."""
    last = max(plan.lowered, default=-1)
    return names[last] if last >= 0 else "FP32"


def _few(layers: int) -> int:
    """Returns about how many plans a bisection with one suspect takes; with more suspects the progress bar grows."""
    return math.ceil(math.log2(max(layers, 2))) + 4
