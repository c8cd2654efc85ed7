"""The evaluators: ``rebuild``, an engine for each plan; ``branch``, one pass for plans that share a trunk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from trt_bisect.builder.base import Builder, Outputs
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.pieces import EnginePieces, MakeBuilder, PieceBuilder
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.passes import MOST_ROWS, Learned, OnPiece, Pass, Stream, arrange
from trt_bisect.evaluator.trial import PIECES, WHOLE, Attempt, OutputFigures, Trial, TrialKey, TrialStore
from trt_bisect.evaluator.workers import WorkerPool, attempt
from trt_bisect.model.network import Network
from trt_bisect.model.observe import facts_for, with_free_batch
from trt_bisect.model.pieces import PIECE_LAYERS, cut
from trt_bisect.precision import Precision, PrecisionPlan

Compare = Callable[[Sequence[Outputs]], Mapping[str, OutputFigures]]
"""Compares the outputs for every input with the reference; returns the figures of each output."""


class RebuildEvaluator:
    """Builds an engine for each plan and runs the inputs through it; no plan is tried twice."""

    def __init__(
        self,
        network: Network,
        builder: Builder,
        inputs: Sequence[Feeds],
        compare: Compare,
        store: TrialStore,
        high: Precision = Precision.FP32,
        pool: WorkerPool | None = None,
    ) -> None:
        """Prepares the evaluator; nothing is built yet.

        Args:
            inputs: judged together.
            high: the precision of layers that a plan raises, and of those that only follow where the network has no
                base.
            pool: tries plans if several are wanted together; without one they are tried here, one by one.
        """
        self.network = network
        self.builder = builder
        self.inputs = inputs
        self.compare = compare
        self.store = store
        self.high = high
        self._pool = pool
        self._canonical: dict[PrecisionPlan, PrecisionPlan] = {}
        """By plan the one with its followers in the base: large networks take a millisecond for it and for its key."""
        self._known: deque[tuple[PrecisionPlan, Trial]] = deque()

    @property
    def has_workers(self) -> bool:
        """True if there is a pool of workers, and plans can be begun."""
        return self._pool is not None

    @property
    def workers(self) -> int:
        """The number of plans that can be tried at the same time now."""
        return 1 if self._pool is None else self._pool.size

    def canonical(self, plan: PrecisionPlan) -> PrecisionPlan:
        """Returns ``plan`` with the layers that only follow in the base: they have no other precision in any engine."""
        if plan not in self._canonical:
            self._canonical[plan] = self.network.in_base(plan, self.high)
        return self._canonical[plan]

    def measure(self, plan: PrecisionPlan) -> Trial:
        """Returns the trial of ``plan``, from the store if it is there. A failure is an outcome, not an error."""
        plan = self.canonical(plan)
        trial = self.store.find(plan.key())
        return self._kept(attempt(plan, self.builder, self.inputs)) if trial is None else trial

    def measure_all(self, plans: Sequence[PrecisionPlan], on_plan: Callable[[PrecisionPlan], None]) -> list[Trial]:
        """Returns the trial of each plan, measured by all workers; ``on_plan`` is called with each new one."""
        unknown = [plan for plan in dict.fromkeys(map(self.canonical, plans)) if self.store.find(plan.key()) is None]
        if self._pool is None:
            for plan in unknown:
                on_plan(plan)
                self.measure(plan)
        else:
            try:
                for plan in unknown:
                    self.begin(plan)
                for _ in unknown:
                    on_plan(self.ended()[0])
            finally:
                self.abandon()
        return [self.measure(plan) for plan in plans]

    def begin(self, plan: PrecisionPlan) -> None:
        """Begins to measure a plan with the pool; ``ended`` returns its trial, at once if the store has it."""
        assert self._pool is not None
        plan = self.canonical(plan)
        trial = self.store.find(plan.key())
        if trial is None:
            self._pool.begin(plan)
        else:
            self._known.append((plan, trial))

    def ended(self) -> tuple[PrecisionPlan, Trial]:
        """Waits for the next plan to be measured, of those begun; returns it and its trial, which is kept."""
        assert self._pool is not None
        if self._known:
            return self._known.popleft()
        attempted = self._pool.ended()
        return attempted.plan, self._kept(attempted)

    def abandon(self) -> None:
        """Gives up the plans that were begun and have not ended."""
        self._known.clear()
        if self._pool is not None:
            self._pool.abandon()

    def _kept(self, attempted: Attempt) -> Trial:
        trial = attempted.trial
        if not trial.failed:
            trial = trial.judged(self.compare(attempted.outputs))
        self.store.keep(trial)
        return trial


_MOST_PIECES = 125
"""A large network is cut into about so many pieces at most if few of its boundaries are measured: making two sessions
for each piece takes a large part of the time then."""


class BranchEvaluator:
    """Measures plans in passes, and those that fail in one on whole engines.

    Attributes:
        whole: measures on whole engines; its trials are in the same store.
        measured_in: ``PIECES`` where pieces are other engines than the whole, else ``WHOLE``; see ``TrialKey``.
        failures: the messages of passes that broke off.
    """

    def __init__(self, whole: RebuildEvaluator, stream: Stream) -> None:
        """Prepares the evaluator, on a stream of the network and the inputs of ``whole``."""
        self.whole = whole
        self.measured_in = WHOLE if stream.builder.is_exact else PIECES
        self.failures: list[str] = []
        self._stream = stream
        self._nothing = whole.network.plan((), whole.network.base or whole.high)

    @classmethod
    def of(
        cls, whole: RebuildEvaluator, make_builder: MakeBuilder, *, memory: int, few_boundaries: bool
    ) -> BranchEvaluator:
        """Cuts the network of ``whole`` into pieces, and makes its evaluator in passes.

        On ONNX Runtime a piece does exactly what it does in the whole network. Other engines fuse and choose kernels as
        they like: there pieces are as small as can be, and their trials do not stand for those of whole engines.

        Args:
            make_builder: makes the builder of the engines of pieces, where that of ``whole`` is not ONNX Runtime's.
            memory: bytes of tensors that a pass may hold at once.
            few_boundaries: few of the boundaries are measured, in many small passes: a large network is cut into larger
                pieces, and their engines are kept.
        """
        network, builder, inputs = whole.network, whole.builder, whole.inputs
        shapes = [tuple((name, array.shape) for name, array in feeds.items()) for feeds in inputs]
        first_of_shapes = dict(zip(reversed(shapes), reversed(inputs), strict=True))
        facts_of_shapes = {key: facts_for(network, feeds) for key, feeds in first_of_shapes.items()}
        facts = [facts_of_shapes[key] for key in shapes]
        free = with_free_batch(network, inputs[0])
        if isinstance(builder, OnnxRuntimeBuilder):
            size = max(PIECE_LAYERS, len(network.quantizable) // _MOST_PIECES) if few_boundaries else PIECE_LAYERS
            pieces = cut(network, facts[0], size)
            piece_builder: PieceBuilder = builder.pieces(free)
        else:
            pieces = cut(network, facts[0], 1)
            piece_builder = EnginePieces(network, free, facts[0], MOST_ROWS, make_builder)
        learned = Learned(free.repaired, dict(free.axes))
        stream = Stream(network, pieces, piece_builder, learned, inputs, facts, memory, keeps_engines=few_boundaries)
        return cls(whole, stream)

    def measure(self, plan: PrecisionPlan) -> Trial:
        """Returns the trial of a plan on a whole engine, or one that is exactly the same."""
        return self.whole.measure(plan)

    def work(self, plans: Sequence[PrecisionPlan]) -> int:
        """Returns the number of rows that will run through pieces to measure ``plans``, for a progress bar."""
        count = len(self._stream.pieces)
        return sum(count - piece_number for one_pass in self._passes(plans) for piece_number, _ in one_pass.branches)

    def measure_all(self, plans: Sequence[PrecisionPlan], on_piece: OnPiece) -> list[Trial]:
        """Returns the trial of each plan, from the store if it is there.

        If a pass fails, the plans that it did not reach are left to whole engines.
        """
        for one_pass in self._passes(plans):
            try:
                for attempts in self._stream.run(one_pass, on_piece):
                    self.whole.store.keep(*(self._trial(attempted, one_pass) for attempted in attempts))
            except TrialFailed as failure:
                self.failures.append(failure.message)
        return [self._known_in_pass(plan) or self.whole.measure(plan) for plan in plans]

    def _trial(self, attempted: Attempt, one_pass: Pass) -> Trial:
        key = TrialKey(attempted.trial.plan, self.measured_in)
        key = key if one_pass.after == self._nothing else key.in_rows
        trial = replace(attempted.trial, plan=key.text, ran=self._stream.builder.ran(attempted.plan))
        return trial.judged(self.whole.compare(attempted.outputs))

    def _known_in_pass(self, plan: PrecisionPlan) -> Trial | None:
        """Returns the trial of a plan, or None: that of this run first, then one stacked with other rows."""
        key, store = TrialKey(self.whole.canonical(plan).key(), self.measured_in), self.whole.store
        return store.recall(key.text) or store.find(key.in_rows.text) or store.find(key.text)

    def _passes(self, plans: Sequence[PrecisionPlan]) -> list[Pass]:
        unknown = [self.whole.canonical(plan) for plan in plans if self._known_in_pass(plan) is None]
        return arrange(unknown, self._stream.pieces, self._nothing)
