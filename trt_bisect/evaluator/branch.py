"""The evaluator ``branch``: plans that share a trunk are measured together, in one pass through the pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trt_bisect.builder.pieces import PieceBuilder
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.passes import Pass, PassResult, Stream, arrange
from trt_bisect.evaluator.rebuild import Compare, RebuildEvaluator, TrialStore
from trt_bisect.evaluator.trial import WHOLE, Trial, TrialKey
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import Piece
from trt_bisect.precision import Precision, PrecisionPlan

OnPiece = Callable[[str, int], None]
"""Called before each piece with the name of its last layer and the number of rows that run through it."""


class BranchEvaluator:
    """Measures plans in passes, and those that fail in one on whole engines.

    Attributes:
        measured_in: ``PIECES`` where pieces are other engines than the whole, else ``WHOLE``; see ``TrialKey``.
        failures: the messages of passes that broke off.
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
        measured_in: str = WHOLE,
    ) -> None:
        """Prepares the evaluator; nothing is built yet.

        Args:
            network: the network to measure.
            pieces: all its layers, cut at boundaries.
            builder: makes the engines of ``stream``.
            stream: runs passes.
            compare: from the outputs for every input to figures.
            store: keeps the trials; the same as the one of ``whole``.
            whole: measures on whole engines.
            high: the precision of layers not in INT8.
            measured_in: see above.
        """
        self.measured_in = measured_in
        self.failures: list[str] = []
        self._network = network
        self._pieces = pieces
        self._builder = builder
        self._stream = stream
        self._compare = compare
        self._store = store
        self.whole = whole
        self._nothing = network.plan((), network.base or high)

    def measure(self, plan: PrecisionPlan) -> Trial:
        """Returns the trial of a plan on a whole engine, or one that is exactly the same."""
        return self.whole.measure(plan)

    def work(self, plans: Sequence[PrecisionPlan]) -> int:
        """Returns the number of rows that will run through pieces to measure ``plans``, for a progress bar."""
        count = len(self._pieces)
        return sum(count - place for one_pass in self._passes(plans) for place, _ in one_pass.branches)

    def measure_all(self, plans: Sequence[PrecisionPlan], on_piece: OnPiece) -> list[Trial]:
        """Returns the trial of each plan, from the store if it is there."""
        for one_pass in self._passes(plans):
            self._measure_pass(one_pass, on_piece)
        return [self._known_in_pass(plan) or self.whole.measure(plan) for plan in plans]

    def _key(self, plan: PrecisionPlan) -> TrialKey:
        return TrialKey(self.whole.canonical(plan).key(), self.measured_in)

    def _known_in_pass(self, plan: PrecisionPlan) -> Trial | None:
        """Returns the trial of a plan, or None: that of this run first, then one stacked with other rows."""
        key = self._key(plan)
        return self._store.recall(key.text) or self._store.find(key.in_rows.text) or self._store.find(key.text)

    def _passes(self, plans: Sequence[PrecisionPlan]) -> list[Pass]:
        unknown = [self.whole.canonical(plan) for plan in plans if self._known_in_pass(plan) is None]
        return arrange(unknown, self._pieces, self._nothing)

    def _measure_pass(self, one_pass: Pass, on_piece: OnPiece) -> None:
        """Keeps the trials of a pass. If it fails, the plans that it did not reach are left to whole engines."""

        def tell(piece: Piece, rows: int) -> None:
            on_piece(self._network.layers[piece.stop - 1].name, rows)

        beside_others = one_pass.after != self._nothing
        try:
            for group in self._stream.run(one_pass, tell):
                self._store.keep(*(self._trial(result, beside_others) for result in group))
        except TrialFailed as failure:
            self.failures.append(failure.message)

    def _trial(self, result: PassResult, beside_others: bool) -> Trial:
        key = TrialKey(result.plan.key(), self.measured_in)
        figures, ran = self._compare(result.outputs), self._builder.ran(result.plan)
        return Trial.judged((key.in_rows if beside_others else key).text, figures, ran, result.cost)
