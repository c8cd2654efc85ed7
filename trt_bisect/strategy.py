"""The ways to search: which driver asks, and which evaluator answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trt_bisect.analyzer.judge import Rule
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.pieces import OnnxRuntimePieces
from trt_bisect.data import Feeds
from trt_bisect.driver.ahead import Either, Rises, drive_ahead
from trt_bisect.driver.bisect import bisect
from trt_bisect.driver.exhaustive import exhaustive
from trt_bisect.driver.recipe import repair
from trt_bisect.driver.search import Findings, Loss, Question, drive
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.evaluator.rebuild import Compare, RebuildEvaluator, TrialStore
from trt_bisect.evaluator.stream import Stream
from trt_bisect.evaluator.tiles import Learned
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import cut
from trt_bisect.model.qdq import Scales
from trt_bisect.model.shapes import facts_for, with_free_batch
from trt_bisect.precision import PrecisionPlan
from trt_bisect.progress import Progress
from trt_bisect.report.assemble import Measured

BRANCH, EXHAUSTIVE, BISECT = "branch", "exhaustive", "bisect"
STRATEGIES = (BRANCH, EXHAUSTIVE, BISECT)
FULL, CULPRITS = "full", "culprits"
CURVES = (FULL, CULPRITS)

MEMORY = 512 << 20
"""Bytes of tensors that the rows of a pass hold together, unless the user says otherwise."""

_BOUNDARIES_AT_ONCE = 9
"""For the culprits alone: full INT8, FP32, and the seven boundaries of three halvings."""


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


def branch_evaluator(
    network: Network,
    builder: OnnxRuntimeBuilder,
    scales: Scales,
    options: BuildOptions,
    inputs: Sequence[Feeds],
    compare: Compare,
    store: TrialStore,
    whole: RebuildEvaluator,
    memory: int,
) -> BranchEvaluator:
    """The evaluator of the strategy ``branch``, on ONNX Runtime."""
    facts = {str({name: array.shape for name, array in feeds.items()}): feeds for feeds in inputs}
    known = {shapes: facts_for(network, feeds) for shapes, feeds in facts.items()}
    of_each = [known[str({name: array.shape for name, array in feeds.items()})] for feeds in inputs]
    free = with_free_batch(network, inputs[0])
    pieces = cut(network, of_each[0])
    piece_builder = OnnxRuntimePieces(network, free, scales, options, builder.provider)
    learned = Learned(free.repaired, dict(free.axes))
    stream = Stream(network, pieces, piece_builder, learned, inputs, of_each, memory)
    return BranchEvaluator(network, pieces, piece_builder, stream, compare, store, whole, options.high)


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
        last = max(plan.int8, default=-1)
        progress.step(names[last] if last >= 0 else "FP32")
        return rule.loss(evaluator.measure(plan))

    if isinstance(evaluator, BranchEvaluator):
        findings = _search_ahead(way.curve, question, evaluator, rule, progress)
    else:
        count = len(question.quantizable)
        progress.stage("Measuring plans", count + 2 if way.strategy == EXHAUSTIVE else _few(count))
        findings = drive((exhaustive if way.strategy == EXHAUSTIVE else bisect)(question), measure)
    progress.stage("Measuring the recipe", None)
    recipe = drive(repair(question, findings), measure)
    trial_of = evaluator.measure
    return Measured(
        findings,
        recipe,
        full=trial_of(question.all_but(())),
        restored=trial_of(recipe.plan),
        nothing=trial_of(question.prefix(-1)),
    )


def _search_ahead(
    curve: str, question: Question, evaluator: BranchEvaluator, rule: Rule, progress: Progress
) -> Findings:
    def measure_all(plans: Sequence[PrecisionPlan]) -> list[Loss]:
        progress.stage(f"Measuring {len(plans)} plans", evaluator.work(plans))
        return [rule.loss(trial) for trial in evaluator.measure_all(plans, progress.step)]

    if curve == CULPRITS:
        return drive_ahead(lambda: bisect(question), measure_all, Either(), _BOUNDARIES_AT_ONCE)
    return drive_ahead(lambda: exhaustive(question), measure_all, Rises(question))


def _few(layers: int) -> int:
    """About how many plans a bisection with one culprit takes; the bar grows where there are more."""
    return math.ceil(math.log2(max(layers, 2))) + 4
