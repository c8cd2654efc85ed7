"""ONNX Runtime sessions of written graphs, and libraries with operators that ONNX Runtime does not have.

Q/DQ fusion is off: with it, a layer in high precision between INT8 neighbours is quantized silently, and x86 INT8
kernels without VNNI saturate 16-bit sums.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper, parser

from trt_bisect.errors import BadInput, EngineUnavailable, TrialFailed, first_line
from trt_bisect.model.file import Written, set_external
from trt_bisect.support.memory import file_of, give_back_memory

NO_QDQ_FUSION = ("session.disable_quant_qdq", "1")
# Of two Q/DQ pairs in a row ONNX Runtime keeps one, with other levels.
KEEPS_DOUBLE_PAIRS = ("session.disable_double_qdq_remover", "1")
# Waiting threads sleep, because a search alternates between tens of sessions.
NO_SPINNING = ("session.intra_op.allow_spinning", "0")
WRONG_BEFORE_FP8 = ("ReluQuantRewrite", "ClipQuantRewrite")
"""Optimisations that remove an activation before a QuantizeLinear; the first also removes a Relu before FP8, although
FP8 holds negative values (seen in 1.31).
"""
_FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"
_IDENTITY = '<ir_version: 8, opset_import: ["": 13]> g (float[1] x) => (float[1] y) {y = Identity(x)}'
_SUMMED = 64
_PRODUCT = f"""<ir_version: 8, opset_import: ["": 13]>
g (float[1, {_SUMMED}] x) => (float[1, 1] y) <float one = {{1}}, int8 zero = {{0}}> {{
    xq = QuantizeLinear(x, one, zero)
    xd = DequantizeLinear(xq, one, zero)
    wd = DequantizeLinear(w, one, zero)
    y = MatMul(xd, wd)
}}"""
_WARNING, _FATAL = 2, 4  # ONNX Runtime's levels of messages; the first is its default.
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
CPU_DEVICE = "cpu"
SAME_SUMS = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
"""The highest level that keeps the order of float sums: only fused or folded operators can differ, in the last bit."""
UNOPTIMISED = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
_TENSOR = re.compile(r"tensor\((\w+)\)")
_ENTRY_POINT = b"RegisterCustomOps"
_libraries: list[Path] = []
_devices: list[str] = []  # the device of later sessions; empty for the default


def use_libraries(paths: Iterable[str | Path]) -> None:
    """Makes the operators of shared libraries available to every session made later.

    Libraries have the function ``RegisterCustomOps`` of ONNX Runtime's C interface. Raises BadInput if one cannot be
    loaded.
    """
    for path in paths:
        library = Path(path).resolve()
        if library in _libraries:
            continue
        try:
            ort.SessionOptions().register_custom_ops_library(str(library))
        except Exception as error:
            raise BadInput(
                f"ONNX Runtime cannot load the operators in '{path}': {first_line(error)}",
                f"Give a library that was built for ONNX Runtime {ort.__version__} on this kind of machine.",
            ) from error
        _libraries.append(library)


def use_device(device: str | None, *, or_cpu: bool = False) -> None:
    """Sets the device of later sessions.

    Args:
        device: ``cpu`` or ``cuda:0``; None: plans use the first CUDA device, if usable, else the CPU.
        or_cpu: use the CPU if ONNX Runtime has no such GPU.

    Raises EngineUnavailable if ONNX Runtime gets no session on the device.
    """
    _devices.clear()
    if device is None:
        return
    installed = ort.get_available_providers()
    usable = device == CPU_DEVICE or (CUDA in installed and _gets_cuda(index_of(device)))
    if not usable and not or_cpu:
        remedy = "Install onnxruntime-gpu in place of onnxruntime, or give --device cpu."
        if CUDA in installed:
            remedy = "'nvidia-smi' must list it, with the CUDA and cuDNN of onnxruntime-gpu; or give --device cpu."
        has = ", ".join(name.removesuffix("ExecutionProvider") for name in installed)
        raise EngineUnavailable(f"ONNX Runtime {ort.__version__} ({has}) cannot run on {device}.", remedy)
    _devices.append(device if usable else CPU_DEVICE)


def index_of(device: str) -> int:
    """Returns the number of a GPU such as ``cuda:1``."""
    return int(device.partition(":")[2])


def new_options() -> ort.SessionOptions:
    """Returns options for a silent session with the operators of the libraries in use."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for library in _libraries:
        options.register_custom_ops_library(str(library))
    return options


@cache
def for_onnx_runtime(library: str | Path) -> bool:
    """Returns true for a library of ONNX Runtime's operators, false for one of TensorRT's plugins; raises BadInput
    without a file.
    """
    return _ENTRY_POINT in _content(library)


def digests_of(paths: Sequence[str | Path]) -> str:
    """Returns the first 16 digits of each library's SHA-256, separated by spaces; raises BadInput if a file cannot be
    read.
    """
    return " ".join(hashlib.sha256(_content(path)).hexdigest()[:16] for path in paths)


def _content(library: str | Path) -> bytes:
    try:
        return Path(library).read_bytes()
    except OSError as error:
        raise BadInput(f"The library '{library}' cannot be read: {error.strerror}.", "Check the path.") from error


def element_type(name: str) -> int | None:
    """Returns the ``TensorProto.DataType`` of a type such as ``tensor(float)``; None for other types."""
    kind = _TENSOR.fullmatch(name)
    return TensorProto.DataType.Value(kind[1].upper()) if kind else None


def make_session(
    written: Written,
    provider: str = "",
    threads: int | None = None,
    *,
    one_of_many: bool = False,
    level: ort.GraphOptimizationLevel = ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    arena: bool = True,
    integers: bool = False,
) -> ort.InferenceSession:
    """Makes a session; raises TrialFailed if ONNX Runtime refuses the graph.

    Args:
        provider: ONNX Runtime's execution provider; empty: that of the device in use.
        threads: the number of threads of an inference; None: ONNX Runtime's default.
        one_of_many: share a memory arena with all such sessions.
        level: the level of ONNX Runtime's graph optimisations.
        arena: keep memory between inferences, which is faster.
        integers: fuse Q/DQ pairs into ONNX Runtime's INT8 kernels, as default options do.
    """
    options = new_options()
    options.add_session_config_entry(*NO_SPINNING)
    on_gpu = any(device != CPU_DEVICE for device in _devices) and not integers
    provider = provider or (CUDA if on_gpu else CPU)
    if one_of_many and provider == CPU:
        _share_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    if not integers:
        options.add_session_config_entry(*NO_QDQ_FUSION)
        if _rounds_twice(written.model.graph):
            options.add_session_config_entry(*KEEPS_DOUBLE_PAIRS)
    options.graph_optimization_level = level
    options.enable_cpu_mem_arena = arena
    try:
        model = _with_weights(written, options)
        index = index_of(_devices[0]) if on_gpu else 0
        providers = [CPU] if provider == CPU else [(provider, {"device_id": index}), CPU]
        off = [] if integers else list(WRONG_BEFORE_FP8)
        return ort.InferenceSession(model.SerializeToString(), options, providers=providers, disabled_optimizers=off)
    except Exception as error:
        raise TrialFailed("build failed", first_line(error)) from error


def _rounds_twice(graph: onnx.GraphProto) -> bool:
    rounded = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    return any(node.op_type == "QuantizeLinear" and node.input[0] in rounded for node in graph.node)


def _with_weights(written: Written, options: ort.SessionOptions) -> onnx.ModelProto:
    # Options take weights in memory; the graph refers to weights in files. So nothing is copied.
    files = {name: path for name, array in written.weights.items() if (path := file_of(array)) is not None}
    arrays = {name: np.ascontiguousarray(array) for name, array in written.weights.items() if name not in files}
    if arrays:
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
        options.add_external_initializers(list(arrays), values)
    if not files:
        return written.model
    give_back_memory()
    options.add_session_config_entry(_FOLDER_OF_WEIGHTS, str(next(iter(files.values())).parent))
    model = deepcopy(written.model)
    for tensor in model.graph.initializer:
        if tensor.name in files:
            set_external(tensor, written.weights[tensor.name].nbytes, files[tensor.name].name)
    return model


def usable_provider() -> str:
    """Returns the execution provider for plans: that of the device in use, else CUDA's if usable, else the CPU's."""
    if _devices:
        return CPU if _devices[0] == CPU_DEVICE else CUDA
    # ``onnxruntime-gpu`` names CUDA even where GPU, driver or libraries are missing.
    return CUDA if CUDA in ort.get_available_providers() and _gets_cuda(0) else CPU


@cache
def _gets_cuda(index: int) -> bool:
    ort.set_default_logger_severity(_FATAL)
    try:
        content = parser.parse_model(_IDENTITY).SerializeToString()
        session = ort.InferenceSession(content, new_options(), providers=[(CUDA, {"device_id": index}), CPU])
    except Exception:  # ONNX Runtime refuses a GPU that is not there
        return False
    finally:
        ort.set_default_logger_severity(_WARNING)
    return bool(session.get_providers()[0] == CUDA)


@cache
def integer_sums_are_exact() -> bool:
    """Returns true if ONNX Runtime's INT8 kernels add up the largest products exactly on this machine."""
    # Without VNNI, x86 kernels add pairs of products in 16 bits, which saturate.
    model = parser.parse_model(_PRODUCT)
    largest = np.full((_SUMMED, 1), np.iinfo(np.int8).max, np.int8)
    model.graph.initializer.append(numpy_helper.from_array(largest, "w"))
    session = make_session(Written(model, {}), threads=1, integers=True)
    (sums,) = session.run(None, {"x": largest.T.astype(np.float32)})
    return float(sums[0, 0]) == _SUMMED * float(largest[0, 0]) ** 2


def give_back_arena() -> None:
    """Returns the unused memory of the shared arena, and other freed memory, to the system."""
    if _share_arena.cache_info().currsize:
        session, binding, options = _shrinking()
        session.run_with_iobinding(binding, options)
    give_back_memory()


@cache
def _shrinking() -> tuple[ort.InferenceSession, ort.IOBinding, ort.RunOptions]:
    # ONNX Runtime shrinks the shared arena after such a run.
    session = make_session(Written(parser.parse_model(_IDENTITY), {}), CPU, threads=1, one_of_many=True)
    binding, options = session.io_binding(), ort.RunOptions()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32)))
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32)))
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return session, binding, options


@cache
def _share_arena() -> None:
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"max_mem": 0, "arena_extend_strategy": 1}))
