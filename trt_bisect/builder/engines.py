"""The engines on this machine: their status, the choice of engine and typing, and their builders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np

from trt_bisect.builder.base import Builder, BuildOptions, ProfileShapes
from trt_bisect.builder.isolation import IsolatedBuilder, WorkerProcess
from trt_bisect.builder.tensorrt_build import RTX, TENSORRT, import_tensorrt, version_of
from trt_bisect.builder.tensorrt_engine import import_pycuda
from trt_bisect.errors import BadInput, EngineUnavailable
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import BF16, FLOAT_TYPES, FP8, INT8, LowPrecision, Scales
from trt_bisect.support.machine import InstalledGpu, find_gpu, visible_gpus
from trt_bisect.support.table import Column
from trt_bisect.support.text import counted

if TYPE_CHECKING:
    from trt_bisect.model.merged import Part

ONNXRUNTIME: Final = "onnxruntime"
AUTO = "auto"
ENGINES = (ONNXRUNTIME, TENSORRT, RTX)
TYPINGS = ("weak", "strong")

_FIRST_STRONG = (10, 0)
_CACHE_DEPRECATED = (10, 12)  # the first TensorRT that deprecates calibration caches and weak typing
_FIRST_WITHOUT_WEAK = (11, 0)
_OLDEST = (8, 5)
_READS_NUMPY_2 = (10, 16)  # the first whose Python module reads weights correctly with NumPy 2: docs/evidence/README.md


@dataclass(frozen=True)
class EngineStatus:
    """The status of an engine on this machine.

    Attributes:
        name: ``onnxruntime``, ``tensorrt`` or ``tensorrt-rtx``.
        version: empty if the engine's Python module cannot be imported.
        typings: the choices for ``--typing``, the default first.
        why_not: the reason why the engine cannot be used, with a remedy; empty if it can.
        note: a limit of the installed version, with a remedy; else empty.
    """

    name: Annotated[str, Column("engine", rank=0)]
    version: Annotated[str, Column("version", rank=0, empty="-")] = ""
    typings: Annotated[tuple[str, ...], Column("typing", rank=0, empty="-")] = ()
    device: Annotated[str, Column("device", rank=0, empty="-")] = ""
    why_not: str = ""
    note: str = ""

    @property
    def usable(self) -> bool:
        """True if the engine can be used here."""
        return not self.why_not

    @property
    def answer(self) -> Annotated[str, Column("usable", rank=0)]:
        """``yes``, or ``no: `` with ``why_not``; then ``note``, if any, on a new line."""
        answer = f"no: {self.why_not}" if self.why_not else "yes"
        return f"{answer}\n{self.note}" if self.note else answer


def list_engines() -> tuple[EngineStatus, ...]:
    """Returns the status of ONNX Runtime, TensorRT and TensorRT-RTX on this machine."""
    return tuple(engine_status(name) for name in ENGINES)


def engine_status(name: str) -> EngineStatus:
    """Returns the status of ``onnxruntime``, ``tensorrt`` or ``tensorrt-rtx`` on this machine."""
    if name == ONNXRUNTIME:
        try:
            import onnxruntime
        except (ImportError, OSError) as error:
            return EngineStatus(ONNXRUNTIME, why_not=f"It does not import: {error}\npip install onnxruntime")
        from trt_bisect.model.session import CPU, usable_provider

        device = "CPU" if usable_provider() == CPU else "GPU"
        return EngineStatus(ONNXRUNTIME, onnxruntime.__version__, ("strong",), device)
    try:
        module = import_tensorrt(name)
    except EngineUnavailable as error:
        return EngineStatus(name, why_not=str(error))
    version = module.__version__
    typings = _typings(name, version)
    device, problems = "", []
    try:
        gpu = find_gpu()
        device, problems = str(gpu), _refused(module, gpu)
    except EngineUnavailable as error:
        problems.append(str(error))
    try:
        import_pycuda()
    except EngineUnavailable as error:
        problems.append(str(error))
    if name == TENSORRT and version_of(version) < _OLDEST:
        problems.append(f"TensorRT {version} is too old: 8.5 is the oldest that is supported.")
    note = ""
    if "weak" in typings and version_of(version) < _READS_NUMPY_2 and np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        note = f"Its Python module misreads weights with NumPy {np.__version__}: pip install 'numpy<2'"
    return EngineStatus(name, version, typings, device, "\n".join(problems), note)


def _refused(module: ModuleType, gpu: InstalledGpu) -> list[str]:
    names = getattr(module, "ComputeCapability", None)
    numbers = [int(name[2:]) for name in names.__members__ if name.startswith("SM")] if names is not None else []
    if not numbers or gpu.number in numbers or gpu.number > max(numbers):
        return []
    listed = ", ".join(f"{number // 10}.{number % 10}" for number in numbers)
    return [f"{module.__version__} runs no engine on compute capability {gpu.capability}, only on {listed} and later."]


def choose_engine(name: str) -> str:
    """Returns the named engine, or for ``auto`` TensorRT if it can be used, else ONNX Runtime.

    Raises BadInput for an unknown name, and EngineUnavailable if the engine cannot be used here.
    """
    if name == AUTO:
        return TENSORRT if engine_status(TENSORRT).usable else ONNXRUNTIME
    if name not in ENGINES:
        raise BadInput(f"There is no engine '{name}'.", f"Use {AUTO}, {', '.join(ENGINES)}.")
    status = engine_status(name)
    if not status.usable:
        raise EngineUnavailable(
            f"The engine '{name}' cannot be used here: {' '.join(status.why_not.splitlines())}",
            "'trt-bisect engines' lists what can be used; '--engine onnxruntime' runs on any machine.",
        )
    return name


def engine_version(engine: str) -> str:
    """Returns the version of an engine's module; raises EngineUnavailable if the module cannot be imported."""
    if engine == ONNXRUNTIME:
        import onnxruntime

        return str(onnxruntime.__version__)
    return str(import_tensorrt(engine).__version__)


def typing_of(engine: str, typing: str = AUTO, low: LowPrecision = INT8, *, cached: bool = False) -> str:
    """Returns ``weak`` or ``strong``: the typing asked for, or for ``auto`` the one that suits the low precision.

    ``auto`` is weak for TensorRT before 10.12 if the scales are a calibration cache's (``cached``), and before 10 in
    FP16 or BF16; else strong. Raises BadInput if the engine lacks the typing or FP8 is to be weak, and
    EngineUnavailable if the engine cannot be imported.
    """
    if typing not in (AUTO, *TYPINGS):
        raise BadInput(f"There is no typing '{typing}'.", f"Use {AUTO}, {' or '.join(TYPINGS)}.")
    if low is FP8 and typing == "weak":
        raise BadInput("FP8 needs strong typing.", "Leave out --typing weak.")
    version = engine_version(engine)
    choices = _typings(engine, version)
    if typing == AUTO:
        in_floats = low.precision in FLOAT_TYPES and version_of(version) < _FIRST_STRONG
        from_cache = cached and low is not FP8 and version_of(version) < _CACHE_DEPRECATED
        return "weak" if engine == TENSORRT and (in_floats or from_cache) else choices[0]
    if typing not in choices:
        why = ": it is gone in TensorRT 11" if engine == TENSORRT else ""
        raise BadInput(f"{engine} {version} has no {typing} typing{why}.", f"Use '--typing {choices[0]}', or 'auto'.")
    return typing


def _typings(engine: str, version: str) -> tuple[str, ...]:
    has_weak = engine == TENSORRT and version_of(version) < _FIRST_WITHOUT_WEAK
    return ("strong", "weak") if has_weak else ("strong",)


def make_builder(
    engine: str,
    typing: str,
    network: Network,
    scales: Scales,
    options: BuildOptions,
    profile_shapes: ProfileShapes | None = None,
) -> Builder:
    """Makes the builder of a network on the named engine, with ``weak`` or ``strong`` typing.

    ``profile_shapes`` are the shapes of dynamic inputs; ONNX Runtime needs none.

    Raises:
        BadInput: a dynamic input has no shapes, or the engine lacks a DLA or the low precision.
        EngineUnavailable: the engine does not start here.
    """
    if options.dla is not None and engine == RTX:
        raise BadInput(f"The engine '{engine}' has no DLA.", "Use '--engine tensorrt', or leave out --dla.")
    if network.low is BF16 and engine == TENSORRT and version_of(version := engine_version(engine)) < _FIRST_STRONG:
        raise BadInput(f"TensorRT {version} has no BF16: TensorRT 10 has it.", "Use '--low fp16'.")
    if engine == ONNXRUNTIME:
        from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder

        return OnnxRuntimeBuilder(network, scales, options)
    if typing == "weak":
        from trt_bisect.builder.tensorrt_weak import TensorRTWeakBuilder

        return TensorRTWeakBuilder(network, scales, options, profile_shapes or {})
    from trt_bisect.builder.tensorrt_engine import TensorRTStrongBuilder

    return TensorRTStrongBuilder(network, scales, options, profile_shapes or {}, engine=engine)


def open_builder(
    engine: str,
    typing: str,
    network: Network,
    scales: Scales,
    options: BuildOptions,
    profile_shapes: ProfileShapes | None = None,
    process: WorkerProcess | None = None,
) -> Builder:
    """Makes the builder of a network or a pipeline; an NVIDIA engine works in a worker process.

    Other arguments are those of ``make_builder``. Builders may share ``process``; None starts a new one. Raises
    BadInput or EngineUnavailable if the engine cannot be used here for this network.
    """
    if engine != ONNXRUNTIME:
        process = process or WorkerProcess(_gpu_of(options.device))
    if network.pipeline is not None:
        from trt_bisect.builder.pipeline import EmulatedPipelineBuilder, PipelineBuilder

        def of_part(part: Part, own_scales: Scales) -> Builder:
            own = replace(options, sizes=part.of(options.sizes))
            return open_builder(engine, typing, part.network, own_scales, own, part.of(profile_shapes or {}), process)

        pipeline_builder = EmulatedPipelineBuilder if engine == ONNXRUNTIME else PipelineBuilder
        return pipeline_builder(network, scales, of_part)
    make = partial(make_builder, engine, typing, network, scales, options, profile_shapes)
    return make() if engine == ONNXRUNTIME else IsolatedBuilder(make, options.timeout, process)


def _gpu_of(device: str | None) -> str | None:
    if device is None:
        return None
    gpus, index = visible_gpus(), int(device.partition(":")[2])
    if index >= len(gpus):
        here = counted(len(gpus), "GPU")
        raise EngineUnavailable(f"There is no device {device}: the driver names {here}.", "'nvidia-smi' lists them.")
    return gpus[index]
