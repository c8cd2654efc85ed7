"""ONNX Runtime sessions of written graphs, and libraries with operators that ONNX Runtime does not have.

Q/DQ fusion is off: with it, a high layer between INT8 neighbours is quantized silently, and x86 INT8 kernels without
VNNI saturate 16-bit sums. All other optimisations keep the float arithmetic and are on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper, parser

from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.file import Written, set_external
from trt_bisect.support.memory import file_of, give_back_memory

NO_QDQ_FUSION = ("session.disable_quant_qdq", "1")
NO_SPINNING = ("session.intra_op.allow_spinning", "0")
"""Makes waiting threads sleep. A search runs tens of sessions by turns: spinning threads take the cores from the next.
"""
WRONG_BEFORE_FP8 = ("ReluQuantRewrite", "ClipQuantRewrite")
"""ONNX Runtime's optimisations that remove an activation before a QuantizeLinear which saturates there. The first one
removes a Relu before FP8 too, although FP8 holds negative values (seen in 1.31).
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
_WARNING, _FATAL = 2, 4
"""ONNX Runtime's levels of messages; the first is its default."""
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
SAME_SUMS = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
"""The highest level of optimisations at which float sums are added in the order of the graph."""
UNOPTIMISED = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
_TENSOR = re.compile(r"tensor\((\w+)\)")
_ENTRY_POINT = b"RegisterCustomOps"
_libraries: list[Path] = []


def use_libraries(paths: Iterable[str | Path]) -> None:
    """Gives the operators of shared libraries to every session that ``new_options`` is used for from now on.

    Each library has the function ``RegisterCustomOps`` of ONNX Runtime's C interface. Raises BadInput for a library
    that cannot be loaded.
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


def new_options() -> ort.SessionOptions:
    """Returns options for a silent session with the operators of all libraries."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for library in _libraries:
        options.register_custom_ops_library(str(library))
    return options


@cache
def for_onnx_runtime(library: str | Path) -> bool:
    """True for a library with ONNX Runtime's entry point, false for TensorRT's plugins; BadInput for no file."""
    return _ENTRY_POINT in _content(library)


def digests_of(paths: Sequence[str | Path]) -> str:
    """The start of the SHA-256 of each library, for a fingerprint; raises BadInput if a file cannot be read."""
    return " ".join(hashlib.sha256(_content(path)).hexdigest()[:16] for path in paths)


def _content(library: str | Path) -> bytes:
    try:
        return Path(library).read_bytes()
    except OSError as error:
        raise BadInput(f"The library '{library}' cannot be read: {error.strerror}.", "Check the path.") from error


def element_type(name: str) -> int | None:
    """Returns the ``TensorProto.DataType`` of ONNX Runtime's name of a type, such as ``tensor(float)``; None for no
    tensor.
    """
    kind = _TENSOR.fullmatch(name)
    return TensorProto.DataType.Value(kind[1].upper()) if kind else None


def make_session(
    written: Written,
    provider: str = CPU,
    threads: int | None = None,
    *,
    one_of_many: bool = False,
    level: ort.GraphOptimizationLevel = ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    arena: bool = True,
    integers: bool = False,
) -> ort.InferenceSession:
    """Makes a session, with Q/DQ fusion off unless ``integers``; raises TrialFailed if ONNX Runtime refuses the graph.

    Args:
        threads: for one inference; None for ONNX Runtime's default.
        one_of_many: true to use an arena that all such sessions share.
        level: of ONNX Runtime's optimisations. Up to ``SAME_SUMS`` outputs are the same bit by bit; beyond it tensors
            get other layouts, and float sums another order.
        arena: true to keep memory between inferences; false to free it after each, which takes longer.
        integers: true for ONNX Runtime's INT8 kernels, as a session with default options has them.
    """
    options = new_options()
    options.add_session_config_entry(*NO_SPINNING)
    if one_of_many and provider == CPU:
        _share_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    if not integers:
        options.add_session_config_entry(*NO_QDQ_FUSION)
    options.graph_optimization_level = level
    options.enable_cpu_mem_arena = arena
    model = _with_weights(written, options)
    try:
        providers = [provider] if provider == CPU else [provider, CPU]
        off = [] if integers else list(WRONG_BEFORE_FP8)
        return ort.InferenceSession(model.SerializeToString(), options, providers=providers, disabled_optimizers=off)
    except Exception as error:
        raise TrialFailed("build failed", first_line(error)) from error


def _with_weights(written: Written, options: ort.SessionOptions) -> onnx.ModelProto:
    """Gives options the weights of a graph; returns the graph, which refers to weights in files: ONNX Runtime reads
    these without an extra copy.
    """
    files = {name: path for name, array in written.weights.items() if (path := file_of(array)) is not None}
    arrays = {name: np.ascontiguousarray(array) for name, array in written.weights.items() if name not in files}
    if arrays:
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
        options.add_external_initializers(list(arrays), values)
    if not files:
        return written.model
    give_back_memory()
    options.add_session_config_entry(_FOLDER_OF_WEIGHTS, str(next(iter(files.values())).parent))
    model = onnx.ModelProto()
    model.CopyFrom(written.model)
    for tensor in model.graph.initializer:
        if tensor.name in files:
            set_external(tensor, written.weights[tensor.name].nbytes, files[tensor.name].name)
    return model


@cache
def usable_provider() -> str:
    """Returns CUDA's execution provider if a session gets it here, else the CPU's.

    ``onnxruntime-gpu`` names CUDA even where GPU, driver or libraries are missing.
    """
    if CUDA not in ort.get_available_providers():
        return CPU
    ort.set_default_logger_severity(_FATAL)
    try:
        content = parser.parse_model(_IDENTITY).SerializeToString()
        session = ort.InferenceSession(content, new_options(), providers=[CUDA, CPU])
    finally:
        ort.set_default_logger_severity(_WARNING)
    return str(session.get_providers()[0])


@cache
def integer_sums_are_exact() -> bool:
    """Returns true if ONNX Runtime's INT8 kernels add up the largest products exactly here.

    Without VNNI, x86 kernels add pairs of products in 16 bits, which saturate.
    """
    model = parser.parse_model(_PRODUCT)
    largest = np.full((_SUMMED, 1), np.iinfo(np.int8).max, np.int8)
    model.graph.initializer.append(numpy_helper.from_array(largest, "w"))
    session = make_session(Written(model, {}), threads=1, integers=True)
    (sums,) = session.run(None, {"x": largest.T.astype(np.float32)})
    return float(sums[0, 0]) == _SUMMED * float(largest[0, 0]) ** 2


def give_back_arena() -> None:
    """Returns the unused memory of the shared arena, and all other freed memory, to the system."""
    if _share_arena.cache_info().currsize:
        session, binding, options = _shrinking()
        session.run_with_iobinding(binding, options)
    give_back_memory()


@cache
def _shrinking() -> tuple[ort.InferenceSession, ort.IOBinding, ort.RunOptions]:
    """Returns a run after which ONNX Runtime shrinks the shared arena. Its own output is not in the arena."""
    session = make_session(Written(parser.parse_model(_IDENTITY), {}), threads=1, one_of_many=True)
    binding, options = session.io_binding(), ort.RunOptions()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32)))
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32)))
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return session, binding, options


@cache
def _share_arena() -> None:
    """Registers the arena that sessions share, once in a process."""
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"max_mem": 0, "arena_extend_strategy": 1}))
