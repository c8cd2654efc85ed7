"""A piece run for many rows: stacked in tiles if that is proved to give the same, else one by one."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trt_bisect.builder.pieces import PieceBuilder, PieceEngine
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.rows import Leaf, differ, rows_of, split, stackable, stacked_axis, tile
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.pieces import Piece
from trt_bisect.precision import PrecisionPlan

TILE_BYTES = 2 << 20
"""Bytes of the largest tensor in a tile. Larger tiles leave the processor's cache; smaller ones cost more calls."""
MOST_ROWS = 16


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


@dataclass(frozen=True)
class Rows:
    """The rows that run through a piece on one sample.

    Attributes:
        live: the tensors at the boundary before it.
        count: the number of rows; ``more`` rows leave the trunk in the piece itself.
        height: the number of rows in a stack, if they can be stacked.
        facts: the facts about the tensors on that sample.
    """

    live: Mapping[str, Leaf]
    count: int
    more: int
    height: int
    facts: TensorFacts


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
        """Builds the engine that runs ``height`` rows at once.

        Raises:
            TrialFailed: the build failed.
        """
        if height > 1 and self._learned.stackable.get(self._key, True):
            self._stacked()
        else:
            self._one_row()

    def _stacked(self) -> PieceEngine:
        self._engine = self._engine or self._builder.rows(self._piece, self._plan)
        return self._engine

    def _one_row(self) -> PieceEngine:
        self._single = self._single or self._builder.row(self._piece, self._plan)
        return self._single

    def run(self, rows: Rows, pool: Executor) -> dict[str, Leaf]:
        """Returns the leaves of the piece in every row.

        Raises:
            TrialFailed: the inference failed, also with one row at a time.
        """
        made = self._run_stacked(rows, pool) if rows.height > 1 else None
        return self._run_one_by_one(rows, pool) if made is None else made

    def _run_one_by_one(self, rows: Rows, pool: Executor) -> dict[str, Leaf]:
        """Runs each row alone; without buffers if the outputs have other shapes than expected."""
        try:
            return self._assembled(self._run_tiles(self._one_row(), 1, rows, pool))
        except TrialFailed:
            return self._assembled(self._run_tiles(self._one_row(), 1, rows, pool, buffered=False))

    def _run_stacked(self, rows: Rows, pool: Executor) -> dict[str, Leaf] | None:
        """Runs rows in stacks; returns None if they cannot be stacked, or if nothing proves yet that they can."""
        if not self._learned.stackable.get(self._key, True) or not stackable(rows.live, self._piece.reads, rows.count):
            return None
        try:
            if self._key in self._learned.stackable:
                return self._assembled(self._run_tiles(self._stacked(), rows.height, rows, pool))
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
        if last < 1 or not differ(rows.live, self._piece.reads, 0, last):
            return None
        unchanged = self._learned.repaired.isdisjoint(self._piece.layers)
        engine = self._stacked() if unchanged else self._one_row()
        alone = pool.submit(engine.run, tile(rows.live, self._piece.reads, last, last + 1))
        tiles = self._run_tiles(self._stacked(), rows.height, rows, pool)
        axes = self._axes(tiles.results[0], alone.result(), last + 1)
        self._learned.stackable[self._key] = axes is not None
        if axes is None:
            return None
        self._learned.axes.update(axes)
        return self._assembled(tiles)

    def _axes(self, stacked: Mapping[str, Any], alone: Mapping[str, Any], rows: int) -> dict[str, int | None] | None:
        """Returns the axis along which each leaf grows; None if a leaf is no stack whose last row is that run alone."""
        found = {name: stacked_axis(stacked[name], alone[name], rows) for name in self._piece.leaves}
        known = {name: axis for name, boxed in found.items() if boxed is not None for axis in boxed}
        return known if len(known) == len(found) else None

    def _run_tiles(
        self, engine: PieceEngine, height: int, rows: Rows, pool: Executor, *, buffered: bool = True
    ) -> _Tiles:
        """Runs all rows, ``height`` at a time.

        A leaf of known size that grows along the first axis is written into one buffer for all rows.
        """
        room = rows.count + rows.more
        known = [name for name in self._piece.leaves if buffered and rows.facts.shapes.get(name)]
        buffers = {name: _buffer(rows.facts, name, room) for name in known if self._learned.axes.get(name) == 0}
        spans = [(first, min(first + height, rows.count)) for first in range(0, rows.count, height)]

        def run(span: tuple[int, int]) -> dict[str, Any]:
            into = {name: rows_of(buffer, room, *span) for name, buffer in buffers.items()}
            return engine.run(tile(rows.live, self._piece.reads, *span), into)

        return _Tiles(spans, list(pool.map(run, spans)), buffers, room)

    def _assembled(self, tiles: _Tiles) -> dict[str, Leaf]:
        return {name: tiles.leaf(name, self._learned.axes.get(name)) for name in self._piece.leaves}


def _buffer(facts: TensorFacts, name: str, room: int) -> np.ndarray:
    first, *others = facts.shapes[name]
    return np.empty((room * first, *others), facts.dtypes[name])


@dataclass(frozen=True)
class _Tiles:
    """The leaves of a piece, span of rows by span of rows; some are in ``buffers`` with room for ``room`` rows."""

    spans: list[tuple[int, int]]
    results: list[dict[str, Any]]
    buffers: Mapping[str, np.ndarray]
    room: int

    def leaf(self, name: str, axis: int | None) -> Leaf:
        """Returns one leaf in all rows."""
        buffer = self.buffers.get(name)
        if buffer is not None:
            count = self.spans[-1][1]
            return Leaf(axis, [rows_of(buffer, self.room, row, row + 1) for row in range(count)], buffer)
        parts = zip(self.spans, self.results, strict=True)
        return Leaf(axis, [row for (first, stop), part in parts for row in split(part[name], axis, stop - first)])


def tile_rows(piece: Piece, rows: int, workers: int, facts: TensorFacts) -> int:
    """Returns the number of rows in a stack: no more than fit into a tile, and so few that every worker has a tile."""
    largest = max((facts.size(name) for name in (*piece.reads, *piece.makes)), default=0)
    fitting = min(MOST_ROWS, TILE_BYTES // max(largest, 1))
    return max(1, min(fitting, -(-rows // workers)))
