"""TensorRT 8.5 to 10.x with weak typing: the FP32 network, its tensors' ranges, and the plan as constraints on layers.

TensorRT does not start without a GPU. ``docs/evidence`` has what 8.6.0 did on an H200; later versions are unproven.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from trt_bisect.builder import tensorrt_build
from trt_bisect.builder.base import MEASURED, BuildOptions, ProfileShapes, precisions_in
from trt_bisect.builder.tensorrt_engine import TensorRTEngine
from trt_bisect.builder.tensorrt_walk import WeakPlan, constrain, constraints, scales_set, set_ranges, walk_steps
from trt_bisect.errors import EngineUnavailable
from trt_bisect.model.file import save_model
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Scales
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.support.files import ScratchFolder

_LAST_MAJOR = 10


class TensorRTWeakBuilder:
    """Builds weakly typed engines from plans."""

    engine = tensorrt_build.TENSORRT
    typing = "weak"
    arithmetic = MEASURED

    def __init__(
        self,
        network: Network,
        scales: Scales,
        options: BuildOptions,
        profile_shapes: ProfileShapes,
        *,
        calibration_cache: bytes | None = None,
    ) -> None:
        """Starts TensorRT and writes the FP32 network to a folder that lives as long as the builder.

        Args:
            profile_shapes: the profile shapes of its inputs; only those of dynamic inputs are used.
            calibration_cache: a TensorRT calibration cache, read by TensorRT itself in place of ``scales``.

        Raises:
            BadInput: a dynamic input has no shapes.
            EngineUnavailable: TensorRT is not installed, does not start here, or has no weak typing.
        """
        self._in_file = network
        self._network = network = network.for_parser
        self._scales = scales
        self._options = options
        self._shapes = tensorrt_build.dynamic_shapes(network, profile_shapes)
        self._cache = calibration_cache
        self._rt = tensorrt_build.start_tensorrt(tensorrt_build.TENSORRT, options.plugins)
        if self._rt.version[0] > _LAST_MAJOR:
            raise EngineUnavailable(
                f"TensorRT {self._rt.module.__version__} has no weak typing.", "Use '--typing strong'."
            )
        self.versions: Mapping[str, str] = tensorrt_build.versions_of(self._rt, options)
        self._flags = tensorrt_build.creation_flags(self._rt.module, ("EXPLICIT_BATCH",))
        self._scratch = ScratchFolder()
        self._file = self._scratch.open() / "network.onnx"
        save_model(network.skeleton, network.weights, self._file)
        self._writer = PlanWriter(network, scales, GraphTarget.TENSORRT) if network.has_pairs else None

    def network_definition(self, plan: PrecisionPlan) -> tensorrt_build.Definition:
        """Returns the network of one plan as TensorRT parsed it, with its ranges and constraints.

        A network that came with Q/DQ pairs is parsed with the pairs that the plan keeps: TensorRT then takes the
        precisions from them alone.

        Raises:
            TrialFailed: the parser refuses the graph.
        """
        trt = self._rt.module
        if self._writer is not None:
            written = self._writer.write(plan)
            return tensorrt_build.parse_model(self._rt, written.model, written.weights, self._flags)
        definition = tensorrt_build.parse_file(self._rt, self._file, self._flags)
        steps = walk_steps(definition.network, self._network.layers)
        if self._cache is None and self._network.low.needs_ranges:
            set_ranges(trt, definition.network, steps, self._network, self._scales)
        constrain(trt, definition.network, steps, self._network, plan, self._options.force_int8)
        return definition

    def weak_plan(self, plan: PrecisionPlan) -> WeakPlan:
        """Returns the precisions and scales set for an engine of ``plan``, as data; raises TrialFailed."""
        definition = self.network_definition(plan)
        parsed = definition.network
        steps = walk_steps(parsed, self._network.layers)
        constrained = constraints(parsed, steps, self._network, plan, self._options.force_int8)
        layers = tuple(parsed.get_layer(i).name for i in range(parsed.num_layers))
        return WeakPlan(
            tuple(constraint for _, constraint in constrained),
            layers,
            f"TensorRT {self._rt.module.__version__}",
            scales_set(parsed),
        )

    def serialize(self, plan: PrecisionPlan) -> tensorrt_build.Serialized:
        """Builds the engine of one plan as bytes; raises TrialFailed."""
        trt = self._rt.module
        definition = self.network_definition(plan)
        config, profile = tensorrt_build.new_config(self._rt, self._options, self._shapes, definition)
        used = self._network.used_precisions(plan)
        if plan.int8:
            config.set_flag(trt.BuilderFlag.INT8)
        if Precision.FP16 in used:
            config.set_flag(trt.BuilderFlag.FP16)
        if Precision.BF16 in used:
            config.set_flag(trt.BuilderFlag.BF16)
        if self._options.dla is not None:
            tensorrt_build.use_dla(trt, self._rt.builder, config, self._options.dla)
        calibrator = None
        if self._writer is None:
            config.set_flag(obey_flag(trt))
            if self._cache is not None:
                config.int8_calibrator = calibrator = cache_calibrator(trt, self._cache)
                if profile is not None:
                    config.set_calibration_profile(profile)
        serialized = tensorrt_build.serialize(self._rt, definition, config, self._options)
        del calibrator
        return serialized

    def build(self, plan: PrecisionPlan) -> TensorRTEngine:
        """Builds the engine of one plan; raises TrialFailed."""
        if {*plan.precisions} == {Precision.FP32}:
            definition = tensorrt_build.parse_file(self._rt, self._file, self._flags)
            config, _ = tensorrt_build.new_config(self._rt, self._options, self._shapes, definition)
            serialized = tensorrt_build.serialize(self._rt, definition, config, self._options)
        else:
            serialized = self.serialize(plan)
        rounded = None if self._writer is None else precisions_in(self._network, plan)
        names = {mine.name: layer.name for mine, layer in zip(self._network.layers, self._in_file.layers, strict=True)}
        return TensorRTEngine(self._rt, serialized, self._network, self._shapes, self._options, rounded, names)

    def reference(self) -> TensorRTEngine:
        """Builds the engine with neither INT8 nor FP16 allowed, and TF32 off; raises TrialFailed."""
        return self.build(self._network.free_plan())


def obey_flag(trt: ModuleType) -> Any:
    """Returns the builder flag that makes TensorRT obey the precisions of layers: ``STRICT_TYPES`` before 8.2."""
    flags = trt.BuilderFlag.__members__
    return flags["OBEY_PRECISION_CONSTRAINTS" if "OBEY_PRECISION_CONSTRAINTS" in flags else "STRICT_TYPES"]


def cache_calibrator(trt: ModuleType, cache: bytes) -> Any:
    """Makes a calibrator that gives TensorRT the bytes of a calibration cache and has no data."""

    class CacheCalibrator(trt.IInt8EntropyCalibrator2):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, _names: list[str]) -> None:
            return None

        def read_calibration_cache(self) -> bytes:
            return cache

        def write_calibration_cache(self, _cache: bytes) -> None:
            return None

    return CacheCalibrator()
