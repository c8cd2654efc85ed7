"""Finds values that overflow or become zero in FP16 or BF16, and makes facts, notes and advice for the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trt_bisect.analyzer.advisor import NOT_FINITE, OVERFLOW, UNDERFLOW, Advice
from trt_bisect.analyzer.origins import ACTIVATION, INPUT, WEIGHT
from trt_bisect.analyzer.overflow import RangeFault, range_faults
from trt_bisect.builder.base import EMULATED, Builder
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.model.low import LOWS
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.report import overflow
from trt_bisect.report.overflow import Overflow
from trt_bisect.support.notes import RANGE, Note, noted

_REASONS = {overflow.OVERFLOW: OVERFLOW, overflow.UNDERFLOW: UNDERFLOW, overflow.NAN: NOT_FINITE}
_NOTED = 2
_SEARCHED = 8
"""The largest number of judged inputs that are searched."""


def overflows_of(network: Network, feeds: Sequence[Feeds], memory: int) -> tuple[Overflow, ...]:
    """Returns the values that the low precision cannot hold, in the order of layers; empty if it is quantized.

    Args:
        network: its low precision counts.
        feeds: the judged inputs, which are run, emulated.
        memory: bytes for the tensors that are held at a time.
    """
    kind = network.low.float_type
    if kind is None:
        return ()
    writer = PlanWriter(network, {}, GraphTarget.ONNXRUNTIME)
    try:
        faults = range_faults(writer, feeds[:_SEARCHED], memory)
    except BadInput:
        return ()
    return tuple(_overflow(fault, kind.largest) for fault in faults)


def _overflow(fault: RangeFault, largest: float) -> Overflow:
    value = fault.value
    times = abs(value) / largest if fault.kind == overflow.OVERFLOW and value is not None else None
    layer = fault.layer
    return Overflow(
        layer.name,
        layer.op_type,
        fault.tensor,
        fault.role,
        fault.kind,
        fault.element,
        value if value is None or abs(value) != float("inf") else None,
        times,
        fault.count,
        fault.sample,
    )


def base_range_notes(experiment: Experiment, memory: int) -> list[Note]:
    """Returns notes on the first values that leave the range of the base, with all layers in it."""
    network = experiment.network
    if network.base is None or network.has_pairs:
        return []
    in_base = replace(network, base=None).with_low(LOWS[network.base])
    return range_notes(in_base, experiment.builder, overflows_of(in_base, experiment.feeds, memory))


def range_notes(network: Network, builder: Builder, found: Sequence[Overflow]) -> list[Note]:
    """Returns notes on the first values that leave the range."""
    low = network.low
    if low.float_type is None or not found:
        return []
    said = [each.text(low.title, low.float_type.largest) for each in found[:_NOTED]]
    if len(found) > _NOTED:
        said.append(f"{len(found) - _NOTED} more tensors leave the range of {low.title}: report.json has them")
    if builder.arithmetic != EMULATED:
        said.append(f"where values leave the range of {low.title} was emulated with ONNX Runtime")
    return noted(RANGE, said)


def range_advice(network: Network, found: Sequence[Overflow]) -> Iterator[Advice]:
    """Yields an advice for each value that leaves the range: for the layer that makes it, and for low readers of it."""
    low = network.low
    if low.float_type is None:
        return
    index = {layer.name: layer.index for layer in network.layers}
    for each in found:
        readers = [layer.name for layer in network.layers if layer.quantizable and each.tensor in layer.inputs]
        kind = WEIGHT if each.role == "weight" else ACTIVATION if each.tensor in network.producers else INPUT
        layers = tuple(dict.fromkeys((each.layer, *readers)))
        words = f"{each.text(low.title, low.float_type.largest)}."
        yield Advice(index[each.layer], layers, each.tensor, kind, _REASONS[each.kind], words)
