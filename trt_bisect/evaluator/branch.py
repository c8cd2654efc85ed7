"""The evaluator ``branch``: plans that share a trunk are measured together, in one pass through the pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trt_bisect.builder.pieces import PieceBuilder
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.passes import Pass, arrange
from trt_bisect.evaluator.rebuild import Compare, RebuildEvaluator, TrialStore
from trt_bisect.evaluator.stream import Found, Stream
from trt_bisect.evaluator.switch import SwitchEvaluator
from trt_bisect.evaluator.trial import ROWS, Trial
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import Piece
from trt_bisect.precision import Precision, PrecisionPlan, int8_set

_FAMILY = 4
"""How many plans are worth a pass."""

OnPiece = Callable[[str, int], None]
"""Told, before each piece, the name of its last layer and how many rows run through it."""


class BranchEvaluator:
    """Measures plans in passes; those that fail in one, on whole engines.

    Attributes:
        mark: before a plan's key in the store, where pieces are other engines than the whole is.
        failures: why passes broke off.
        whole: measures on whole engines.
    """

    def __init__(
        self,
        network: Network,
        pieces: Sequence[Piece],
        builder: PieceBuilder,
        stream: Stream,
        compare: Compare,
        store: TrialStore,
        whole: RebuildEvaluator,
        high: Precision,
        switch: SwitchEvaluator | None = None,
        mark: str = "",
    ) -> None:
        """Gets ready; nothing is built yet.

        Args:
            network: what is measured, in ``pieces``.
            pieces: all its layers.
            builder: makes the engines of ``stream``.
            stream: runs passes.
            compare: from the outputs for every input to figures.
            store: where trials are kept; the same as that of ``whole``.
            whole: measures on whole engines.
            high: the precision of layers not in INT8.
            switch: measures any plan, less exactly; None where there is none.
            mark: see above.
        """
        self.mark = mark
        self.failures: list[str] = []
        self._network = network
        self._pieces = pieces
        self._builder = builder
        self._stream = stream
        self._compare = compare
        self._store = store
        self.whole = whole
        self._switch = switch
        self._quantizable = len(network.quantizable)
        self._nothing = int8_set(len(network.layers), (), high)

    def measure(self, plan: PrecisionPlan) -> Trial:
        """The trial of one plan on a whole engine, or what is exactly that."""
        return self.whole.measure(plan)

    def choose(self, plan: PrecisionPlan) -> Trial:
        """A trial of one plan that is good enough to choose by."""
        return self._switch.measure(plan) if self._switch else self.whole.measure(plan)

    def choose_all(self, plans: Sequence[PrecisionPlan], on_plan: Callable[[PrecisionPlan], None]) -> list[Trial]:
        """Trials that are good enough to choose by: whole families of plans in passes, others one by one.

        Args:
            plans: to measure.
            on_plan: told of each that had to be measured.
        """
        family = [plan for plan in dict.fromkeys(plans) if self._recalled(plan) is None and self._one_apart(plan)]
        if len(family) >= _FAMILY:
            new = [plan for plan in family if self._known(plan) is None]
            self.measure_all(family, lambda *_: None)
            for plan in new:
                on_plan(plan)
        unknown = [plan for plan in plans if self._found(plan) is None]
        measured = (self._switch or self.whole).measure_all(unknown, on_plan)
        chosen = dict(zip(unknown, measured, strict=True))
        return [self._found(plan) or chosen[plan] for plan in plans]

    def _found(self, plan: PrecisionPlan) -> Trial | None:
        """The trial of a plan on a whole engine, or else in pieces."""
        return self._store.recall(self.whole.canonical(plan).key()) or self._recalled(plan)

    def _recalled(self, plan: PrecisionPlan) -> Trial | None:
        key = self.whole.canonical(plan).key()
        return self._store.recall(self.mark + key) or self._store.recall(self.mark + ROWS + key)

    def _one_apart(self, plan: PrecisionPlan) -> bool:
        """One layer alone is in INT8, or one alone is not."""
        count = len(self.whole.canonical(plan).int8)
        return count in (1, self._quantizable - 1)

    def work(self, plans: Sequence[PrecisionPlan]) -> int:
        """How many rows will run through pieces to measure ``plans``, for a progress bar."""
        count = len(self._pieces)
        return sum(count - place for job in self._passes(plans) for place, _ in job.branches)

    def measure_all(self, plans: Sequence[PrecisionPlan], on_piece: OnPiece) -> list[Trial]:
        """The trial of each plan, from the store if it is there."""
        for job in self._passes(plans):
            self._measure_pass(job, on_piece)
        return [self._known(plan) or self.whole.measure(plan) for plan in plans]

    def _known(self, plan: PrecisionPlan) -> Trial | None:
        key = self.whole.canonical(plan).key()
        rows = self.mark + ROWS + key
        return self._store.recall(self.mark + key) or self._store.find(rows) or self._store.find(self.mark + key)

    def _passes(self, plans: Sequence[PrecisionPlan]) -> list[Pass]:
        unknown = [self.whole.canonical(plan) for plan in plans if self._known(plan) is None]
        return arrange(unknown, self._pieces, self._nothing)

    def _measure_pass(self, job: Pass, on_piece: OnPiece) -> None:
        """Keeps the trials of a pass; where it fails, the plans that it did not come to are left to whole engines."""

        def tell(piece: Piece, rows: int) -> None:
            on_piece(self._network.layers[piece.stop - 1].name, rows)

        mark = self.mark if job.after == self._nothing else self.mark + ROWS
        try:
            for group in self._stream.run(job, tell):
                self._store.keep(*(self._trial(found, mark) for found in group))
        except TrialFailed as failure:
            self.failures.append(failure.message)

    def _trial(self, found: Found, mark: str) -> Trial:
        figures, ran = self._compare(found.outputs), self._builder.ran(found.plan)
        return Trial.judged(mark + found.plan.key(), figures, ran, found.cost)
