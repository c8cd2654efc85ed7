"""The price of plans in predicted time: what each layer costs high, what a plan gives up, and what a report says.

A price is a share of the low precision's gain in speed: the plan with all layers low costs 0, the one in the base 1.
The price of a layer is that of the plan in which it alone is high, with the reformats that it brings. The price of a
plan is that of its own engine: two neighbours share reformats, so that a plan can cost less than its layers do.

**A profile** of an engine of the network corrects the model. A kernel of a plan takes its predicted time, times the
ratio of measured to predicted time of the engine's kernels with the same layers. In another precision than the engine's
it is the root of that ratio: half of an error belongs to the layer's shape, half to the kernel that was taken. A
reformat has the ratio of the engine's reformats, and what the engine does not name has the ratio of the whole engine.

In large networks (``MOST_LAYERS``) an engine for each layer would take too long to model. There, a layer costs what its
own kernel takes longer, and a plan the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trt_bisect.model.cost import NEARLY_FREE
from trt_bisect.model.gpu_time import Gpu, Kernel, Kind, Predicted, ranged, seconds
from trt_bisect.model.kernels import EngineModel
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision, PrecisionPlan

MOST_LAYERS = 1000
"""The price of a plan takes some 4 ms there, and a search asks for thousands."""
_NO_GAIN = 0.05
"""Prices are shares of at least this share of the low precision's time, where its predicted gain is less."""


@dataclass(frozen=True)
class TimedKernel:
    """A kernel and its predicted time.

    Attributes:
        name: of the layers in it, or of the tensor that it changes.
        ms: its predicted milliseconds.
    """

    name: str
    ms: float


class TimePrices:
    """The prices of plans of a network on a GPU.

    Args:
        network: prepared.
        facts: the shapes and types of its tensors.
        gpu: the GPU; the engines of a recipe are built with TF32 off.
        base: the precision over which the gain in speed is counted.
        profile: the kernels of an engine of the network that was measured on the GPU, and the seconds of each.
    """

    def __init__(
        self,
        network: Network,
        facts: TensorFacts,
        gpu: Gpu,
        base: Precision,
        profile: Sequence[tuple[Kernel, float]] = (),
    ) -> None:
        self.network, self.gpu, self._base, self._profile = network, gpu.without_tf32, base, profile
        self.engine = EngineModel(network, facts)
        self.full = network.free_plan(network.quantizable)
        self._known: dict[PrecisionPlan, float] = {}
        self._timed: dict[Kernel, float] = {}

    def seconds(self, plan: PrecisionPlan) -> float:
        """The predicted time of a plan."""
        if plan not in self._known:
            self._known[plan] = math.fsum(map(self._seconds_of, self.engine.kernels(plan)))
        return self._known[plan]

    def _seconds_of(self, kernel: Kernel) -> float:
        if kernel not in self._timed:
            self._timed[kernel] = seconds(kernel, self.gpu) * self._ratio(kernel)
        return self._timed[kernel]

    def _ratio(self, kernel: Kernel) -> float:
        """The measured time of a kernel for its predicted one, as the profile has it."""
        if not self._profile:
            return 1.0
        inside, product = frozenset(kernel.layers), kernel.product
        alike = [one for one in self._profile if not inside.isdisjoint(one[0].layers)]
        if kernel.kind is Kind.REFORMAT:
            alike = [one for one in self._profile if one[0].kind is Kind.REFORMAT]
        parts = alike or self._profile
        ratio = math.fsum(taken for _, taken in parts) / math.fsum(seconds(part, self.gpu) for part, _ in parts)
        types = {part.product.precision for part, _ in parts if part.product}
        return ratio if product is None or product.precision in types else math.sqrt(ratio)

    def in_all(self, precision: Precision) -> PrecisionPlan:
        """The plan with every layer in one precision, a float type."""
        return PrecisionPlan((precision,) * len(self.network.layers), self.network.low.precision)

    @cached_property
    def _gain(self) -> float:
        least = self.seconds(self.full)
        return max(self.seconds(self.in_all(self._base)) - least, _NO_GAIN * least)

    def price(self, plan: PrecisionPlan) -> float:
        """The share of the gain in speed that a plan gives up; 0 for a plan that is predicted to be no slower."""
        return max((self.seconds(plan) - self.seconds(self.full)) / self._gain, 0.0)

    @property
    def prices_plans(self) -> bool:
        """True if the price of a plan is that of its own engine."""
        return len(self.network.layers) <= MOST_LAYERS

    def layers(self, precisions: Iterable[Precision]) -> dict[int, dict[Precision, float]]:
        """The price of each quantizable layer in each of some higher precisions."""
        wanted = [precision for precision in precisions if precision is not self.network.low.precision]
        if self.prices_plans:
            return {
                k: {p: max(self.price(self.full.keeping({k}, p)), NEARLY_FREE) for p in wanted}
                for k in self.network.quantizable
            }
        low, high = self._of_layers(self.full), {p: self._of_layers(self.in_all(p)) for p in wanted}
        return {
            k: {p: max((times[k] - low[k]) / self._gain, NEARLY_FREE) for p, times in high.items()}
            for k in self.network.quantizable
        }

    def _of_layers(self, plan: PrecisionPlan) -> dict[int, float]:
        """The seconds of each quantizable layer: those of its kernel, divided among the layers with a weight in it."""
        times = dict.fromkeys(self.network.quantizable, 0.0)
        for kernel in self.engine.kernels(plan):
            inside = [k for k in kernel.layers if k in times]
            heads = [k for k in inside if self.network.layers[k].has_weight] or inside
            for k in heads:
                times[k] += self._seconds_of(kernel) / len(heads)
        return times

    def predicted(self, plan: PrecisionPlan) -> Predicted:
        """The predicted time of a plan, with its range."""
        return ranged(((kernel.kind, self._seconds_of(kernel)) for kernel in self.engine.kernels(plan)), self.gpu)

    def dearest(self, plan: PrecisionPlan, count: int) -> tuple[TimedKernel, ...]:
        """The kernels of a plan that take longest."""
        timed = [TimedKernel(kernel.name, self._seconds_of(kernel) * 1e3) for kernel in self.engine.kernels(plan)]
        return tuple(sorted(timed, key=lambda one: -one.ms)[:count])

    def added_reformats(self, plan: PrecisionPlan) -> tuple[TimedKernel, ...]:
        """The reformats of a plan that the one with all layers low does not have."""
        before = _reformats(self.engine.kernels(self.full))
        return tuple(
            TimedKernel(name, self._seconds_of(kernel) * 1e3)
            for name, kernel in _reformats(self.engine.kernels(plan)).items()
            if name not in before
        )


def _reformats(kernels: Iterable[Kernel]) -> Mapping[str, Kernel]:
    return {kernel.name: kernel for kernel in kernels if kernel.kind is Kind.REFORMAT}
