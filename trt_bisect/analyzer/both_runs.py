"""The inner tensors of a network under a precision plan and in FP32, emulated on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from trt_bisect.analyzer.compared import Tensors
from trt_bisect.analyzer.origins import Origin
from trt_bisect.data.feeds import Feeds
from trt_bisect.model.observe import Observer
from trt_bisect.model.qdq import PlanWriter
from trt_bisect.precision import PrecisionPlan


def plan_observer(
    writer: PlanWriter,
    plan: PrecisionPlan,
    origins: Mapping[str, Origin],
    groups: Sequence[Sequence[str]] | None = None,
) -> Callable[[Feeds, int], Iterator[dict[str, np.ndarray]]]:
    """Returns a function from a sample and its number to the tensors of the network under a plan, group by group.

    Each tensor is given as its layer makes it: a tensor that is rounded as an output, before that rounding. Inputs of
    the network are given unchanged.

    Args:
        writer: writes the network's plans for ONNX Runtime.
        plan: all high, or the plan for which the origins were found.
        origins: the wanted tensors, by name.
        groups: their names, in groups that are read one after another; None for a single group.

    Raises:
        BadInput: ONNX Runtime refuses the network or, when the function is called, a sample.
    """
    network, unrounded = writer.network, f"{writer.tag}unrounded"
    as_made = {
        f"{name}{unrounded}" if origin.rounded_as_result and plan.lowered else name: name
        for name, origin in origins.items()
        if name in network.producers
    }
    made = {name: own for own, name in as_made.items()}
    wanted = [tuple(origins)] if groups is None else groups
    inside = [[made[name] for name in names if name in made] for names in wanted]
    observer = Observer(writer.write(plan), inside, network.source)

    def run(feeds: Feeds, position: int) -> Iterator[dict[str, np.ndarray]]:
        parts = observer.run(feeds, position)
        for names in wanted:
            tensors = {as_made[name]: values for name, values in next(parts).items()}
            yield {**{name: feeds[name] for name in names if name in feeds}, **tensors}
            del tensors

    return run


class BothRuns:
    """Two ONNX Runtime sessions of a network: FP32, and a plan.

    Args:
        writer: writes the network's plans for ONNX Runtime.
        plan: the plan that is compared with FP32.
        origins: the wanted tensors, by name.
        groups: their names, in groups that are read one after another; None for a single group.

    Raises:
        BadInput: ONNX Runtime cannot make a session.
    """

    def __init__(
        self,
        writer: PlanWriter,
        plan: PrecisionPlan,
        origins: Mapping[str, Origin],
        groups: Sequence[Sequence[str]] | None = None,
    ) -> None:
        self._fp32 = plan_observer(writer, writer.network.free_plan(), origins, groups)
        self._int8 = plan_observer(writer, plan, origins, groups)

    def on(self, feeds: Feeds, position: int) -> Iterator[tuple[Tensors, Tensors]]:
        """Yields, for each group, the tensors of the FP32 run and of the plan's run on sample ``position``.

        Both have the tensors' FP32 names.

        Raises:
            BadInput: ONNX Runtime refuses the sample.
        """
        int8 = self._int8(feeds, position)
        for fp32 in self._fp32(feeds, position):
            yield fp32, next(int8)
            del fp32
