"""One pass through the pieces: a trunk on every sample, and rows that leave it and run on to the end.

Of a tensor made in piece m, a row that left the trunk in a piece up to m has a value of its own. All other rows have
the trunk's value. Skip connections need no other rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from trt_bisect.builder.base import Outputs
from trt_bisect.builder.pieces import PieceBuilder, PieceEngine
from trt_bisect.data.feeds import Feeds
from trt_bisect.evaluator.passes import Pass
from trt_bisect.evaluator.rows import Leaf
from trt_bisect.evaluator.tiles import Learned, PieceRows, Rows, tile_rows
from trt_bisect.evaluator.trial import Cost
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import Boundaries, Piece
from trt_bisect.model.session import give_back_arena
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.threads import InThisThread, ThreadsIfLong

Branch = tuple[int, PrecisionPlan]
"""A plan that leaves the trunk, with the number of the piece in which it does."""
OnPiece = Callable[[Piece, int], None]
"""Called with each piece before it runs, and with the number of rows in it."""
_SHARE_OF_TRUNK, _SHARE_OF_ROWS = 4, 2
"""The kept tensors of the trunk and the rows may take such a part of the memory. The allocators need the rest."""


@dataclass(frozen=True)
class PassResult:
    """The outputs of one plan of a pass.

    Attributes:
        plan: the plan.
        outputs: the network's outputs, one dictionary for each sample.
        cost: an equal share of the time of the rows that ran together; their build time is the time that they waited
            for engines.
    """

    plan: PrecisionPlan
    outputs: list[Outputs]
    cost: Cost


@dataclass
class _Sample:
    """One sample at a boundary: the live tensors of a group of rows there, and the outputs made so far."""

    live: dict[str, Leaf]
    results: dict[str, Leaf]


@dataclass(frozen=True)
class _Group:
    """Branches of a pass that run together, and the last piece that the trunk runs through with them.

    Attributes:
        one_pass: the pass.
        branches: the branches in the order of pieces.
        last_trunk: the number of that piece.
        to_the_end: the trunk is one of the plans measured.
    """

    one_pass: Pass
    branches: tuple[Branch, ...]
    last_trunk: int
    to_the_end: bool

    @property
    def plans(self) -> list[PrecisionPlan]:
        """The plans of all rows, in their order."""
        return [plan for _, plan in self.branches] + [self.one_pass.trunk] * self.to_the_end

    def own(self, number: int) -> list[PrecisionPlan]:
        """The branches that leave the trunk in a piece."""
        return [plan for place, plan in self.branches if place == number]

    def before(self, number: int) -> int:
        """The number of branches that leave the trunk in earlier pieces."""
        return sum(place < number for place, _ in self.branches)


@dataclass(frozen=True)
class _Engines:
    """The engines of one piece for one group.

    Attributes:
        number: the number of the piece.
        trunk: the trunk and the branches that leave it here; None behind the last piece that the trunk runs through.
        rows: the rows that left the trunk before; None where there are none.
        earlier: the number of those rows.
        own: the number of branches that leave the trunk here.
    """

    number: int
    trunk: PieceEngine | None
    rows: PieceRows | None
    earlier: int
    own: int


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
            network: the network to run.
            pieces: all its layers, cut at boundaries.
            builder: makes their engines.
            learned: facts about their batch axes, added to as pieces run.
            samples: the inputs.
            facts: the facts about the tensors on each sample.
            memory: the most bytes of tensors that rows and the kept trunk may hold at the same time.
            keeps_engines: keeps the engines of rows for later passes, if weights are at most a quarter of ``memory``.
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
        self._trunks: dict[int, tuple[PrecisionPlan, list[dict[str, Any]]]] = {}
        self._uses: Counter[int] = Counter()
        """By the ``id`` of a kept tensor, the number of boundaries that it is kept for."""
        self._bytes_kept = 0
        """The bytes of these tensors; each counts once."""
        self._kept: dict[tuple[int, PrecisionPlan], PieceRows] = {}
        self._keeps = keeps_engines and 4 * sum(array.nbytes for array in network.weights.values()) <= memory
        self._waited = 0.0

    def run(self, one_pass: Pass, on_piece: OnPiece) -> Iterator[list[PassResult]]:
        """Measures the plans of a pass, in groups whose rows fit into the memory together.

        Raises:
            TrialFailed: a piece could not be built, or its inference failed.
        """
        parts = self._parts(one_pass.branches) or [()]
        with ThreadsIfLong(self._builder.workers) if self._builder.workers > 1 else InThisThread() as pool:
            for part in parts:
                to_the_end = one_pass.trunk_wanted and part is parts[-1]
                last = len(self._pieces) - 1 if to_the_end else part[-1][0]
                give_back_arena()
                yield self._run_group(_Group(one_pass, part, last, to_the_end), pool, on_piece)
        give_back_arena()

    def _parts(self, branches: Sequence[Branch]) -> list[tuple[Branch, ...]]:
        """Splits branches into groups whose rows fit into the memory together; a group has at least one branch."""
        live, inside = np.array(self._bytes_live()), np.array(self._bytes_inside())
        room = self._memory // _SHARE_OF_ROWS
        parts: list[list[Branch]] = []
        own = np.zeros(len(self._pieces), np.int64)
        for branch in branches:
            own[branch[0]] += 1
            if parts and self._most_bytes(own, live, inside) <= room:
                parts[-1].append(branch)
            else:
                parts.append([branch])
                own[:] = 0
                own[branch[0]] = 1
        return [tuple(part) for part in parts]

    def _most_bytes(self, own: np.ndarray, live: np.ndarray, inside: np.ndarray) -> int:
        """Returns the most bytes that the rows of a group hold while one of the pieces runs.

        A branch runs its own piece beside the trunk. Of the rows that left the trunk before, as many run at the same
        time as there are threads.

        Args:
            own: by piece, the number of branches that leave the trunk there.
            live: see ``_bytes_live``.
            inside: see ``_bytes_inside``.
        """
        left = np.cumsum(own)
        running = own + np.minimum(left - own, self._builder.workers)
        return int((left * live + running * inside).max())

    def _bytes_live(self) -> list[int]:
        """The bytes that one row holds while each piece runs: the live tensors before and behind it, on all samples."""
        size, made = self._facts[0].size, self._boundaries.made
        held = [0]
        for piece in self._pieces:
            outputs = {name for name in self._outputs if made.get(name, piece.stop) < piece.stop}
            held.append(sum(size(name) for name in {*self._boundaries.live[piece.stop - 1], *outputs}))
        return [len(self._samples) * (before + behind) for before, behind in pairwise(held)]

    def _bytes_inside(self) -> list[int]:
        """The bytes of the tensors that each piece makes, on one sample."""
        return [sum(map(self._facts[0].size, piece.makes)) for piece in self._pieces]

    def _run_group(self, group: _Group, pool: Executor, on_piece: OnPiece) -> list[PassResult]:
        """Runs one group through all its pieces, and returns the results of its plans."""
        began, self._waited, builds = perf_counter(), 0.0, self._builder.builds
        first, samples = self._start(group)
        for engines in self._engines(group, first, pool):
            on_piece(self._pieces[engines.number], engines.earlier + engines.own)
            for sample, facts in zip(samples, self._facts, strict=True):
                self._run_piece(engines, sample, facts, pool)
            if engines.trunk:
                self._remember(engines.number + 1, group.one_pass.trunk, samples)
        return self._results(group.plans, samples, perf_counter() - began, self._builder.builds - builds)

    def _run_piece(self, engines: _Engines, sample: _Sample, facts: TensorFacts, pool: Executor) -> None:
        """Runs one piece on one sample: the trunk in the pool, and beside it the rows that left it before."""
        piece = self._pieces[engines.number]
        trunk_inputs = {name: sample.live[name].trunk for name in piece.reads}
        trunk_run = pool.submit(engines.trunk.run, trunk_inputs) if engines.trunk else None
        made: dict[str, Leaf] = {}
        if engines.rows:
            height = self._height(piece, engines.earlier)
            made = engines.rows.run(Rows(sample.live, engines.earlier, engines.own, height, facts), pool)
        if engines.trunk and trunk_run:
            self._add_trunk(engines.trunk, trunk_run.result(), piece, made, engines.own)
        self._cross_boundary(sample, piece, made)

    def _results(
        self, plans: Sequence[PrecisionPlan], samples: Sequence[_Sample], seconds: float, builds: int
    ) -> list[PassResult]:
        """The results of plans whose rows are at the end, in the order of rows.

        Args:
            plans: the plans of the rows.
            samples: the samples with the outputs of every row.
            seconds: the time of the group; each plan has the same share.
            builds: engines that were built; the first plan has them all.
        """
        build = self._waited / len(plans)
        infer = seconds / len(plans) - build
        results = []
        for row, plan in enumerate(plans):
            outputs = [self._outputs_of(s, feeds, row) for s, feeds in zip(samples, self._samples, strict=True)]
            results.append(PassResult(plan, outputs, Cost(build, infer, len(outputs), 0 if row else builds)))
        return results

    def _engines(self, group: _Group, first: int, pool: Executor) -> Iterator[_Engines]:
        """The engines of each piece from ``first`` on, each built while the piece before it runs."""
        waiting = pool.submit(self._build, group, first)
        for number in range(first, len(self._pieces)):
            began = perf_counter()
            engines = waiting.result()
            self._waited += perf_counter() - began
            if number + 1 < len(self._pieces):
                waiting = pool.submit(self._build, group, number + 1)
            yield engines

    def _build(self, group: _Group, number: int) -> _Engines:
        """Builds the engines that a piece needs for a group."""
        piece, earlier, own = self._pieces[number], group.before(number), group.own(number)
        trunk = rows = None
        if number <= group.last_trunk:
            trunk = self._builder.trunk(piece, group.one_pass.trunk, own)
        if earlier:
            rows = self._rows(piece, group.one_pass.after)
            rows.prepare(self._height(piece, earlier))
        return _Engines(number, trunk, rows, earlier, len(own))

    def _rows(self, piece: Piece, plan: PrecisionPlan) -> PieceRows:
        """Returns the piece for rows, that of an earlier pass if it was kept."""
        key = (piece.start, plan)
        rows = self._kept.get(key) or PieceRows(piece, plan, self._builder, self._learned)
        if self._keeps:
            self._kept[key] = rows
        return rows

    def _height(self, piece: Piece, rows: int) -> int:
        return tile_rows(piece, rows, self._builder.workers, self._facts[0])

    def _add_trunk(
        self, engine: PieceEngine, outputs: Mapping[str, Any], piece: Piece, made: dict[str, Leaf], own: int
    ) -> None:
        """Adds the trunk's leaves to ``made``, and as new rows the leaves of the ``own`` branches of this piece."""
        for name in piece.leaves:
            leaf = made.setdefault(name, Leaf(self._learned.axes.get(name), []))
            leaf.append([outputs[engine.branch_leaves[place][name]] for place in range(own)])
            leaf.trunk = outputs[engine.leaves[name]]

    def _cross_boundary(self, sample: _Sample, piece: Piece, made: dict[str, Leaf]) -> None:
        """Moves a sample over the boundary behind a piece; tensors that are read no more are dropped."""
        sample.results.update({name: made[name] for name in self._outputs if name in made})
        last_read = self._boundaries.last_read
        alive = {**sample.live, **made}
        sample.live = {name: leaf for name, leaf in alive.items() if last_read.get(name, -1) >= piece.stop}

    def _start(self, group: _Group) -> tuple[int, list[_Sample]]:
        """Returns the piece to begin at, and the samples there.

        It is the latest piece, up to that of the first branch, for which the trunk's tensors are kept; else the first.
        """
        wanted = group.branches[0][0] if group.branches else group.last_trunk
        for number in range(wanted, 0, -1):
            if number in self._trunks and self._is_kept(number, group.one_pass.trunk):
                return number, [self._sample(tensors) for tensors in self._trunks[number][1]]
        return 0, [self._sample(feeds) for feeds in self._samples]

    def _sample(self, tensors: Mapping[str, Any]) -> _Sample:
        leaves = {name: Leaf(self._learned.axes.get(name), [], trunk=value) for name, value in tensors.items()}
        return _Sample(leaves, {name: leaves[name] for name in self._outputs if name in leaves})

    def _remember(self, number: int, trunk: PrecisionPlan, samples: Sequence[_Sample]) -> None:
        """Keeps the tensors of the latest trunk before a piece, for passes that begin there.

        If all that is kept exceeds the trunk's share of the memory, the tensors of other trunks are dropped first, then
        those at the earliest pieces.
        """
        if number < len(self._pieces):
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
        start = self._pieces[number].start
        return self._trunks[number][0].precisions[:start] == trunk.precisions[:start]

    def _outputs_of(self, sample: _Sample, feeds: Feeds, row: int) -> Outputs:
        return {
            name: sample.results[name].row(row)
            if name in sample.results
            else feeds[name]
            if name in feeds
            else self._network.constant(name)
            for name in self._outputs
        }


def _arrays(samples: Sequence[Mapping[str, Any]]) -> Iterator[np.ndarray]:
    """Yields the arrays among the tensors of samples."""
    for tensors in samples:
        yield from (value for value in tensors.values() if isinstance(value, np.ndarray))
