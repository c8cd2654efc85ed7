"""Finds where values leave the range of FP16 or BF16 with all layers in that precision."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trt_bisect.data.feeds import Feeds
from trt_bisect.model.layers import Layer
from trt_bisect.model.low import FloatType
from trt_bisect.model.network import Network
from trt_bisect.model.observe import Observer
from trt_bisect.model.qdq import PlanWriter
from trt_bisect.model.shapes import groups_within

OVERFLOW, NAN, UNDERFLOW = "overflow", "nan", "underflow"


@dataclass(frozen=True)
class RangeFault:
    """The first value of a tensor that a type cannot hold; see ``report.overflow.Overflow``."""

    layer: Layer
    tensor: str
    role: str
    kind: str
    element: tuple[int, ...]
    value: float | None
    count: int
    sample: int | None = None


def range_faults(writer: PlanWriter, inputs: Sequence[Feeds], memory: int) -> tuple[RangeFault, ...]:
    """Returns what FP16 or BF16 cannot hold, in the order of layers: for each tensor on the first input that shows it.

    Tensors are looked at with all layers low, before they are rounded, and in FP32: values that come after a first
    overflow are infinite or NaN in the low run, but their layers may overflow by themselves too.

    Args:
        writer: writes plans of a network for ONNX Runtime; its low precision is a float type.
        inputs: to run.
        memory: bytes for the tensors that are held at a time.

    Raises:
        BadInput: ONNX Runtime refuses the network or an input.
    """
    network, kind = writer.network, writer.network.low.float_type
    assert kind is not None
    found: dict[str, RangeFault] = {}
    for position, feeds in enumerate(inputs):
        spoiled: set[str] = set()
        for place, values in _run(writer, _places(writer), network.quantizable, feeds, position, memory):
            fault = _fault_in_low_run(place, kind, values, position, spoiled)
            if fault is not None:
                found.setdefault(fault.tensor, fault)
        for place, values in _run(writer, _fp32_places(writer), (), feeds, position, memory):
            fault = _range_fault(place, kind, values, position)
            if fault is not None:
                found.setdefault(fault.tensor, fault)
    every = [*found.values(), *_weight_faults(network, kind)]
    return tuple(sorted(every, key=lambda fault: (fault.layer.index, fault.role == "output")))


@dataclass(frozen=True)
class _Place:
    """A tensor in the graph of the plan with all layers low, before it is rounded for a layer.

    Attributes:
        layer: the layer that makes or reads it.
        tensor: its name in the network.
        name: its name in the graph.
        role: ``input`` or ``output`` of the layer.
    """

    layer: Layer
    tensor: str
    name: str
    role: str


def _places(writer: PlanWriter) -> list[_Place]:
    """The tensors that are rounded, in the order of layers: the outputs of low layers, and what no low layer made."""
    network, made = writer.network, set[str]()
    found: list[_Place] = []
    for layer in network.layers:
        if not layer.quantizable:
            continue
        slots = writer.context.typed_slots(layer, network.low.precision)
        assert slots is not None
        for rounding in layer.roundings:
            if not rounding.is_weight and rounding.tensor not in made:
                found.append(_Place(layer, rounding.tensor, rounding.tensor, "input"))
        node = network.skeleton.graph.node[layer.index]
        outputs = [node.output[slot] for slot in slots.outputs]
        made.update(outputs)
        found += [_Place(layer, name, f"{name}{writer.tag}unrounded", "output") for name in outputs]
    return found


def _fp32_places(writer: PlanWriter) -> list[_Place]:
    """The same in the FP32 graph, where nothing is rounded."""
    return [_Place(each.layer, each.tensor, each.tensor, each.role) for each in _places(writer)]


def _run(
    writer: PlanWriter, places: Sequence[_Place], low: Collection[int], feeds: Feeds, position: int, memory: int
) -> Iterator[tuple[_Place, np.ndarray]]:
    """Yields the tensors of a sample, with the layers ``low`` in the low precision; in the order of layers."""
    network = writer.network
    by_tensor = {place.tensor: place for place in reversed(places)}
    groups = groups_within(network, list(dict.fromkeys(place.tensor for place in places)), feeds, memory)
    names = [[by_tensor[tensor].name for tensor in group if tensor not in feeds] for group in groups]
    observer = Observer(writer.write(network.free_plan(low)), names, network.source)
    for group, tensors in zip(groups, observer.run(feeds, position), strict=True):
        values: Mapping[str, np.ndarray] = {**feeds, **tensors}
        for tensor in group:
            if by_tensor[tensor].name in values:
                yield by_tensor[tensor], values[by_tensor[tensor].name]


def _fault_in_low_run(
    place: _Place, kind: FloatType, values: np.ndarray, position: int, spoiled: set[str]
) -> RangeFault | None:
    """The fault of one tensor; ``spoiled`` has the tensors with infinite values or NaN so far, and gains this one."""
    finite = np.isfinite(values)
    lost = finite & ~np.isfinite(kind.rounded(values))
    if finite.all() and not lost.any():
        return None
    first = spoiled.isdisjoint(place.layer.inputs)
    spoiled.add(place.tensor)
    if lost.any() and (first or place.role == "input"):
        return _fault(place, OVERFLOW, values, lost, position)
    return _fault(place, NAN, values, ~finite, position) if first and place.role == "output" else None


def _range_fault(place: _Place, kind: FloatType, values: np.ndarray, position: int) -> RangeFault | None:
    """The fault of FP32 values: some become infinite, or every value other than zero becomes zero."""
    rounded = kind.rounded(values)
    lost = np.isfinite(values) & ~np.isfinite(rounded)
    if lost.any():
        return _fault(place, OVERFLOW, values, lost, position)
    gone = (values != 0) & (rounded == 0)
    return _fault(place, UNDERFLOW, values, gone, position) if gone.any() and not rounded.any() else None


def _fault(place: _Place, kind: str, values: np.ndarray, where: np.ndarray, position: int) -> RangeFault:
    element = tuple(int(index[0]) for index in np.nonzero(where)) if values.ndim else ()
    value = float(values[element])
    known = None if np.isnan(value) else value
    return RangeFault(place.layer, place.tensor, place.role, kind, element, known, int(where.sum()), position)


def _weight_faults(network: Network, kind: FloatType) -> Iterator[RangeFault]:
    """Yields the weights that have a fault of their own."""
    for layer in network.layers:
        for rounding in layer.roundings if layer.quantizable else ():
            if rounding.is_weight:
                place = _Place(layer, rounding.tensor, rounding.tensor, "weight")
                values = np.asarray(network.constant(rounding.tensor), np.float32)
                fault = _range_fault(place, kind, values, 0)
                if fault is not None:
                    yield replace(fault, sample=None)
