"""What all drivers share: the question, the steps they measured, and how they are run."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from trt_bisect.precision import Precision, PrecisionPlan, int8_set

Loss = float | None
Result = TypeVar("Result")
Search = Generator[PrecisionPlan, Loss, Result]


@dataclass(frozen=True)
class Question:
    """The network as a driver sees it, and what is tolerated.

    Attributes:
        layers: how many.
        quantizable: the indices of those that can run in INT8, ascending.
        budget: the largest loss that is still good.
        step: the least loss that makes a layer a culprit.
        high: the precision of layers not in INT8.
    """

    layers: int
    quantizable: tuple[int, ...]
    budget: float
    step: float
    high: Precision = Precision.FP32

    def prefix(self, k: int, kept: Iterable[int] = ()) -> PrecisionPlan:
        """The quantizable layers 0..k in INT8 but those ``kept`` high."""
        out = frozenset(kept)
        return int8_set(self.layers, (i for i in self.quantizable if i <= k and i not in out), self.high)

    def all_but(self, kept: Iterable[int]) -> PrecisionPlan:
        """Every quantizable layer in INT8 but those ``kept`` high."""
        return self.prefix(self.layers - 1, kept)

    def meets(self, loss: Loss) -> bool:
        """Whether a plan with that loss was measured and is good."""
        return loss is not None and loss <= self.budget


@dataclass(frozen=True)
class Step:
    """What moving layers to INT8 cost, measured on both sides.

    Attributes:
        layers: the layers between the two plans; one, unless the plans between could not be measured.
        before: the loss with none of them in INT8.
        loss: the loss with all of them in INT8; None if that plan could not be measured.
        plan: that plan.
        culprit: its rise is at least the question's step.
        highest: the largest loss of the plans that stood before (see ``Standing``).
    """

    layers: tuple[int, ...]
    before: float
    loss: Loss
    plan: PrecisionPlan
    culprit: bool = False
    highest: float = -math.inf

    @property
    def drop(self) -> float:
        """The loss that the step adds to the plan before it; NaN where it could not be measured."""
        return math.nan if self.loss is None else added(self.before, self.loss)

    @property
    def rise(self) -> float:
        """The loss that the step adds to the largest before it; NaN where it could not be measured."""
        return math.nan if self.loss is None else added(max(self.before, self.highest), self.loss)


@dataclass(frozen=True)
class Findings:
    """What a search found.

    Attributes:
        full: the loss with every quantizable layer in INT8; None if that could not be measured.
        steps: in the order of layers.
        culprits: their indices, ascending.
        set_aside: layers kept high because no plan with them in INT8 could be measured where they were judged.
    """

    full: Loss
    steps: tuple[Step, ...]
    culprits: tuple[int, ...]
    set_aside: tuple[int, ...]

    @classmethod
    def so_far(cls, full: Loss, steps: Sequence[Step]) -> Findings:
        """What a search has found that is not at its end, by the steps that it settled."""
        alone = [step for step in steps if step.culprit and len(step.layers) == 1]
        aside = [step for step in steps if step.loss is None or (step.culprit and len(step.layers) > 1)]
        culprits, set_aside = (tuple(k for step in found for k in step.layers) for found in (alone, aside))
        return cls(full, tuple(steps), culprits, set_aside)

    def decided_by(self, other: Findings) -> Findings:
        """What the ``other`` findings say; where they settled no single layer, the steps of these, innocent now."""
        steps = {step.layers[-1]: replace(step, culprit=False) for step in self.steps}
        steps |= {step.layers[-1]: step for step in other.steps if step.culprit or step.loss is None}
        return replace(other, steps=tuple(steps[last] for last in sorted(steps)))


def added(before: float, after: float) -> float:
    """The loss added; between two infinite losses nothing is."""
    return 0.0 if math.isinf(before) and math.isinf(after) else after - before


@dataclass(frozen=True)
class Standing:
    """The losses of the plans that stand: those without the culprits and what was set aside.

    Losses dip where roundings cancel. A layer that only takes such a dip away adds nothing that was not there before:
    it is held against the largest loss, not against the last. An infinite one is nothing to compare with, once a finite
    one was measured.

    Attributes:
        last: of the plan before the next layer.
        highest: the largest so far.
    """

    last: float
    highest: float

    @classmethod
    def at(cls, loss: Loss) -> Standing:
        """The beginning: the loss with nothing in INT8, 0 where that could not be measured."""
        return cls(loss or 0.0, loss or 0.0)

    def then(self, loss: float) -> Standing:
        """One more plan stands."""
        return Standing(loss, loss if math.isinf(self.highest) else max(self.highest, loss))

    def step(self, layers: tuple[int, ...], loss: Loss, plan: PrecisionPlan) -> Step:
        """The next layers in INT8, and what that cost."""
        return Step(layers, self.last, loss, plan, highest=self.highest)


def drive(search: Search[Result], measure: Callable[[PrecisionPlan], Loss]) -> Result:
    """Runs a search to its end with ``measure`` as the evaluator and judge."""
    try:
        plan = next(search)
        while True:
            plan = search.send(measure(plan))
    except StopIteration as end:
        result: Result = end.value
        return result
