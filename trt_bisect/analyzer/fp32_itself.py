"""Checks of FP32 itself: random outputs, values that are not finite, scores that stay near 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from trt_bisect.analyzer.classes import LEAST_SCORE
from trt_bisect.analyzer.compare_output import are_single_scores, is_broken
from trt_bisect.builder.base import Outputs
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.observe import groups_within, observe, observe_in_parts
from trt_bisect.model.reading import FLOAT_NOISE, random_nodes, relative_difference
from trt_bisect.support.text import counted, listed, percent, together

_NAMED = 4
_GOOD = 4  # The most inputs without NaN with which one with NaN is compared.
_MASKING = 1e30  # A constant of at least this magnitude is a mask.
_MEANS_NOTHING = (
    "A similarity with it means little. Export the network in evaluation mode, or make the random values an input"
)


def randomness(network: Network, first: Outputs, second: Outputs) -> str:
    """Returns a sentence if two FP32 runs on the same input differ, or the file has Dropout in training mode; else
    empty.
    """
    apart = {
        name: relative_difference(np.asarray(value), np.asarray(second[name]))
        for name, value in first.items()
        if isinstance(value, np.ndarray) and value.dtype.kind in "iubf"
    }
    random = random_nodes(network.skeleton)
    by = [f"'{name}' ({op_type})" for name, op_type in random.items()]
    sources = f": {together(by[:_NAMED])}{' and others' if len(by) > _NAMED else ''}" if by else ""
    name = max(apart, key=apart.__getitem__, default="")
    if name and apart[name] > FLOAT_NOISE:
        moved = f"'{name}' moves by {percent(apart[name])} of its norm on the same input"
        return f"FP32 itself gives another output each time{sources}. {moved}. {_MEANS_NOTHING}."
    if "Dropout" in random.values():
        return (
            f"the file drops values at random each time it runs{sources}; here nothing was dropped. {_MEANS_NOTHING}."
        )
    return ""


def data_warnings(
    network: Network,
    names: Sequence[str],
    inputs: Sequence[Feeds],
    references: Sequence[Outputs],
    labels: Sequence[str],
    memory: int,
) -> Iterator[str]:
    """Yields warnings on inputs for which FP32 itself gives nothing to compare: values not finite, scores near 0.

    Args:
        names: the judged outputs.
        references: FP32's outputs for each input.
        labels: the inputs' names in messages.
        memory: the limit in bytes.
    """
    broken = not_finite_warning(network, names, inputs, references, labels, memory)
    if broken:
        yield broken
    for name in _floats(names, references):
        arrays = [outputs[name] for outputs in references]
        largest = max((array.item() for array in arrays), default=0.0) if are_single_scores(arrays) else 1.0
        if largest < LEAST_SCORE:
            yield f"No input raises the score '{name}' (largest {largest:.2g}): give inputs on which it should be high."


def not_finite_warning(
    network: Network,
    names: Sequence[str],
    inputs: Sequence[Feeds],
    references: Sequence[Outputs],
    labels: Sequence[str],
    memory: int,
    noun: str = "input",
) -> str:
    """Returns a warning on inputs for which FP32 itself gives NaN or infinity, with the layer at which they start;
    empty if there are none, or a mask is the cause.

    The arguments are those of ``data_warnings``; ``noun`` is the word for an input.
    """
    floats = _floats(names, references)
    if not floats:
        references = _read_by_integers(network, names, inputs) or references
        floats = _floats([*references[0]], references)
    found = _inputs_with(is_broken, floats, references)
    only_infinite = not found
    if only_infinite:
        of_all = _inputs_with(_is_not_finite, floats, references)
        found = {name: places for name, places in of_all.items() if len(places) < len(references)}
    if not found:
        return ""
    places = sorted(set().union(*found.values()))
    good = [feeds for k, feeds in enumerate(inputs) if k not in places][:_GOOD]
    start, is_mask = started_at(network, inputs[places[0]], good, memory)
    if only_infinite and is_mask:
        return ""
    which = listed([labels[k] for k in places], _NAMED)
    return (
        f"FP32 itself gives NaN or infinite values in {listed(list(found), _NAMED)} on {len(places)} of "
        f"{counted(len(inputs), noun)} ({which}){start}. Leave these inputs out, or mend the layer."
    )


def _read_by_integers(network: Network, names: Sequence[str], inputs: Sequence[Feeds]) -> list[Outputs]:
    # The floats from which integer outputs are made, such as the logits before an ArgMax, which hides NaN.
    makers = {name: node for node in network.skeleton.graph.node for name in node.output}
    behind, ahead = dict[str, None](), list(names)
    while ahead:
        node = makers.get(ahead.pop())
        for name in () if node is None else node.input:
            dtype = network.types.dtypes.get(name)
            if dtype is not None and dtype.kind == "f" and name in makers:
                behind[name] = None
            elif name in makers:
                ahead.append(name)
    if not behind:
        return []
    told = list[Outputs]()
    try:
        for tensors in observe(network, list(behind), inputs):
            told.append({name: _as_finite_as(array) for name, array in tensors.items()})
    except BadInput:
        return []
    return told


def _as_finite_as(array: np.ndarray) -> np.ndarray:
    # A few values that are as finite as those of the array, whose copies for all inputs might take too much memory.
    if is_broken(array):
        return np.array([np.nan])
    return np.array([0.0, np.inf]) if _is_not_finite(array) else np.zeros(1)


def _floats(names: Sequence[str], references: Sequence[Outputs]) -> list[str]:
    return [name for name in names if references[0][name].dtype.kind == "f"]


def _inputs_with(
    is_one: Callable[[np.ndarray], bool], names: Sequence[str], references: Sequence[Outputs]
) -> dict[str, list[int]]:
    places = {name: [k for k, outputs in enumerate(references) if is_one(outputs[name])] for name in names}
    return {name: found for name, found in places.items() if found}


def started_at(network: Network, broken: Feeds, good: Sequence[Feeds], memory: int) -> tuple[str, bool]:
    """Returns a clause that names the layer or input at which NaN or infinity first appears, empty if unknown; and true
    if the cause is a mask: an (almost) infinite constant or input.

    Args:
        broken: an input on which FP32 gives NaN or infinity.
        good: inputs on which FP32 gives neither; a tensor not finite on one of them is not named.
        memory: the limit in bytes.
    """
    bad_feeds = [name for name, array in broken.items() if _is_not_finite(array)]
    if bad_feeds:
        masks = not any(np.isnan(broken[name]).any() for name in bad_feeds)
        return (f", as input {listed(bad_feeds, _NAMED)} has them already", masks)
    layers: Mapping[str, Layer] = {name: layer for layer in network.layers for name in layer.outputs}
    try:
        groups = groups_within(network, layers, broken, memory, runs=2)
        in_broken, *in_good = [dict(_not_finite(network, groups, feeds)) for feeds in (broken, *good)]
    except BadInput:
        return "", False
    for name, layer in layers.items():
        if in_broken.get(name) and not any(of_good.get(name) for of_good in in_good):
            return (f"; they start at layer '{layer.name}' ({layer.op_type})", _has_mask(network, name))
    return "", False


def _has_mask(network: Network, made: str) -> bool:
    read = [name for node in network.skeleton.graph.node if made in node.output for name in node.input]
    arrays = [network.constant(name) for name in read if network.has_constant(name)]
    return any(array.dtype.kind == "f" and bool((np.abs(array) >= _MASKING).any()) for array in arrays)


def _not_finite(network: Network, groups: Sequence[Sequence[str]], feeds: Feeds) -> Iterator[tuple[str, bool]]:
    for group in next(observe_in_parts(network, groups, [feeds])):
        for name, array in group.items():
            yield name, _is_not_finite(array)


def _is_not_finite(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and not np.isfinite(array).all()
