"""Which engines can be used here, which one a run takes, and the builder that makes them.

Nothing is imported before it is asked for: TensorRT's libraries are large. DLA is not supported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trt_bisect.builder.base import Builder, BuildOptions
from trt_bisect.builder.cuda_memory import import_pycuda
from trt_bisect.builder.gpu import find_gpu
from trt_bisect.builder.isolation import IsolatedBuilder, WorkerProcess
from trt_bisect.builder.tensorrt_build import ProfileShapes
from trt_bisect.builder.tensorrt_module import RTX, TENSORRT, import_tensorrt, version_of
from trt_bisect.errors import BadInput, EngineUnavailable
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import Scales

ONNXRUNTIME = "onnxruntime"
AUTO = "auto"
ENGINES = (ONNXRUNTIME, TENSORRT, RTX)
TYPINGS = ("weak", "strong")

_FIRST_STRONG = (10, 0)
_STRONG_BY_DEFAULT = (10, 12)
_FIRST_WITHOUT_WEAK = (11, 0)
_OLDEST = (8, 5)


@dataclass(frozen=True)
class EngineStatus:
    """What one engine can do here.

    Attributes:
        version: empty where the engine does not import.
        typings: the choices for ``--typing``, the default first.
        device: what it would run on; empty where there is none.
        why_not: why it cannot be used, and what to do about it; empty where it can.
    """

    name: str
    version: str = ""
    typings: tuple[str, ...] = ()
    device: str = ""
    why_not: str = ""

    @property
    def usable(self) -> bool:
        """Whether a run can take it."""
        return not self.why_not


def list_engines() -> tuple[EngineStatus, ...]:
    """What ONNX Runtime, TensorRT and TensorRT-RTX can do here."""
    return tuple(engine_status(name) for name in ENGINES)


def engine_status(name: str) -> EngineStatus:
    """What one of ``ENGINES`` can do here."""
    return _onnxruntime_status() if name == ONNXRUNTIME else _tensorrt_status(name)


def _onnxruntime_status() -> EngineStatus:
    try:
        import onnxruntime
    except (ImportError, OSError) as error:
        return EngineStatus(ONNXRUNTIME, why_not=f"It does not import: {error}\npip install onnxruntime")
    device = "GPU" if "CUDAExecutionProvider" in onnxruntime.get_available_providers() else "CPU"
    return EngineStatus(ONNXRUNTIME, onnxruntime.__version__, ("strong",), device)


def _tensorrt_status(name: str) -> EngineStatus:
    try:
        version = import_tensorrt(name).__version__
    except EngineUnavailable as error:
        return EngineStatus(name, why_not=str(error))
    typings = _typings(name, version)
    checks: tuple[Callable[[], object], ...] = (find_gpu, import_pycuda)
    device, problems = "", []
    for check in checks:
        try:
            answer = check()
        except EngineUnavailable as error:
            problems.append(str(error))
        else:
            device = str(answer) if check is find_gpu else device
    if name == TENSORRT and version_of(version) < _OLDEST:
        problems.append(f"TensorRT {version} is too old: 8.5 is the oldest that is supported.")
    return EngineStatus(name, version, typings, device, "\n".join(problems))


def choose_engine(name: str) -> str:
    """The engine that a run takes: the one asked for, or for ``auto`` TensorRT where it can be used, else ONNX Runtime.

    Raises:
        BadInput: there is no engine of that name.
        EngineUnavailable: the engine asked for cannot be used here; the message says why.
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
    """The version of an engine that imports; ONNX Runtime's own word, since its package has several names.

    Raises:
        EngineUnavailable: it does not import.
    """
    if engine == ONNXRUNTIME:
        import onnxruntime

        return str(onnxruntime.__version__)
    return str(import_tensorrt(engine).__version__)


def choose_typing(engine: str, asked: str = AUTO, version: str | None = None) -> str:
    """``weak`` or ``strong``: what was asked for, or for ``auto`` what suits the engine's version.

    TensorRT: weak before 10.12, which deprecates it, strong from there on; 11 has no weak typing. The others know only
    strong typing.

    Args:
        engine: one of ``ENGINES``.
        asked: ``auto``, ``weak`` or ``strong``.
        version: the engine's; None asks the engine itself.

    Raises:
        BadInput: that engine, or that version of it, has not the typing asked for.
        EngineUnavailable: no version is given, and the engine does not import.
    """
    if asked not in (AUTO, *TYPINGS):
        raise BadInput(f"There is no typing '{asked}'.", f"Use {AUTO}, {' or '.join(TYPINGS)}.")
    version = engine_version(engine) if version is None else version
    choices = _typings(engine, version)
    if asked == AUTO:
        return choices[0]
    if asked not in choices:
        why = ""
        if engine == TENSORRT:
            why = ": it came with TensorRT 10" if asked == "strong" else ": it is gone in TensorRT 11"
        raise BadInput(f"{engine} {version} has no {asked} typing{why}.", f"Use '--typing {choices[0]}', or 'auto'.")
    return asked


def _typings(engine: str, version: str) -> tuple[str, ...]:
    number = version_of(version)
    if engine != TENSORRT or number >= _FIRST_WITHOUT_WEAK:
        return ("strong",)
    if number < _FIRST_STRONG:
        return ("weak",)
    return ("strong", "weak") if number >= _STRONG_BY_DEFAULT else ("weak", "strong")


def make_builder(
    engine: str,
    typing: str,
    network: Network,
    scales: Scales,
    options: BuildOptions,
    profile_shapes: ProfileShapes | None = None,
) -> Builder:
    """The builder of an engine and a typing that ``choose_engine`` and ``choose_typing`` gave.

    Args:
        engine: one of ``ENGINES``.
        typing: one of ``TYPINGS``.
        network: what is built.
        scales: of its activations.
        options: how it is built.
        profile_shapes: the smallest, usual and largest shape of each dynamic input; ONNX Runtime needs none.

    Raises:
        BadInput: a dynamic input has no shapes.
        EngineUnavailable: the engine does not start here.
    """
    if engine == ONNXRUNTIME:
        from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder

        return OnnxRuntimeBuilder(network, scales, options)
    if typing == "weak":
        from trt_bisect.builder.tensorrt_weak import TensorRTWeakBuilder

        return TensorRTWeakBuilder(network, scales, options, profile_shapes or {})
    from trt_bisect.builder.tensorrt_strong import TensorRTStrongBuilder

    return TensorRTStrongBuilder(network, scales, options, profile_shapes or {}, engine=engine)


def open_builder(
    engine: str,
    typing: str,
    network: Network,
    scales: Scales,
    options: BuildOptions,
    profile_shapes: ProfileShapes | None = None,
    workshop: WorkerProcess | None = None,
) -> Builder:
    """What ``make_builder`` makes, in a worker process where the engine is NVIDIA's; raises what that raises.

    Args:
        workshop: whose process it is, with other builders in it; None gives it one of its own.
    """
    make = partial(make_builder, engine, typing, network, scales, options, profile_shapes)
    return make() if engine == ONNXRUNTIME else IsolatedBuilder(make, options.timeout, workshop)
