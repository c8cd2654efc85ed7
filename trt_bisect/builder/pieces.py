"""Engines of pieces: a run of layers for one sample with its branches beside it, or for many rows at once.

On ONNX Runtime they are sessions. Those of any other builder, such as TensorRT's, are built once in each precision,
with a free batch.

The two builders of pieces have the same methods, which raise TrialFailed if a build failed. ``trunk`` builds the engine
of the trunk, and of the branches that leave it in this piece, for one sample or row; ``rows`` that of any number of
stacked rows, if shape inference guessed its free batch right; ``ran`` has by layer index the precision that the layer
runs in, as far as it is known. ``builds`` is the number of engines built, ``workers`` that of the threads that may run
them at the same time; ``is_exact`` says that a piece computes exactly what it does in a whole engine.

The engines of pieces have by leaf of the piece the name of the output that holds it: ``leaves`` that of the trunk, and
``branch_leaves`` that of each branch. ``run`` returns the outputs by name; those named in ``into`` are written to its
C-contiguous arrays. It raises TrialFailed if the inference failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_bisect.builder.base import Builder, BuildOptions, Engine, ProfileShapes, precisions_in
from trt_bisect.errors import TrialFailed, first_line
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network
from trt_bisect.model.observe import FreeBatch
from trt_bisect.model.pieces import Piece
from trt_bisect.model.qdq import GraphTarget, PlanWriter, WrittenPiece, sub_network, sub_plan
from trt_bisect.model.quantizer import Scales
from trt_bisect.model.session import CPU, make_session
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.machine import cores

MakeBuilder = Callable[[Network, ProfileShapes], Builder]
"""Makes the builder of a network whose inputs have these shapes."""

Tensors = Mapping[str, Any]
"""Tensors by name; an output may also be a sequence or a map."""


class OnnxRuntimePiece:
    """An ONNX Runtime session of a piece."""

    def __init__(self, written: WrittenPiece, provider: str, threads: int) -> None:
        self._session = make_session(written, provider, threads, one_of_many=True)
        self.leaves: Mapping[str, str] = written.leaves
        self.branch_leaves: Sequence[Mapping[str, str]] = written.branch_leaves
        self._names = [value.name for value in self._session.get_outputs()]

    def run(self, feeds: Tensors, into: Mapping[str, np.ndarray] | None = None) -> dict[str, Any]:
        """Returns the outputs by name; raises TrialFailed if ONNX Runtime fails."""
        try:
            if not into:
                return dict(zip(self._names, self._session.run(self._names, dict(feeds)), strict=True))
            binding = self._session.io_binding()
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array)
            for name in self._names:
                array = into.get(name)
                if array is None:
                    binding.bind_output(name)
                else:
                    binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            self._session.run_with_iobinding(binding)
            values = zip(self._names, binding.get_outputs(), strict=True)
            return {name: into[name] if name in into else value.numpy() for name, value in values}
        except Exception as error:
            raise TrialFailed("inference failed", first_line(error)) from error


class OnnxRuntimePieces:
    """Builds sessions of the pieces of one network, of one thread each."""

    is_exact = True

    def __init__(
        self, network: Network, free: FreeBatch, scales: Scales, options: BuildOptions, provider: str = CPU
    ) -> None:
        """Prepares the sessions; ``free`` is the same network with a free batch axis."""
        self._writer = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME)
        self._free_writer = PlanWriter(free.network, scales, GraphTarget.ONNXRUNTIME)
        self._network = network
        self._provider = provider
        self._threads = options.threads or 1
        self.builds = 0
        self.workers = cores()

    def ran(self, plan: PrecisionPlan) -> Mapping[int, str]:
        """Returns by layer index the precision in the written graph."""
        return precisions_in(self._network, plan)

    def trunk(self, piece: Piece, trunk: PrecisionPlan, branches: Sequence[PrecisionPlan] = ()) -> OnnxRuntimePiece:
        """Builds one session for the trunk and all branches."""
        return self._session(self._writer.write_piece(piece, trunk, branches))

    def rows(self, piece: Piece, plan: PrecisionPlan) -> OnnxRuntimePiece:
        """Builds a session with a free batch."""
        return self._session(self._free_writer.write_piece(piece, plan))

    def _session(self, written: WrittenPiece) -> OnnxRuntimePiece:
        self.builds += 1
        return OnnxRuntimePiece(written, self._provider, self._threads)


@dataclass
class EnginePiece:
    """Engines that read the same tensors: the trunk's, and one for each branch."""

    engine: Engine
    leaves: Mapping[str, str]
    branches: Sequence[Engine] = ()
    branch_leaves: Sequence[Mapping[str, str]] = ()

    def run(self, feeds: Tensors, into: Mapping[str, np.ndarray] | None = None) -> dict[str, Any]:
        """Returns the outputs of all engines; raises TrialFailed if one fails."""
        inputs = {name: np.ascontiguousarray(value) for name, value in feeds.items()}
        outputs: dict[str, Any] = dict(self.engine.infer(inputs))
        for engine, names in zip(self.branches, self.branch_leaves, strict=True):
            made = engine.infer(inputs)
            outputs.update({final: made[leaf] for leaf, final in names.items()})
        for name, array in (into or {}).items():
            array[...] = outputs[name]
            outputs[name] = array
        return outputs


class EnginePieces:
    """Builds the engines of the pieces of one network, and keeps them."""

    is_exact = False

    def __init__(
        self, network: Network, free: FreeBatch, facts: TensorFacts, most_rows: int, make_builder: MakeBuilder
    ) -> None:
        """Prepares the engines; nothing is built yet.

        Args:
            network: cut into pieces.
            free: the same network with a free batch.
            facts: of its tensors on one row.
            most_rows: the most rows that an engine must take at once.
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

    def trunk(self, piece: Piece, trunk: PrecisionPlan, branches: Sequence[PrecisionPlan] = ()) -> EnginePiece:
        """Builds an engine for the trunk, and one for each branch."""
        engine, *engines = (self._engine(piece, plan, stacked=False) for plan in (trunk, *branches))
        leaves = {name: name for name in piece.leaves}
        branch_leaves = [{name: f"{name} in branch {k}" for name in piece.leaves} for k in range(len(branches))]
        return EnginePiece(engine, leaves, engines, branch_leaves)

    def rows(self, piece: Piece, plan: PrecisionPlan) -> EnginePiece:
        """Builds an engine with a free batch."""
        return EnginePiece(self._engine(piece, plan, stacked=True), {name: name for name in piece.leaves})

    def _engine(self, piece: Piece, plan: PrecisionPlan, *, stacked: bool) -> Engine:
        """Returns the engine of a piece; the same for one row and for many if freeing the batch changes no layer."""
        free = stacked or not self._free.repaired.intersection(piece.layers)
        part, variant = sub_plan(plan, piece), (piece.start, free)
        key = (*variant, part.key())
        if key not in self._engines:
            if variant not in self._builders:
                network = self._free.network if free else self._network
                shapes = {name: self._shapes(name, free=free) for name in piece.reads}
                self._builders[variant] = self._make_builder(sub_network(network, piece, self._facts), shapes)
            self._engines[key] = self._builders[variant].build(part)
            self.builds += 1
        return self._engines[key]

    def _shapes(self, name: str, *, free: bool) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        shape, axis = self._facts.shapes[name], self._free.axes.get(name)
        if axis is None or not free:
            return shape, shape, shape
        most = tuple(size * self._most_rows if position == axis else size for position, size in enumerate(shape))
        return shape, most, most


PieceEngine = OnnxRuntimePiece | EnginePiece
PieceBuilder = OnnxRuntimePieces | EnginePieces
