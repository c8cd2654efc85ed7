"""Engines of TensorRT 8.5 and later and TensorRT-RTX, run through PyCUDA, and their builder for strong typing."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import onnx

from trt_bisect.builder import tensorrt_build
from trt_bisect.builder.base import MEASURED, BuildOptions, Latency, LayerTime, Outputs, ProfileShapes, precisions_in
from trt_bisect.builder.debug_tensors import listen, mark_unfused, on_graph
from trt_bisect.builder.inspector import EngineLayer, engine_layers, named_in, ran_in
from trt_bisect.builder.tensorrt_rtx import eager_context
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput, EngineUnavailable, TrialFailed
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Scales
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.support.machine import find_gpu


def import_pycuda() -> Any:
    """Returns the module ``pycuda.driver``; raises EngineUnavailable if it cannot be imported."""
    try:
        return importlib.import_module("pycuda.driver")
    except (ImportError, OSError) as error:
        remedy = "pip install pycuda"
        raise EngineUnavailable(f"PyCUDA, which runs TensorRT's engines, does not import: {error}", remedy) from error


@dataclass(frozen=True)
class Device:
    """The module ``pycuda.driver`` and a GPU's primary context, which TensorRT uses."""

    cuda: Any
    context: Any

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the GPU's context current in this thread until the ``with`` block ends."""
        self.context.push()
        try:
            yield
        finally:
            self.cuda.Context.pop()


@functools.cache
def open_device() -> Device:
    """Returns the first GPU, opened once per process; a process forked later must not use it.

    Raises EngineUnavailable if PyCUDA is not installed or no GPU answers.
    """
    find_gpu()
    cuda = import_pycuda()
    try:
        cuda.init()
        return Device(cuda, cuda.Device(0).retain_primary_context())
    except cuda.Error as error:
        raise EngineUnavailable(f"No NVIDIA GPU answers: {error}", "'nvidia-smi' must list the GPU.") from error


class Buffer:
    """Pinned host memory and device memory for one tensor."""

    def __init__(self, device: Device) -> None:
        self._cuda = device.cuda
        self._bytes = 0
        self.host: np.ndarray = np.empty(0, np.uint8)
        self.memory: Any = None

    def hold(self, size: int) -> None:
        """Makes room for ``size`` bytes; the content is lost if the buffer has to grow."""
        if self.memory is None or size > self._bytes:
            self.memory = None
            self._bytes = max(size, 1)
            self.host = self._cuda.pagelocked_empty(self._bytes, np.uint8)
            self.memory = self._cuda.mem_alloc(self._bytes)

    @property
    def address(self) -> int:
        """The address of the device memory."""
        return int(self.memory)

    def write(self, array: np.ndarray) -> None:
        """Copies an array's bytes into the host memory."""
        self.host[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def upload(self, size: int, stream: Any) -> None:
        """Starts copying ``size`` bytes to the device."""
        self._cuda.memcpy_htod_async(self.memory, self.host[:size], stream)

    def download(self, size: int, stream: Any) -> None:
        """Starts copying ``size`` bytes to the host."""
        self._cuda.memcpy_dtoh_async(self.host[:size], self.memory, stream)

    def read(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Returns a copy of the host memory as an array."""
        size = math.prod(shape) * dtype.itemsize
        copied: np.ndarray = self.host[:size].copy().view(dtype).reshape(shape)
        return copied


_DTYPES: dict[str, np.dtype[Any]] = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "INT8": np.dtype(np.int8),
    "UINT8": np.dtype(np.uint8),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "BOOL": np.dtype(np.bool_),
}
_UNTIMED_RUNS = 10
_FEWEST_RUNS = 10
_PROFILED_RUNS = 20
_TIMING_MILLISECONDS = 2000.0


class _Tensor(Buffer):
    def __init__(self, device: Device, name: str, is_input: bool, dtype: np.dtype[Any], on_host: bool) -> None:
        super().__init__(device)
        self.name, self.is_input, self.dtype, self.on_host = name, is_input, dtype, on_host

    @property
    def address(self) -> int:
        return int(self.host.ctypes.data) if self.on_host else super().address

    def give(self, array: np.ndarray, context: Any, stream: Any) -> None:
        self.hold(array.nbytes)
        self.write(array)
        if not self.on_host:
            self.upload(array.nbytes, stream)
        context.set_tensor_address(self.name, self.address)


@dataclass(frozen=True)
class _Loaded:
    device: Device
    runtime: Any
    engine: Any
    context: Any
    stream: Any
    tensors: tuple[_Tensor, ...]
    allocator: Any


class TensorRTEngine:
    """A TensorRT engine; it is loaded onto the GPU at its first use, and unloaded when the ``with`` block ends.

    Attributes:
        ran: the precision of each layer by index: that of the graph's Q/DQ pairs, or without pairs ``computed``.
        computed: by layer index, the kernel's precision, from the engine inspector; empty before the first use.
    """

    def __init__(
        self,
        rt: tensorrt_build.TensorRT,
        serialized: tensorrt_build.Serialized,
        network: Network,
        shapes: ProfileShapes,
        options: BuildOptions | None = None,
        rounded: Mapping[int, str] | None = None,
        names: Mapping[str, str] | None = None,
        graph: onnx.GraphProto | None = None,
    ) -> None:
        """Keeps a serialized engine; does not load it.

        Args:
            rounded: the precisions that the graph sets, by layer index; None if it sets none.
            names: the user's names of layers, by name in ``network``; None: the same names.
            graph: the ONNX graph, for ``infer`` to return debug tensors too; None: it does not.
        """
        self.serialized = serialized
        self.ran: Mapping[int, str] = rounded or {}
        self.computed: Mapping[int, str] = {}
        self.messages = serialized.messages
        self._rt = rt
        self._network = network
        self._shapes = shapes
        self._options = options or BuildOptions()
        self._rounded = rounded
        self._names = names or {layer.name: layer.name for layer in network.layers}
        self._graph = graph
        self._listener: Any = None
        self._inspected = ""
        self._loaded: _Loaded | None = None
        self._layers: tuple[EngineLayer, ...] = ()
        self._profiler: Any = None

    def inspect(self) -> str:
        """Returns the engine inspector's JSON for the usual shapes; raises EngineUnavailable or TrialFailed."""
        with self._current() as loaded:
            return self._inspect(loaded)

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs for a sample by name, in the dtypes of the network's outputs.

        Raises EngineUnavailable without a GPU or PyCUDA, and TrialFailed for any other failure.
        """
        with self._current() as loaded:
            shapes = self._bind(loaded, feeds)
            if self._graph is not None:
                self._listener.tensors.clear()
            self._enqueue(loaded)
            outputs = self._download(loaded, {**shapes, **loaded.allocator.shapes})
            if self._graph is None:
                return outputs
            return {**dict(on_graph(self._listener.tensors, self._inspected, self._graph)), **outputs}

    def latency(self, feeds: Feeds, runs: int = 200) -> Latency:
        """Measures the time of an inference on the GPU, after a warm-up, and then of each engine layer.

        It times at most ``runs`` inferences, for about two seconds. Raises EngineUnavailable or TrialFailed.
        """
        with self._current() as loaded:
            self._bind(loaded, feeds)
            for _ in range(_UNTIMED_RUNS):
                self._milliseconds(loaded)
            times: list[float] = []
            while len(times) < runs and (len(times) < _FEWEST_RUNS or sum(times) < _TIMING_MILLISECONDS):
                times.append(self._milliseconds(loaded))
            layers = (self._network.layers[k] for k in self._network.quantizable if k in self.computed)
            computed = {self._names[layer.name]: self.computed[layer.index] for layer in layers}
            return Latency.of(times, self._layer_times(loaded), computed)

    def _milliseconds(self, loaded: _Loaded) -> float:
        cuda = loaded.device.cuda
        begin, end = cuda.Event(), cuda.Event()
        begin.record(loaded.stream)
        self._enqueue(loaded)
        end.record(loaded.stream)
        end.synchronize()
        return float(end.time_since(begin))

    def _layer_times(self, loaded: _Loaded) -> tuple[LayerTime, ...]:
        network_layers = {layer.name: layer.network_layers for layer in self._layers}
        self._profiler = loaded.context.profiler = adding_profiler(self._rt.module)
        for _ in range(_PROFILED_RUNS):
            self._enqueue(loaded)
            loaded.stream.synchronize()
        times = []
        for name, total in self._profiler.totals.items():
            parts = network_layers.get(name, named_in(name))
            layers = tuple(self._names[part] for part in parts if part in self._names)
            times.append(LayerTime(name, layers, total / _PROFILED_RUNS))
        return tuple(times)

    def _bind(self, loaded: _Loaded, feeds: Feeds) -> dict[str, tuple[int, ...]]:
        context = loaded.context
        for tensor in loaded.tensors:
            if tensor.is_input:
                array = np.asarray(feeds[tensor.name]).astype(tensor.dtype, copy=False)
                if not context.set_input_shape(tensor.name, array.shape):
                    raise self._failed(f"The engine does not take the shape {list(array.shape)} of '{tensor.name}'.")
                tensor.give(array, context, loaded.stream)
        try:
            unknown = context.infer_shapes()
        except RuntimeError as error:
            raise self._failed(f"The shapes of the tensors cannot be inferred: {error}") from error
        if unknown:
            raise self._failed(f"The engine lacks the shapes of {', '.join(unknown)}.")
        shapes: dict[str, tuple[int, ...]] = {}
        loaded.allocator.shapes.clear()
        for tensor in loaded.tensors:
            if not tensor.is_input:
                shape = tuple(int(size) for size in context.get_tensor_shape(tensor.name))
                if any(size < 0 for size in shape):
                    context.set_output_allocator(tensor.name, loaded.allocator)
                    continue
                shapes[tensor.name] = shape
                tensor.hold(math.prod(shape) * tensor.dtype.itemsize)
                context.set_tensor_address(tensor.name, tensor.address)
        return shapes

    def _enqueue(self, loaded: _Loaded) -> None:
        if not loaded.context.execute_async_v3(loaded.stream.handle):
            raise self._failed("TensorRT did not run the engine.")

    def _download(self, loaded: _Loaded, shapes: Mapping[str, tuple[int, ...]]) -> Outputs:
        outputs = [tensor for tensor in loaded.tensors if not tensor.is_input]
        without_shape = [tensor.name for tensor in outputs if tensor.name not in shapes]
        if without_shape:
            raise self._failed(f"TensorRT ran the engine, but reported no shape of {', '.join(without_shape)}.")
        for tensor in outputs:
            if not tensor.on_host:
                tensor.download(math.prod(shapes[tensor.name]) * tensor.dtype.itemsize, loaded.stream)
        loaded.stream.synchronize()
        arrays = {tensor.name: tensor.read(shapes[tensor.name], tensor.dtype) for tensor in outputs}
        return {spec.name: arrays[spec.name].astype(spec.dtype, copy=False) for spec in self._network.outputs}

    @contextmanager
    def _current(self) -> Iterator[_Loaded]:
        device = open_device()
        try:
            with device.current():
                if self._loaded is None:
                    self._loaded = self._load(device)
                    self._inspected = self._inspect(self._loaded)
                    self._layers = engine_layers(self._inspected) or self.serialized.layers
                    self.computed = ran_in(self._layers, self._network.layers)
                    self.ran = self.computed if self._rounded is None else self._rounded
                yield self._loaded
        except device.cuda.Error as error:
            raise self._failed(str(error)) from error

    def _load(self, device: Device) -> _Loaded:
        trt = self._rt.module
        tensorrt_build.drain(self._rt.logger)
        runtime = trt.Runtime(self._rt.logger)
        if self._options.dla is not None:
            runtime.DLA_core = self._options.dla
        engine = runtime.deserialize_cuda_engine(self.serialized.data)
        if engine is None:
            raise self._failed("The engine cannot be loaded.")
        is_rtx = self._rt.engine == tensorrt_build.RTX
        context = eager_context(self._rt, engine) if is_rtx else engine.create_execution_context()
        if context is None:
            raise self._failed("Out of memory: the engine cannot be given memory to run in.")
        if self._graph is not None:
            self._listener = listen(trt, device.cuda, context, _DTYPES)
        tensors = []
        for name in [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]:
            dtype = engine.get_tensor_dtype(name).name
            if dtype not in _DTYPES:
                raise self._failed(f"'{name}' is of the type {dtype}, which NumPy does not have.")
            is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
            on_host = engine.get_tensor_location(name) == trt.TensorLocation.HOST
            tensors.append(_Tensor(device, name, is_input, _DTYPES[dtype], on_host))
        allocator = output_allocator(trt, {tensor.name: tensor for tensor in tensors})
        return _Loaded(device, runtime, engine, context, device.cuda.Stream(), tuple(tensors), allocator)

    def _inspect(self, loaded: _Loaded) -> str:
        for name, (_, usual, _) in self._shapes.items():
            loaded.context.set_input_shape(name, usual)
        for tensor in loaded.tensors:
            if tensor.is_input and tensor.on_host and tensor.name in self._options.sizes:
                values = np.array(self._options.sizes[tensor.name][1], tensor.dtype)
                tensor.give(values, loaded.context, loaded.stream)
        inspector = loaded.engine.create_engine_inspector()
        inspector.execution_context = loaded.context
        return str(inspector.get_engine_information(self._rt.module.LayerInformationFormat.JSON))

    def _failed(self, what: str) -> TrialFailed:
        errors = tensorrt_build.errors_in(tensorrt_build.drain(self._rt.logger), "")
        return TrialFailed("inference failed", f"{what} {errors}".strip())

    def __enter__(self) -> TensorRTEngine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._loaded is not None:
            with self._loaded.device.current():
                self._loaded = None


def adding_profiler(trt: ModuleType) -> Any:
    """Returns a profiler that adds up the milliseconds of each engine layer in its ``totals``, by name."""

    class AddingProfiler(trt.IProfiler):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.totals: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.totals[layer_name] = self.totals.get(layer_name, 0.0) + ms

    return AddingProfiler()


def output_allocator(trt: ModuleType, buffers: Mapping[str, Buffer]) -> Any:
    """Returns an allocator for outputs of unknown shapes: it uses their buffers, and keeps their ``shapes`` by name."""

    class BufferAllocator(trt.IOutputAllocator):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.shapes: dict[str, tuple[int, ...]] = {}

        def reallocate_output(self, tensor_name: str, _memory: int, size: int, _alignment: int) -> int:
            buffers[tensor_name].hold(size)
            return buffers[tensor_name].address

        def reallocate_output_async(self, tensor_name: str, memory: int, size: int, align: int, _stream: int) -> int:
            return self.reallocate_output(tensor_name, memory, size, align)

        def notify_shape(self, tensor_name: str, shape: Iterable[int]) -> None:
            self.shapes[tensor_name] = tuple(int(size) for size in shape)

    return BufferAllocator()


_FIRST_STRONG = 10
# the first whose DLA takes strongly typed networks (JetPack 7.2.2 has 11.4.1); not tested on a board
_FIRST_STRONG_DLA = (11, 4)


class TensorRTStrongBuilder:
    """Builds engines whose precisions the graph sets with Q/DQ pairs and Casts, strongly typed from TensorRT 10 on.

    Before 10 the pairs decide what is rounded to INT8; if the plan uses FP16, TensorRT may also run its FP32 layers in
    FP16.
    """

    typing = "strong"
    arithmetic = MEASURED

    def __init__(
        self,
        network: Network,
        scales: Scales,
        options: BuildOptions,
        profile_shapes: ProfileShapes,
        *,
        engine: str = tensorrt_build.TENSORRT,
    ) -> None:
        self.engine = engine
        self._network = network
        self._writer = PlanWriter(network, scales, GraphTarget.TENSORRT)
        self._options = options
        self._shapes = tensorrt_build.dynamic_shapes(network, profile_shapes)
        self._rt = tensorrt_build.start_tensorrt(engine, options.plugins)
        if options.dla is not None and self._rt.version < _FIRST_STRONG_DLA:
            raise BadInput(
                f"The DLA takes no strongly typed network of TensorRT {self._rt.module.__version__}: 11.4.1 has it.",
                "Use '--typing weak', or leave out --dla.",
            )
        self._allows = engine == tensorrt_build.TENSORRT and self._rt.version[0] < _FIRST_STRONG
        self.versions: Mapping[str, str] = tensorrt_build.versions_of(self._rt, options)

    def network_definition(self, plan: PrecisionPlan) -> tensorrt_build.Definition:
        """Returns a plan's network as TensorRT parsed it; raises TrialFailed if the parser refuses it."""
        flag = "EXPLICIT_BATCH" if self._allows else "STRONGLY_TYPED"
        return tensorrt_build.parse_written(self._rt, self._writer.write(plan), (flag,))

    def serialize(self, plan: PrecisionPlan) -> tensorrt_build.Serialized:
        """Builds the engine of a plan as bytes; raises TrialFailed if the build fails."""
        definition = self.network_definition(plan)
        if self._options.debug_tensors:
            mark_unfused(definition)
        config, _ = tensorrt_build.new_config(self._rt, self._options, self._shapes, definition)
        if self._options.dla is not None and plan.lowered:
            tensorrt_build.use_dla(self._rt.module, self._rt.builder, config, self._options.dla)
        if self._allows:
            flags = self._rt.module.BuilderFlag.__members__
            for precision in sorted({Precision.INT8, Precision.FP16} & self._network.used_precisions(plan)):
                config.set_flag(flags[precision.upper()])
        return tensorrt_build.serialize(self._rt, definition, config, self._options)

    def build(self, plan: PrecisionPlan) -> TensorRTEngine:
        """Builds the engine of a plan."""
        rounded = precisions_in(self._network, plan)
        graph = self._writer.write(plan).model.graph if self._options.debug_tensors else None
        serialized = self.serialize(plan)
        return TensorRTEngine(self._rt, serialized, self._network, self._shapes, self._options, rounded, graph=graph)

    def reference(self) -> TensorRTEngine:
        """Builds the engine with every layer in FP32 and TF32 off."""
        return self.build(self._network.free_plan())
