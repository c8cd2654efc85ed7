"""A network's tensors under a plan, and beside it in FP32, emulated on ONNX Runtime, all of them as outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from trt_bisect.analyzer.compared import Tensors
from trt_bisect.analyzer.origins import Origin
from trt_bisect.data import Feeds
from trt_bisect.model.observe import Observer
from trt_bisect.model.qdq import PlanWriter
from trt_bisect.precision import PrecisionPlan, int8_set


def plan_observer(
    writer: PlanWriter,
    plan: PrecisionPlan,
    origins: Mapping[str, Origin],
    groups: Sequence[Sequence[str]] | None = None,
) -> Callable[[Feeds, int], Iterator[dict[str, np.ndarray]]]:
    """Sees tensors as their layers make them in a plan, a sample at a time; inputs of the network as they are given.

    Args:
        writer: of the network's plans, for ONNX Runtime.
        plan: the precisions; all high, or those that the origins are of.
        origins: by tensor: one that is rounded as a result is seen before that.
        groups: their names, in groups that are seen one after another; None for all at once.

    Raises:
        BadInput: ONNX Runtime refuses the network, or, when called, a sample.
    """
    network, unrounded = writer.network, f"{writer.tag}unrounded"
    as_made = {
        f"{name}{unrounded}" if origin.rounded_as_result and plan.int8 else name: name
        for name, origin in origins.items()
        if name in network.producers
    }
    made = {name: own for own, name in as_made.items()}
    wanted = [tuple(origins)] if groups is None else groups
    inside = [[made[name] for name in names if name in made] for names in wanted]
    observer = Observer(writer.write(plan), inside, network.source)

    def see(feeds: Feeds, position: int) -> Iterator[dict[str, np.ndarray]]:
        parts = observer.see(feeds, position)
        for names in wanted:
            tensors = {as_made[name]: values for name, values in next(parts).items()}
            yield {**{name: feeds[name] for name in names if name in feeds}, **tensors}
            del tensors

    return see


class BothRuns:
    """Two sessions of a network; raises BadInput where ONNX Runtime cannot make them.

    Args:
        writer: of the network's plans, for ONNX Runtime.
        plan: what runs beside FP32.
        origins: the tensors that are wanted, by name.
        groups: their names, in groups that are seen one after another; None for all at once.
    """

    def __init__(
        self,
        writer: PlanWriter,
        plan: PrecisionPlan,
        origins: Mapping[str, Origin],
        groups: Sequence[Sequence[str]] | None = None,
    ) -> None:
        self._fp32 = plan_observer(writer, int8_set(len(plan), ()), origins, groups)
        self._int8 = plan_observer(writer, plan, origins, groups)

    def on(self, feeds: Feeds, position: int) -> Iterator[tuple[Tensors, Tensors]]:
        """The tensors of both runs on sample number ``position``, group by group, by the FP32 run's names.

        Raises:
            BadInput: ONNX Runtime refuses the sample.
        """
        int8 = self._int8(feeds, position)
        for fp32 in self._fp32(feeds, position):
            yield fp32, next(int8)
            del fp32
