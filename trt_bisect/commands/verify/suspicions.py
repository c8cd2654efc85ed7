from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from trt_bisect.builder.base import UNPROVEN, Outputs
from trt_bisect.commands.verify.emulation import BF16, FP16, TF32, Change, Emulation, builder_of, edit_nodes, reading_in
from trt_bisect.data.datasets import open_dataset
from trt_bisect.data.feeds import Feeds
from trt_bisect.data.preprocessing import FILTERS, Preprocessing
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import Quantizer, Scales
from trt_bisect.precision import Precision, PrecisionPlan

INPUT_SCALE, INPUT_MEAN_STD, CHANNEL_ORDER, LAYOUT = "input-scale", "input-mean-std", "channel-order", "layout"
RESIZE, BATCH, OUTPUT_ORDER, SCALES = "resize", "batch", "output-order", "scales"
LAYERS_HIGH, LAYERS_LOW = "layers-high", "layers-low"
TYPES = ("tf32", "fp16", "bf16")  # the causes whose roundings depend on what an engine fuses
_FACTORS = (255.0, 127.5, 128.0, 256.0, 2.0, 32768.0)
# mean and standard deviation for values from 0 to 1
_NORMALIZATIONS = {
    "0.5 as": (0.5, 0.5),
    "ImageNet's": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CLIP's": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}
_MOST_OUTPUTS = 6


@dataclass(frozen=True)
class Suspicion:
    """A way in which an engine may differ from its file.

    Attributes:
        kind: a word for programs, such as ``channel-order``.
        text: a phrase that follows "the engine".
        change: turns an emulation of the file into an emulation of what the engine would compute.
        layers: suspected layers; empty for the whole network.
    """

    kind: str
    text: str
    change: Change
    layers: tuple[str, ...] = ()

    def and_also(self, other: Suspicion) -> Suspicion:
        """Returns the suspicion that both are true, with the ``kind`` of this one."""
        first, second = self.change, other.change
        if other.kind == RESIZE:  # it begins with the pictures
            first, second = second, first
        layers = tuple(dict.fromkeys((*self.layers, *other.layers)))
        return Suspicion(self.kind, f"{self.text}, and {other.text}", lambda e: second(first(e)), layers)


def _got(kind: str, text: str, change: Callable[[np.ndarray], np.ndarray]) -> Suspicion:
    # ``BATCH`` changes all inputs; other kinds the float inputs with four axes, or all float inputs if none has four

    def changed(sample: Feeds) -> Feeds:
        feeds = dict(sample)
        floats = [name for name, x in sample.items() if x.dtype.kind == "f" and x.ndim]
        chosen = [name for name in floats if sample[name].ndim == 4] or floats
        if kind == BATCH:
            chosen = [name for name, x in sample.items() if x.ndim]
        for name in chosen:
            feeds[name] = np.ascontiguousarray(change(sample[name]), sample[name].dtype)
        return feeds

    return Suspicion(kind, f"got its inputs {text}", lambda e: replace(e, feeds=[*map(changed, e.feeds)]))


def on_values(channels: int | None) -> Iterator[Suspicion]:
    """Yields suspicions of other scales and normalizations of the inputs.

    Args:
        channels: axis with three channels; None without one.
    """

    def linear(kind: str, text: str, factor: Any, offset: Any = 0.0) -> Suspicion:
        return _got(kind, text, lambda x: x * factor + offset)

    for number in _FACTORS:
        yield linear(INPUT_SCALE, f"multiplied by {number:g}", number)
        yield linear(INPUT_SCALE, f"divided by {number:g}", 1 / number)
    yield linear(INPUT_SCALE, "as zeros", 0.0)
    for name, parts in _NORMALIZATIONS.items():
        mean, std = map(np.array, parts)
        if mean.ndim:
            if channels is None:
                continue
            shape = [1, 1, 1, 1]
            shape[channels] = 3
            mean, std = mean.reshape(shape), std.reshape(shape)
        forms = {
            f"normalised by {name} mean and std once more": (1 / std, -mean / std),
            f"normalised by {name} mean and std, from 0 to 255": (1 / (255 * std), -mean / std),
            f"normalised by {name} mean and std, without division by 255": (255.0, 254 * mean / std),
            f"not normalised by {name} mean and std": (std, mean),
            f"not normalised by {name} mean and std, from 0 to 255": (255 * std, 255 * mean),
            f"less {name} mean, without the std": (std, 0.0),
            f"divided by {name} std, without the mean": (1.0, mean / std),
        }
        for text, (factor, offset) in forms.items():
            yield linear(INPUT_MEAN_STD, text, factor, offset)


def on_pictures(network: Network, source: Any, asked: Preprocessing) -> Iterator[Suspicion]:
    """Yields suspicions of other ways to resize the pictures of the data set ``source`` than the user asked for."""

    def resized(text: str, way: Preprocessing) -> Suspicion:
        def change(e: Emulation) -> Emulation:
            pictures = iter(open_dataset(source, network.inputs, pictures=way))
            return replace(e, feeds=[next(pictures) for _ in e.feeds])

        return Suspicion(RESIZE, f"got its pictures resized {text}", change)

    for name in FILTERS:
        yield resized(f"by the filter {name}", replace(asked, filter=name))
    other = "without a letterbox" if asked.letterbox else "with a letterbox"
    yield resized(other, replace(asked, letterbox=not asked.letterbox))


def on_axes(channels: int | None) -> Iterator[Suspicion]:
    """Yields suspicions of other orders of the axes of pictures.

    Args:
        channels: axis with three channels; None without one.
    """
    if channels is not None:
        yield _got(CHANNEL_ORDER, "in BGR for RGB", lambda x: np.flip(x, channels))
    theirs, ours, order = "NHWC", "NCHW", (0, 2, 3, 1)
    if channels == 3:
        theirs, ours, order = "NCHW", "NHWC", (0, 3, 1, 2)

    def read_as_theirs(x: np.ndarray) -> np.ndarray:
        shape = [x.shape[axis] for axis in order]
        return np.transpose(x.reshape(shape), np.argsort(order))

    yield _got(LAYOUT, f"in {theirs} for {ours}", lambda x: x.transpose(order).reshape(x.shape))
    yield _got(LAYOUT, f"in {ours}, and read them as {theirs}", read_as_theirs)
    yield _got(LAYOUT, "with height and width exchanged", lambda x: x.swapaxes(2, 3).reshape(x.shape))


def on_batches(e: Emulation) -> Iterator[Suspicion]:
    """Yields suspicions that outputs belong to other samples, or that rows of a batch were moved or replaced."""

    def of_others(text: str, order: np.ndarray) -> Suspicion:
        return Suspicion(
            BATCH, f"gives the outputs {text}", lambda e: replace(e, feeds=[e.feeds[place] for place in order])
        )

    every = np.arange(len(e.feeds))
    if len(every) > 1:
        yield of_others("of the sample before", np.roll(every, 1))
        yield of_others("of the next sample", np.roll(every, -1))
        yield of_others("of the first sample for all", 0 * every)
        yield of_others("in reverse order", every[::-1])
    if min((len(x) for x in e.feeds[0].values() if x.ndim), default=1) > 1:
        yield _got(BATCH, "with the rows of a batch in reverse order", lambda x: x[::-1])
        yield _got(BATCH, "with the rows of a batch moved by one", lambda x: np.roll(x, 1, 0))
        yield _got(BATCH, "with the first row for the whole batch", lambda x: np.repeat(x[:1], len(x), 0))
        padded = "with zeros in all rows of a batch but the first"
        yield _got(BATCH, padded, lambda x: np.concatenate([x[:1], 0 * x[1:]]))


def on_outputs(found: Outputs) -> Iterator[Suspicion]:
    """Yields suspicions that outputs of equal size are swapped, or have their axes in another order; ``found``: the
    outputs of a sample.
    """

    def gives(text: str, change: Callable[[Outputs], Outputs]) -> Suspicion:
        return Suspicion(OUTPUT_ORDER, f"gives {text}", lambda e: replace(e, after=(*e.after, change)))

    def exchanged(first: str, second: str) -> Suspicion:
        text = f"'{first}' as '{second}' and the reverse"
        return gives(text, lambda found: {**found, first: found[second], second: found[first]})

    def permuted(name: str, order: tuple[int, ...]) -> Suspicion:
        return gives(f"'{name}' with the axes {order}", lambda found: {**found, name: found[name].transpose(order)})

    for first, second in combinations([*found][:_MOST_OUTPUTS], 2):
        if np.size(found[first]) == np.size(found[second]):
            yield exchanged(first, second)
    for name, values in found.items():
        for order in ((0, 2, 1), (0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)):
            if np.ndim(values) == len(order):
                yield permuted(name, order)


def on_types(network: Network) -> Iterator[Suspicion]:
    """Yields the suspicions of TF32, FP16 and BF16 in place of FP32."""

    def computing(kind: str) -> Suspicion:
        edit = partial(edit_nodes, partial(reading_in, kind, network))
        text = f"computes {kind} where the file has FP32"
        return Suspicion(kind.lower(), text, lambda e: replace(e, edits=(*e.edits, edit)))

    return map(computing, (TF32, FP16, BF16))


def _running(e: Emulation, what: str, precisions: Mapping[int, Precision], note: str = "") -> Suspicion:
    def change(e: Emulation) -> Emulation:
        changed = list(e.plan.precisions)
        for index, precision in precisions.items():
            changed[index] = precision
        return replace(e, plan=replace(e.plan, precisions=tuple(changed)))

    index, precision = next(iter(precisions.items()))
    names = tuple(e.network.layers[index].name for index in precisions)
    words = ", ".join(sorted({str(precision).upper() for precision in precisions.values()}))
    kind = _kind(e.plan.precisions[index], precision)
    return Suspicion(kind, f"runs {what} in {words}{note}", change, names)


def _kind(asked: Precision, ran: Precision) -> str:
    if asked.needs_scale or ran is Precision.FP32:
        return LAYERS_HIGH
    return LAYERS_LOW if ran.needs_scale else str(ran)


def on_info(e: Emulation, ran: Mapping[int, str]) -> Iterator[Suspicion]:
    """Yields suspicions that layers ran in another precision than planned; ``ran``: by layer index, the precision in
    the engine's layer info.
    """
    found = dict[str, dict[int, Precision]]()
    for index, word in ran.items():
        asked = e.plan.precisions[index]
        if word in UNPROVEN or word == asked:
            continue
        precision = Precision(word)
        if e.network.layers[index].quantizable or not precision.needs_scale:
            found.setdefault(_kind(asked, precision), {})[index] = precision
    for precisions in found.values():
        yield _running(e, f"{len(precisions)} layers", precisions, ", as its layer info says")


def on_plan(e: Emulation) -> Iterator[Suspicion]:
    """Yields the suspicions that all layers in low precision ran in FP32, or all of one operator."""
    by_operator = dict[str, dict[int, Precision]]()
    for k in e.network.quantizable:
        if e.plan.precisions[k].needs_scale:
            by_operator.setdefault(e.network.layers[k].op_type, {})[k] = Precision.FP32
    kind, text = LAYERS_HIGH, "runs all layers in FP32"
    if e.network.low.needs_ranges:
        kind, text = "pairs-ignored", f"{text}: it ignores the scales"
    yield Suspicion(kind, text, lambda e: replace(e, plan=e.network.free_plan()))
    for op, precisions in by_operator.items():
        if len(by_operator) > 1 and len(precisions) > 1:
            yield _running(e, f"every {op}", precisions)


def on_layers(e: Emulation) -> Iterator[Suspicion]:
    """Yields for each quantizable layer the suspicion that it ran in the other precision: in FP32 if the plan has it in
    low precision, else in low precision.
    """
    for k in e.network.quantizable:
        other = Precision.FP32
        if e.plan.precisions[k] is Precision.FP32:
            other = e.network.low.precision
        yield _running(e, f"'{e.network.layers[k].name}'", {k: other})


def having(
    kind: str,
    text: str,
    network: Network,
    scales: Scales,
    *,
    plan: PrecisionPlan | None = None,
    unquantized: bool = False,
) -> Suspicion:
    """Returns the suspicion that the engine was built from another form of the network, with other scales or another
    plan.

    Args:
        kind, text: those of the suspicion.
        plan: None for the emulation's own.
        unquantized: unquantized layers are rounded too.
    """
    builder = builder_of(network, scales, unquantized=unquantized)
    return Suspicion(kind, text, lambda e: replace(e, builder=builder, plan=plan or e.plan))


def on_scales(e: Emulation) -> Iterator[Suspicion]:
    """Yields suspicions of other scales for activations and weights, and of outputs of unquantized layers rounded
    too.
    """
    network, scales = e.network, e.builder.scales

    def scaled(text: str, factor: float) -> Suspicion:
        by = np.float32(factor)
        other = _requantized(network, lambda q: replace(q, scale=q.scale * by), weights=False)
        given = {name: scale * by for name, scale in scales.items()}
        return having(SCALES, f"has {text} the scales of the activations", other, given)

    yield scaled("half", 0.5)
    yield scaled("double", 2.0)
    yield scaled("127/128 of", 127 / 128)
    yield scaled("128/127 of", 128 / 127)

    def of_whole(q: Quantizer) -> Quantizer:
        return replace(q, scale=q.scale.max(), zero_point=q.zero_point.ravel()[0], axis=None)

    in_one = _requantized(network.with_one_scale_a_weight(), of_whole, weights=True)
    yield having("per-tensor-weights", "has one scale for each whole weight", in_one, scales)
    if scales:
        text = "holds what layers between INT8 layers make in INT8 too"
        yield having("followers-low", text, network, scales, unquantized=True)


def _requantized(network: Network, change: Callable[[Quantizer], Quantizer], *, weights: bool) -> Network:
    layers = []
    for layer in network.layers:
        roundings = list(layer.roundings)
        for place, rounding in enumerate(roundings):
            if rounding.is_weight == weights:
                roundings[place] = replace(rounding, fixed=tuple(map(change, rounding.fixed)))
        layers.append(replace(layer, roundings=tuple(roundings)))
    return replace(network, layers=tuple(layers))
