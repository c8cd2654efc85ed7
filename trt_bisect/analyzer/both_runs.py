"""The inner tensors of a network under a precision plan and in FP32, emulated on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trt_bisect.analyzer.compared import Tensors
from trt_bisect.analyzer.origins import Origin
from trt_bisect.data.datasets import Feeds
from trt_bisect.model.observe import Observer
from trt_bisect.model.qdq import PlanWriter
from trt_bisect.precision import PrecisionPlan, int8_set


def plan_observer(
    writer: PlanWriter, plan: PrecisionPlan, origins: Mapping[str, Origin]
) -> Callable[[Feeds, int], dict[str, np.ndarray]]:
    """Returns a function from a sample and its number to the tensors of the network under a plan.

    Each tensor is given as its layer makes it: a tensor that is rounded as an output, before that rounding. Inputs of
    the network are given unchanged.

    Args:
        writer: writes the network's plans for ONNX Runtime.
        plan: all high, or the plan for which the origins were found.
        origins: the wanted tensors, by name.

    Raises:
        BadInput: ONNX Runtime refuses the network or, when the function is called, a sample.
    """
    network, unrounded = writer.network, f"{writer.tag}unrounded"
    as_made = {
        f"{name}{unrounded}" if origin.rounded_as_result and plan.int8 else name: name
        for name, origin in origins.items()
        if name in network.producers
    }
    observer = Observer(writer.write(plan), list(as_made), network.source)

    def see(feeds: Feeds, position: int) -> dict[str, np.ndarray]:
        given = {name: feeds[name] for name in origins if name in feeds}
        return {**given, **{as_made[name]: values for name, values in observer.run(feeds, position).items()}}

    return see


class BothRuns:
    """Two ONNX Runtime sessions of a network: FP32, and a plan.

    Args:
        writer: writes the network's plans for ONNX Runtime.
        plan: the plan that is compared with FP32.
        origins: the wanted tensors, by name.

    Raises:
        BadInput: ONNX Runtime cannot make a session.
    """

    def __init__(self, writer: PlanWriter, plan: PrecisionPlan, origins: Mapping[str, Origin]) -> None:
        self._fp32 = plan_observer(writer, int8_set(len(plan), ()), origins)
        self._int8 = plan_observer(writer, plan, origins)

    def on(self, feeds: Feeds, position: int) -> tuple[Tensors, Tensors]:
        """Returns the tensors of the FP32 run and of the plan's run on sample ``position``, by their FP32 names.

        Raises:
            BadInput: ONNX Runtime refuses the sample.
        """
        return self._fp32(feeds, position), self._int8(feeds, position)
