"""Finds the values that leave the range of FP16 or BF16 if all layers are in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from trt_bisect.analyzer.blame import NOT_FINITE, OVERFLOW, UNDERFLOW, Advice
from trt_bisect.analyzer.origins import ACTIVATION, INPUT, WEIGHT
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.observe import Observer, groups_within
from trt_bisect.model.prepare import decomposed_normalizations, import_detached
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import LOWS, FloatType, LowPrecision
from trt_bisect.support.text import RANGE, Note, listed, noted

_NOTED = 2
_SEARCHED = 8  # The most judged inputs that are searched.


@dataclass(frozen=True)
class Overflow:
    """The first value of a tensor that FP16 or BF16 cannot hold.

    Attributes:
        role: ``output``, ``input`` or ``weight`` of the layer.
        kind: ``overflow``: a finite value becomes infinite; ``not finite``: the layer makes NaN or an infinite value of
            finite ones; ``underflow``: a value becomes zero.
        element: the index of the value in the tensor.
        value: the value before rounding; None if not finite.
        times: an overflow's magnitude as a multiple of the type's largest value; else None.
        count: the number of such values in the tensor.
        sample: the index of the first judged input with it; None for a weight.
    """

    layer: str
    op_type: str
    tensor: str
    role: str
    kind: str
    element: tuple[int, ...]
    value: float | None
    times: float | None
    count: int
    sample: int | None = None

    def text(self, low: LowPrecision) -> str:
        """Returns the finding as a clause."""
        assert low.float_type is not None
        title = low.title
        where = f"'{self.tensor}'[{', '.join(map(str, self.element))}]" if self.element else f"'{self.tensor}'"
        on = "" if self.sample is None else f" on judged input {self.sample}"
        more = f"; {self.count} values of the tensor do" if self.count > 1 else ""
        name = f"'{self.layer}' ({self.op_type})"
        if self.kind == OVERFLOW and self.value is not None and self.times is not None:
            return (
                f"{name} overflows {title}: its {self.role} {where} is {self.value:.6g}{on}, {self.times:.3g} times "
                f"the largest value {low.float_type.largest:g}, and becomes infinite{more}"
            )
        if self.kind == UNDERFLOW and self.value is not None:
            return f"{name} underflows {title}: its {self.role} {where} is {self.value:.3g}{on} and becomes zero{more}"
        return f"{name} turns finite values into NaN or infinity in {title}: {where}{on}{more}"


def overflows_of(network: Network, inputs: Sequence[Feeds], memory: int) -> tuple[Overflow, ...]:
    """Returns, in layer order, each tensor's first value on the first 8 ``inputs`` that the low precision, FP16 or
    BF16, cannot hold. Empty for a low precision with scales, or if ONNX Runtime refuses an input. ``memory`` is the
    limit of a run's tensors in bytes.
    """
    kind = network.low.float_type
    if kind is None:
        return ()
    writer = PlanWriter(network, {}, GraphTarget.ONNXRUNTIME)
    places = _places(writer)
    as_made = [replace(tensor, name=tensor.tensor) for tensor in places]
    by_tensor: dict[str, Overflow] = {}
    try:
        for position, feeds in enumerate(inputs[:_SEARCHED]):
            spoiled: set[str] = set()
            low_run = _run(writer, places, network.quantizable, feeds, position, memory)
            # Values after a first overflow are infinite or NaN in the low run, but their layers may overflow by
            # themselves too.
            fp32_run = _run(writer, as_made, (), feeds, position, memory)
            in_low_run = (_in_low_run(tensor, kind, values, position, spoiled) for tensor, values in low_run)
            in_fp32 = (_in_fp32(tensor, kind, values, position) for tensor, values in fp32_run)
            for overflow in filter(None, chain(in_low_run, in_fp32)):
                by_tensor.setdefault(overflow.tensor, overflow)
    except BadInput:
        return ()
    every = [*by_tensor.values(), *_of_weights(network, kind)]
    index = {layer.name: layer.index for layer in network.layers}
    return tuple(sorted(every, key=lambda overflow: (index[overflow.layer], overflow.role == "output")))


def overflow_notes(network: Network, found: Sequence[Overflow], *, emulated: bool) -> list[Note]:
    """Returns notes on the first two overflows, the number of others, and normalizations split into several nodes; if
    not ``emulated``, also that emulation found the overflows.
    """
    low = network.low
    if not found:
        return []
    texts = [overflow.text(low) for overflow in found[:_NOTED]]
    if len(found) > _NOTED:
        texts.append(f"{len(found) - _NOTED} more tensors leave the range of {low.title}: report.json has them")
    texts = [*_on_norms_in_parts(network, found), *texts]
    if not emulated:
        texts.append(f"where values leave the range of {low.title} was emulated with ONNX Runtime")
    return noted(RANGE, texts)


def _on_norms_in_parts(network: Network, found: Sequence[Overflow]) -> Iterator[str]:
    norms = decomposed_normalizations(import_detached(deepcopy(network.skeleton), network.weights))
    parts = {node.name for nodes, *_ in norms for node in nodes}
    layers = list(dict.fromkeys(overflow.layer for overflow in found if overflow.layer in parts))
    if layers:
        yield (
            f"{listed(layers, 3)} {'is' if len(layers) == 1 else 'are'} of a LayerNormalization that the exporter took "
            "apart: '--fuse-norms' makes it one node, inside which TensorRT computes in FP32"
        )


def base_overflows(
    network: Network, inputs: Sequence[Feeds], memory: int, *, emulated: bool
) -> tuple[list[Note], tuple[Overflow, ...]]:
    """Returns notes on the values that the network's base precision, FP16 or BF16, cannot hold if all layers are in it;
    and these values. Both are empty for a base of FP32, or a file with Q/DQ pairs.

    ``memory`` is the limit in bytes, ``emulated`` that of ``overflow_notes``.
    """
    if network.base is None or network.has_pairs:
        return [], ()
    in_base = replace(network, base=None).with_low(LOWS[network.base])
    found = overflows_of(in_base, inputs, memory)
    return overflow_notes(in_base, found, emulated=emulated), found


def sets_to_keep(found: Sequence[Overflow]) -> Iterator[tuple[str, ...]]:
    """Yields two sets of layers to keep in high precision: those that make NaN or infinity; these and those that
    overflow.
    """
    yield tuple(dict.fromkeys(each.layer for each in found if each.kind == NOT_FINITE))
    yield tuple(dict.fromkeys(each.layer for each in found if each.kind in (NOT_FINITE, OVERFLOW)))


def overflow_advice(network: Network, found: Sequence[Overflow]) -> Iterator[Advice]:
    """Yields a finding for each overflow or underflow, on its layer and the quantizable layers that read the tensor."""
    index = {layer.name: layer.index for layer in network.layers}
    for overflow in found:
        readers = [layer.name for layer in network.layers if layer.quantizable and overflow.tensor in layer.inputs]
        if overflow.role == "weight":
            kind = WEIGHT
        else:
            kind = ACTIVATION if overflow.tensor in network.producers else INPUT
        layers, words = tuple(dict.fromkeys((overflow.layer, *readers))), f"{overflow.text(network.low)}."
        yield Advice(index[overflow.layer], layers, overflow.tensor, kind, overflow.kind, words)


@dataclass(frozen=True)
class _PlanTensor:
    # A tensor before it is rounded for a layer, with all layers low; name is its name in the graph.

    layer: Layer
    tensor: str
    name: str
    role: str


def _places(writer: PlanWriter) -> list[_PlanTensor]:
    # Returns the outputs of low layers, and the inputs that no low layer made.
    network, made = writer.network, set[str]()
    tensors: list[_PlanTensor] = []
    for layer in network.layers:
        if not layer.quantizable:
            continue
        for rounding in layer.roundings:
            if not rounding.is_weight and rounding.tensor not in made:
                tensors.append(_PlanTensor(layer, rounding.tensor, rounding.tensor, "input"))
        outputs = [name for name in layer.outputs if name in writer.float_tensors]
        made.update(outputs)
        tensors += [_PlanTensor(layer, name, f"{name}{writer.tag}unrounded", "output") for name in outputs]
    return tensors


def _run(
    writer: PlanWriter, places: Sequence[_PlanTensor], low: Collection[int], feeds: Feeds, position: int, memory: int
) -> Iterator[tuple[_PlanTensor, np.ndarray]]:
    network = writer.network
    by_tensor = {place.tensor: place for place in reversed(places)}
    groups = groups_within(network, list(dict.fromkeys(place.tensor for place in places)), feeds, memory)
    names = [[by_tensor[tensor].name for tensor in group] for group in groups]
    observer = Observer(writer.write(network.free_plan(low)), names, network.source)
    for group, tensors in zip(groups, observer.run(feeds, position), strict=True):
        for tensor in group:
            if by_tensor[tensor].name in tensors:
                yield by_tensor[tensor], tensors[by_tensor[tensor].name]


def _in_low_run(
    place: _PlanTensor, kind: FloatType, values: np.ndarray, position: int, spoiled: set[str]
) -> Overflow | None:
    finite = np.isfinite(values)
    lost = finite & ~np.isfinite(kind.rounded(values))
    if finite.all() and not lost.any():
        return None
    first = spoiled.isdisjoint(place.layer.inputs)
    spoiled.add(place.tensor)
    if lost.any() and (first or place.role == "input"):
        return _overflow(place, OVERFLOW, kind, values, lost, position)
    if first and place.role == "output":
        return _overflow(place, NOT_FINITE, kind, values, ~finite, position)
    return None


def _in_fp32(place: _PlanTensor, kind: FloatType, values: np.ndarray, position: int | None) -> Overflow | None:
    rounded = kind.rounded(values)
    lost = np.isfinite(values) & ~np.isfinite(rounded)
    if lost.any():
        return _overflow(place, OVERFLOW, kind, values, lost, position)
    gone = (values != 0) & (rounded == 0)
    if gone.any() and not rounded.any():
        return _overflow(place, UNDERFLOW, kind, values, gone, position)
    return None


def _overflow(
    place: _PlanTensor, kind: str, low: FloatType, values: np.ndarray, where: np.ndarray, position: int | None
) -> Overflow:
    element = tuple(int(index[0]) for index in np.nonzero(where)) if values.ndim else ()
    value = float(values[element])
    return Overflow(
        place.layer.name,
        place.layer.op_type,
        place.tensor,
        place.role,
        kind,
        element,
        value if np.isfinite(value) else None,
        abs(value) / low.largest if kind == OVERFLOW else None,
        int(where.sum()),
        position,
    )


def _of_weights(network: Network, kind: FloatType) -> Iterator[Overflow]:
    for layer in network.layers:
        for rounding in layer.roundings if layer.quantizable else ():
            if rounding.is_weight:
                place = _PlanTensor(layer, rounding.tensor, rounding.tensor, "weight")
                overflow = _in_fp32(place, kind, np.asarray(network.constant(rounding.tensor), np.float32), None)
                if overflow is not None:
                    yield overflow
