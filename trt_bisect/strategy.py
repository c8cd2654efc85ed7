"""The ways to search: which driver asks, and which evaluator answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trt_bisect.analyzer.judge import Rule
from trt_bisect.builder.base import Builder, BuildOptions
from trt_bisect.builder.engine_pieces import EnginePieces, MakeBuilder
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.pieces import OnnxRuntimePieces, PieceBuilder
from trt_bisect.data import Feeds
from trt_bisect.driver.abreast import drive_abreast
from trt_bisect.driver.ahead import Either, Rises, drive_ahead
from trt_bisect.driver.bisect import bisect
from trt_bisect.driver.exhaustive import exhaustive
from trt_bisect.driver.recipe import Recipe, repair
from trt_bisect.driver.search import Findings, Loss, Question, drive
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.evaluator.rebuild import Compare, RebuildEvaluator, TrialStore
from trt_bisect.evaluator.stream import Stream
from trt_bisect.evaluator.switch import SwitchEvaluator
from trt_bisect.evaluator.tiles import MOST_ROWS, Learned
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import cut
from trt_bisect.model.qdq import Scales
from trt_bisect.model.shapes import facts_for, with_free_batch
from trt_bisect.precision import PrecisionPlan
from trt_bisect.progress import Progress
from trt_bisect.report.measured import Measured

BRANCH, EXHAUSTIVE, BISECT = "branch", "exhaustive", "bisect"
STRATEGIES = (BRANCH, EXHAUSTIVE, BISECT)
FULL, CULPRITS = "full", "culprits"
CURVES = (FULL, CULPRITS)

_BOUNDARIES_AT_ONCE = 9
"""For the culprits alone: full INT8, FP32, and the seven boundaries of three halvings."""

_REACH = 4
"""How many plans for each place are foreseen at once where every boundary is wanted."""


@dataclass(frozen=True)
class Way:
    """How the plans are chosen and measured.

    Attributes:
        strategy: one of ``STRATEGIES``.
        curve: one of ``CURVES``; of the strategy ``branch``.
        memory: bytes of tensors that the rows of a pass hold together.
    """

    strategy: str
    curve: str
    memory: int

    @property
    def every_boundary(self) -> bool:
        """Every boundary is measured, not only those that the verdict needs."""
        return self.strategy == EXHAUSTIVE or (self.strategy == BRANCH and self.curve == FULL)


def branch_evaluator(
    network: Network,
    builder: Builder,
    make_builder: MakeBuilder,
    scales: Scales,
    options: BuildOptions,
    inputs: Sequence[Feeds],
    compare: Compare,
    store: TrialStore,
    whole: RebuildEvaluator,
    way: Way,
) -> BranchEvaluator:
    """The evaluator of the strategy ``branch``.

    On ONNX Runtime a piece does exactly what it does in the whole network. Other engines fuse and choose kernels as
    they like: there pieces are as small as can be, and their trials do not stand for those of whole engines.

    Args:
        network: what is measured.
        builder: of whole engines.
        make_builder: of the engines of pieces, where ``builder`` is not ONNX Runtime's.
        scales: of the activations.
        options: how engines are built.
        inputs: judged together.
        compare: from the outputs for every input to figures.
        store: where trials are kept.
        whole: measures on whole engines.
        way: how much memory there is, and whether many small passes are to come, for which engines are kept.
    """
    facts = _facts_of_each(network, inputs)
    free = with_free_batch(network, inputs[0])
    learned = Learned(free.repaired, dict(free.axes))
    if isinstance(builder, OnnxRuntimeBuilder):
        pieces, mark = cut(network, facts[0]), ""
        roomy = sum(facts[0].size(name) for name in facts[0].shapes) <= way.memory
        made: PieceBuilder = OnnxRuntimePieces(network, free, scales, options, builder.provider, arena=roomy)
        switch = SwitchEvaluator(builder, inputs, compare, store, whole)
    else:
        pieces, mark, switch = cut(network, facts[0], 1), "pieces ", None
        made = EnginePieces(network, free, facts[0], MOST_ROWS, make_builder)
    stream = Stream(network, pieces, made, learned, inputs, facts, way.memory, keeps_engines=way.curve == CULPRITS)
    return BranchEvaluator(network, pieces, made, stream, compare, store, whole, options.high, switch, mark)


def _facts_of_each(network: Network, inputs: Sequence[Feeds]) -> list[TensorFacts]:
    """What is known of the tensors on each input; found out once for inputs of the same shapes."""
    known: dict[tuple[object, ...], TensorFacts] = {}
    shapes = [tuple((name, array.shape) for name, array in feeds.items()) for feeds in inputs]
    for key, feeds in zip(shapes, inputs, strict=True):
        if key not in known:
            known[key] = facts_for(network, feeds)
    return [known[key] for key in shapes]


def search(
    way: Way,
    question: Question,
    evaluator: RebuildEvaluator | BranchEvaluator,
    rule: Rule,
    names: Sequence[str],
    progress: Progress,
) -> Measured:
    """The culprits, and the recipe that leaves them high.

    Args:
        way: how it is searched; ``branch`` needs a ``BranchEvaluator``.
        question: what is asked.
        evaluator: measures plans.
        rule: judges them.
        names: of the layers, for the progress bar.
        progress: is told of each plan, or of each piece.
    """

    def measure(plan: PrecisionPlan) -> Loss:
        progress.step(_last(plan, names))
        return rule.loss(evaluator.measure(plan))

    if isinstance(evaluator, BranchEvaluator):
        findings = _search_ahead(way, question, evaluator, rule, progress)
    elif evaluator.has_crew:
        findings = _search_abreast(way, question, evaluator, rule, names, progress)
    else:
        count = len(question.quantizable)
        progress.stage("Measuring plans", count + 2 if way.every_boundary else _few(count))
        findings = drive((exhaustive if way.every_boundary else bisect)(question), measure)
    progress.stage("Measuring the recipe", None)
    recipe = _recipe(question, findings, evaluator, measure, rule)
    mark, confirmed = "", {}
    if isinstance(evaluator, BranchEvaluator) and evaluator.mark:
        mark, confirmed = evaluator.mark, _confirm(question, findings, evaluator.whole, names, progress)
    trial_of = evaluator.measure
    return Measured(
        findings,
        recipe,
        full=trial_of(question.all_but(())),
        restored=trial_of(recipe.plan),
        nothing=trial_of(question.prefix(-1)),
        mark=mark,
        confirmed=confirmed,
    )


def _confirm(
    question: Question, findings: Findings, whole: RebuildEvaluator, names: Sequence[str], progress: Progress
) -> dict[int, tuple[PrecisionPlan, PrecisionPlan]]:
    """Measures whole engines on both sides of each culprit's boundary; by culprit, the plans without and with it."""
    progress.stage("Confirming the culprits on whole engines", 2 * len(findings.culprits))
    sides = {
        step.layers[-1]: (step.plan.keeping(step.layers, question.high), step.plan)
        for step in findings.steps
        if step.culprit
    }
    whole.measure_all(
        [plan for both in sides.values() for plan in both], lambda plan: progress.step(_last(plan, names))
    )
    return sides


def _search_ahead(way: Way, question: Question, evaluator: BranchEvaluator, rule: Rule, progress: Progress) -> Findings:
    def measure_all(plans: Sequence[PrecisionPlan]) -> list[Loss]:
        progress.stage(f"Measuring {len(plans)} plans", evaluator.work(plans))
        return [rule.loss(trial) for trial in evaluator.measure_all(plans, progress.step)]

    if way.every_boundary:
        return drive_ahead(lambda: exhaustive(question), measure_all, Rises(question))
    return drive_ahead(lambda: bisect(question), measure_all, Either(question), _BOUNDARIES_AT_ONCE)


@dataclass
class _Places:
    """The places of an evaluator, as a driver sees them."""

    evaluator: RebuildEvaluator
    rule: Rule
    names: Sequence[str]
    progress: Progress

    @property
    def places(self) -> int:
        """How many there are now."""
        return self.evaluator.places

    def begin(self, plan: PrecisionPlan) -> None:
        """Has a plan measured."""
        self.evaluator.begin(plan)

    def ended(self) -> tuple[PrecisionPlan, Loss]:
        """The next plan that was measured, and its loss."""
        plan, trial = self.evaluator.ended()
        self.progress.step(f"{_last(plan, self.names)} ({self.places} places at work)")
        return plan, self.rule.loss(trial)

    def abandon(self) -> None:
        """Gives up those that have not ended."""
        self.evaluator.abandon()


def _search_abreast(
    way: Way, question: Question, evaluator: RebuildEvaluator, rule: Rule, names: Sequence[str], progress: Progress
) -> Findings:
    places = _Places(evaluator, rule, names, progress)
    count = len(question.quantizable)
    progress.stage("Measuring plans", count + 2 if way.every_boundary else _few(count))
    if way.every_boundary:
        findings, in_vain = drive_abreast(lambda: exhaustive(question), places, Rises(question), _REACH)
    else:
        findings, in_vain = drive_abreast(lambda: bisect(question), places, Either(question))
    if in_vain:
        progress.say(f"{in_vain} plans were measured ahead, and not needed; the journal keeps them")
    return findings


def _last(plan: PrecisionPlan, names: Sequence[str]) -> str:
    """The name of the last layer in INT8."""
    last = max(plan.int8, default=-1)
    return names[last] if last >= 0 else "FP32"


def _recipe(
    question: Question,
    findings: Findings,
    evaluator: RebuildEvaluator | BranchEvaluator,
    measure: Callable[[PrecisionPlan], Loss],
    rule: Rule,
) -> Recipe:
    """The recipe. What a switch chose is measured on a whole engine; if that disagrees, whole engines choose."""
    if isinstance(evaluator, BranchEvaluator):
        chosen = drive(repair(question, findings), lambda plan: rule.loss(evaluator.choose(plan)))
        loss = measure(chosen.plan)
        if question.meets(loss) == chosen.meets:
            return replace(chosen, loss=loss)
    return drive(repair(question, findings), measure)


def _few(layers: int) -> int:
    """About how many plans a bisection with one culprit takes; the bar grows where there are more."""
    return math.ceil(math.log2(max(layers, 2))) + 4
