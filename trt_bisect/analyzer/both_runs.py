"""A network's tensors on the same inputs in FP32 and in a plan, emulated on ONNX Runtime, all of them as outputs."""

from __future__ import annotations

from collections.abc import Mapping

from trt_bisect.analyzer.compared import Tensors
from trt_bisect.analyzer.origins import Origin
from trt_bisect.data import Feeds
from trt_bisect.model.observe import Observer
from trt_bisect.model.qdq import PlanWriter, Written
from trt_bisect.precision import PrecisionPlan


class BothRuns:
    """Two sessions of a network; raises BadInput where ONNX Runtime cannot make them.

    Args:
        writer: of the network's plans, for ONNX Runtime.
        plan: what runs beside FP32.
        origins: the tensors that are wanted, by name.
    """

    def __init__(self, writer: PlanWriter, plan: PrecisionPlan, origins: Mapping[str, Origin]) -> None:
        network = writer.network
        self._wanted = tuple(origins)
        inside = [name for name in origins if name in network.producers]
        self._as_made = {
            f"{name}{writer.tag}unrounded" if origins[name].rounded_as_result else name: name for name in inside
        }
        self._fp32 = Observer(Written(network.skeleton, dict(network.weights)), inside, network.source)
        self._int8 = Observer(writer.write(plan), list(self._as_made), network.source)

    def on(self, feeds: Feeds, position: int) -> tuple[Tensors, Tensors]:
        """The tensors of both runs on sample number ``position``, as their layers made them, by the FP32 run's names.

        Raises:
            BadInput: ONNX Runtime refuses the sample.
        """
        given = {name: feeds[name] for name in self._wanted if name in feeds}
        seen = {self._as_made[name]: values for name, values in self._int8.see(feeds, position).items()}
        return {**given, **self._fp32.see(feeds, position)}, {**given, **seen}
