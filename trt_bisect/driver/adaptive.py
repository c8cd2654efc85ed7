"""The adaptive search: boundaries in equal strides, and all boundaries of a stride in which the loss changes.

The idea
    The plan of each boundary costs half an FP32 inference, and a network of 2,000 layers has 2,000 boundaries. Most
    layers change the loss by almost nothing. So only the ends of strides of ``STRIDE`` layers are measured at first,
    and the boundaries inside a stride only if the losses at its ends differ. Where a layer inside turns out to be a
    suspect, it stays high from there on, and the strides behind it are measured again, with it high.

        loss                            x . . . .          suspect at x: high from here on
                                       /
                      . . . . . . . ./
             o-------o-------o-------o-------o-------o     o  an end of a stride, always measured
             |       |       |^^^^^^^|       |  ^^^  |     ^  measured inside: the ends differ,
             stride 0  1       2       3       4              or the stride is one of the sample

    A stride whose inside was not measured is one step of several layers: none of them has a figure of its own.

What always holds
    A suspect was measured on both sides, each alone, with all earlier suspects high: as in the exhaustive search.

    Equal losses at the ends can hide a rise that the layers behind it take back. How much is hidden is measured: one
    stride in ``SAMPLED`` is measured at every boundary in any case. If one of them, or one that was refined, hides a
    rise that is not small, the search begins again and measures every boundary (``is_rough``).

    With more than ``MANY`` boundaries that takes too long, and small errors of thousands of layers make most curves
    rough. There the search begins again only if a stride hides a rise of a suspect's size. The largest smaller one is
    taken for noise: from then on, strides are refined only where the losses at the ends differ by more.

What was tried and dropped
    Other strides (8, 32) and shares, on measured curves: with these no suspect is missed, and larger ones miss some. On
    short and rough networks nothing is saved, so the default up to ``MOST_IN_FULL`` layers is the full curve. Figures:
    ``docs/benchmarks.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from trt_bisect.driver.search import Findings, Loss, LossSoFar, Question, Search, Step, added
from trt_bisect.driver.search_space import Batches
from trt_bisect.precision import PrecisionPlan

STRIDE = 16
"""The number of quantizable layers in a stride."""
SAMPLED = 16
"""Of so many strides one is measured at every boundary in any case."""
SHARE = 0.25
"""Losses differ, and a rise is not small, from this share of the smallest rise of a suspect on.

On measured curves no suspect is missed with these ("Studies" in ``docs/benchmarks.md``).
"""
MANY = 500
"""With more quantizable layers only a hidden rise of a suspect's size makes the search measure every boundary."""
_AFTER_A_SUSPECT = 96
"""The number of plans asked for together after a suspect was found. It doubles until the next one is found."""


def adaptive(question: Question, watched: list[Step] | None = None) -> Batches[Findings]:
    """Finds the suspects of ``exhaustive`` with fewer plans; see above.

    A suspect was measured on both sides, with the suspects before it high. If full INT8 is good there is none, and no
    stride is refined.

    Args:
        watched: steps are added to it as soon as they are settled. If the search begins again, it is emptied.
    """
    walk = _Walk(question, STRIDE, SHARE * question.step, [] if watched is None else watched)
    ahead = walk.ends[1:]
    losses = yield [question.all_but(()), question.prefix(-1), *walk.plans(ahead)]
    full, nothing, losses = losses[0], losses[1], losses[2:]
    walk.begin(full, nothing)
    size = len(ahead)
    while ahead:
        losses_at = dict(zip(ahead, losses, strict=False))
        inside = walk.inside(losses_at)
        if inside:
            losses = yield walk.plans(inside)
            losses_at = dict(sorted({**losses_at, **dict(zip(inside, losses, strict=True))}.items()))
        size = _AFTER_A_SUSPECT if walk.settle(losses_at) else 2 * size
        ahead = [k for k in sorted({*ahead, *inside}) if k > walk.low]
        if walk.is_rough():
            walk.steps.clear()
            walk = _Walk(question, 1, walk.least, walk.steps)
            walk.begin(full, nothing)
            ahead, size = walk.ends[1:], _AFTER_A_SUSPECT
        if ahead:
            losses = yield walk.plans(ahead[:size])
    return Findings(full, tuple(walk.steps), tuple(walk.suspects), tuple(walk.set_aside))


@dataclass
class _Walk:
    """The findings up to a boundary. Boundaries are positions among the quantizable layers; -1 is before the first.

    Attributes:
        stride: the number of layers in a stride.
        least: losses differ, and a rise is not small, from here on.
        judged: full INT8 is not good.
        low: the last settled boundary.
        so_far: the losses of the plans up to it.
        losses: by settled boundary, those of the plans that so_far has.
    """

    question: Question
    stride: int
    least: float
    steps: list[Step]
    judged: bool = True
    low: int = -1
    so_far: LossSoFar = field(default_factory=lambda: LossSoFar.at(None))
    losses: dict[int, float] = field(default_factory=dict)
    suspects: list[int] = field(default_factory=list)
    set_aside: list[int] = field(default_factory=list)

    def begin(self, full: Loss, nothing: Loss) -> None:
        """Takes the losses of full INT8 and of no layer in INT8."""
        self.judged = not self.question.meets(full)
        self.so_far = LossSoFar.at(nothing)
        self.losses[-1] = self.so_far.last

    @cached_property
    def ends(self) -> list[int]:
        """The ends of the strides, ascending."""
        last = len(self.question.quantizable) - 1
        return sorted({*range(-1, last, self.stride), last})

    def plans(self, positions: Sequence[int]) -> list[PrecisionPlan]:
        """The plans of boundaries, with the suspects so far high."""
        return [self._plan(position) for position in positions]

    def _plan(self, position: int) -> PrecisionPlan:
        return self.question.prefix(self.question.quantizable[position], self.suspects + self.set_aside)

    def inside(self, losses_at: Mapping[int, Loss]) -> list[int]:
        """Returns the boundaries to measure: those inside the strides that are to be refined.

        What is behind the first rise of a suspect's size, or behind a failure, is probably measured again.
        """
        inside: list[int] = []
        low, so_far = self.low, self.so_far
        for position, loss in losses_at.items():
            if self._is_refined(position, so_far.last, loss):
                inside += range(low + 1, position)
            if loss is None or added(max(so_far.last, so_far.highest), loss) >= self.question.step:
                break
            low, so_far = position, so_far.then(loss)
        return inside

    def _is_refined(self, end: int, before: float, loss: Loss) -> bool:
        """Returns true if all boundaries of the stride with that end are measured.

        That is so for a sample of the strides, where the losses at the ends differ, and where the second one failed.
        """
        is_sampled = (end // self.stride) % SAMPLED == SAMPLED // 2
        return loss is None or (self.judged and (is_sampled or abs(added(before, loss)) >= self.least))

    def settle(self, losses_at: Mapping[int, Loss]) -> bool:
        """Adds the steps between measured boundaries, up to the first stride that is still to be refined.

        Returns:
            True if it ended before, at a layer that stays high from now on.
        """
        for position, loss in losses_at.items():
            layers = self.question.quantizable[self.low + 1 : position + 1]
            if len(layers) > 1 and self._is_refined(position, self.so_far.last, loss):
                return False
            step = self.so_far.step(layers, loss, self._plan(position))
            step = replace(step, suspect=self.judged and len(layers) == 1 and step.rise >= self.question.step)
            self.steps.append(step)
            self.low = position
            if loss is None or step.suspect:
                (self.set_aside if loss is None else self.suspects).extend(layers)
                return True
            self.so_far = self.so_far.then(loss)
            self.losses[position] = loss
        return False

    def is_rough(self) -> bool:
        """Returns true if a stride hides such a rise that every boundary has to be measured.

        With many boundaries, ``least`` becomes the largest rise that a stride hides.
        """
        rises = (
            added(max(self.losses[low], self.losses[high]), max(self.losses[k] for k in range(low + 1, high)))
            for low, high in pairwise(self.ends)
            if high - low > 1 and all(k in self.losses for k in range(low, high + 1))
        )
        hidden = max(rises, default=0.0) if self.judged else 0.0
        if len(self.question.quantizable) <= MANY:
            return hidden >= self.least
        self.least = max(self.least, hidden)
        return hidden >= self.question.step


def one_at_a_time(search: Batches[Findings]) -> Search[Findings]:
    """Returns the search as one that asks for one plan after another."""
    try:
        plans = next(search)
        while True:
            losses = []
            for plan in plans:
                losses.append((yield plan))
            plans = search.send(losses)
    except StopIteration as end:
        findings: Findings = end.value
        return findings
