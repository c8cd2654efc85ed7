"""The network that a command asks for, with precisions and scales that the user fixes, by layer or in a plan's file.

This file (docs/howto/keep-high.md) is TOML or JSON, with the keys of a recipe's ``plan.json``.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.builder.engines import ONNXRUNTIME, choose_engine
from trt_bisect.calibration.cache import is_data
from trt_bisect.data.datasets import open_dataset
from trt_bisect.errors import BadInput, first_line
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import GivenModel, Network, load_network
from trt_bisect.model.observe import observe
from trt_bisect.model.quantizer import INT8, SMALLEST_SCALE, LowPrecision, Scales, int8_scale
from trt_bisect.model.session import use_device, use_libraries
from trt_bisect.options.commands import CompareOptions
from trt_bisect.options.concerns import FIXING, INT16, FixedLayerOptions, MeasuringOptions, NetworkOptions
from trt_bisect.options.declare import read_toml, refuse_unknown
from trt_bisect.options.kinds import shown
from trt_bisect.precision import Precision, low_of
from trt_bisect.preparation.pytorch import exported
from trt_bisect.recipe.files import BUILD, FOLDER, PLAN
from trt_bisect.recipe.trtexec import FLOAT_NETWORK
from trt_bisect.report.given import fixed_text
from trt_bisect.report.losses import Sensitivity
from trt_bisect.report.tensorboard_board import Board
from trt_bisect.support.text import listed

SENSITIVITY_FILE = f"{Sensitivity.COMMAND}.json"
REGEX, OPERATOR, RECIPE, SENSITIVITY, TOP = "re:", "op:", "recipe:", "sensitivity:", "top:"
_NEAR = 0.4


def matching(network: Network, pattern: str) -> list[Layer]:
    """Returns the layers that a pattern names, in execution order.

    Args:
        pattern: the name of a layer or PyTorch module, perhaps with ``*``, ``?`` and ``[...]``; ``re:`` and a regular
            expression; ``op:`` and an operator; ``recipe:`` and a recipe, for the layers that it keeps in high
            precision; or ``sensitivity:FOLDER:N``, for the N most sensitive layers of a ``trt-bisect sensitivity``.

    Raises:
        BadInput: the pattern names no layer, or cannot be read.
    """
    layers = network.layers
    exact = [layer for layer in layers if layer.name == pattern]
    exact = exact or [layer for layer in layers if layer.title == pattern] or _inside(layers, pattern)
    if exact:
        return exact
    if pattern.startswith(RECIPE):
        return [layer for name in _recipe(network, pattern).left_high for layer in matching(network, name)]
    if pattern.startswith(SENSITIVITY):
        return [layer for name in _most_sensitive(network, pattern) for layer in matching(network, name)]
    if pattern.startswith(OPERATOR):
        operator = pattern.removeprefix(OPERATOR).lower()
        matched = [layer for layer in layers if layer.op_type.lower() == operator]
    elif pattern.startswith(REGEX):
        try:
            expression = re.compile(pattern.removeprefix(REGEX))
        except (re.error, RecursionError, OverflowError) as error:
            raise BadInput(
                f"'{pattern}' is not a regular expression: {error}.", "Without 're:', only *, ? and [...] are special."
            ) from error
        matched = [layer for layer in layers if expression.search(layer.name)]
    else:
        matched = [layer for layer in layers if fnmatch.filter((layer.name, layer.title), pattern)]
    if not matched:
        raise _no_match(network, pattern)
    return matched


def logged_layers(board: Board | None, network: Network | None) -> Board | None:
    """Returns TensorBoard's settings with the layers that the patterns in ``board`` name; None for None.

    Raises BadInput if a pattern names no layer, or ``network`` is None but there are patterns.
    """
    if board is None or not board.only:
        return board
    if network is None:
        problem = "--tensorboard-detail only=... names layers of a network, and the layers are not known."
        raise BadInput(problem, "Leave it out, or give the ONNX network first.")
    return replace(board, layers=frozenset(layer.name for name in board.only for layer in matching(network, name)))


def _inside(layers: Sequence[Layer], path: str) -> list[Layer]:
    modules = [(layer, layer.module.partition(" ")[0]) for layer in layers]
    return [layer for layer, module in modules if module == path or module.startswith(f"{path}.")]


def _in_folder(patterns: Sequence[str], output: str | Path | None) -> list[str]:
    tops = [pattern for pattern in patterns if pattern.startswith(TOP)]
    for pattern in tops:
        count = pattern.removeprefix(TOP)
        if not count.isdecimal() or not int(count):
            raise BadInput(f"'{pattern}' has no number of layers.", f"Give {TOP}3 for the most sensitive three.")
    if tops and output is None:
        raise BadInput(f"'{tops[0]}' reads the sensitivity in --output.", "Give --output, or sensitivity:FOLDER:N.")
    if tops and not (file := Path(output or "") / SENSITIVITY_FILE).is_file():
        raise BadInput(
            f"'{tops[0]}' reads '{file}', and there is no such file.",
            f"Give sensitivity:FOLDER:{tops[0].removeprefix(TOP)} with the --output of 'trt-bisect sensitivity', or "
            f"run that command with --output {output} first.",
        )
    return [f"{SENSITIVITY}{output}:{name.removeprefix(TOP)}" if name in tops else name for name in patterns]


def _most_sensitive(network: Network, pattern: str) -> list[str]:
    folder, _, count = pattern.removeprefix(SENSITIVITY).rpartition(":")
    if not folder or not count.isdecimal() or not int(count):
        raise BadInput(
            f"'{pattern}' has no number of layers.", "Give sensitivity:FOLDER:3 for the most sensitive three."
        )
    sensitivity = Sensitivity.load(folder)
    if sensitivity.low != network.low.precision:
        problem = f"The sensitivity in '{folder}' is for {sensitivity.low.upper()}, not for {network.low.title}."
        raise BadInput(problem, f"Give --low {sensitivity.low}, or run 'trt-bisect sensitivity' again.")
    return [op.op_name for op in sensitivity.sorted_by("loss", way="both")[: int(count)]]


def _no_match(network: Network, pattern: str) -> BadInput:
    if pattern.startswith(OPERATOR):
        operators = sorted({layer.op_type for layer in network.layers})
        operator = pattern.removeprefix(OPERATOR)
        near = difflib.get_close_matches(operator, operators, 1, _NEAR)
        remedy = f"Did you mean '{OPERATOR}{near[0]}'?" if near else f"It has {', '.join(operators)}."
        return BadInput(f"'{network.source}' has no layer of operator '{operator}'.", remedy)
    return network.no_layer(pattern, re.sub(r"[*?\[\]^$\\]|\.\*", "", pattern.removeprefix(REGEX)))


def _fixed_network(
    network: Network, high: Sequence[str], keep_low: Sequence[str], plan: FilePlan | None, precision: Precision
) -> Network:
    # A layer's name overrides a pattern, a later pattern an earlier one, and high and keep_low override a plan.
    chosen: dict[int, Precision] = {}
    low = network.low.precision
    if plan is not None:
        _refuse_others(plan, network)
        network = _with_one_scale(network, plan.one_scale)
        names = {layer.name for layer in network.layers}
        for pattern, fixed in sorted(plan.layers.items(), key=lambda entry: entry[0] in names):
            chosen.update(dict.fromkeys(_layers_for(network, pattern, fixed), fixed))
    kept_high: dict[int, Precision] = {}
    for pattern in high:
        by_pattern = {pattern: precision}
        if pattern.startswith(RECIPE):
            recipe = _recipe(network, pattern)
            by_pattern = {name: recipe.layers[name] for name in recipe.left_high}
        for name, fixed in by_pattern.items():
            kept_high.update(dict.fromkeys(_layers_for(network, name, precision), fixed))
    lowered = {k: low for pattern in keep_low for k in _layers_for(network, pattern, low)}
    for k in kept_high.keys() & lowered.keys():
        name = network.layers[k].name
        raise BadInput(f"Layer '{name}' is in both --high and --keep-low.", "Leave out one of the two.")
    network = network.fixing({**chosen, **kept_high, **lowered})
    network = network if plan is None else _with_scales(network, plan)
    precisions = [network.layers[k].fixed for k in network.quantizable]
    if precisions and not any(fixed is None or low_of(fixed) is low for fixed in precisions):
        problem = f"With these layers in high precision, no layer is in {network.low.title}."
        raise BadInput(problem, "Give fewer layers with --high.")
    return network


def _scoped(network: Network, last: str, precision: Precision) -> Network:
    # The name of a constant stands for the layer before its reader.
    names = {layer.name for layer in network.layers}
    is_number = last not in names and last.isdecimal()
    if is_number and int(last) >= len(network.layers):
        raise BadInput(
            f"'{network.source}' has no layer number {last}.", f"Its layers have numbers 0 to {len(names) - 1}."
        )
    if is_number:
        last_index = int(last)
    elif last in network.operands:
        last_index = network.operands[last] - 1
    else:
        last_index = network.layer_named(last).index
    fixed = dict.fromkeys(network.quantizable, precision)
    return network.fixing(fixed | {k: network.low.precision for k in network.quantizable if k <= last_index})


def _with_one_scale(network: Network, patterns: Sequence[str]) -> Network:
    chosen = {layer.index for pattern in patterns for layer in matching(network, pattern)}
    return network.with_one_scale_a_weight(chosen) if chosen else network


def _layers_for(network: Network, pattern: str, precision: Precision) -> list[int]:
    layers = matching(network, pattern)
    able = [layer for layer in layers if layer.quantizable or low_of(precision) is not network.low.precision]
    if layers and not able:
        which = f"'{pattern}'" if len(layers) == 1 else f"None of the {len(layers)} layers '{pattern}'"
        verb = "cannot" if len(layers) == 1 else "can"
        raise BadInput(f"{which} {verb} be in {network.low.title}: {layers[0].why_not}.", "Leave it out.")
    return [layer.index for layer in able]


def _recipe(network: Network, pattern: str) -> FilePlan:
    plan = read_plan(pattern.removeprefix(RECIPE))
    _refuse_others(plan, network)
    return plan


def _refuse_others(plan: FilePlan, network: Network) -> None:
    low = network.low.precision
    if plan.low not in (None, low):
        problem = f"The recipe '{plan.source}' is for {plan.low.upper()}, not for {network.low.title}."
        raise BadInput(problem, f"Give --low {plan.low}.")
    if plan.wide and not network.low.wide:
        problem = f"The recipe '{plan.source}' is for activations in INT16, not for {network.low.title}."
        raise BadInput(problem, f"Give --low {INT16}.")
    higher = {Precision.FP32, Precision.FP16, Precision.BF16} if low.needs_scale else {Precision.FP32}
    for name, precision in plan.layers.items():
        if low_of(precision) is not low and precision not in higher:
            problem = f"'{plan.source}' has '{name}' in {precision}, which {network.low.title} does not allow."
            raise BadInput(problem, f"Its layers can be in {' or '.join(sorted({str(low), *map(str, higher)}))}.")


def _with_scales(network: Network, plan: FilePlan) -> Network:
    changed = Path(plan.source).with_name(FLOAT_NETWORK)
    if plan.changes and Path(network.source).absolute() != changed.absolute():
        raise BadInput(
            f"The recipe '{plan.source}' is for '{changed}', which has {plan.changes}, and not for '{network.source}'.",
            f"Give '{changed}' as the network.",
        )
    if not plan.scales:
        return network
    rounded = network.rounded_activations
    for tensor in plan.scales:
        if tensor not in rounded:
            near = difflib.get_close_matches(tensor, rounded, 1)
            why = "its Q/DQ pairs hold the scales" if network.has_pairs else "no INT8 layer rounds an activation '{}'"
            problem = f"'{plan.source}' has a scale for '{tensor}': {why.format(tensor)}."
            remedy = f"Did you mean '{near[0]}'?" if near else "Name the tensors that INT8 layers read."
            raise BadInput(problem, remedy)
    low = network.low if network.low.level is not None else INT8
    return replace(network, scales={name: int8_scale(low, scale) for name, scale in plan.scales.items()})


def fixed_notes(network: Network) -> tuple[str, ...]:
    """Returns a note on the layers whose precision the user fixed; else empty."""
    fixed = fixed_text(network)
    return (f"fixed by you: {fixed}",) if fixed else ()


def refuse_emulated_only(network: Network, engine: str) -> None:
    """Raises BadInput if ``engine`` is NVIDIA's and a layer has INT16, or INT8 in only its weight or activation."""
    if engine == ONNXRUNTIME:
        return
    remedy = "Add --engine onnxruntime, which emulates them."
    if network.low.wide:
        raise BadInput(f"The engine '{engine}' has no 16-bit activations.", remedy)
    by_precision = {layer.fixed: layer.name for layer in reversed(network.layers)}
    if wide := by_precision.get(Precision.INT16):
        raise BadInput(f"Layer '{wide}' is to be in int16; the engine '{engine}' has no 16-bit activations.", remedy)
    name = by_precision.get(Precision.INT8_WEIGHT) or by_precision.get(Precision.INT8_ACTIVATION)
    if name is not None:
        problem = f"The plan rounds one side of '{name}' alone, which the engine '{engine}' cannot do."
        raise BadInput(problem, "Give int8 or a high precision, or add --engine onnxruntime.")


_KEYS = ("layers", "scales", "one_scale", "high", "low", "activations", "model", "changes", BUILD)
_PARTS = ("activation", "weight")
_HALVES = (Precision.INT8_WEIGHT, Precision.INT8_ACTIVATION)
_WORDS = {str(precision): precision for precision in Precision if precision not in _HALVES}


@dataclass(frozen=True)
class FilePlan:
    """The content of a plan's file; fields without an entry are None or empty.

    Attributes:
        layers: the precision by layer or pattern, in the order of the file.
        high: the precision of layers that cannot be in the low precision.
        one_scale: layers or patterns whose weight has one scale, not one per channel.
        wide: true if layers in INT8 have 16-bit activations.
        changes: the recipe's changes of weights, in words; if not empty, the plan fits only the recipe's network file.
    """

    source: str
    layers: Mapping[str, Precision]
    scales: Scales
    high: Precision | None = None
    low: Precision | None = None
    one_scale: tuple[str, ...] = ()
    wide: bool = False
    changes: str = ""

    @property
    def left_high(self) -> list[str]:
        """The layers and patterns that the plan keeps in high precision."""
        low = self.low or Precision.INT8
        return [name for name, precision in self.layers.items() if low_of(precision) is not low]


def read_plan(given: Any) -> FilePlan:
    """Returns the plan in a file, a run folder, its recipe folder, or a mapping with the file's keys.

    Raises BadInput if the file is missing or cannot be read.
    """
    if isinstance(given, Mapping):
        return _plan("the plan", given)
    path = Path(given)
    file = next((place for place in (path, path / PLAN, path / FOLDER / PLAN) if place.is_file()), None)
    if file is None:
        remedy = f"Give a TOML or JSON file, a run's folder, or the {PLAN} in its recipe folder."
        raise BadInput(f"There is no recipe or plan at '{path}'.", remedy)
    if file.suffix.lower() == ".toml":
        return _plan(str(file), read_toml(file, "plan", ""))
    try:
        return _plan(str(file), json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(str(file), f"{type(error).__name__}: {first_line(error)}") from error


def _plan(source: str, record: Any) -> FilePlan:
    if not isinstance(record, Mapping) or not all(isinstance(record.get(key, {}), Mapping) for key in _KEYS[:2]):
        raise _unreadable(source, "'layers' and 'scales' are tables")
    refuse_unknown(Path(source), "", record, _KEYS)
    layers = {str(name): _precision(source, name, value) for name, value in record.get("layers", {}).items()}
    scales = {str(name): _scale(source, name, value) for name, value in record.get("scales", {}).items()}
    high, low = (None if key not in record else _word(source, key, record[key]) for key in ("high", "low"))
    activations = record.get("activations", str(Precision.INT8))
    if activations not in (str(Precision.INT8), INT16):
        raise _unreadable(source, f"'activations' is {shown(activations)}, none of {Precision.INT8}, {INT16}")
    one_scale = record.get("one_scale", [])
    if not isinstance(one_scale, list) or not all(isinstance(name, str) for name in one_scale):
        raise _unreadable(source, "'one_scale' is a list of layers")
    if not layers and not scales and not one_scale:
        raise _unreadable(source, "it has neither 'layers' nor 'scales'")
    wide, changes = activations == INT16, str(record.get("changes", ""))
    return FilePlan(source, layers, scales, high, low, tuple(one_scale), wide, changes)


def _precision(source: str, name: str, value: Any) -> Precision:
    if not isinstance(value, Mapping):
        return _word(source, name, value)
    sides = {part: _word(source, name, value[part]) for part in _PARTS if part in value}
    if not set(value) <= set(_PARTS) or not (len(sides) == len(_PARTS) or Precision.FP32 in sides.values()):
        remedy = f"has both of {' and '.join(_PARTS)}, or that of the two which is in fp32"
        raise _unreadable(source, f"'{name}' is a word, or {remedy}")
    activation, weight = (sides.get(part, Precision.INT8) for part in _PARTS)
    if activation is weight:
        return activation
    if {activation, weight} != {Precision.INT8, Precision.FP32}:
        raise _unreadable(source, f"of '{name}' one side can be in int8 only where the other is in fp32")
    return Precision.INT8_ACTIVATION if activation is Precision.INT8 else Precision.INT8_WEIGHT


def _word(source: str, name: str, value: Any) -> Precision:
    if not isinstance(value, str) or value.lower() not in _WORDS:
        raise _unreadable(source, f"'{name}' is {shown(value)}, none of {', '.join(_WORDS)}")
    return _WORDS[value.lower()]


def _scale(source: str, name: str, value: Any) -> np.float32:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and np.float32(value) >= SMALLEST_SCALE):
        raise _unreadable(source, f"the scale of '{name}' is {shown(value)}, no number above 0")
    scale: np.float32 = np.float32(value)
    return scale


def _unreadable(source: str, why: str) -> BadInput:
    return BadInput(
        f"The plan '{source}' cannot be read: {why}.",
        "A plan has 'layers' (by name or pattern: int8, fp16, fp32) and 'scales' (by activation).",
    )


Shapes = Mapping[str, tuple[int, ...]]


def asked_network(options: NetworkOptions, model: GivenModel | Callable[..., Any], shapes: Shapes | None) -> Network:
    """Returns a network with the precisions, scales and base that the options ask for.

    Args:
        model: a file, a PyTorch module, or a ``Network``, which keeps its low precision if the options ask for INT8.
        shapes: the sizes of dynamic inputs, by name; None leaves them dynamic.

    Raises:
        BadInput: a library or a file cannot be used, or an option does not fit the network.
    """
    if not isinstance(options, FixedLayerOptions):
        return read_network(options, model, shapes, options.low_precision, options.base_precision)
    base = options.base_precision
    plan = None if options.plan is None else read_plan(options.plan)
    if isinstance(options, CompareOptions) and options.recipe is not None:
        if plan is not None:
            raise BadInput("--recipe and --plan both give a plan.", "Leave out one of the two.")
        plan = read_plan(options.recipe)
        if not options.base:
            base = plan.high or base
    network = read_network(options, model, shapes, options.low_precision, base)
    return _with_fixed_layers(network, options, plan, base)


def use_machine(options: NetworkOptions) -> None:
    """Makes ONNX Runtime use the options' operator libraries and device in all later sessions.

    Raises BadInput if a library cannot be loaded, and EngineUnavailable if the engine is ONNX Runtime without the
    device.
    """
    use_libraries(options.libraries(onnxruntime=True))
    engine = getattr(options, "engine", ONNXRUNTIME)
    is_nvidias = options.device is not None and engine != ONNXRUNTIME and choose_engine(engine) != ONNXRUNTIME
    use_device(options.device, or_cpu=is_nvidias)


def as_emulated(network: Network, engine: str) -> Network:
    """Returns the network with the zero points of its Q/DQ pairs if the emulation runs it on an FP32 base.

    Otherwise it is unchanged, with symmetric pairs.
    """
    # An NVIDIA engine refuses zero points: there, and on a base in 16 bits, the pairs are symmetric.
    in_floats = network.base in (None, Precision.FP32)
    if not network.asymmetric or not in_floats or choose_engine(engine) != ONNXRUNTIME:
        return network
    return replace(network.as_in_file(), base=network.base)


def read_network(
    options: NetworkOptions,
    model: GivenModel | Callable[..., Any],
    shapes: Shapes | None,
    low: LowPrecision | None = None,
    base: Precision | None = None,
) -> Network:
    """Returns the network of a command, before the user's precisions and scales are fixed; exports PyTorch modules.

    ``shapes`` are those of dynamic inputs. ``low`` and ``base`` None: those of a ``Network``; for other models INT8,
    and each plan's high precision. Raises BadInput if a library or the file cannot be used.
    """
    use_machine(options)
    data = [getattr(options, name, None) for name in ("calibration", "inputs", "dataset")]
    module = exported(model, data, shapes or {}, getattr(options, "output", None))
    if module is not None:
        network = load_network(module.path, None, low or INT8, base, fuse_norms=options.fuse_norms)
        return replace(network, notes=(module.note, *network.notes))
    if isinstance(model, Network):
        network = model if low in (None, INT8, model.low) else model.with_low(low or INT8)
        return network if base is None else network.with_base(base)
    how = (shapes, low or INT8, base)
    network = load_network(model, *how, fuse_norms=options.fuse_norms)
    unseen = _unseen(network, options) if network.restored and isinstance(options, _WITH_DATA) else []
    return load_network(model, *how, fuse_norms=options.fuse_norms, unseen=unseen) if unseen else network


_WITH_DATA = (MeasuringOptions, CompareOptions)
_TELLING = 16  # the number of samples of each data set that show if a pair replaced an activation


def _unseen(network: Network, options: MeasuringOptions | CompareOptions) -> list[str]:
    given = [options.inputs, options.calibration, getattr(options, "dataset", None)]
    names = [restored.tensor for restored in network.restored]
    seen, any_sample = set[str](), False
    for source in given:
        if not is_data(source):
            continue
        data = open_dataset(source, network.inputs, pictures=options.preprocessing())
        for tensors in observe(network, names, data.first(_TELLING)):
            any_sample = True
            seen |= {each.layer for each in network.restored if each.is_seen(tensors[each.tensor])}
    return [each.layer for each in network.restored if each.layer not in seen] if any_sample else []


def _with_fixed_layers(
    network: Network, options: FixedLayerOptions, plan: FilePlan | None, base: Precision | None
) -> Network:
    if plan is None and not any(getattr(options, name) for name in FIXING):
        return network
    high = base or Precision.FP32 if isinstance(options, CompareOptions) else options.high_precision
    following = base or high
    if plan is not None and plan.high not in (None, following):
        problem = f"In '{plan.source}' layers that can never be low are in {plan.high}, here they are in {following}."
        raise BadInput(problem, f"Add --base {plan.high}, or take 'high' out of a copy of the plan.")
    patterns = (options.high, options.keep_low, options.only)
    kept_high, lowered, only = (_in_folder(names, getattr(options, "output", None)) for names in patterns)
    network = _with_one_scale(network, options.one_scale)
    if only:
        low_layers = {k for pattern in only for k in _layers_for(network, pattern, network.low.precision)}
        network = network.fixing({k: high for k in network.quantizable if k not in low_layers})
    if options.scoped:
        network = _scoped(network, options.scoped, high)
    if getattr(options, "precision", None) == INT16:
        high = Precision.INT16
    fixed = _fixed_network(network, kept_high, lowered, plan, high)
    notes = [
        f"'{pattern.removeprefix(SENSITIVITY).rpartition(':')[0]}/{SENSITIVITY_FILE}' gives the layers that lose most "
        f"alone: {listed(_most_sensitive(network, pattern))}"
        for pattern in (*kept_high, *lowered, *only)
        if pattern.startswith(SENSITIVITY)
    ]
    return replace(fixed, notes=(*fixed.notes, *notes))
