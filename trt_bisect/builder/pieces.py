"""Engines of pieces: a run of layers for one sample with its branches beside it, or for many rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import precisions_in
from trt_bisect.errors import TrialFailed, first_line
from trt_bisect.machine import cores
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import Piece
from trt_bisect.model.qdq import PlanWriter, Scales, Target, WrittenPiece
from trt_bisect.model.session import CPU, make_session
from trt_bisect.model.shapes import FreeBatch
from trt_bisect.precision import PrecisionPlan

Tensors = Mapping[str, Any]
"""Tensors by name; an output may also be a sequence or a map."""


class PieceEngine(Protocol):
    """A piece that can be run.

    Attributes:
        leaves: by leaf of the piece, the engine's output that holds it.
        branch_leaves: the same for each branch.
    """

    leaves: Mapping[str, str]
    branch_leaves: Sequence[Mapping[str, str]]

    def run(self, feeds: Tensors, into: Mapping[str, np.ndarray] | None = None) -> dict[str, Any]:
        """The engine's outputs by name; those that ``into`` names are written to its arrays, C-contiguous.

        Raises:
            TrialFailed: the inference failed.
        """
        ...


class PieceBuilder(Protocol):
    """Makes engines of the pieces of one network.

    Attributes:
        builds: how many engines were built.
        workers: how many threads may run them at once.
    """

    builds: int
    workers: int

    def ran(self, plan: PrecisionPlan) -> Mapping[int, str]:
        """By layer index, what is known of the precision that each layer runs in."""
        ...

    def trunk(self, piece: Piece, trunk: PrecisionPlan, branches: Sequence[PrecisionPlan]) -> PieceEngine:
        """The engine of the trunk and of the branches that leave it in this piece, for one sample.

        Raises:
            TrialFailed: the build failed.
        """
        ...

    def rows(self, piece: Piece, plan: PrecisionPlan) -> PieceEngine:
        """The engine of a piece for any number of stacked rows, if its batch is as free as it was guessed to be.

        Raises:
            TrialFailed: the build failed.
        """
        ...

    def row(self, piece: Piece, plan: PrecisionPlan) -> PieceEngine:
        """The engine of a piece for one row.

        Raises:
            TrialFailed: the build failed.
        """
        ...


class OnnxRuntimePiece:
    """A session of a piece."""

    def __init__(self, written: WrittenPiece, provider: str, threads: int, *, arena: bool) -> None:
        self._session = make_session(written, provider, threads, one_of_many=arena, arena=arena)
        self.leaves: Mapping[str, str] = written.leaves
        self.branch_leaves: Sequence[Mapping[str, str]] = written.branch_leaves
        self._names = [value.name for value in self._session.get_outputs()]

    def run(self, feeds: Tensors, into: Mapping[str, np.ndarray] | None = None) -> dict[str, Any]:
        """The outputs; raises TrialFailed where ONNX Runtime does."""
        try:
            if not into:
                return dict(zip(self._names, self._session.run(self._names, dict(feeds)), strict=True))
            return self._run_into(feeds, into)
        except Exception as error:
            raise TrialFailed("inference failed", first_line(error)) from error

    def _run_into(self, feeds: Tensors, into: Mapping[str, np.ndarray]) -> dict[str, Any]:
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name in self._names:
            if name in into:
                array = into[name]
                binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            else:
                binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        values = zip(self._names, binding.get_outputs(), strict=True)
        return {name: into[name] if name in into else value.numpy() for name, value in values}


class OnnxRuntimePieces:
    """Sessions of the pieces of one network, one thread each."""

    def __init__(
        self,
        network: Network,
        free: FreeBatch,
        scales: Scales,
        options: BuildOptions,
        provider: str = CPU,
        *,
        arena: bool = True,
    ) -> None:
        """Gets ready.

        Args:
            network: whose pieces are run.
            free: the same with a free batch.
            scales: of the activations.
            options: how engines are built.
            provider: ONNX Runtime's execution provider.
            arena: sessions keep the memory of an inference for the next one.
        """
        self._own = PlanWriter(network, scales, Target.ONNXRUNTIME)
        self._free = PlanWriter(free.network, scales, Target.ONNXRUNTIME)
        self._network = network
        self._provider = provider
        self._threads = options.threads or 1
        self._arena = arena
        self.builds = 0
        self.workers = cores()

    def ran(self, plan: PrecisionPlan) -> Mapping[int, str]:
        """As the graph is written."""
        return precisions_in(self._network, plan)

    def trunk(self, piece: Piece, trunk: PrecisionPlan, branches: Sequence[PrecisionPlan]) -> OnnxRuntimePiece:
        """One session for all."""
        return self._session(self._own.write_piece(piece, trunk, branches))

    def rows(self, piece: Piece, plan: PrecisionPlan) -> OnnxRuntimePiece:
        """A session without a fixed batch."""
        return self._session(self._free.write_piece(piece, plan))

    def row(self, piece: Piece, plan: PrecisionPlan) -> OnnxRuntimePiece:
        """A session of the piece as it stands in the network."""
        return self._session(self._own.write_piece(piece, plan))

    def _session(self, written: WrittenPiece) -> OnnxRuntimePiece:
        self.builds += 1
        return OnnxRuntimePiece(written, self._provider, self._threads, arena=self._arena)
