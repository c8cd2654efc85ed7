"""Running an engine, against stand-ins for PyCUDA and TensorRT with host memory for device memory."""

import ctypes
import itertools
import json
import sys
from dataclasses import replace
from enum import Enum
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from onnx import helper

from trt_bisect.builder import tensorrt_engine
from trt_bisect.builder.inspector import EngineLayer
from trt_bisect.builder.tensorrt_build import RTX, Serialized, TensorRT
from trt_bisect.builder.tensorrt_engine import Buffer, Device, TensorRTEngine
from trt_bisect.data.feeds import TensorSpec
from trt_bisect.errors import TrialFailed
from trt_bisect.model.layers import Layer
from trt_bisect.support.machine import InstalledGpu


class CudaError(Exception):
    pass


class FakeCuda(ModuleType):
    """``pycuda.driver``: copies happen when the stream is synchronized, as they may on a GPU."""

    Error = CudaError

    def __init__(self):
        super().__init__("pycuda.driver")
        self.memory, self.depth, self.queue, self.initialized, self.milliseconds = {}, 0, [], 0, 0.0
        self.durations = itertools.repeat(2.5)
        self.Context = SimpleNamespace(pop=self._pop, synchronize=self._synchronize)

    def init(self):
        self.initialized += 1

    def Device(self, ordinal):
        assert ordinal == 0
        return SimpleNamespace(retain_primary_context=lambda: SimpleNamespace(push=self._push))

    def _push(self):
        self.depth += 1

    def _pop(self):
        self.depth -= 1

    def Stream(self):
        return SimpleNamespace(handle=77, synchronize=self._synchronize)

    def Event(self):
        event = SimpleNamespace(record=lambda stream: setattr(event, "at", self.milliseconds))
        event.synchronize = self._synchronize
        event.time_since = lambda other: event.at - other.at
        return event

    def _synchronize(self):
        while self.queue:
            self.queue.pop(0)()

    def pagelocked_empty(self, size, dtype):
        return np.full(size, 0xAA, dtype)

    def mem_alloc(self, size):
        assert self.depth == 1, "memory is taken in the current context"
        address = 4096 * (len(self.memory) + 1)
        self.memory[address] = np.full(size, 0x55, np.uint8)
        return address

    def memcpy_htod_async(self, address, host, stream):
        held = host.copy()
        self.queue.append(lambda: self.memory[address].__setitem__(slice(0, held.size), held))

    def memcpy_dtoh(self, host, address):
        host.reshape(-1).view(np.uint8)[...] = self.memory[address][: host.nbytes]

    def memcpy_dtoh_async(self, host, address, stream):
        self.queue.append(lambda: host.__setitem__(slice(None), self.memory[address][: host.size]))


class Mode(Enum):
    INPUT, OUTPUT = range(2)


class Location(Enum):
    DEVICE, HOST = range(2)


class FakeContext:
    """Doubles ``x`` and counts with ``ids``, whose engine type is INT32 where the network's is int64."""

    def __init__(self, cuda, behaviour):
        self.cuda, self.behaviour, self.addresses, self.shapes = cuda, behaviour, {}, {}
        self.profiler, self.allocators, self.listener, self.unfused_tensors_debug_state = None, {}, None, False

    def set_debug_listener(self, listener):
        self.listener = listener
        return True

    def set_input_shape(self, name, shape):
        self.shapes[name] = tuple(shape)
        return self.behaviour != "shape refused"

    def set_tensor_address(self, name, address):
        self.addresses[name] = address

    def infer_shapes(self):
        if self.behaviour == "shapes fail":
            raise RuntimeError(NO_SUCH_SHAPE)
        return ["ids"] if self.behaviour == "shapes missing" else []

    def get_tensor_shape(self, name):
        of_data = self.behaviour in ("data dependent", "data dependent, async", "shape untold")
        return (-1, 3) if of_data and name == "y" else self.shapes["x" if name == "y" else "ids"]

    def set_output_allocator(self, name, allocator):
        self.allocators[name] = allocator

    def execute_async_v3(self, handle):
        assert handle == 77
        if self.behaviour == "CUDA error":
            raise CudaError(ILLEGAL_ACCESS)
        for name, allocator in self.allocators.items():
            self._allocate(name, allocator)
        self.cuda.queue.append(self._run)
        if self.unfused_tensors_debug_state:
            for name, (values, kind) in DEBUG.items():
                self._show(name, values, kind)
        self.cuda.milliseconds += next(self.cuda.durations)
        if self.profiler is not None:
            for name, milliseconds in PROFILE:
                self.profiler.report_layer_time(name, milliseconds)
        return self.behaviour != "not run"

    def _show(self, name, values, kind):
        """Work on the stream makes the tensor; its memory is used again after the call."""
        address, shown = 8192 + 4096 * len(self.cuda.memory), np.zeros(values.nbytes, np.uint8)
        self.cuda.memory[address] = shown
        self.cuda.queue.append(lambda: shown.__setitem__(slice(None), values.reshape(-1).view(np.uint8)))
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.argtypes, capsule.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
        place = Location.HOST if name == "on_host" else Location.DEVICE
        if place is Location.HOST:
            self.cuda.queue.pop()()
            address = shown.ctypes.data
        told = self.listener.process_debug_tensor(
            capsule(address, None, None), place, SimpleNamespace(name=kind), values.shape, name, 77
        )
        assert told is True
        shown[...] = 0xEE

    def _allocate(self, name, allocator):
        """NvInferRuntime.h: TensorRT asks for room, and tells the shape, before enqueueV3 returns."""
        old, rows = self.addresses.get(name, 0), self.shapes["x"][0]
        if self.behaviour == "data dependent, async":
            self.addresses[name] = allocator.reallocate_output_async(name, old, rows * 12, 256, 77)
        else:
            self.addresses[name] = allocator.reallocate_output(name, old, rows * 12, 256)
        if self.behaviour != "shape untold":
            allocator.notify_shape(name, (rows, 3))

    def _run(self):
        def view(name, dtype, shape):
            held = self.cuda.memory[self.addresses[name]]
            return held[: int(np.prod(shape)) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)

        view("y", np.float32, self.shapes["x"])[...] = 2 * view("x", np.float32, self.shapes["x"])
        view("count", np.int32, self.shapes["ids"])[...] = view("ids", np.int32, self.shapes["ids"]) + 1


LAYERS = [
    {"Name": "double", "LayerType": "kgen", "Inputs": [{"Format/Datatype": "Int8"}], "Outputs": []},
    {"Name": "count", "LayerType": "kgen", "Inputs": [{"Format/Datatype": "Float"}], "Outputs": []},
]
REFORMAT = "Reformatting CopyNode for Input Tensor 0 to count + double"
PROFILE = (("double", 0.25), (REFORMAT, 0.125), (REFORMAT, 0.375), ("double || count", 0.75))
NO_SUCH_SHAPE = "no such shape"
ILLEGAL_ACCESS = "an illegal memory access was encountered"
DEBUG = {
    "double_out": (np.arange(6, dtype=np.float32).reshape(2, 3), "FLOAT"),
    "inner": (np.arange(-3, 3, dtype=np.int8), "INT8"),
    "on_host": (np.array([1.5, 2.5], np.float16), "HALF"),
    "odd": (np.zeros(3, np.uint8), "FP4"),
    "empty": (np.zeros((0, 3), np.float32), "FLOAT"),
}
"""By the engine's name what it shows, and TensorRT's name of its type."""
TENSORS = {"x": "FLOAT", "ids": "INT32", "y": "FLOAT", "count": "INT32"}


class FakeEngine:
    def __init__(self, cuda, behaviour):
        self.context = FakeContext(cuda, behaviour)
        self.num_io_tensors = len(TENSORS)
        self.behaviour = behaviour

    def create_execution_context(self, runtime_config=None):
        self.context.runtime_config = runtime_config
        return None if self.behaviour == "no context" else self.context

    def create_runtime_config(self):
        config = SimpleNamespace(create_runtime_cache=object)
        config.set_runtime_cache = lambda cache: setattr(config, "cache", cache)
        return config

    def get_tensor_name(self, i):
        return list(TENSORS)[i]

    def get_tensor_dtype(self, name):
        return SimpleNamespace(name="FP4" if self.behaviour == "odd type" else TENSORS[name])

    def get_tensor_mode(self, name):
        return Mode.INPUT if name in ("x", "ids") else Mode.OUTPUT

    def get_tensor_location(self, name):
        return Location.DEVICE

    def create_engine_inspector(self):
        inspector = SimpleNamespace(execution_context=None)
        context = self.context

        def information(form):
            assert inspector.execution_context is context
            assert context.shapes == {"x": (2, 3)}, "formats are told for the usual shape"
            return json.dumps({"Layers": [] if self.behaviour == "silent" else LAYERS})

        inspector.get_engine_information = information
        return inspector


@pytest.fixture
def make_engine(monkeypatch):
    cuda = FakeCuda()
    monkeypatch.setitem(sys.modules, "pycuda.driver", cuda)
    monkeypatch.setitem(sys.modules, "pycuda", ModuleType("pycuda"))
    monkeypatch.setattr(tensorrt_engine, "find_gpu", lambda: InstalledGpu("Stand-in", "9.0", "12.4"))
    tensorrt_engine.open_device.cache_clear()

    def make(behaviour="", rounded=None, names=None, rt=None, graph=None):
        engine = None if behaviour == "not loaded" else FakeEngine(cuda, behaviour)
        trt = SimpleNamespace(
            Runtime=lambda logger: SimpleNamespace(deserialize_cuda_engine=lambda data: engine),
            IProfiler=object,
            IOutputAllocator=object,
            IDebugListener=object,
            TensorIOMode=Mode,
            TensorLocation=Location,
            LayerInformationFormat=SimpleNamespace(JSON="json"),
            DynamicShapesKernelSpecializationStrategy=SimpleNamespace(EAGER="eager"),
        )
        y, count = TensorSpec("y", np.dtype(np.float32), (None, 3)), TensorSpec("count", np.dtype(np.int64), (None,))
        names_of = enumerate(("double", "count"))
        layers = tuple(Layer(k, name, "Mul", (name,), (f"{name}_out",), None, None) for k, name in names_of)
        network = SimpleNamespace(quantizable=(0,), outputs=(y, count), layers=layers)
        rt = replace(rt, module=trt) if rt else TensorRT("tensorrt", trt, SimpleNamespace(records=[]), None)
        shapes = {"x": ((1, 3), (2, 3), (4, 3))}
        logged = (EngineLayer("double", "kgen", ("double",), ("fp32",), ("fp32",), ""),)
        serialized = Serialized(b"engine", ("a warning",), logged)
        return TensorRTEngine(rt, serialized, network, shapes, rounded=rounded, names=names, graph=graph)

    make.cuda = cuda
    yield make
    tensorrt_engine.open_device.cache_clear()


def feeds(rows, seed=0):
    random = np.random.default_rng(seed)
    return {"x": random.normal(size=(rows, 3)).astype(np.float32), "ids": np.arange(rows, dtype=np.int64)}


@pytest.mark.parametrize("behaviour", ["", "data dependent", "data dependent, async"])
def test_outputs_are_copies_in_the_networks_types_and_their_shapes_may_change(make_engine, behaviour):
    """If a shape depends on the data, TensorRT 8.5 to 9 ask for room by one function, later versions by another;
    the room grows and never shrinks."""
    with make_engine(behaviour) as engine:
        results = [engine.infer(feeds(rows, seed=rows)) for rows in (1, 4, 2)]
        assert engine.latency(feeds(2)).runs > 0
    for rows, outputs in zip((1, 4, 2), results, strict=True):
        np.testing.assert_array_equal(outputs["y"], 2 * feeds(rows, seed=rows)["x"])
        np.testing.assert_array_equal(outputs["count"], np.arange(rows) + 1)
        assert {name: array.dtype for name, array in outputs.items()} == {"y": np.float32, "count": np.int64}


def test_the_tensors_that_the_engine_shows_come_with_the_outputs(make_engine):
    """They are read during the call, after the work before it; a type that NumPy lacks, and nothing, is left out."""
    graph = helper.make_graph([helper.make_node("Mul", ["x", "x"], ["double_out"], name="double")], "g", [], [])
    with make_engine(graph=graph) as engine:
        outputs = engine.infer(feeds(2))
    np.testing.assert_array_equal(outputs["y"], 2 * feeds(2)["x"])
    assert outputs.keys() == {"y", "count", "double_out", "inner", "on_host"}
    for name in ("double_out", "inner", "on_host"):
        np.testing.assert_array_equal(outputs[name], DEBUG[name][0])
        assert outputs[name].dtype == DEBUG[name][0].dtype


@pytest.mark.parametrize(
    ("behaviour", "rounded", "computed"),
    [
        ("", None, {0: "int8", 1: "fp32"}),
        ("", {0: "int8", 1: "int8"}, {0: "int8", 1: "fp32"}),
        ("silent", None, {0: "fp32"}),
    ],
    ids=["inspector", "graph", "builder's log"],
)
def test_it_tells_what_ran_once_it_is_loaded(make_engine, behaviour, rounded, computed):
    """The kernel of ``count`` reads floats: a Q/DQ pair that is fused into it rounds all the same."""
    with make_engine(behaviour, rounded) as engine:
        assert engine.messages == ("a warning",)
        assert (engine.ran, engine.computed) == (rounded or {}, {})
        engine.infer(feeds(4))
        assert (engine.ran, engine.computed) == (rounded or computed, computed)


def test_tensorrt_rtx_compiles_every_kernel_at_once_and_keeps_it_for_the_next_engine(make_engine):
    rt = TensorRT(RTX, None, SimpleNamespace(records=[]), None)
    configs = []
    for _ in range(2):
        with make_engine(rt=rt) as engine:
            engine.infer(feeds(2))
            configs.append(engine._loaded.context.runtime_config)
    assert [config.dynamic_shapes_kernel_specialization_strategy for config in configs] == ["eager", "eager"]
    assert configs[0] is not configs[1]
    assert configs[0].cache is configs[1].cache is not None
    with make_engine() as other:
        other.infer(feeds(2))
        assert other._loaded.context.runtime_config is None, "TensorRT has no such strategy"


def test_the_context_is_current_only_while_it_is_needed(make_engine):
    with make_engine() as engine:
        engine.infer(feeds(2))
        assert make_engine.cuda.depth == 0
    assert make_engine.cuda.depth == 0
    assert make_engine.cuda.initialized == 1
    with make_engine() as second:
        second.infer(feeds(2))
    assert make_engine.cuda.initialized == 1, "a process opens the GPU once"


def test_time_on_the_gpu(make_engine):
    """Inferences take 1, 2, 3, ... ms; ten go by untimed and five are timed, so that 11..15 ms are."""
    make_engine.cuda.durations = iter(range(1, 1000))
    with make_engine() as engine:
        latency = engine.latency(feeds(4), runs=5)
        assert engine.infer(feeds(4))["y"].shape == (4, 3)
    assert latency.runs == 5
    assert latency.mean_ms == pytest.approx(13)
    assert latency.median_ms == pytest.approx(13)
    assert latency.p99_ms == pytest.approx(14.96)
    assert [(layer.name, layer.layers) for layer in latency.layers] == [
        ("double", ("double",)),
        (REFORMAT, ()),
        ("double || count", ("double", "count")),
    ]
    assert [layer.milliseconds for layer in latency.layers] == pytest.approx([0.25, 0.5, 0.75])
    assert latency.computed == {"double": "int8"}, "of the layers that can be low"


def test_times_have_the_users_names_of_layers_that_were_renamed_for_the_parser(make_engine):
    with make_engine(names={"double": "double", "count": "double_1"}) as engine:
        layers = engine.latency(feeds(2)).layers
    assert [layer.layers for layer in layers] == [("double",), (), ("double", "double_1")]


def test_a_slow_network_is_timed_less_often(make_engine):
    make_engine.cuda.durations = iter([500.0] * 1000)
    with make_engine() as engine:
        assert engine.latency(feeds(2)).runs == 10


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("not loaded", "cannot be loaded"),
        ("no context", "cannot be given memory"),
        ("odd type", "FP4"),
        ("shape refused", r"\[2, 3\] of 'x'"),
        ("shapes fail", NO_SUCH_SHAPE),
        ("shapes missing", r"shapes of ids\."),
        ("shape untold", r"no shape of y\."),
        ("not run", "did not run"),
        ("CUDA error", ILLEGAL_ACCESS),
    ],
)
def test_what_fails_on_the_gpu_is_a_failed_inference(make_engine, behaviour, message):
    with make_engine(behaviour) as engine:
        with pytest.raises(TrialFailed, match=message) as failure:
            engine.infer(feeds(2))
        assert failure.value.outcome == ("out of memory" if behaviour == "no context" else "inference failed")
        assert make_engine.cuda.depth == 0


@pytest.fixture
def buffer():
    cuda = FakeCuda()
    cuda.depth = 1
    return Buffer(Device(cuda, None))


def test_a_buffer_grows_and_never_shrinks(buffer):
    buffer.hold(8)
    first = buffer.address
    buffer.hold(4)
    assert buffer.address == first
    buffer.hold(9)
    assert buffer.address != first
    buffer.hold(0)
    assert buffer.read((0, 3), np.dtype(np.float32)).shape == (0, 3)


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5, np.float32),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array([True, False]),
        np.zeros((0, 4), np.float16),
    ],
)
def test_an_array_comes_back_from_a_buffer(buffer, array):
    buffer.hold(array.nbytes)
    buffer.write(array)
    np.testing.assert_array_equal(buffer.read(array.shape, array.dtype), array)
