"""Engines of pieces from any builder, as TensorRT's; each piece is built once in each precision, with a free batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_bisect.builder.base import Builder, Engine, ProfileShapes
from trt_bisect.builder.pieces import Tensors
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import Piece
from trt_bisect.model.qdq import sub_network, sub_plan
from trt_bisect.model.shapes import FreeBatch
from trt_bisect.precision import PrecisionPlan

MakeBuilder = Callable[[Network, ProfileShapes], Builder]
"""Makes the builder of a network whose inputs have these shapes."""


@dataclass
class EnginePiece:
    """Engines that read the same tensors: the trunk's, and one for each branch."""

    engine: Engine
    leaves: Mapping[str, str]
    branches: Sequence[Engine] = ()
    branch_leaves: Sequence[Mapping[str, str]] = ()

    def run(self, feeds: Tensors, into: Mapping[str, np.ndarray] | None = None) -> dict[str, Any]:
        """Returns the outputs of all engines; raises TrialFailed if one fails."""
        given = {name: np.ascontiguousarray(value) for name, value in feeds.items()}
        outputs: dict[str, Any] = dict(self.engine.infer(given))
        for engine, names in zip(self.branches, self.branch_leaves, strict=True):
            made = engine.infer(given)
            outputs.update({final: made[leaf] for leaf, final in names.items()})
        for name, array in (into or {}).items():
            array[...] = outputs[name]
            outputs[name] = array
        return outputs


class EnginePieces:
    """Builds the engines of the pieces of one network, and keeps them."""

    def __init__(
        self, network: Network, free: FreeBatch, facts: TensorFacts, most_rows: int, make_builder: MakeBuilder
    ) -> None:
        """Prepares the engines; nothing is built yet.

        Args:
            network: cut into pieces.
            free: the same network with a free batch.
            facts: the shapes and types of its tensors on one row.
            most_rows: the most rows that an engine must take at once.
            make_builder: makes the builders of pieces.
        """
        self._network = network
        self._free = free
        self._facts = facts
        self._most_rows = most_rows
        self._make_builder = make_builder
        self._builders: dict[tuple[int, bool], Builder] = {}
        self._engines: dict[tuple[int, bool, str], Engine] = {}
        self.builds = 0
        self.workers = 1

    def ran(self, plan: PrecisionPlan) -> Mapping[int, str]:  # noqa: ARG002
        """Returns an empty dictionary: the precisions of pieces are not read back."""
        return {}

    def trunk(self, piece: Piece, trunk: PrecisionPlan, branches: Sequence[PrecisionPlan]) -> EnginePiece:
        """Builds an engine for the trunk, and one for each branch."""
        return EnginePiece(
            self._engine(piece, trunk, stacked=False),
            {name: name for name in piece.leaves},
            [self._engine(piece, plan, stacked=False) for plan in branches],
            [{name: f"{name} in branch {place}" for name in piece.leaves} for place in range(len(branches))],
        )

    def rows(self, piece: Piece, plan: PrecisionPlan) -> EnginePiece:
        """Builds an engine with a free batch."""
        return EnginePiece(self._engine(piece, plan, stacked=True), {name: name for name in piece.leaves})

    def row(self, piece: Piece, plan: PrecisionPlan) -> EnginePiece:
        """Builds an engine for one row."""
        return EnginePiece(self._engine(piece, plan, stacked=False), {name: name for name in piece.leaves})

    def _engine(self, piece: Piece, plan: PrecisionPlan, *, stacked: bool) -> Engine:
        """Returns the engine of a piece; the same for one row and for many if freeing the batch changes no layer."""
        free = stacked or not self._free.repaired.intersection(piece.layers)
        part = sub_plan(plan, piece)
        key = (piece.start, free, part.key())
        if key not in self._engines:
            self._engines[key] = self._builder(piece, free=free).build(part)
            self.builds += 1
        return self._engines[key]

    def _builder(self, piece: Piece, *, free: bool) -> Builder:
        key = (piece.start, free)
        if key not in self._builders:
            whole = self._free.network if free else self._network
            shapes = {name: self._shapes(name, free=free) for name in piece.reads}
            self._builders[key] = self._make_builder(sub_network(whole, piece, self._facts), shapes)
        return self._builders[key]

    def _shapes(self, name: str, *, free: bool) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        shape, axis = self._facts.shapes[name], self._free.axes.get(name)
        if axis is None or not free:
            return shape, shape, shape
        most = tuple(size * self._most_rows if place == axis else size for place, size in enumerate(shape))
        return shape, most, most
