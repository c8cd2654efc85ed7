"""TensorRT-RTX only: the layers of an engine built without a GPU, and execution contexts with final kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trt_bisect.builder import tensorrt_build
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.inspector import EngineLayer


def layers_of_file(path: Path, shapes: Mapping[str, Sequence[int]]) -> tuple[EngineLayer, ...]:
    """Builds an ONNX file as it is, with strong typing and without a GPU; returns the engine's layers.

    ``shapes`` are those of dynamic inputs; other dynamic axes are 1. Raises EngineUnavailable if TensorRT-RTX does not
    start, and TrialFailed if the file cannot be built.
    """
    rt, options = tensorrt_build.start_tensorrt(tensorrt_build.RTX), BuildOptions()
    definition = tensorrt_build.parse_file(rt, path, ("STRONGLY_TYPED",))
    inputs = [definition.network.get_input(i) for i in range(definition.network.num_inputs)]
    sizes = {tensor.name: tuple(shapes.get(tensor.name, (max(1, size) for size in tensor.shape))) for tensor in inputs}
    profile = {tensor.name: (sizes[tensor.name],) * 3 for tensor in inputs if min(tensor.shape, default=1) < 0}
    config, _ = tensorrt_build.new_config(rt, options, profile)
    return tensorrt_build.serialize(rt, definition, config, options).layers


def eager_context(rt: tensorrt_build.TensorRT, engine: Any) -> Any:
    """Returns an execution context whose kernels are final from the first inference on; None if memory is short.

    ``rt`` keeps the compiled kernels and must outlive every context.
    """
    # By default TensorRT-RTX first runs substitutes for kernels that it compiles: two inferences could differ.
    eager = rt.module.DynamicShapesKernelSpecializationStrategy.EAGER
    runtime_config = engine.create_runtime_config()
    runtime_config.dynamic_shapes_kernel_specialization_strategy = eager
    if not rt.kernels:
        rt.kernels.append(runtime_config.create_runtime_cache())
    runtime_config.set_runtime_cache(rt.kernels[0])
    return engine.create_execution_context(runtime_config)
