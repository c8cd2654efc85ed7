"""The losses of units alone in low precision, and their gains alone high, on the input that is worst in full INT8."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.recipes.search_space import Batches, MeasuredSets, Sensitivities, Space, saved, sensitivities
from trt_bisect.driver.suspects.search import Result, drive
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.answer.result import Answer

_ALONE_ON = 1
"""The number of inputs on which each unit is measured alone."""


@dataclass
class EachAlone:
    """Measures units alone.

    Attributes:
        plans: measures plans on the inputs given.
        known: the losses and the gains of all units; None until they are measured.
    """

    plans: AnswerPlans
    known: Sensitivities | None = field(default=None, init=False)

    def can_measure(self, space: Space) -> bool:
        """Returns true unless an engine would have to be built for each unit, or there are too many units."""
        return self.plans.switches and not space.has_many

    def sensitivities(self, space: Space, ranges: Ranges) -> Sensitivities | None:
        """Measures all units once; returns None if that cannot be done."""
        if self.known is None and self.can_measure(space):
            self.plans.preparation.progress.stage("Each layer alone", 2 * len(space.units))
            self.known = self._measured(sensitivities(MeasuredSets(space)), ranges)
        return self.known

    def gains(self, answer: Answer, suspects: Collection[int]) -> dict[int, float]:
        """Returns the gains of layers by index: of all, if the search needed them, else of the recipe's and suspects.

        Args:
            answer: the answer; each of its units is one layer.
            suspects: the suspects of the curve, as layer indices.
        """
        space = answer.space
        layers = [layer for (layer,) in space.units]
        if self.known is not None:
            return dict(zip(layers, self.known.gains, strict=True))
        units = [unit for unit, layer in enumerate(layers) if unit in answer.kept or layer in suspects]
        if not units or not self.can_measure(space):
            return {}
        found = self._measured(_gains(MeasuredSets(space), units), answer.experiment.ranges)
        return {layers[unit]: gain for unit, gain in zip(units, found, strict=True)}

    def _measured(self, search: Batches[Result], ranges: Ranges) -> Result:
        worst = self.plans.worst(self.plans.full, ranges)[:_ALONE_ON]
        return drive(search, lambda asked: self.plans.to_the_end(asked, ranges, worst))


def _gains(known: MeasuredSets, units: Sequence[int]) -> Batches[list[float]]:
    full, *without = yield from known.ask([frozenset(), *(frozenset({unit}) for unit in units)])
    return [saved(full, loss) for loss in without]
