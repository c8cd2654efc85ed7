"""The plans that a recipe is chosen from: units of layers that are in one of two precisions, and what the higher costs.

A search here asks for many plans at a time, so that they can be measured together, and never for one twice.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field

from trt_bisect.driver.culprits.search import Loss, Result
from trt_bisect.precision import Precision, PrecisionPlan

Kept = frozenset[int]
"""The numbers of the units that are left in the higher precision."""
Batches = Generator[Sequence[PrecisionPlan], Sequence[Loss], Result]


@dataclass(frozen=True)
class Space:
    """What can be chosen.

    Attributes:
        base: the precisions of the layers outside all units.
        units: the layers of each, which move together.
        costs: of leaving a unit high instead of low, each above 0.
        budget: the largest loss that is still good.
        low: the precision that units go to.
        high: the one that they are kept in.
    """

    base: PrecisionPlan
    units: tuple[tuple[int, ...], ...]
    costs: tuple[float, ...]
    budget: float
    low: Precision = Precision.INT8
    high: Precision = Precision.FP32

    @property
    def all(self) -> Kept:
        """Every unit."""
        return frozenset(range(len(self.units)))

    def layers(self, kept: Iterable[int]) -> list[int]:
        """The layers of units."""
        return [layer for unit in kept for layer in self.units[unit]]

    def plan(self, kept: Kept) -> PrecisionPlan:
        """The plan with these units high and the others low."""
        return self.base.keeping(self.layers(self.all - kept), self.low).keeping(self.layers(kept), self.high)

    def cost(self, kept: Iterable[int]) -> float:
        """What leaving these units high costs."""
        return round(math.fsum(self.costs[unit] for unit in kept), 12)

    def price(self, kept: Kept) -> tuple[float, int]:
        """What sets are compared by: the cost, and among equal ones the number of layers."""
        return self.cost(kept), len(self.layers(kept))


@dataclass
class Known:
    """What a search has measured.

    Attributes:
        left: how many more plans it may ask for to find something better than what it has.
        losses: by the units left high; infinite where a plan could not be measured.
    """

    space: Space
    left: int = 0
    losses: dict[Kept, float] = field(default_factory=dict)

    def meets(self, kept: Kept) -> bool:
        """Whether these units left high were measured to be enough."""
        return self.losses[kept] <= self.space.budget

    def ask(self, sets: Iterable[Kept]) -> Batches[list[float]]:
        """Measures the sets that are not known yet, all at once; the loss of each."""
        wanted = list(sets)
        new = [kept for kept in dict.fromkeys(wanted) if kept not in self.losses]
        if new:
            losses = yield [self.space.plan(kept) for kept in new]
            self.losses.update((kept, _or_infinite(loss)) for kept, loss in zip(new, losses, strict=True))
        return [self.losses[kept] for kept in wanted]


@dataclass(frozen=True)
class Alone:
    """The sensitivity of each unit.

    Attributes:
        losses: what it costs alone in the low precision.
        gains: the loss that the plan with all units low is rid of when the unit alone stays high.
    """

    losses: tuple[float, ...]
    gains: tuple[float, ...]


def sensitivities(known: Known) -> Batches[Alone]:
    """Each unit alone low, and alone high."""
    space = known.space
    units = sorted(space.all)
    sets = [space.all, *(space.all - {unit} for unit in units), frozenset(), *(frozenset({unit}) for unit in units)]
    losses = yield from known.ask(sets)
    (none, *alone), (full, *without) = losses[: len(units) + 1], losses[len(units) + 1 :]
    return Alone(tuple(-saved(none, loss) for loss in alone), tuple(saved(full, loss) for loss in without))


def saved(before: float, after: float) -> float:
    """The loss that is gone; between two infinite losses nothing is."""
    return 0.0 if math.isinf(before) and math.isinf(after) else before - after


def _or_infinite(loss: Loss) -> float:
    return math.inf if loss is None or math.isnan(loss) else loss
