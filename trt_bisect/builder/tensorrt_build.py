"""Builds a serialized TensorRT or TensorRT-RTX engine from an ONNX graph, with either typing."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from trt_bisect.builder.base import BuildOptions, ProfileShapes
from trt_bisect.builder.inspector import LOGGED, EngineLayer, logged_layers
from trt_bisect.errors import BadInput, EngineUnavailable, TrialFailed, install
from trt_bisect.model.file import Written, save_model
from trt_bisect.model.network import Network
from trt_bisect.model.session import digests_of
from trt_bisect.support.files import ScratchFolder, write_whole
from trt_bisect.support.machine import find_gpu

TENSORRT = "tensorrt"
RTX = "tensorrt-rtx"

# Polygraphy's loaders would fix one of both for the whole process, and mix the messages of all builds.
_MODULES = {TENSORRT: ("tensorrt",), RTX: ("tensorrt_rtx", "tensorrt_rtx_bindings")}


def import_tensorrt(engine: str) -> ModuleType:
    """Imports the Python module of ``tensorrt`` or ``tensorrt-rtx``; raises EngineUnavailable if missing or broken."""
    broken = ""
    for name in _MODULES[engine]:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError) as error:
            if not (isinstance(error, ModuleNotFoundError) and error.name == name):
                broken = f"{name}: {error}"
    extra = "rtx" if engine == RTX else "tensorrt"
    remedy = install(extra)
    if broken:
        raise EngineUnavailable(f"{engine} does not load: {broken}", f"Install it again: {remedy}")
    raise EngineUnavailable(f"{engine} is not installed.", remedy)


def is_installed(engine: str) -> bool:
    """Returns true if the engine's Python module is installed; importing it may still fail."""
    return any(importlib.util.find_spec(name) is not None for name in _MODULES[engine])


def version_of(version: str) -> tuple[int, int]:
    """Returns the major and minor number of a version.

    >>> version_of("10.12.0.36")
    (10, 12)
    """
    major, minor, *_ = [*map(int, re.findall(r"\d+", version)), 0, 0]
    return major, minor


@dataclass(frozen=True)
class Message:
    """An error or a warning that TensorRT logged."""

    is_error: bool
    text: str


# Functions called with every error and warning as it is logged, so that messages survive a crash.
LISTENERS: list[Callable[[Message], None]] = []


# TensorRT uses only the first logger of a process.
@functools.cache
def logger_of(trt: ModuleType) -> Any:
    """Returns this process's TensorRT logger, which prints nothing.

    Its ``records`` hold errors and warnings, its ``layers`` the last message that lists an engine's layers.
    """

    class KeepingLogger(trt.ILogger):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.records: list[Message] = []
            self.layers = ""

        def log(self, severity: Any, msg: str) -> None:
            if severity.name in ("INTERNAL_ERROR", "ERROR", "WARNING"):
                message = Message(severity.name != "WARNING", msg.strip())
                self.records.append(message)
                for tell in LISTENERS:
                    tell(message)
            elif msg.startswith(LOGGED):
                self.layers = msg

    return KeepingLogger()


def drain(logger: Any) -> tuple[Message, ...]:
    """Returns the distinct messages logged since the last call, and removes them from the logger."""
    records = tuple(dict.fromkeys(logger.records))
    logger.records.clear()
    return records


def errors_in(messages: Iterable[Message], otherwise: str) -> str:
    """Returns the errors among ``messages`` as one text, or ``otherwise`` if there are none."""
    return "\n".join(message.text for message in messages if message.is_error) or otherwise


def warnings_in(messages: Iterable[Message]) -> tuple[str, ...]:
    """Returns the texts of the warnings among ``messages``."""
    return tuple(message.text for message in messages if not message.is_error)


# Part of the fingerprint. Increase it when the graphs for TensorRT, weak typing's constraints or ranges, the reading of
# the engine inspector, or TensorRT-RTX's kernels change.
_RULES = "8"


@dataclass(frozen=True)
class TensorRT:
    """The imported module of TensorRT or TensorRT-RTX, with its logger and ``trt.Builder``.

    Attributes:
        kernels: TensorRT-RTX's ``trt.IRuntimeCache`` as the only element; empty before the first execution context.
    """

    engine: str
    module: ModuleType
    logger: Any
    builder: Any
    kernels: list[Any] = field(default_factory=list)

    @property
    def version(self) -> tuple[int, int]:
        """TensorRT's major and minor version."""
        return version_of(self.module.__version__)


@dataclass(frozen=True)
class Definition:
    """A parsed ``trt.INetworkDefinition``, and the ``trt.OnnxParser`` that owns its weights."""

    network: Any
    parser: Any


@dataclass(frozen=True)
class Serialized:
    """An engine's bytes, the builder's warnings, and the engine's layers (empty if the builder logs none)."""

    data: bytes
    messages: tuple[str, ...]
    layers: tuple[EngineLayer, ...] = ()


def start_tensorrt(engine: str, plugins: Sequence[str] = ()) -> TensorRT:
    """Imports and starts an engine; TensorRT-RTX needs no GPU for this.

    Raises BadInput if a plugin library does not load, and EngineUnavailable if the engine does not start.
    """
    trt = import_tensorrt(engine)
    if engine != RTX:
        find_gpu()
    logger = logger_of(trt)
    drain(logger)
    load_plugins(trt, logger, plugins)
    try:
        builder = trt.Builder(logger)
    except (TypeError, RuntimeError) as error:
        logged = "; ".join(message.text for message in drain(logger)) or str(error)
        raise EngineUnavailable(f"{engine} {trt.__version__} does not start: {logged}") from error
    return TensorRT(engine, trt, logger, builder)


def versions_of(rt: TensorRT, options: BuildOptions) -> dict[str, str]:
    """Returns everything that an engine's figures depend on, by name: versions, plugins, DLA, GPU and driver."""
    ours = {rt.engine: rt.module.__version__, "rules": _RULES, "numpy": np.__version__}
    if options.plugins:
        ours["plugins"] = digests_of(options.plugins)
    if options.dla is not None:
        ours["dla"] = str(options.dla)
    try:
        gpu = find_gpu()
    except EngineUnavailable:
        return {**ours, "device": "no GPU"}
    device = f"{gpu.name} (compute capability {gpu.capability})"
    return {**ours, "device": device, "driver": f"CUDA {gpu.cuda}"}


def dynamic_shapes(network: Network, shapes: ProfileShapes) -> ProfileShapes:
    """Returns the shapes of the dynamic inputs only; raises BadInput if any is missing or does not fit its input."""
    dynamic = [spec for spec in network.inputs if None in spec.shape]
    for spec in dynamic:
        if spec.name not in shapes:
            problem = f"The input {spec} of '{network.source}' is dynamic, and no shapes for it are given."
            raise BadInput(problem, "Give the smallest, the usual and the largest shape, or fix the input's shape.")
        for shape in shapes[spec.name]:
            pairs = zip(spec.shape, shape, strict=False)
            if len(shape) != len(spec.shape) or any(fixed not in (None, size) for fixed, size in pairs):
                problem = f"The shape {'x'.join(map(str, shape))} does not fit the input {spec} of '{network.source}'."
                raise BadInput(problem, "Give sizes for dynamic axes only; all other axes must match.")
    return {spec.name: shapes[spec.name] for spec in dynamic}


_EXPLICIT_BATCH = ("EXPLICIT_BATCH",)


def parse_written(rt: TensorRT, written: Written, flags: Sequence[str] = _EXPLICIT_BATCH) -> Definition:
    """Parses a graph with its weights, as ``parse_file`` does."""
    with ScratchFolder() as folder:
        path = folder / "network.onnx"
        save_model(written.model, written.weights, path)
        return parse_file(rt, path, flags)


def parse_file(rt: TensorRT, path: Path, flags: Sequence[str] = _EXPLICIT_BATCH) -> Definition:
    """Parses an ONNX file; raises TrialFailed with the parser's errors.

    ``flags`` name network creation flags; those that this version lacks are left out.
    """
    definition, is_whole = parsed(rt, path, flags)
    parser = definition.parser
    if not is_whole or parser.num_errors:
        errors = [str(parser.get_error(i)) for i in range(parser.num_errors)]
        message = "\n".join(errors) or errors_in(drain(rt.logger), "TensorRT's parser gave no reason.")
        raise TrialFailed("build failed", message)
    return definition


def parsed(rt: TensorRT, path: Path, flags: Sequence[str]) -> tuple[Definition, bool]:
    """Returns what the parser made of an ONNX file, and true if it read the whole file."""
    drain(rt.logger)
    # EXPLICIT_BATCH and STRONGLY_TYPED exist only in versions where they are a choice.
    there = rt.module.NetworkDefinitionCreationFlag.__members__
    network = rt.builder.create_network(sum(1 << int(there[name]) for name in flags if name in there))
    parser = rt.module.OnnxParser(network, rt.logger)
    return Definition(network, parser), parser.parse_from_file(str(path))


def new_config(
    rt: TensorRT, options: BuildOptions, shapes: ProfileShapes, definition: Definition | None = None
) -> tuple[Any, Any]:
    """Makes a builder configuration, with TF32 off and detailed profiling verbosity for the engine inspector.

    Returns the configuration and its optimization profile. The profile is None if ``shapes`` is empty and
    ``definition`` has no shape tensor as input. Raises BadInput if this version lacks an option.
    """
    trt = rt.module
    config = rt.builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if options.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    if options.optimization_level is not None:
        if not hasattr(config, "builder_optimization_level"):
            raise BadInput(f"{rt.engine} {trt.__version__} has no builder optimisation level.", "Leave it out.")
        config.builder_optimization_level = options.optimization_level
    if options.tactic_sources is not None:
        sources = trt.TacticSource.__members__
        for name in options.tactic_sources:
            if name not in sources:
                problem = f"{rt.engine} {trt.__version__} has no tactic source '{name}'."
                raise BadInput(problem, f"Use {', '.join(sources)}.")
        config.set_tactic_sources(sum(1 << int(sources[name]) for name in options.tactic_sources))
    _load_timing_cache(config, _timing_cache(rt, options))
    inputs = [definition.network.get_input(i) for i in range(definition.network.num_inputs)] if definition else []
    shape_tensors = [tensor.name for tensor in inputs if tensor.is_shape_tensor and tensor.name in options.sizes]
    if not shapes and not shape_tensors:
        return config, None
    profile = rt.builder.create_optimization_profile()
    for name, span in shapes.items():
        profile.set_shape(name, *span)
    for name in shape_tensors:
        profile.set_shape_input(name, *options.sizes[name])
    config.add_optimization_profile(profile)
    return config, profile


def serialize(rt: TensorRT, definition: Definition, config: Any, options: BuildOptions) -> Serialized:
    """Builds a parsed network as an engine; raises TrialFailed with TensorRT's own message."""
    rt.logger.layers = ""
    data = rt.builder.build_serialized_network(definition.network, config)
    messages = drain(rt.logger)
    if data is None:
        errors = errors_in(messages, "TensorRT built no engine and gave no reason.")
        raise TrialFailed("build failed", "\n".join([errors, *(f"warning: {text}" for text in warnings_in(messages))]))
    _save_timing_cache(config, _timing_cache(rt, options))
    return Serialized(bytes(data), warnings_in(messages), logged_layers(rt.logger.layers))


def _timing_cache(rt: TensorRT, options: BuildOptions) -> Path | None:
    return None if rt.engine == RTX else options.timing_cache


def timings_of(path: Path, worker: str) -> Path:
    """Returns the path of a cluster worker's timing cache, next to the run's timing cache ``path``."""
    return path.with_name(f"{path.stem}-{worker}{path.suffix}")


def _load_timing_cache(config: Any, path: Path | None) -> None:
    if path is None:
        return
    kept = [path, *sorted(path.parent.glob(timings_of(path, "*").name))]
    caches = [config.create_timing_cache(file.read_bytes()) for file in kept if file.is_file()]
    cache, *others = [cache for cache in caches if cache is not None] or [config.create_timing_cache(b"")]
    for of_worker in others:
        cache.combine(of_worker, ignore_mismatch=False)
    if not config.set_timing_cache(cache, ignore_mismatch=False):
        config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)


def _save_timing_cache(config: Any, path: Path | None) -> None:
    if path is None or (cache := config.get_timing_cache()) is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(BadInput):
        write_whole(path, bytes(cache.serialize()))


def load_plugins(trt: ModuleType, logger: Any, libraries: Iterable[str]) -> None:
    """Loads the user's plugin libraries, and TensorRT's own plugins; raises BadInput if a library does not load."""
    for path in libraries:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            remedy = f"Give a library that was built for TensorRT {trt.__version__} on this machine."
            raise BadInput(f"The plugins in '{path}' do not load: {error}", remedy) from error
    # From TensorRT 10.1 on the parser does not register these (RoiAlign, NonMaxSuppression and others).
    trt.init_libnvinfer_plugins(logger, "")


def use_dla(trt: ModuleType, builder: Any, config: Any, core: int) -> None:
    """Lets a DLA core run the layers that it can, and the GPU the rest; raises BadInput if the core does not exist."""
    cores = builder.num_DLA_cores
    if core >= cores:
        there = f"It has {cores} cores" if cores else "It has no DLA"
        raise BadInput(f"This machine has no DLA core {core}.", f"{there}; leave out --dla to run on the GPU.")
    # The DLA computes in INT8 or FP16: FP32 layers run on the GPU (TensorRT documentation, "Working with DLA").
    config.default_device_type = trt.DeviceType.DLA
    config.DLA_core = core
    config.set_flag(trt.BuilderFlag.GPU_FALLBACK)
