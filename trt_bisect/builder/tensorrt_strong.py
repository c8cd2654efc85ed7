"""TensorRT 10 and later, and TensorRT-RTX, with strong typing: the graph with the plan's Q/DQ pairs is built as is."""

from __future__ import annotations

from collections.abc import Mapping

from trt_bisect.builder.base import MEASURED, BuildOptions, ProfileShapes, precisions_in
from trt_bisect.builder.tensorrt_build import (
    Definition,
    Serialized,
    creation_flags,
    dynamic_shapes,
    new_config,
    parse_model,
    serialize,
    start_tensorrt,
    versions_of,
)
from trt_bisect.builder.tensorrt_engine import TensorRTEngine
from trt_bisect.builder.tensorrt_module import TENSORRT
from trt_bisect.errors import BadInput, EngineUnavailable
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Scales
from trt_bisect.precision import PrecisionPlan

_FIRST_MAJOR = 10


class TensorRTStrongBuilder:
    """Builds strongly typed engines from plans."""

    typing = "strong"
    arithmetic = MEASURED

    def __init__(
        self,
        network: Network,
        scales: Scales,
        options: BuildOptions,
        profile_shapes: ProfileShapes,
        *,
        engine: str = TENSORRT,
    ) -> None:
        """Starts the engine.

        Args:
            network: to build.
            scales: the scales of its activations.
            options: the options of the build.
            profile_shapes: the profile shapes of its inputs; only those of dynamic inputs are used.
            engine: ``tensorrt`` or ``tensorrt-rtx``.

        Raises:
            BadInput: a dynamic input has no shapes.
            BadInput: a DLA core is asked for.
            EngineUnavailable: the engine is not installed, does not start here, or has no strong typing.
        """
        if options.dla is not None:
            raise BadInput("The DLA takes no strongly typed network here.", "Use '--typing weak', or leave out --dla.")
        self.engine = engine
        self._network = network
        self._writer = PlanWriter(network, scales, GraphTarget.TENSORRT)
        self._options = options
        self._shapes = dynamic_shapes(network, profile_shapes)
        self._rt = start_tensorrt(engine, options.plugins)
        if engine == TENSORRT and self._rt.version[0] < _FIRST_MAJOR:
            raise EngineUnavailable(
                f"TensorRT {self._rt.module.__version__} has no strong typing.", "Use '--typing weak'."
            )
        self.versions: Mapping[str, str] = versions_of(self._rt, options)

    def network_definition(self, plan: PrecisionPlan) -> Definition:
        """Returns the network of one plan as TensorRT parsed it; raises TrialFailed if the parser refuses the graph."""
        written = self._writer.write(plan)
        flags = creation_flags(self._rt.module, ("STRONGLY_TYPED",))
        return parse_model(self._rt, written.model, written.weights, flags)

    def serialize(self, plan: PrecisionPlan) -> Serialized:
        """Builds the engine of one plan as bytes; raises TrialFailed."""
        definition = self.network_definition(plan)
        config, _ = new_config(self._rt, self._options, self._shapes, definition)
        return serialize(self._rt, definition, config, self._options)

    def build(self, plan: PrecisionPlan) -> TensorRTEngine:
        """Builds the engine of one plan, loaded onto the GPU when it is first used; raises TrialFailed."""
        rounded = precisions_in(self._network, plan)
        return TensorRTEngine(self._rt, self.serialize(plan), self._network, self._shapes, self._options, rounded)

    def reference(self) -> TensorRTEngine:
        """Builds the engine with every layer in FP32, TF32 off; raises TrialFailed."""
        return self.build(self._network.free_plan())
