"""One pass through the pieces: a trunk on every sample, and rows that leave it and run on to the end.

For a tensor made in piece m, a row that left the trunk in a piece up to m has a value of its own; the others have the
trunk's. That covers skip connections with no case of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from trt_bisect.builder.base import Outputs
from trt_bisect.builder.pieces import PieceBuilder, PieceEngine
from trt_bisect.data import Feeds
from trt_bisect.evaluator.arrange import Pass
from trt_bisect.evaluator.rows import Leaf
from trt_bisect.evaluator.tiles import Learned, PieceRows, Rows, tile_rows
from trt_bisect.evaluator.trial import Cost
from trt_bisect.machine import give_back_memory
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import Boundaries, Piece
from trt_bisect.precision import PrecisionPlan

Branch = tuple[int, PrecisionPlan]
"""A plan that leaves the trunk, with the number of the piece in which it does."""
OnPiece = Callable[[Piece, int], None]
"""Told of each piece before it runs, with the number of rows in it."""


_SHARE_OF_TRUNK = 4
"""One of so many parts of the memory goes to the trunk's tensors, the rest to the rows."""


class InThisThread(Executor):
    """Runs what it is given at once: engines on a GPU belong to the thread that made them."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@dataclass(frozen=True)
class Found:
    """One plan of a pass.

    Attributes:
        outputs: the network's, a dictionary a sample.
        cost: its share of what the rows that ran together took; building is what they waited for engines.
    """

    plan: PrecisionPlan
    outputs: list[Outputs]
    cost: Cost


@dataclass
class _Sample:
    """The tensors that live at the boundary that a group of rows has come to, and the outputs so far."""

    live: dict[str, Leaf]
    results: dict[str, Leaf]


@dataclass(frozen=True)
class _Group:
    """Branches that run together, and how far the trunk runs with them."""

    job: Pass
    branches: tuple[Branch, ...]
    last_trunk: int

    def own(self, number: int) -> list[PrecisionPlan]:
        """The branches that leave the trunk in a piece."""
        return [plan for place, plan in self.branches if place == number]

    def before(self, number: int) -> int:
        """How many left it in the pieces before."""
        return sum(place < number for place, _ in self.branches)


class Stream:
    """Runs passes; what was learned of the pieces in one serves the next."""

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
        """Gets ready.

        Args:
            network: what is run, in ``pieces``.
            pieces: all its layers.
            builder: makes their engines.
            learned: what is known of them.
            samples: the inputs.
            facts: of the tensors on each of them.
            memory: bytes of tensors that the rows of a pass hold together.
            keeps_engines: rows run on the same engines in later passes, if weights are small beside the memory.
        """
        self._network = network
        self._pieces = pieces
        self._builder = builder
        self._learned = learned
        self._samples = samples
        self._facts = facts
        self._memory = memory
        self._boundaries = Boundaries.of(network)
        self._outputs = [spec.name for spec in network.outputs]
        self._trunks: dict[int, tuple[str, list[dict[str, Any]]]] = {}
        self._kept: dict[tuple[int, PrecisionPlan], PieceRows] = {}
        self._keeps = keeps_engines and 4 * sum(array.nbytes for array in network.weights.values()) <= memory
        self._waited = 0.0

    def run(self, job: Pass, on_piece: OnPiece) -> Iterator[list[Found]]:
        """The plans of a pass, in groups that the memory has room for.

        Raises:
            TrialFailed: a piece could not be built, or its inference failed.
        """
        parts = self._parts(job.branches) or [()]
        with ThreadPoolExecutor(self._builder.workers) if self._builder.workers > 1 else InThisThread() as pool:
            for part in parts:
                to_the_end = job.trunk_wanted and part is parts[-1]
                last = len(self._pieces) - 1 if to_the_end else part[-1][0]
                yield self._run_group(_Group(job, part, last), to_the_end, pool, on_piece)
                give_back_memory()

    def _parts(self, branches: Sequence[Branch]) -> list[tuple[Branch, ...]]:
        """The branches in groups whose rows fit into the memory together, at least one in each."""
        held = self._bytes_behind()
        room = self._memory - self._memory // _SHARE_OF_TRUNK
        parts: list[list[Branch]] = []
        rows: list[int] = []
        for branch in branches:
            grown = [count + (branch[0] <= number) for number, count in enumerate(rows)]
            if parts and all(count * size <= room for count, size in zip(grown, held, strict=True)):
                parts[-1].append(branch)
                rows = grown
            else:
                parts.append([branch])
                rows = [int(branch[0] <= number) for number in range(len(self._pieces))]
        return [tuple(part) for part in parts]

    def _bytes_behind(self) -> list[int]:
        """What one row holds at most while a piece runs: what lives before and behind it, on all samples."""
        size, made = self._facts[0].size, self._boundaries.made
        held = [0]
        for piece in self._pieces:
            outputs = {name for name in self._outputs if made.get(name, piece.stop) < piece.stop}
            held.append(sum(size(name) for name in {*self._boundaries.live[piece.stop - 1], *outputs}))
        return [len(self._samples) * (before + behind) for before, behind in pairwise(held)]

    def _run_group(self, group: _Group, to_the_end: bool, pool: Executor, on_piece: OnPiece) -> list[Found]:
        began, self._waited, engines = perf_counter(), 0.0, self._builder.builds
        first, samples = self._start(group)
        for number, (trunk, rows) in self._engines(group, first, pool):
            piece, earlier, own = self._pieces[number], group.before(number), len(group.own(number))
            on_piece(piece, earlier + own)
            for sample, facts in zip(samples, self._facts, strict=True):
                trunk_inputs = {name: sample.live[name].trunk for name in piece.reads}
                meanwhile = pool.submit(trunk.run, trunk_inputs) if trunk else None
                height = self._height(piece, earlier)
                made = rows.run(Rows(sample.live, earlier, own, height, facts), pool) if rows else {}
                if trunk and meanwhile:
                    self._add_trunk(trunk, meanwhile.result(), piece, made, own)
                self._move_on(sample, piece, made)
            if trunk:
                self._remember(number + 1, group.job.trunk, samples)
        plans = [plan for _, plan in group.branches] + [group.job.trunk] * to_the_end
        build = self._waited / len(plans)
        infer = (perf_counter() - began) / len(plans) - build
        found = []
        for row, plan in enumerate(plans):
            outputs = [self._outputs_of(s, feeds, row) for s, feeds in zip(samples, self._samples, strict=True)]
            built = 0 if row else self._builder.builds - engines
            found.append(Found(plan, outputs, Cost(build, infer, len(outputs), built)))
        return found

    def _engines(
        self, group: _Group, first: int, pool: Executor
    ) -> Iterator[tuple[int, tuple[PieceEngine | None, PieceRows | None]]]:
        """The engines of each piece from the first on, each built while the piece before it runs."""

        def build(number: int) -> tuple[PieceEngine | None, PieceRows | None]:
            piece, earlier, trunk = self._pieces[number], group.before(number), None
            if number <= group.last_trunk:
                trunk = self._builder.trunk(piece, group.job.trunk, group.own(number))
            rows = None
            if earlier:
                rows = self._rows(piece, group.job.after)
                rows.prepare(self._height(piece, earlier))
            return trunk, rows

        waiting = pool.submit(build, first)
        for number in range(first, len(self._pieces)):
            began = perf_counter()
            ready = waiting.result()
            self._waited += perf_counter() - began
            if number + 1 < len(self._pieces):
                waiting = pool.submit(build, number + 1)
            yield number, ready

    def _rows(self, piece: Piece, plan: PrecisionPlan) -> PieceRows:
        """The piece for rows, the one of an earlier pass if it was kept."""
        key = (piece.start, plan)
        rows = self._kept.get(key) or PieceRows(piece, plan, self._builder, self._learned)
        if self._keeps:
            self._kept[key] = rows
        return rows

    def _height(self, piece: Piece, rows: int) -> int:
        return tile_rows(piece, rows, self._builder.workers, self._facts[0])

    def _add_trunk(
        self, engine: PieceEngine, found: Mapping[str, Any], piece: Piece, made: dict[str, Leaf], own: int
    ) -> None:
        """Adds the trunk's leaves, and as new rows those of the branches that leave it in this piece."""
        for name in piece.leaves:
            leaf = made.setdefault(name, Leaf(self._learned.axes.get(name), []))
            leaf.append([found[engine.branch_leaves[place][name]] for place in range(own)])
            leaf.trunk = found[engine.leaves[name]]

    def _move_on(self, sample: _Sample, piece: Piece, made: dict[str, Leaf]) -> None:
        """Over the boundary behind a piece; what is not read any more is let go."""
        sample.results.update({name: made[name] for name in self._outputs if name in made})
        last_read = self._boundaries.last_read
        alive = {**sample.live, **made}
        sample.live = {name: leaf for name, leaf in alive.items() if last_read.get(name, -1) >= piece.stop}

    def _start(self, group: _Group) -> tuple[int, list[_Sample]]:
        """The latest piece up to the first branch's before which the trunk's tensors are known, and these."""
        wanted = group.branches[0][0] if group.branches else group.last_trunk
        for number in range(wanted, 0, -1):
            before, known = self._trunks.get(number, ("", []))
            if known and before == self._way_to(number, group.job.trunk):
                return number, [self._sample(tensors) for tensors in known]
        return 0, [self._sample(feeds) for feeds in self._samples]

    def _sample(self, tensors: Mapping[str, Any]) -> _Sample:
        leaves = {name: Leaf(self._learned.axes.get(name), [], trunk=value) for name, value in tensors.items()}
        return _Sample(leaves, {name: leaves[name] for name in self._outputs if name in leaves})

    def _remember(self, number: int, trunk: PrecisionPlan, samples: Sequence[_Sample]) -> None:
        """Keeps the trunk's tensors before a piece, for passes that begin there; those of the latest trunk only.

        Where they take more than their share of the memory, those of other trunks are forgotten, then the first ones.
        """
        if number < len(self._pieces):
            tensors = [
                {name: leaf.trunk for name, leaf in {**sample.live, **sample.results}.items()} for sample in samples
            ]
            self._trunks[number] = (self._way_to(number, trunk), tensors)
            while len(self._trunks) > 1 and self._bytes_remembered() > self._memory // _SHARE_OF_TRUNK:
                del self._trunks[min(self._trunks, key=lambda n: (self._trunks[n][0] == self._way_to(n, trunk), n))]

    def _bytes_remembered(self) -> int:
        """Of the trunk's tensors; one that lives at several boundaries is held once."""
        values = (value for _, known in self._trunks.values() for tensors in known for value in tensors.values())
        return sum({id(value): value.nbytes for value in values if isinstance(value, np.ndarray)}.values())

    def _way_to(self, number: int, trunk: PrecisionPlan) -> str:
        """What a trunk does before a piece."""
        return PrecisionPlan(trunk.precisions[: self._pieces[number].start]).key()

    def _outputs_of(self, sample: _Sample, feeds: Feeds, row: int) -> Outputs:
        return {
            name: sample.results[name].row(row)
            if name in sample.results
            else feeds[name]
            if name in feeds
            else self._network.constant(name)
            for name in self._outputs
        }
