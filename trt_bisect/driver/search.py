from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from trt_bisect.precision import Precision, PrecisionPlan, low_set

Loss = float | None
Result = TypeVar("Result")
Search = Generator[PrecisionPlan, Loss, Result]


@dataclass(frozen=True)
class Question:
    """A network as a driver sees it, and the losses that are tolerated.

    Attributes:
        quantizable: indices of layers that can be low and that the user did not fix, ascending.
        budget: largest loss that meets the threshold.
        step: smallest rise of the loss that makes a layer a suspect.
        high: precision of layers that a plan keeps high.
        fixed: by layer, the precision that the user fixed.
        base: the precision of layers that are neither low nor kept high; None if it is ``high``.
    """

    layers: int
    quantizable: tuple[int, ...]
    budget: float
    step: float
    high: Precision = Precision.FP32
    low: Precision = Precision.INT8
    fixed: Mapping[int, Precision] = field(default_factory=dict)
    base: Precision | None = None

    @property
    def rest(self) -> Precision:
        """The precision of layers that are neither low nor kept high."""
        return self.base or self.high

    def prefix(self, k: int, kept: Iterable[int] = ()) -> PrecisionPlan:
        """Returns the plan with the quantizable layers up to index ``k`` in ``low``, except the layers ``kept``, in
        ``high``; fixed layers keep their precision, all others have the base precision.
        """
        out = frozenset(kept)
        plan = low_set(self.layers, (i for i in self.quantizable if i <= k and i not in out), self.rest, self.low)
        plan = plan if self.rest is self.high else plan.keeping((i for i in out if i <= k), self.high)
        if not self.fixed:
            return plan
        return replace(plan, precisions=tuple(self.fixed.get(i, planned) for i, planned in enumerate(plan.precisions)))

    def all_but(self, kept: Iterable[int]) -> PrecisionPlan:
        """Returns the plan with every quantizable layer in ``low``, except the layers ``kept``, in ``high``."""
        return self.prefix(self.layers - 1, kept)

    def meets(self, loss: Loss) -> bool:
        """Returns true if a plan with this loss was measured and meets the threshold."""
        return loss is not None and loss <= self.budget


@dataclass(frozen=True)
class Step:
    """Layers that move to INT8 together, and the losses before and after.

    Attributes:
        layers: their indices: several if no plan with only some of them in INT8 could be measured, or if none of them
            is a suspect.
        before, loss: the losses before and after; ``loss`` is None if ``plan``, after the step, could not be measured.
        suspect: the loss rises enough to make the layer a suspect.
        highest: largest loss of all steps before.
    """

    layers: tuple[int, ...]
    before: float
    loss: Loss
    plan: PrecisionPlan
    suspect: bool = False
    highest: float = -math.inf

    @property
    def drop(self) -> float:
        """The loss after the step less the loss before it; NaN if not measured."""
        return math.nan if self.loss is None else added(self.before, self.loss)

    @property
    def rise(self) -> float:
        """The loss after the step less the largest loss before it; NaN if not measured."""
        return math.nan if self.loss is None else added(max(self.before, self.highest), self.loss)


@dataclass(frozen=True)
class Findings:
    """The result of a search for suspects.

    Attributes:
        full: loss of full INT8; None if it could not be measured.
        suspects: indices of the suspects, ascending.
        set_aside: layers kept high because no plan with them in INT8 could be measured; and those of steps of several
            layers that are suspects only together.
    """

    full: Loss
    steps: tuple[Step, ...]
    suspects: tuple[int, ...]
    set_aside: tuple[int, ...]

    @classmethod
    def so_far(cls, full: Loss, steps: Sequence[Step]) -> Findings:
        """Returns the findings of an unfinished search from the steps decided so far."""
        alone = [step for step in steps if step.suspect and len(step.layers) == 1]
        aside = [step for step in steps if step.loss is None or (step.suspect and len(step.layers) > 1)]
        suspects, set_aside = (tuple(k for step in group for k in step.layers) for group in (alone, aside))
        return cls(full, tuple(steps), suspects, set_aside)


def added(before: float, after: float) -> float:
    """Returns ``after`` less ``before``; 0 if both are infinite."""
    return 0.0 if math.isinf(before) and math.isinf(after) else after - before


@dataclass(frozen=True)
class LossSoFar:
    """The last and the largest loss on the curve so far, of plans with the suspects found so far in high precision.

    Losses can fall where roundings cancel. Each loss is compared with the largest before it, so a layer after which the
    loss only rises back is no suspect.
    """

    last: float
    highest: float

    @classmethod
    def at(cls, loss: Loss) -> LossSoFar:
        """Returns the losses at the start, from the loss of the plan with no layer in INT8; None counts as 0."""
        return cls(loss or 0.0, loss or 0.0)

    def then(self, loss: float) -> LossSoFar:
        """Returns the losses so far, with the loss of one more plan, which made no layer a suspect."""
        return LossSoFar(loss, loss if math.isinf(self.highest) else max(self.highest, loss))

    def step(self, layers: tuple[int, ...], loss: Loss, plan: PrecisionPlan) -> Step:
        """Returns the curve's next step: it moves ``layers`` to INT8; ``plan`` is the plan after it, with this loss."""
        return Step(layers, self.last, loss, plan, highest=self.highest)


def drive(search: Search[Result], measure: Callable[[PrecisionPlan], Loss]) -> Result:
    """Runs a search to its end and returns its result; ``measure`` returns the loss of a plan."""
    try:
        request = next(search)
        while True:
            request = search.send(measure(request))
    except StopIteration as end:
        result: Result = end.value
        return result


def next_plans(search: Search[Any], losses: Mapping[PrecisionPlan, Loss], count: int) -> list[PrecisionPlan]:
    """Returns the plans, at most ``count``, that a search would ask for next and that are unmeasured, if each of them
    had the same loss as the plan before.

    The search must not have begun; ``losses`` has the measured losses by plan.
    """
    assumed = dict(losses)
    plans: list[PrecisionPlan] = []
    last = 0.0
    with suppress(StopIteration):
        plan = next(search)
        while len(plans) < count:
            if plan not in assumed:
                plans.append(plan)
                assumed[plan] = last
            loss = assumed[plan]
            last = last if loss is None else loss
            plan = search.send(loss)
    return plans
