"""Layers by name or pattern, and the precisions that a user fixes for them."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.errors import BadInput
from trt_bisect.model.layers import Layer
from trt_bisect.model.low import INT8
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import int8_scale
from trt_bisect.options.concerns import INT16
from trt_bisect.precision import Precision, low_of
from trt_bisect.preparation.plan_file import FilePlan, read_plan
from trt_bisect.recipe.files import FLOAT_NETWORK
from trt_bisect.report.losses import Sensitivity
from trt_bisect.report.summary import fixed_text
from trt_bisect.support.text import listed

SENSITIVITY_FILE = f"{Sensitivity.COMMAND}.json"
REGEX, OPERATOR, RECIPE, SENSITIVITY, TOP = "re:", "op:", "recipe:", "sensitivity:", "top:"
_NEAR = 0.4


def matching(network: Network, pattern: str) -> list[Layer]:
    """Returns the layers that a pattern names, in execution order.

    Args:
        network: with the layers.
        pattern: the name of a layer; else ``op:`` and an operator; ``re:`` and a regular expression that is searched in
            names; ``recipe:`` and a run folder, for the layers that its recipe leaves high; ``sensitivity:``, the
            folder of that command, a colon and a number, for so many layers that lose most alone; or a name with
            ``*``, ``?`` and ``[...]``.

    Raises:
        BadInput: no layer is meant; the message has similar names.
    """
    layers = network.layers
    exact = [layer for layer in layers if layer.name == pattern]
    if exact:
        return exact
    if pattern.startswith(RECIPE):
        plan = read_plan(pattern.removeprefix(RECIPE))
        _refuse_others(plan, network)
        return [layer for name in plan.left_high for layer in matching(network, name)]
    if pattern.startswith(SENSITIVITY):
        return [layer for name in _most_sensitive(network, pattern) for layer in matching(network, name)]
    if pattern.startswith(OPERATOR):
        wanted = pattern.removeprefix(OPERATOR).lower()
        found = [layer for layer in layers if layer.op_type.lower() == wanted]
    elif pattern.startswith(REGEX):
        searched = _compiled(pattern)
        found = [layer for layer in layers if searched.search(layer.name)]
    else:
        found = [layer for layer in layers if fnmatch.fnmatchcase(layer.name, pattern)]
    if not found:
        raise _nothing(network, pattern)
    return found


def in_folder(patterns: Sequence[str], output: str | Path | None) -> list[str]:
    """Returns patterns with ``sensitivity:FOLDER:3`` in place of ``top:3``, the folder being that of the command.

    Raises:
        BadInput: there is no folder, or no sensitivity in it.
    """
    wanted = [pattern for pattern in patterns if pattern.startswith(TOP)]
    if wanted and output is None:
        raise BadInput(f"'{wanted[0]}' reads the sensitivity in --output.", "Give --output, or sensitivity:FOLDER:N.")
    if wanted and not (file := Path(output or "") / SENSITIVITY_FILE).is_file():
        raise BadInput(
            f"'{wanted[0]}' reads '{file}', and there is no such file.",
            f"Give sensitivity:FOLDER:{wanted[0].removeprefix(TOP)} with the --output of 'trt-bisect sensitivity', or "
            f"run that command with --output {output} first.",
        )
    return [
        f"{SENSITIVITY}{output}:{pattern.removeprefix(TOP)}" if pattern in wanted else pattern for pattern in patterns
    ]


def _most_sensitive(network: Network, pattern: str) -> list[str]:
    """The layers that lose most alone, as the command ``sensitivity`` measured; raises BadInput if they are unknown."""
    folder, count = _folder_of(pattern), pattern.rpartition(":")[2]
    if not folder or not count.isdecimal() or not int(count):
        raise BadInput(
            f"'{pattern}' has no number of layers.", "Give sensitivity:FOLDER:3 for the most sensitive three."
        )
    found = Sensitivity.load(folder)
    if found.low != network.low.precision:
        raise BadInput(
            f"The sensitivity in '{folder}' is for {found.low.upper()}, not for {network.low.title}.",
            f"Give --low {found.low}, or run 'trt-bisect sensitivity' again.",
        )
    return [op.op_name for op in found.sorted_by("loss", way="both")[: int(count)]]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.removeprefix(REGEX))
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(
            f"'{pattern}' is not a regular expression: {error}.", "Without 're:', only *, ? and [...] are special."
        ) from error


def _nothing(network: Network, pattern: str) -> BadInput:
    """The error for a pattern that matches nothing, with similar operators or names."""
    listing = f"'trt-bisect layers {network.source}' lists them."
    if pattern.startswith(OPERATOR):
        known = sorted({layer.op_type for layer in network.layers})
        wanted = pattern.removeprefix(OPERATOR)
        near = difflib.get_close_matches(wanted, known, 1, _NEAR)
        meant = f"Did you mean '{OPERATOR}{near[0]}'?" if near else f"It has {', '.join(known)}."
        return BadInput(f"'{network.source}' has no layer of operator '{wanted}'.", meant)
    plain = re.sub(r"[*?\[\]^$\\]|\.\*", "", pattern.removeprefix(REGEX))
    near = difflib.get_close_matches(plain, [layer.name for layer in network.layers], 3, _NEAR)
    hint = "Did you mean " + ", ".join(f"'{name}'" for name in near) + "? " if near else ""
    return BadInput(f"'{network.source}' has no layer '{pattern}'.", hint + listing)


def fixed_network(
    network: Network, high: Sequence[str], keep_low: Sequence[str], plan: FilePlan | None, precision: Precision
) -> Network:
    """Returns the network with the precisions and scales that the user fixes.

    In a plan the name of a layer counts more than a pattern, and a later pattern more than an earlier one; ``high`` and
    ``keep_low`` count more than a plan.

    Args:
        network: as it was read.
        high: patterns of layers that stay high.
        keep_low: patterns of layers that stay low.
        plan: from a file.
        precision: the precision of the layers that stay high.

    Raises:
        BadInput: a pattern matches nothing, a layer cannot be low, stands in both lists, or none is left low; or the
            plan is for another low precision.
    """
    chosen: dict[int, Precision] = {}
    low = network.low.precision
    if plan is not None:
        _refuse_others(plan, network)
        network = with_one_scale(network, plan.one_scale)
        names = {layer.name for layer in network.layers}
        for pattern, own in sorted(plan.layers.items(), key=lambda entry: entry[0] in names):
            chosen.update(dict.fromkeys(_layers_for(network, pattern, own), own))
    raised = {k: own for each in high for k, own in _raised(network, each, precision)}
    lowered = {k: low for each in keep_low for k in _layers_for(network, each, low)}
    for k in raised.keys() & lowered.keys():
        name = network.layers[k].name
        raise BadInput(f"Layer '{name}' is in both --high and --keep-low.", "Leave out one of the two.")
    found = _with_scales(network.fixing({**chosen, **raised, **lowered}), plan)
    full = found.full(precision)
    if found.quantizable and not any(low_of(full.precisions[k]) is low for k in found.quantizable):
        raise BadInput(
            f"With these layers in high precision, no layer is in {network.low.title}.",
            "Give fewer layers with --high.",
        )
    return found


def scoped(network: Network, last: str, precision: Precision) -> Network:
    """Returns the network with every layer fixed: those up to one layer in INT8, where they can be, the others high.

    Args:
        network: as it was read.
        last: the name of that layer, or its number as ``trt-bisect layers`` counts.
        precision: the precision of the layers that are high.

    Raises:
        BadInput: there is no such layer.
    """
    names = {layer.name for layer in network.layers}
    if last not in names and last.isdecimal():
        place = int(last)
        if place >= len(network.layers):
            raise BadInput(
                f"'{network.source}' has no layer number {last}.", f"Its layers have numbers 0 to {len(names) - 1}."
            )
    else:
        place = network.layer_named(last).index
    return network.fixing({k: network.low.precision if k <= place else precision for k in network.quantizable})


def leaving_out(network: Network, only: Sequence[str], precision: Precision) -> Network:
    """Returns the network with all quantizable layers high but those that patterns name; unchanged without patterns.

    Raises:
        BadInput: a pattern matches no layer that can be low.
    """
    if not only:
        return network
    named = {k for pattern in only for k in _layers_for(network, pattern, network.low.precision)}
    return network.fixing({k: precision for k in network.quantizable if k not in named})


def with_one_scale(network: Network, patterns: Sequence[str]) -> Network:
    """Returns the network with one scale for each weight of the layers that patterns name.

    Raises:
        BadInput: a pattern matches nothing.
    """
    chosen = {layer.index for pattern in patterns for layer in matching(network, pattern)}
    return network.with_one_scale_a_weight(chosen) if chosen else network


def _layers_for(network: Network, pattern: str, precision: Precision) -> Iterable[int]:
    """The layers of a pattern; for INT8 those that can be in INT8.

    Raises:
        BadInput: none can.
    """
    layers = matching(network, pattern)
    able = [layer for layer in layers if layer.quantizable or low_of(precision) is not network.low.precision]
    if layers and not able:
        which = f"'{pattern}'" if len(layers) == 1 else f"None of the {len(layers)} layers '{pattern}'"
        verb = "cannot" if len(layers) == 1 else "can"
        raise BadInput(f"{which} {verb} be in {network.low.title}: {layers[0].why_not}.", "Leave it out.")
    return [layer.index for layer in able]


def _raised(network: Network, pattern: str, precision: Precision) -> Iterator[tuple[int, Precision]]:
    """Yields the layers of a pattern, each with the precision that it stays in: that in a recipe, or ``precision``."""
    plan = read_plan(pattern.removeprefix(RECIPE)) if pattern.startswith(RECIPE) else None
    if plan is None:
        yield from ((k, precision) for k in _layers_for(network, pattern, precision))
    else:
        _refuse_others(plan, network)
        yield from ((k, plan.layers[name]) for name in plan.left_high for k in _layers_for(network, name, precision))


def _refuse_others(plan: FilePlan, network: Network) -> None:
    """Raises BadInput if a plan is for another low precision, or has a precision that does not go with it."""
    low = network.low.precision
    if plan.low not in (None, low):
        raise BadInput(
            f"The recipe '{plan.source}' is for {plan.low.upper()}, not for {network.low.title}.",
            f"Give --low {plan.low}.",
        )
    if plan.wide and not network.low.wide:
        raise BadInput(
            f"The recipe '{plan.source}' is for activations in INT16, not for {network.low.title}.",
            f"Give --activations {INT16}.",
        )
    higher = {Precision.FP32, Precision.FP16, Precision.BF16} if low.needs_scale else {Precision.FP32}
    for name, own in plan.layers.items():
        if low_of(own) is not low and own not in higher:
            raise BadInput(
                f"'{plan.source}' has '{name}' in {own}, which {network.low.title} does not allow.",
                f"Its layers can be in {' or '.join(sorted({str(low), *map(str, higher)}))}.",
            )


def _refuse_the_original(plan: FilePlan, network: Network) -> None:
    """Raises BadInput unless a network is the one beside the plan, whose channels or weights are not the user's."""
    own = Path(plan.source).with_name(FLOAT_NETWORK)
    if Path(network.source).absolute() != own.absolute():
        raise BadInput(
            f"The recipe '{plan.source}' is for '{own}', which has {plan.changes}, and not for '{network.source}'.",
            f"Give '{own}' as the network.",
        )


def _with_scales(network: Network, plan: FilePlan | None) -> Network:
    if plan is not None and plan.changes:
        _refuse_the_original(plan, network)
    if plan is None or not plan.scales:
        return network
    known = network.rounded_activations
    for tensor in plan.scales:
        if tensor not in known:
            near = difflib.get_close_matches(tensor, known, 1)
            why = "its Q/DQ pairs hold the scales" if network.has_pairs else "no INT8 layer rounds an activation '{}'"
            raise BadInput(
                f"'{plan.source}' has a scale for '{tensor}': {why.format(tensor)}.",
                f"Did you mean '{near[0]}'?" if near else "Name the tensors that INT8 layers read.",
            )
    low = network.low if network.low.level is not None else INT8
    return replace(network, scales={name: int8_scale(low, scale) for name, scale in plan.scales.items()})


def read_notes(network: Network, patterns: Sequence[str]) -> tuple[str, ...]:
    """Returns for each pattern that reads a sensitivity a note on the file, and on the layers taken from it."""
    return tuple(
        f"'{_folder_of(pattern)}/{SENSITIVITY_FILE}' gives the layers that lose most alone: "
        f"{listed(_most_sensitive(network, pattern))}"
        for pattern in patterns
        if pattern.startswith(SENSITIVITY)
    )


def _folder_of(pattern: str) -> str:
    return pattern.removeprefix(SENSITIVITY).rpartition(":")[0]


def fixed_notes(network: Network) -> tuple[str, ...]:
    """Returns a note on the layers that the user fixed; empty if there are none."""
    fixed = fixed_text(network)
    return (f"fixed by you: {fixed}",) if fixed else ()


def refuse_emulated_only(network: Network, engine: str) -> None:
    """Raises BadInput for an NVIDIA engine if one side of a layer alone is to be in INT8, or activations in INT16."""
    if network.low.wide and engine != ONNXRUNTIME:
        raise BadInput(
            f"The engine '{engine}' has no 16-bit activations.", "Add --engine onnxruntime, which emulates them."
        )
    by_precision = {layer.fixed: layer.name for layer in reversed(network.layers)}
    if (wide := by_precision.get(Precision.INT16)) and engine != ONNXRUNTIME:
        raise BadInput(
            f"The plan has '{wide}' in int16, and the engine '{engine}' has no 16-bit activations.",
            "Add --engine onnxruntime, which emulates them.",
        )
    name = by_precision.get(Precision.INT8_WEIGHT) or by_precision.get(Precision.INT8_ACTIVATION)
    if name is not None and engine != ONNXRUNTIME:
        raise BadInput(
            f"The plan rounds one side of '{name}' alone, which the engine '{engine}' cannot do.",
            "Give int8 or a high precision, or add --engine onnxruntime.",
        )
