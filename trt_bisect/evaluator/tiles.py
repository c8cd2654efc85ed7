"""A piece run for many rows: stacked in tiles where its batch is proved to be free, else one by one."""

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
"""Of the largest tensor in a tile: larger tiles leave the processor's cache, smaller ones cost more calls."""
MOST_ROWS = 16


@dataclass
class Learned:
    """What is known of a network's pieces, more with every run.

    Attributes:
        repaired: the layers that differ in the network with a free batch.
        axes: along which rows of a tensor are stacked; a guess of shape inference until a piece proved it.
        stackable: by piece and plan, whether its rows can be stacked.
    """

    repaired: frozenset[int]
    axes: dict[str, int | None]
    stackable: dict[tuple[int, str], bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """The rows that run through a piece on one sample.

    Attributes:
        live: the tensors at the boundary before it.
        count: how many rows there are; ``more`` leave the trunk in the piece itself.
        height: how many are stacked, if they can be.
        facts: of the tensors on that sample.
    """

    live: Mapping[str, Leaf]
    count: int
    more: int
    height: int
    facts: TensorFacts


class PieceRows:
    """A piece in one plan for the rows that left the trunk before it."""

    def __init__(self, piece: Piece, plan: PrecisionPlan, builder: PieceBuilder, learned: Learned) -> None:
        self._piece = piece
        self._plan = plan
        self._builder = builder
        self._learned = learned
        self._key = (piece.start, PrecisionPlan(plan.precisions[piece.start : piece.stop]).key())
        self._engine: PieceEngine | None = None
        self._single: PieceEngine | None = None

    def prepare(self, height: int) -> None:
        """Builds what is needed to run ``height`` rows at once.

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
        """The leaves of the piece in every row.

        Raises:
            TrialFailed: the inference failed, also with one row at a time.
        """
        if rows.height > 1 and self._learned.stackable.get(self._key, True):
            try:
                made = self._run_stacked(self._stacked(), rows, pool)
            except TrialFailed:
                made = None
                self._learned.stackable[self._key] = False
            if made is not None:
                return made
        return self._assembled(self._run_one_by_one(rows, pool))

    def _run_one_by_one(self, rows: Rows, pool: Executor) -> _Tiles:
        """Each row alone; without buffers where its shapes are not those that were foreseen."""
        try:
            return self._run_tiles(self._one_row(), 1, rows, pool)
        except TrialFailed:
            return self._run_tiles(self._one_row(), 1, rows, pool, foreseen=False)

    def _run_stacked(self, engine: PieceEngine, rows: Rows, pool: Executor) -> dict[str, Leaf] | None:
        """The leaves, from rows in stacks; None where they cannot be stacked, or nothing shows that they can."""
        reads = self._piece.reads
        if not stackable(rows.live, reads, rows.count):
            return None
        if self._key in self._learned.stackable:
            return self._assembled(self._run_tiles(engine, rows.height, rows, pool))
        last = min(rows.height, rows.count) - 1
        if last < 1 or not differ(rows.live, reads, 0, last):
            return None
        untouched = not self._learned.repaired.intersection(self._piece.layers)
        single = pool.submit((engine if untouched else self._one_row()).run, tile(rows.live, reads, last, last + 1))
        tiles = self._run_tiles(engine, rows.height, rows, pool)
        proved = self._axes(tiles.results[0], single.result(), last + 1)
        self._learned.stackable[self._key] = proved is not None
        if proved is None:
            return None
        self._learned.axes.update(proved)
        return self._assembled(tiles)

    def _axes(self, stacked: Mapping[str, Any], single: Mapping[str, Any], rows: int) -> dict[str, int | None] | None:
        """Along which axis each leaf grows, seen from its last row alone; None where one is no stack of rows."""
        found = {name: stacked_axis(stacked[name], single[name], rows) for name in self._piece.leaves}
        known = {name: axis for name, boxed in found.items() if boxed is not None for axis in boxed}
        return known if len(known) == len(found) else None

    def _run_tiles(
        self, engine: PieceEngine, height: int, rows: Rows, pool: Executor, *, foreseen: bool = True
    ) -> _Tiles:
        """All rows, ``height`` at a time; leaves of known size that grow along the first axis into one buffer each."""
        room = rows.count + rows.more
        known = [name for name in self._piece.leaves if foreseen and rows.facts.shapes.get(name)]
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
    """What a piece gave: for each span of rows its leaves; in ``buffers`` of ``room`` rows where they have one."""

    spans: list[tuple[int, int]]
    results: list[dict[str, Any]]
    buffers: Mapping[str, np.ndarray]
    room: int

    def leaf(self, name: str, axis: int | None) -> Leaf:
        """One leaf in all rows."""
        buffer = self.buffers.get(name)
        if buffer is not None:
            count = self.spans[-1][1]
            return Leaf(axis, [rows_of(buffer, self.room, row, row + 1) for row in range(count)], buffer)
        parts = zip(self.spans, self.results, strict=True)
        return Leaf(axis, [row for (first, stop), part in parts for row in split(part[name], axis, stop - first)])


def tile_rows(piece: Piece, rows: int, workers: int, facts: TensorFacts) -> int:
    """How many rows are stacked: no more than fit into a tile, and no fewer tiles than workers."""
    largest = max((facts.size(name) for name in (*piece.reads, *piece.makes)), default=0)
    fitting = min(MOST_ROWS, TILE_BYTES // max(largest, 1))
    return max(1, min(fitting, -(-rows // workers)))
