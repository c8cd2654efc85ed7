"""Compares the intermediate tensors of a TensorRT engine (10.8 and later) with the emulation of the same plan.

Since one wrong kernel changes all later tensors, each is also compared with an emulation that starts from the engine's
own earlier tensors. Not yet tried on a real engine.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import onnx
from onnx import helper

from trt_bisect.builder.base import Outputs
from trt_bisect.builder.inspector import WIDTHS, onnx_layers_in
from trt_bisect.builder.tensorrt_build import Definition
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.model.file import Written, tensors_read, with_outputs
from trt_bisect.model.observe import Observer
from trt_bisect.model.qdq import PlanWriter
from trt_bisect.model.session import make_session
from trt_bisect.model.writing import Names, rename_reads
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.support.codec import NanForNull, Real
from trt_bisect.support.table import INDEX, NAME, PERCENT, Column

FIRST_WITH_UNFUSED = (10, 8)
QUANTIZATION, ENGINE, BEFORE = "quantization", "engine", "engine before"
# The suffix of a tensor in the engine's memory format; TensorRT does not say in which format it shows tensors.
STORED = " as stored"
# The largest relative distance that another order of sums explains: in FP32, and with roundings to fewer bits
_FP32_NOISE, _ROUNDED_NOISE = 1e-3, 2e-2
# The inspector's words for formats that group channels or put them last
_FORMAT = re.compile(
    rf"({'|'.join(WIDTHS)}) wide channel|CHW(\d+)|HWC(\d+)|channel major(?:.*channel % (\d+))?", re.IGNORECASE
)


# By TensorRT's Python documentation, marking unfused tensors does not change the engine, and the listener gets the
# engine inspector's names.
def mark_unfused(definition: Definition) -> None:
    """Marks a network's unfused tensors as debug tensors; raises TrialFailed if TensorRT refuses."""
    if not definition.network.mark_unfused_tensors_as_debug_tensors():
        raise TrialFailed("build failed", "TensorRT marks no tensors as debug tensors.")


def listen(trt: ModuleType, cuda: Any, context: Any, dtypes: Mapping[str, np.dtype[Any]]) -> Any:
    """Attaches a debug listener to an execution context and returns the listener.

    Its ``tensors`` are the last inference's debug tensors, by the engine's names. ``dtypes`` has NumPy's types by
    TensorRT's names; a tensor of another type is left out.
    """

    class KeepingListener(trt.IDebugListener):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            trt.IDebugListener.__init__(self)
            self.tensors: dict[str, np.ndarray] = {}

        def process_debug_tensor(self, addr: Any, location: Any, kind: Any, shape: Any, name: str, _: int) -> bool:
            if kind.name in dtypes and 0 not in tuple(shape):
                self.tensors[name] = values = np.empty(tuple(map(int, shape)), dtypes[kind.name])
                cuda.Context.synchronize()
                if location == trt.TensorLocation.HOST:
                    ctypes.memmove(values.ctypes.data, _pointer(addr), values.nbytes)
                else:
                    cuda.memcpy_dtoh(values, _pointer(addr))
            return True

    listener = KeepingListener()
    context.set_debug_listener(listener)
    context.unfused_tensors_debug_state = True
    return listener


def _pointer(capsule: Any) -> int:
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.argtypes, read.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    return int(read(capsule, None))


def on_graph(shown: Outputs, inspected: str, graph: onnx.GraphProto) -> Iterator[tuple[str, np.ndarray]]:
    """Yields an engine's debug tensors (``shown``, by the engine's names), each with its name in the ONNX graph.

    A tensor stored in blocks of channels comes twice: in linear order, named ``<name> as stored``, and unchanged. A
    tensor with padded channels is left out. ``inspected`` is the engine inspector's JSON.
    """
    made = {node.name: list(node.output) for node in graph.node}
    tensors = {name for names in made.values() for name in names}
    readers: dict[str, set[str]] = {value.name: {""} for value in graph.output}
    for node in graph.node:
        for name in tensors_read(node):
            readers.setdefault(name, set()).add(node.name)
    graph_names, formats = {}, {}
    layers = json.loads(inspected, strict=False).get("Layers", ()) if inspected.startswith("{") else ()
    for layer in (entry for entry in layers if isinstance(entry, dict)):
        nodes, outputs = onnx_layers_in(str(layer.get("Metadata", ""))), layer.get("Outputs", ())
        formats.update({output.get("Name"): " ".join(map(str, output.values())) for output in outputs})
        leaving = [t for node in nodes for t in made.get(node, ()) if readers.get(t, set()) - set(nodes)]
        if len(leaving) == len(outputs) == 1 and outputs[0].get("Name") not in tensors:
            graph_names[outputs[0].get("Name")] = leaving[0]
    for name, values in shown.items():
        tensor, match = graph_names.get(name, name), _FORMAT.search(formats.get(name, ""))
        if match and values.ndim > 2:
            word = match[match.lastindex] if match.lastindex else "1"
            multiple, channels = WIDTHS.get(word.lower()) or int(word), values.shape[1]
            if channels % multiple:
                continue
            width = multiple if match.lastindex in (1, 2) else channels
            blocks = values.reshape(len(values), channels // width, -1, width)
            yield f"{tensor}{STORED}", blocks.transpose(0, 1, 3, 2).reshape(values.shape)
        yield tensor, values


@dataclass(frozen=True)
class EngineTensor(NanForNull):
    """A tensor of a real engine, compared with the emulation.

    The distance of A from B is the norm of A - B over the norm of B, on the worst sample.

    Attributes:
        index: the index of the layer that makes it; -1 for an input.
        layers: the layers between the engine's earlier tensors and this one, fused into one kernel.
        quantization: the distance of the emulation from FP32.
        engine: the distance of the engine from the emulation.
        own: the distance of the engine from an emulation of ``layers`` that reads the engine's own tensors.
        precision: the plan's low precision; ``fp32`` if all layers are in FP32.
        cause: ``engine`` if the kernel of ``layers`` is wrong, ``engine before`` if an earlier kernel is,
            ``quantization`` if rounding explains the difference from FP32; empty without a difference.
    """

    index: Annotated[int, Column("#", "Place in execution order", INDEX, rank=1)]
    layer: Annotated[str, Column("Layer", kind=NAME, rank=0)]
    tensor: Annotated[str, Column("Tensor", rank=3)]
    layers: Annotated[tuple[str, ...], Column("Fused layers", "Since the engine's tensors before", rank=2)]
    quantization: Annotated[Real, Column("By quantization", "Emulation to FP32", PERCENT, rank=0)]
    engine: Annotated[Real, Column("By the engine", "Engine to emulation", PERCENT, rank=1)]
    own: Annotated[Real, Column("By this kernel", "Engine to emulation of its own inputs", PERCENT, rank=0)]
    precision: Annotated[str, Column("Engine", rank=1)] = ""
    cause: Annotated[str, Column("Cause", rank=0)] = ""


def engine_tensors(
    writer: PlanWriter, plan: PrecisionPlan, infer: Callable[[Feeds], Outputs], samples: Iterable[Feeds]
) -> tuple[EngineTensor, ...]:
    """Returns the tensors of a plan's engine in execution order, each compared with the emulation.

    ``infer`` runs the engine; figures are the worst over ``samples``. Raises BadInput if ONNX Runtime refuses a sample,
    and TrialFailed if the engine fails.
    """
    beside, rows = None, dict[str, EngineTensor]()
    exact = all(precision is Precision.FP32 for precision in plan.precisions)
    bound, run_in = (_FP32_NOISE, "fp32") if exact else (_ROUNDED_NOISE, str(plan.low))
    for position, feeds in enumerate(samples):
        shown = infer(feeds)
        beside = beside or _Beside(writer, plan, shown)
        for row in beside.rows(feeds, position, shown):
            before = rows.get(row.tensor, row)
            worst = {key: max(getattr(row, key), getattr(before, key)) for key in ("quantization", "engine", "own")}
            if before.own >= row.own:
                row = replace(row, layers=before.layers)
            rows[row.tensor] = replace(row, **worst)
    tensors = [replace(row, precision=run_in, cause=_cause(row, bound)) for row in rows.values()]
    return tuple(sorted(tensors, key=lambda row: row.index))


def _cause(row: EngineTensor, bound: float) -> str:
    if row.own > bound:
        return ENGINE
    if max(row.engine, row.quantization) <= bound:
        return ""
    return QUANTIZATION if row.engine <= 2 * row.quantization else BEFORE


class _Beside:
    def __init__(self, writer: PlanWriter, plan: PrecisionPlan, shown: Outputs) -> None:
        self._network, self._tag, written = writer.network, writer.tag, writer.write(plan)
        self._makers = {name: node for node in written.model.graph.node for name in node.output if name}
        same = {name: name.removesuffix(f"{self._tag}typed") for name in shown}
        self._names = {name: tensor for name, tensor in same.items() if self._is_same(tensor, shown[name])}
        self._base = {name: self._base_of(name) for name in self._names.values()}
        bases = [name for name in dict.fromkeys(self._base.values()) if name in self._makers]
        self._plan = Observer(written, [[*dict.fromkeys((*self._base, *bases))]], self._network.source)
        self._fp32 = Observer(writer.write(self._network.free_plan()), [bases], self._network.source)
        self._inputs = Names()
        self._inputs.read.update({name: f"{name}{self._tag}given" for name in self._base})
        model = deepcopy(written.model)
        for node in model.graph.node:
            rename_reads(node, self._inputs)
        for tensor, values in {tensor: shown[name] for name, tensor in self._names.items()}.items():
            kind = onnx.TensorProto.INT8 if values.dtype == np.int8 else onnx.TensorProto.FLOAT
            info = helper.make_tensor_value_info(self._inputs.read[tensor], kind, [None] * values.ndim)
            model.graph.input.append(info)
        self._local = make_session(Written(with_outputs(model, list(self._base)), written.weights))
        self._stored: bool | None = None

    def _is_same(self, tensor: str, values: np.ndarray) -> bool:
        if tensor not in self._makers:
            return False
        if self._makers[tensor].op_type == "QuantizeLinear":
            return values.dtype == np.int8
        return values.dtype.kind == "f"

    def _base_of(self, name: str) -> str:
        originals = {*self._network.producers, *(spec.name for spec in self._network.inputs)}
        while name not in originals and self._tag in name:
            name = name.rpartition(self._tag)[0]
        return name

    def rows(self, feeds: Feeds, position: int, shown: Outputs) -> list[EngineTensor]:
        (fp32,), (plan,) = self._fp32.run(feeds, position), self._plan.run(feeds, position)
        stored = {name.removesuffix(STORED): values for name, values in shown.items() if name.endswith(STORED)}
        views = shown, {**shown, **stored}
        if self._stored is None:
            wrong = [sum(row.own > _ROUNDED_NOISE for row in self._rows(feeds, fp32, plan, view)) for view in views]
            self._stored = wrong[1] < wrong[0]
        return self._rows(feeds, fp32, plan, views[self._stored])

    def _rows(self, feeds: Feeds, fp32: Outputs, plan: Outputs, shown: Outputs) -> list[EngineTensor]:
        pairs = {tensor: (shown[name], plan[tensor]) for name, tensor in self._names.items() if name in shown}
        real = {tensor: a.reshape(b.shape).astype(b.dtype) for tensor, (a, b) in pairs.items() if a.size == b.size}
        inputs = {self._inputs.read[tensor]: real.get(tensor, plan[tensor]) for tensor in self._base}
        local = dict(zip(self._base, self._local.run(list(self._base), {**feeds, **inputs}), strict=True))
        rows = []
        for tensor, values in real.items():
            base, maker = self._base[tensor], self._network.producers.get(self._base[tensor])
            index, layer = (maker.index, maker.name) if maker else (-1, "")
            by_quantization = _distance(plan[base], fp32[base]) if base in fp32 else 0.0
            by_engine, by_kernel = _distance(values, plan[tensor]), _distance(values, local[tensor])
            layers = self._layers_before(tensor)
            rows.append(EngineTensor(index, layer, base, layers, by_quantization, by_engine, by_kernel))
        return rows

    def _layers_before(self, tensor: str) -> tuple[str, ...]:
        waiting, seen, nodes = [tensor], {tensor}, set[str]()
        while waiting:
            node = self._makers[waiting.pop()]
            nodes.add(node.name)
            following = {name for name in tensors_read(node) if name in self._makers and name not in self._base} - seen
            seen |= following
            waiting += following
        return tuple(layer.name for layer in self._network.layers if layer.name in nodes)


def _distance(values: np.ndarray, reference: np.ndarray) -> float:
    finite = np.isfinite(reference)
    if not np.array_equal(finite, np.isfinite(values)):
        return math.inf
    actual, expected = values[finite].astype(np.float64), reference[finite].astype(np.float64)
    norm = float(np.linalg.norm(expected)) or math.sqrt(max(expected.size, 1))
    return float(np.linalg.norm(actual - expected)) / norm
