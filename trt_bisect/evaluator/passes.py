"""One pass through the pieces of a network measures many plans.

The idea
    The plans of a curve are much alike: *prefix(7)* and *prefix(8)* are the same up to the eighth layer, and behind it
    both are in high precision. So the network is cut into pieces, and what plans have in common runs once. A pass has a
    *trunk*, a plan that runs through all pieces. Each of its other plans is a *branch*: it is the trunk up to some
    piece, leaves the trunk there, and from the next piece on follows the plan ``after``, which is the same one for all
    branches. ``arrange`` finds such passes among any plans. A *row* is the run of one plan on one sample.

        piece         0        1        2        3
        trunk     ---------+--------+--------+--------    INT8 in every layer
        row 0        '-----+========+========+========    leaves in piece 0
        row 1                 '-----+========+========    leaves in piece 1
        row 2                          '-----+========    leaves in piece 2

    ``-`` runs in the trunk's engine, ``=`` is ``after``. In piece 2 run: the trunk, with row 2 that leaves it there, in
    one engine (``PieceBuilder.trunk``); and rows 0 and 1, which left before, in another one that is ``after`` in this
    piece (``PieceRows``). These are stacked along the batch axis, as many at a time as stay in the processor's cache: a
    tile.

What always holds
    Rows stand in the order of the pieces in which they left the trunk. So the rows that have a value of their own for a
    tensor are the first ones, and all others share the trunk's: that is a ``Leaf``. Of a tensor made in piece m, each
    row that left the trunk in a piece up to m has a value of its own. Skip connections need no other rule.

    Rows are stacked only where that is proved to give what a row gives alone (``Learned``): the last row of the first
    stack is run alone too, and has to be equal up to the noise of float sums. Else rows run one by one. A row that goes
    on in INT8 behind its own piece may still round another way than a whole engine does: such trials have keys of their
    own (``TrialKey.in_rows``).

    The rows of a group fit into their part of the memory together; a pass is split into groups for that. The trunk's
    tensors are kept, and a later pass with the same beginning starts at the last piece for which they are. The engines
    of a piece are built while the piece before it runs.

    A pass that fails breaks off: its results so far count, and the other plans are left to whole engines (``branch``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from trt_bisect.builder.base import Outputs
from trt_bisect.builder.pieces import PieceBuilder, PieceEngine
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.trial import MEASURED, Attempt, Trial
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import Boundaries, Piece
from trt_bisect.model.session import give_back_arena
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.machine import InThisThread, ThreadsIfLong

Branch = tuple[int, PrecisionPlan]
"""A plan that leaves the trunk, with the number of the piece in which it does."""
_Stack = tuple[int, dict[str, Any]]
"""The number of rows that ran through a piece together, and its outputs."""
OnPiece = Callable[[str, int], None]
"""Called before each piece with the name of its last layer and the number of rows that run through it."""
_SHARE_OF_TRUNK, _SHARE_OF_ROWS = 4, 2
"""The kept tensors of the trunk and the rows may take such a part of the memory. The allocators need the rest."""
TILE_BYTES = 2 << 20
"""Bytes of the largest tensor in a tile. Larger tiles leave the processor's cache; smaller ones cost more calls."""
MOST_ROWS = 16
_FLOAT_NOISE = 1e-4


@dataclass(frozen=True)
class Pass:
    """Plans that leave one trunk, in the order of the pieces where they do, and then follow the plan ``after``.

    The trunk itself is one of the plans where ``trunk_wanted`` says so.
    """

    trunk: PrecisionPlan
    after: PrecisionPlan
    branches: tuple[Branch, ...]
    trunk_wanted: bool


def arrange(plans: Sequence[PrecisionPlan], pieces: Sequence[Piece], nothing: PrecisionPlan) -> list[Pass]:
    """Returns the passes that measure ``plans``, those that measure most plans first.

    The trunk is the plan with most layers in INT8, or the one with none. *prefix(k)* leaves an INT8 trunk for high
    precision; *only(k)* leaves a high trunk for one piece; *all but k* leaves an INT8 trunk for one piece. The plan
    ``nothing`` has no layer in INT8.
    """
    unmeasured = list(dict.fromkeys(plans))
    passes: list[Pass] = []
    while unmeasured:
        fullest = max(unmeasured, key=lambda plan: len(plan.lowered))
        trunks = ((fullest, nothing), (fullest, fullest), (nothing, nothing))
        candidates = [_pass(unmeasured, pieces, trunk, after) for trunk, after in trunks]
        best = max(candidates, key=lambda one_pass: len(one_pass.branches) + one_pass.trunk_wanted)
        passes.append(best)
        done = {plan for _, plan in best.branches} | ({best.trunk} if best.trunk_wanted else set())
        unmeasured = [plan for plan in unmeasured if plan not in done]
    return passes


def _pass(plans: Sequence[PrecisionPlan], pieces: Sequence[Piece], trunk: PrecisionPlan, after: PrecisionPlan) -> Pass:
    branches = []
    for plan in plans:
        parting = next((number for number, piece in enumerate(pieces) if not _alike(plan, trunk, piece)), None)
        if parting is not None and all(_alike(plan, after, piece) for piece in pieces[parting + 1 :]):
            branches.append((parting, plan))
    return Pass(trunk, after, tuple(sorted(branches, key=lambda branch: branch[0])), trunk in plans)


def _alike(plan: PrecisionPlan, other: PrecisionPlan, piece: Piece) -> bool:
    return plan.precisions[piece.start : piece.stop] == other.precisions[piece.start : piece.stop]


@dataclass
class Leaf:
    """One tensor in all rows: the first rows have values of their own, all others have the trunk's value.

    Attributes:
        axis: along which rows are stacked; None for a tensor that does not grow with the batch.
        rows: one value for each of the first rows; views of ``buffer`` if there is one.
        buffer: these rows stacked along the first axis.
        trunk: the value in the trunk; None if the trunk ends before this tensor.
    """

    axis: int | None
    rows: list[Any]
    buffer: np.ndarray | None = None
    trunk: Any = None

    def row(self, index: int) -> Any:
        """Returns the value in one row."""
        return self.rows[index] if index < len(self.rows) else self.trunk

    def tile(self, first: int, stop: int) -> Any:
        """Returns the values in rows ``first`` to ``stop - 1``, stacked."""
        if stop - first == 1 or self.axis is None:
            return self.row(first)
        if self.buffer is not None and stop <= len(self.rows):
            size = self.rows[0].shape[0]
            return self.buffer[first * size : stop * size]
        return np.concatenate([self.row(index) for index in range(first, stop)], axis=self.axis)

    def append(self, values: Sequence[Any]) -> None:
        """Adds rows, in the buffer if it has room for them."""
        for value in values:
            row, count = value, len(self.rows)
            if self.buffer is not None and isinstance(value, np.ndarray) and value.ndim == self.buffer.ndim:
                slot = self.buffer[count * value.shape[0] : (count + 1) * value.shape[0]]
                if slot.shape == value.shape and slot.dtype == value.dtype:
                    slot[...] = value
                    row = slot
            if row is value:
                self.buffer = None
            self.rows.append(row)


def buffer_rows(buffer: np.ndarray, room: int, first: int, stop: int) -> np.ndarray:
    """Returns rows ``first`` to ``stop - 1`` of a buffer with room for ``room`` rows stacked along the first axis."""
    size = buffer.shape[0] // room
    return buffer[first * size : stop * size]


def _equal(value: Any, other: Any) -> bool:
    """Returns true if two values are the same, bit for bit; NaN equals NaN."""
    if value is other:
        return True
    if not (isinstance(value, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    return value.dtype == other.dtype and np.array_equal(value, other, equal_nan=value.dtype.kind == "f")


def stackable(leaves: Mapping[str, Leaf], reads: Sequence[str], rows: int) -> bool:
    """Returns true if the inputs of a piece can be stacked: those that do not grow must be the same in every row."""
    fixed = [leaves[name] for name in reads if leaves[name].axis is None]
    return all(_equal(leaf.row(0), leaf.row(row)) for leaf in fixed for row in range(1, rows))


def stacked_axis(stacked: Any, single: Any, rows: int) -> tuple[int | None] | None:
    """Finds the axis along which ``stacked`` is a stack of ``rows`` rows, the last of which is ``single``.

    Returns:
        The axis in a tuple; ``(None,)`` if the tensor does not grow with the batch; None if it is no such stack.
    """
    if not (isinstance(stacked, np.ndarray) and isinstance(single, np.ndarray)):
        return None
    if stacked.ndim != single.ndim or stacked.dtype != single.dtype:
        return None
    if stacked.shape == single.shape:
        return (None,) if _close(stacked, single) else None
    grown = [axis for axis in range(single.ndim) if stacked.shape[axis] != single.shape[axis]]
    if len(grown) != 1 or stacked.shape[grown[0]] != rows * single.shape[grown[0]]:
        return None
    axis, size = grown[0], single.shape[grown[0]]
    last = np.take(stacked, range((rows - 1) * size, rows * size), axis=axis)
    return (axis,) if _close(last, single) else None


def _close(array: np.ndarray, other: np.ndarray) -> bool:
    if array.dtype.kind != "f":
        return np.array_equal(array, other)
    finite = np.isfinite(other)
    if not np.array_equal(array[~finite], other[~finite], equal_nan=True):
        return False
    largest = float(np.abs(other[finite]).max(initial=0.0))
    return bool(np.all(np.abs(array[finite] - other[finite]) <= _FLOAT_NOISE * largest))


def split_rows(stacked: Any, axis: int | None, rows: int) -> list[Any]:
    """Returns the rows of a stack."""
    if axis is None or rows == 1:
        return [stacked] * rows
    if axis == 0:  # ten times as fast as ``np.split``
        return list(stacked.reshape(rows, stacked.shape[0] // rows, *stacked.shape[1:]))
    return np.split(stacked, rows, axis=axis)


@dataclass
class Learned:
    """Facts about the batch axes of a network's tensors and pieces; runs add to them.

    Attributes:
        repaired: the layers that differ in the network with a free batch.
        axes: by tensor, the axis along which its rows are stacked, None if it does not grow; as shape inference
            guesses it until a run proves it.
        stackable: by piece and plan, true if its rows can be stacked, false if not; absent until that is proved.
    """

    repaired: frozenset[int]
    axes: dict[str, int | None]
    stackable: dict[tuple[int, str], bool] = field(default_factory=dict)


@dataclass
class Sample:
    """One sample at a boundary: the live tensors of a group of rows there, and the outputs made so far."""

    feeds: Feeds
    facts: TensorFacts
    live: dict[str, Leaf]
    results: dict[str, Leaf]


@dataclass(frozen=True)
class Rows:
    """The rows that run through a piece on one sample, which is at the boundary before it.

    Attributes:
        count: the number of rows; ``more`` rows leave the trunk in the piece itself.
        height: the number of rows in a stack, if they can be stacked.
    """

    sample: Sample
    count: int
    more: int
    height: int


class PieceRows:
    """Runs a piece in one plan for the rows that left the trunk before it."""

    def __init__(self, piece: Piece, plan: PrecisionPlan, builder: PieceBuilder, learned: Learned) -> None:
        self._piece = piece
        self._plan = plan
        self._builder = builder
        self._learned = learned
        self._key = (piece.start, PrecisionPlan(plan.precisions[piece.start : piece.stop]).key())
        self._engine: PieceEngine | None = None
        self._single: PieceEngine | None = None

    def prepare(self, height: int) -> None:
        """Builds the engine that runs ``height`` rows at once; raises TrialFailed if the build failed."""
        if height > 1 and self._learned.stackable.get(self._key, True):
            self._stacked()
        else:
            self._one_row()

    def _stacked(self) -> PieceEngine:
        self._engine = self._engine or self._builder.rows(self._piece, self._plan)
        return self._engine

    def _one_row(self) -> PieceEngine:
        self._single = self._single or self._builder.trunk(self._piece, self._plan)
        return self._single

    def run(self, rows: Rows, pool: Executor) -> dict[str, Leaf]:
        """Returns the leaves of the piece in every row; raises TrialFailed if it fails with one row at a time too."""
        leaves = self._run_stacked(rows, pool) if rows.height > 1 else None
        if leaves is not None:
            return leaves
        try:
            return self._assembled(*self._run_tiles(self._one_row(), 1, rows, pool))
        except TrialFailed:  # the outputs may have other shapes than expected
            return self._assembled(*self._run_tiles(self._one_row(), 1, rows, pool, buffered=False))

    def _run_stacked(self, rows: Rows, pool: Executor) -> dict[str, Leaf] | None:
        """Runs rows in stacks; returns None if they cannot be stacked, or if nothing proves yet that they can."""
        if not self._learned.stackable.get(self._key, True) or not stackable(
            rows.sample.live, self._piece.reads, rows.count
        ):
            return None
        try:
            if self._key in self._learned.stackable:
                return self._assembled(*self._run_tiles(self._stacked(), rows.height, rows, pool))
            return self._run_and_prove(rows, pool)
        except TrialFailed:
            self._learned.stackable[self._key] = False
            return None

    def _run_and_prove(self, rows: Rows, pool: Executor) -> dict[str, Leaf] | None:
        """Runs rows in stacks for the first time, and notes whether that gives what a row alone gives.

        The last row of the first stack is also run alone. That proves nothing where it equals the first row.

        Returns:
            The leaves; None if nothing can be proved with these rows, or if the outputs are no stacks of rows.
        """
        last = min(rows.height, rows.count) - 1
        read = {name: rows.sample.live[name] for name in self._piece.reads}
        if last < 1 or all(_equal(leaf.row(0), leaf.row(last)) for leaf in read.values()):
            return None
        unchanged = self._learned.repaired.isdisjoint(self._piece.layers)
        engine = self._stacked() if unchanged else self._one_row()
        run_alone = pool.submit(engine.run, {name: leaf.row(last) for name, leaf in read.items()})
        stacks, buffers = self._run_tiles(self._stacked(), rows.height, rows, pool)
        stacked, alone = stacks[0][1], run_alone.result()
        axes = {name: stacked_axis(stacked[name], alone[name], last + 1) for name in self._piece.leaves}
        proved = {name: axis for name, boxed in axes.items() if boxed is not None for axis in boxed}
        self._learned.stackable[self._key] = len(proved) == len(axes)
        if len(proved) < len(axes):
            return None
        self._learned.axes.update(proved)
        return self._assembled(stacks, buffers)

    def _run_tiles(
        self, engine: PieceEngine, height: int, rows: Rows, pool: Executor, *, buffered: bool = True
    ) -> tuple[list[_Stack], dict[str, np.ndarray]]:
        """Runs all rows, ``height`` at a time; returns the stacks, and the buffers that hold leaves of all rows.

        A leaf of known size that grows along the first axis is written into a buffer, which has room for rows to come.
        """
        room, sample, buffers = rows.count + rows.more, rows.sample, dict[str, np.ndarray]()
        for name in self._piece.leaves if buffered else ():
            if sample.facts.shapes.get(name) and self._learned.axes.get(name) == 0:
                first, *others = sample.facts.shapes[name]
                buffers[name] = np.empty((room * first, *others), sample.facts.dtypes[name])

        def run(start: int) -> _Stack:
            stop = min(start + height, rows.count)
            into = {name: buffer_rows(buffer, room, start, stop) for name, buffer in buffers.items()}
            tensors = {name: sample.live[name].tile(start, stop) for name in self._piece.reads}
            return stop - start, engine.run(tensors, into)

        return list(pool.map(run, range(0, rows.count, height))), buffers

    def _assembled(self, stacks: Sequence[_Stack], buffers: Mapping[str, np.ndarray]) -> dict[str, Leaf]:
        """Returns each leaf in all rows."""
        leaves = {}
        for name in self._piece.leaves:
            axis = self._learned.axes.get(name)
            rows = [row for count, outputs in stacks for row in split_rows(outputs[name], axis, count)]
            leaves[name] = Leaf(axis, rows, buffers.get(name))
        return leaves


@dataclass(frozen=True)
class _Engines:
    """The engines of one piece for one group.

    Attributes:
        number: the number of the piece.
        trunk: the trunk and the branches that leave it here; None behind the last piece that the trunk runs through.
        rows: the rows that left the trunk before; None where there are none.
        before: the number of those rows.
        leaving: the number of branches that leave the trunk here.
    """

    number: int
    trunk: PieceEngine | None
    rows: PieceRows | None
    before: int
    leaving: int


class Stream:
    """Runs passes. The trunk's tensors and the facts about pieces are kept from one pass to the next."""

    def __init__(
        self,
        network: Network,
        pieces: Sequence[Piece],
        builder: PieceBuilder,
        learned: Learned,
        samples: Sequence[Feeds],
        facts: Sequence[TensorFacts],
        memory: int,
        *,
        keeps_engines: bool = False,
    ) -> None:
        """Prepares passes.

        Args:
            learned: pieces add to it as they run.
            facts: the facts about the tensors on each sample.
            memory: the most bytes of tensors that rows and the kept trunk may hold at the same time.
            keeps_engines: keeps the engines of rows for later passes, if weights are at most a quarter of ``memory``.
        """
        self._network = network
        self.pieces = pieces
        self.builder = builder
        self._learned = learned
        self._samples = samples
        self._facts = facts
        self._memory = memory
        self._boundaries = Boundaries(network)
        self._outputs = [spec.name for spec in network.outputs]
        self._trunks: dict[int, tuple[PrecisionPlan, list[dict[str, Any]]]] = {}
        self._uses: Counter[int] = Counter()
        """By the ``id`` of a kept tensor, the number of boundaries that it is kept for."""
        self._bytes_kept = 0
        """The bytes of these tensors; each counts once."""
        self._kept: dict[tuple[int, PrecisionPlan], PieceRows] = {}
        self._keeps = keeps_engines and 4 * sum(array.nbytes for array in network.weights.values()) <= memory
        self._waited = 0.0

    def run(self, one_pass: Pass, on_piece: OnPiece) -> Iterator[list[Attempt]]:
        """Measures the plans of a pass, in groups whose rows fit into the memory together.

        Raises:
            TrialFailed: a piece could not be built, or its inference failed.
        """
        groups = self._parts(one_pass.branches) or [[]]
        with ThreadsIfLong(self.builder.workers) if self.builder.workers > 1 else InThisThread() as pool:
            for k, branches in enumerate(groups):
                trunk_ends = one_pass.trunk_wanted and k == len(groups) - 1
                give_back_arena()
                yield self._run_group(one_pass, branches, trunk_ends, pool, on_piece)
        give_back_arena()

    def _parts(self, branches: Sequence[Branch]) -> list[list[Branch]]:
        """Splits branches into groups whose rows fit into the memory together; a group has at least one branch.

        A branch runs its own piece beside the trunk. Of the rows that left the trunk before, as many run at the same
        time as there are threads.
        """
        live, inside = np.array(self._bytes_live()), np.array(self._bytes_inside())
        groups: list[list[Branch]] = []
        leaving = np.zeros(len(self.pieces), np.int64)  # by piece, the number of branches of a group that leave there
        for branch in branches:
            leaving[branch[0]] += 1
            rows = np.cumsum(leaving)
            running = leaving + np.minimum(rows - leaving, self.builder.workers)
            if groups and (rows * live + running * inside).max() <= self._memory // _SHARE_OF_ROWS:
                groups[-1].append(branch)
            else:
                groups.append([branch])
                leaving[:] = 0
                leaving[branch[0]] = 1
        return groups

    def _bytes_live(self) -> list[int]:
        """The bytes that one row holds while each piece runs: the live tensors before and behind it, on all samples."""
        size, made = self._facts[0].size, self._boundaries.made
        held = [0]
        for piece in self.pieces:
            outputs = {name for name in self._outputs if made.get(name, piece.stop) < piece.stop}
            held.append(sum(size(name) for name in {*self._boundaries.live[piece.stop - 1], *outputs}))
        return [len(self._samples) * (before + behind) for before, behind in pairwise(held)]

    def _bytes_inside(self) -> list[int]:
        """The bytes of the tensors that each piece makes, on one sample."""
        return [sum(map(self._facts[0].size, piece.makes)) for piece in self.pieces]

    def _run_group(
        self, one_pass: Pass, branches: Sequence[Branch], trunk_ends: bool, pool: Executor, on_piece: OnPiece
    ) -> list[Attempt]:
        """Runs branches of a pass through all their pieces; returns their plans in the order of rows.

        The plans have equal shares of the time, and the first has all builds. The build time is that for which rows
        waited for engines.

        Args:
            trunk_ends: true if the trunk runs to the end with them and is measured too.
        """
        began, self._waited, builds = perf_counter(), 0.0, self.builder.builds
        last_piece = len(self.pieces) - 1 if trunk_ends else branches[-1][0]
        first, samples = self._start(one_pass.trunk, branches[0][0] if branches else last_piece)
        for engines in self._engines(one_pass, branches, range(first, len(self.pieces)), last_piece, pool):
            last_layer = self._network.layers[self.pieces[engines.number].stop - 1]
            on_piece(last_layer.name, engines.before + engines.leaving)
            for sample in samples:
                self._run_piece(engines, sample, pool)
            if engines.trunk:
                self._remember(engines.number + 1, one_pass.trunk, samples)
        plans = [plan for _, plan in branches] + [one_pass.trunk] * trunk_ends
        build = self._waited / len(plans)
        infer = (perf_counter() - began) / len(plans) - build
        attempts = []
        for row, plan in enumerate(plans):
            outputs = [self._outputs_of(sample, row) for sample in samples]
            built = 0 if row else self.builder.builds - builds
            trial = Trial(plan.key(), MEASURED, {}, {}, "", build, infer, len(samples), built)
            attempts.append(Attempt(plan, trial, outputs))
        return attempts

    def _run_piece(self, engines: _Engines, sample: Sample, pool: Executor) -> None:
        """Runs one piece on one sample: the trunk in the pool, and beside it the rows that left it before.

        The branches of this piece become new rows. Tensors that are read no more are dropped.
        """
        piece, trunk = self.pieces[engines.number], engines.trunk
        trunk_inputs = {name: sample.live[name].trunk for name in piece.reads}
        trunk_run = pool.submit(trunk.run, trunk_inputs) if trunk else None
        leaves: dict[str, Leaf] = {}
        if engines.rows:
            height = self._height(piece, engines.before)
            leaves = engines.rows.run(Rows(sample, engines.before, engines.leaving, height), pool)
        if trunk and trunk_run:
            outputs = trunk_run.result()
            for name in piece.leaves:
                leaf = leaves.setdefault(name, Leaf(self._learned.axes.get(name), []))
                leaf.append([outputs[trunk.branch_leaves[k][name]] for k in range(engines.leaving)])
                leaf.trunk = outputs[trunk.leaves[name]]
        sample.results.update({name: leaves[name] for name in self._outputs if name in leaves})
        last_read, alive = self._boundaries.last_read, {**sample.live, **leaves}
        sample.live = {name: leaf for name, leaf in alive.items() if last_read.get(name, -1) >= piece.stop}

    def _engines(
        self, one_pass: Pass, branches: Sequence[Branch], numbers: range, last_trunk: int, pool: Executor
    ) -> Iterator[_Engines]:
        """Yields the engines of pieces, each built while the piece before it runs."""

        def build(number: int) -> _Engines:
            piece, trunk, rows = self.pieces[number], None, None
            leaving = [plan for leaves_in, plan in branches if leaves_in == number]
            before = sum(leaves_in < number for leaves_in, _ in branches)
            if number <= last_trunk:
                trunk = self.builder.trunk(piece, one_pass.trunk, leaving)
            if before:
                key = (piece.start, one_pass.after)
                rows = self._kept.get(key) or PieceRows(piece, one_pass.after, self.builder, self._learned)
                if self._keeps:
                    self._kept[key] = rows
                rows.prepare(self._height(piece, before))
            return _Engines(number, trunk, rows, before, len(leaving))

        waiting = pool.submit(build, numbers[0])
        for number in numbers:
            began = perf_counter()
            engines = waiting.result()
            self._waited += perf_counter() - began
            if number + 1 in numbers:
                waiting = pool.submit(build, number + 1)
            yield engines

    def _height(self, piece: Piece, rows: int) -> int:
        """Returns the number of rows in a stack: no more than a tile holds, and so few that every worker has a tile."""
        largest = max((self._facts[0].size(name) for name in (*piece.reads, *piece.makes)), default=0)
        fitting = min(MOST_ROWS, TILE_BYTES // max(largest, 1))
        return max(1, min(fitting, -(-rows // self.builder.workers)))

    def _start(self, trunk: PrecisionPlan, latest: int) -> tuple[int, list[Sample]]:
        """Returns the piece to begin at, and the samples there.

        It is the last piece up to ``latest``, that of the first branch, for which the trunk is kept; else the first.
        """
        number = next((n for n in range(latest, 0, -1) if n in self._trunks and self._is_kept(n, trunk)), 0)
        samples, kept = [], self._trunks[number][1] if number else self._samples
        for feeds, facts, tensors in zip(self._samples, self._facts, kept, strict=True):
            leaves = {name: Leaf(self._learned.axes.get(name), [], trunk=value) for name, value in tensors.items()}
            results = {name: leaves[name] for name in self._outputs if name in leaves}
            samples.append(Sample(feeds, facts, leaves, results))
        return number, samples

    def _remember(self, number: int, trunk: PrecisionPlan, samples: Sequence[Sample]) -> None:
        """Keeps the tensors of the latest trunk before a piece, for passes that begin there.

        If all that is kept exceeds the trunk's share of the memory, the tensors of other trunks are dropped first, then
        those at the earliest pieces.
        """
        if number < len(self.pieces):
            tensors = [
                {name: leaf.trunk for name, leaf in {**sample.live, **sample.results}.items()} for sample in samples
            ]
            self._forget(number)
            self._trunks[number] = (trunk, tensors)
            for array in _arrays(tensors):
                self._bytes_kept += 0 if self._uses[id(array)] else array.nbytes
                self._uses[id(array)] += 1
            while len(self._trunks) > 1 and self._bytes_kept > self._memory // _SHARE_OF_TRUNK:
                self._forget(min(self._trunks, key=lambda n: (self._is_kept(n, trunk), n)))

    def _forget(self, number: int) -> None:
        """Drops the trunk's tensors before a piece, if they are kept."""
        for array in _arrays(self._trunks.pop(number)[1]) if number in self._trunks else ():
            self._uses[id(array)] -= 1
            self._bytes_kept -= 0 if self._uses[id(array)] else array.nbytes

    def _is_kept(self, number: int, trunk: PrecisionPlan) -> bool:
        """Returns true if the tensors kept before a piece are those of a trunk."""
        start = self.pieces[number].start
        return self._trunks[number][0].precisions[:start] == trunk.precisions[:start]

    def _outputs_of(self, sample: Sample, row: int) -> Outputs:
        return {
            name: sample.results[name].row(row)
            if name in sample.results
            else sample.feeds[name]
            if name in sample.feeds
            else self._network.constant(name)
            for name in self._outputs
        }


def _arrays(samples: Sequence[Mapping[str, Any]]) -> Iterator[np.ndarray]:
    """Yields the arrays among the tensors of samples."""
    for tensors in samples:
        yield from (value for value in tensors.values() if isinstance(value, np.ndarray))
