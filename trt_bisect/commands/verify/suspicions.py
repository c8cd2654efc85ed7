"""The suspicions: each is a small function from an emulation to another one, which an engine may have computed instead.

They are grouped by what they change: inputs, outputs, the arithmetic of all layers, scales, single layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from typing import Any

import numpy as np

from trt_bisect.builder.base import Outputs
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.commands.verify.emulation import Emulation, computing_in, of_network
from trt_bisect.data.feeds import Feeds
from trt_bisect.data.preprocessing import FILTERS, Preprocessing
from trt_bisect.model.layers import Rounding
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import FLOAT_TYPES
from trt_bisect.precision import Precision, PrecisionPlan

INPUT_SCALE, INPUT_MEAN_STD, CHANNEL_ORDER, LAYOUT = "input-scale", "input-mean-std", "channel-order", "layout"
RESIZE, BATCH, OUTPUT_ORDER = "resize", "batch", "output-order"
TF32, LAYERS_HIGH, LAYERS_LOW, SCALES = "tf32", "layers-high", "layers-low", "scales"
PER_TENSOR, PAIRS_IGNORED, FOLLOWERS_LOW = "per-tensor-weights", "pairs-ignored", "followers-low"
CLIP_FUSED, KERNEL = "clip-fused", "kernel"
TYPES = (TF32, str(Precision.FP16), str(Precision.BF16))
"""The causes whose roundings depend on what an engine fuses."""
_FACTORS = (255.0, 127.5, 128.0, 256.0, 2.0, 32768.0)
_NORMALIZATIONS = {
    "0.5 as": (0.5, 0.5),
    "ImageNet's": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CLIP's": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}
"""By name the mean and the standard deviation, of values from 0 to 1."""
_MOST_OUTPUTS = 6


@dataclass(frozen=True)
class Suspicion:
    """Something that an engine may do otherwise than its file says.

    Attributes:
        kind: a word for the cause.
        text: a phrase that follows "the engine".
        change: from an emulation of the file to what the engine would compute.
        layers: the layers that are suspected alone.
        whole: it concerns all samples, in their order.
    """

    kind: str
    text: str
    change: Callable[[Emulation], Emulation]
    layers: tuple[str, ...] = ()
    whole: bool = False

    def and_also(self, other: Suspicion) -> Suspicion:
        """Returns both suspicions together; the kind is that of the first one."""
        both = f"{self.text}, and {other.text}"
        layers = tuple(dict.fromkeys((*self.layers, *other.layers)))
        first, second = (other, self) if other.kind == RESIZE else (self, other)  # resizing begins with the pictures
        return Suspicion(self.kind, both, lambda e: second.change(first.change(e)), layers, self.whole or other.whole)


def _on_inputs(kind: str, text: str, change: Callable[[np.ndarray], np.ndarray], ranks: Sequence[int]) -> Suspicion:
    """Returns the suspicion that the float inputs of some ranks were changed before the engine got them."""

    def changed(e: Emulation) -> Emulation:
        feeds = []
        for sample in e.feeds:
            chosen = {name: x for name, x in sample.items() if x.dtype.kind == "f" and x.ndim in ranks}
            feeds.append({**sample, **{name: np.ascontiguousarray(change(x), x.dtype) for name, x in chosen.items()}})
        return replace(e, feeds=tuple(feeds))

    return Suspicion(kind, f"got its inputs {text}", changed)


def on_values(channels: int | None) -> Iterator[Suspicion]:
    """Yields other scales and normalizations of the inputs; ``channels`` is the axis of three channels, if any."""

    def linear(kind: str, text: str, factor: Any, offset: Any = 0.0) -> Suspicion:
        return _on_inputs(kind, text, lambda x: x * factor + offset, range(1, 9))

    for number in _FACTORS:
        yield linear(INPUT_SCALE, f"multiplied by {number:g}", number)
        yield linear(INPUT_SCALE, f"divided by {number:g}", 1 / number)
    yield linear(INPUT_SCALE, "as zeros", 0.0)
    for name, parts in _NORMALIZATIONS.items():
        mean, std = map(np.array, parts)
        if mean.ndim:
            if channels is None:
                continue
            mean, std = (values.reshape([3 if axis == channels else 1 for axis in range(4)]) for values in (mean, std))
        of = f"by {name} mean and std"
        yield linear(INPUT_MEAN_STD, f"normalised {of} once more", 1 / std, -mean / std)
        yield linear(INPUT_MEAN_STD, f"normalised {of}, from 0 to 255", 1 / (255 * std), -mean / std)
        yield linear(INPUT_MEAN_STD, f"normalised {of}, without division by 255", 255.0, 254 * mean / std)
        yield linear(INPUT_MEAN_STD, f"not normalised {of}", std, mean)
        yield linear(INPUT_MEAN_STD, f"not normalised {of}, from 0 to 255", 255 * std, 255 * mean)
        yield linear(INPUT_MEAN_STD, f"less {name} mean, without the std", std)
        yield linear(INPUT_MEAN_STD, f"divided by {name} std, without the mean", 1.0, mean / std)


def on_pictures(asked: Preprocessing, fed: Callable[[Preprocessing], Iterator[Feeds]]) -> Iterator[Suspicion]:
    """Yields other ways to resize pictures; ``fed`` gives the samples of a preprocessing."""
    ways = {f"by the filter {name}": replace(asked, filter=name) for name in FILTERS}
    other = "without a letterbox" if asked.letterbox else "with a letterbox"
    ways[other] = replace(asked, letterbox=not asked.letterbox)
    for text, way in ways.items():

        def change(e: Emulation, way: Preprocessing = way) -> Emulation:
            return replace(e, feeds=tuple(islice(fed(way), len(e.feeds))))

        yield Suspicion(RESIZE, f"got its pictures resized {text}", change, whole=True)


def on_axes(channels: int | None) -> Iterator[Suspicion]:
    """Yields other orders of the values of pictures."""
    moved = partial(_on_inputs, ranks=(4,))
    if channels is not None:
        yield moved(CHANNEL_ORDER, "in BGR for RGB", lambda x: np.flip(x, channels))
    orders = [("NHWC", "NCHW", (0, 2, 3, 1)), ("NCHW", "NHWC", (0, 3, 1, 2))]
    for theirs, ours, order in orders if channels != 3 else reversed(orders):

        def as_theirs(x: np.ndarray, order: Sequence[int] = order) -> np.ndarray:
            return np.reshape(x.transpose(order), x.shape)

        def from_theirs(x: np.ndarray, order: Sequence[int] = order) -> np.ndarray:
            shape = [x.shape[axis] for axis in order]
            return np.transpose(x.reshape(shape), np.argsort(order))

        yield moved(LAYOUT, f"in {theirs} for {ours}", as_theirs)
        yield moved(LAYOUT, f"in {ours}, and read them as {theirs}", from_theirs)
    yield moved(LAYOUT, "with height and width exchanged", lambda x: x.swapaxes(2, 3).reshape(x.shape))


def on_batches(samples: int, rows: int) -> Iterator[Suspicion]:
    """Yields outputs of other samples, and other rows in a batch.

    Args:
        samples: the number of samples.
        rows: the rows of a batch.
    """

    def of_other(text: str, order: Callable[[int], int]) -> Suspicion:
        def reordered(outputs: list[Outputs]) -> list[Outputs]:
            return [outputs[order(k) % len(outputs)] for k in range(len(outputs))]

        return Suspicion(BATCH, text, lambda e: replace(e, after=(*e.after, reordered)), whole=True)

    if samples > 1:
        yield of_other("gives the outputs of the sample before", lambda k: k - 1)
        yield of_other("gives the outputs of the next sample", lambda k: k + 1)
        yield of_other("gives the outputs of the first sample for all", lambda _: 0)
        yield of_other("gives the outputs in reverse order", lambda k: -1 - k)

    in_batch = partial(_on_inputs, BATCH, ranks=range(1, 9))
    if rows > 1:
        yield in_batch("with the rows of a batch in reverse order", change=lambda x: x[::-1])
        yield in_batch("with the rows of a batch moved by one", change=lambda x: np.roll(x, 1, 0))
        yield in_batch("with the first row for the whole batch", change=lambda x: np.repeat(x[:1], len(x), 0))
        padded = "with zeros in all rows of a batch but the first"
        yield in_batch(padded, change=lambda x: np.concatenate([x[:1], np.zeros_like(x[1:])]))


def on_outputs(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Suspicion]:
    """Yields exchanged outputs of equal size, and outputs in another layout; ``shapes`` are those of a sample."""

    def after(text: str, change: Callable[[Outputs], Outputs]) -> Suspicion:
        return Suspicion(
            OUTPUT_ORDER, text, lambda e: replace(e, after=(*e.after, lambda found: [*map(change, found)]))
        )

    def exchanged(first: str, second: str, found: Outputs) -> Outputs:
        return {**found, first: found[second].reshape(shapes[first]), second: found[first].reshape(shapes[second])}

    def permuted(name: str, order: tuple[int, ...], found: Outputs) -> Outputs:
        return {**found, name: found[name].transpose(order).reshape(found[name].shape)}

    for first, second in combinations(list(shapes)[:_MOST_OUTPUTS], 2):
        if np.prod(shapes[first]) == np.prod(shapes[second]):
            yield after(f"gives '{first}' as '{second}' and the reverse", partial(exchanged, first, second))
    for name, shape in shapes.items():
        for order in ((0, 2, 1), (0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)):
            moved = [shape[axis] for axis in order] if len(order) == len(shape) else []
            if moved and sum(size > 1 for size in moved) > 1:
                yield after(f"gives '{name}' with the axes {order}", partial(permuted, name, order))


def on_arithmetic(network: Network, plan: PrecisionPlan) -> Iterator[Suspicion]:
    """Yields other types in place of FP32: what fused layers give is rounded, or what each layer gives."""
    floats = [k for k, precision in enumerate(plan.precisions) if not precision.needs_scale]
    for precision in (None, Precision.FP16, Precision.BF16):
        kind = str(precision or TF32)
        text = f"computes {kind.upper()} where the file has FP32"
        edit = partial(computing_in, FLOAT_TYPES[precision] if precision else None, network.types.float32)
        yield Suspicion(kind, text, lambda e, edit=edit: replace(e, edits=(*e.edits, edit)))  # type: ignore[misc]
        if precision:
            yield of_layers(kind, f"{text}, layer by layer", (), dict.fromkeys(floats, precision))


def of_layers(kind: str, text: str, names: Sequence[str], precisions: Mapping[int, Precision]) -> Suspicion:
    """Returns the suspicion that layers, by index, run in other precisions."""

    def change(e: Emulation) -> Emulation:
        plan = e.plan
        for index, precision in precisions.items():
            plan = plan.keeping([index], precision)
        return replace(e, plan=plan)

    return Suspicion(kind, text, change, tuple(names))


def on_info(network: Network, plan: PrecisionPlan, ran: Mapping[int, str]) -> Iterator[Suspicion]:
    """Yields the layers that ran in another precision than the plan has, as the engine's layer info tells."""
    known = {str(precision): precision for precision in (*Precision,)}
    found: dict[str, dict[int, Precision]] = {}
    for index, word in ran.items():
        precision, asked = known.get(word), plan.precisions[index]
        layer = network.layers[index]
        if precision is None or precision is asked or (precision.needs_scale and not layer.quantizable):
            continue
        if asked.needs_scale:
            found.setdefault(LAYERS_HIGH, {})[index] = precision
        else:
            found.setdefault(LAYERS_LOW if precision.needs_scale else str(precision), {})[index] = precision
    for kind, precisions in found.items():
        names = [network.layers[index].name for index in precisions]
        words = ", ".join(sorted({str(precision).upper() for precision in precisions.values()}))
        yield of_layers(kind, f"runs {len(names)} layers in {words}, as its layer info says", names, precisions)


def on_scales(e: Emulation, others: Sequence[Ranges]) -> Iterator[Suspicion]:
    """Yields other scales for activations and weights; ``others`` are ranges that the engine may have instead."""
    network = e.writer.network
    for ranges in others:
        bare = _with_roundings(network, lambda r: r if r.is_weight else replace(r, fixed=()))
        change = of_network(bare, {**e.scales, **ranges.scales})
        yield Suspicion(SCALES, f"has the scales of {ranges.origin}", change)
    for text, factor in {"half": 0.5, "double": 2.0, "127/128 of": 127 / 128, "128/127 of": 128 / 127}.items():

        def scaled(r: Rounding, factor: float = factor) -> Rounding:
            by = np.float32(factor)
            return r if r.is_weight else replace(r, fixed=tuple(replace(q, scale=q.scale * by) for q in r.fixed))

        scales = {name: np.float32(scale * np.float32(factor)) for name, scale in e.scales.items()}
        change = of_network(_with_roundings(network, scaled), scales)
        yield Suspicion(SCALES, f"has {text} the scales of the activations", change)

    def whole(r: Rounding) -> Rounding:
        fixed = (replace(q, scale=q.scale.max(), zero_point=q.zero_point.ravel()[0], axis=None) for q in r.fixed)
        return replace(r, axis=None, fixed=tuple(fixed)) if r.is_weight and r.axis is not None else r

    change = of_network(_with_roundings(network, whole), e.scales)
    yield Suspicion(PER_TENSOR, "has one scale for each whole weight", change)
    if e.scales:
        change = of_network(network, e.scales, unquantized=True)
        yield Suspicion(FOLLOWERS_LOW, "holds what layers between INT8 layers make in INT8 too", change)


def _with_roundings(network: Network, change: Callable[[Rounding], Rounding]) -> Network:
    layers = (replace(layer, roundings=tuple(map(change, layer.roundings))) for layer in network.layers)
    return replace(network, layers=tuple(layers))


def on_plan(network: Network, plan: PrecisionPlan) -> Iterator[Suspicion]:
    """Yields all layers in floats, those of each operator, and those of the first and the last layer."""
    low = [k for k in network.quantizable if plan.precisions[k].needs_scale]
    names = [network.layers[k].name for k in low]
    yield of_layers(
        PAIRS_IGNORED, "runs all layers in FP32: it ignores the scales", (), dict.fromkeys(low, Precision.FP32)
    )
    for op in dict.fromkeys(network.layers[k].op_type for k in low):
        chosen = [k for k in low if network.layers[k].op_type == op]
        if 1 < len(chosen) < len(low):
            names = [network.layers[k].name for k in chosen]
            yield of_layers(LAYERS_HIGH, f"runs every {op} in FP32", names, dict.fromkeys(chosen, Precision.FP32))


def on_layers(network: Network, plan: PrecisionPlan) -> Iterator[Suspicion]:
    """Yields each layer in FP32 that was asked for in the low precision, and the reverse."""
    for k in network.quantizable:
        name, is_low = network.layers[k].name, plan.precisions[k].needs_scale
        other = Precision.FP32 if is_low else network.low.precision
        kind = LAYERS_HIGH if is_low else LAYERS_LOW
        yield of_layers(kind, f"runs '{name}' in {str(other).upper()}", [name], {k: other})
