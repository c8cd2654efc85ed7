"""The command-line options of a run, so that a suggested command can repeat them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trt_bisect.data.staged import name_of

Options = Mapping[str, tuple[str, ...]]
"""By option, such as ``--samples``, its values in order; an empty tuple for a switch."""

_FUNCTION = "MODULE:FUNCTION"
DATA = "DATA.npz"
_NAMELESS = {"calibration": DATA, "inputs": "INPUT.npz", "dataset": "DATASET.npz"}
"""Placeholders for functions and data that have no name on the command line."""


def _text(value: Any) -> tuple[str, ...]:
    return (f"{value:.15g}" if isinstance(value, float) else str(value),)


def _switch(_value: Any) -> tuple[str, ...]:
    return ()


def _mebibytes(value: int) -> tuple[str, ...]:
    return (str(max(1, value >> 20)),)


def _each(values: Any) -> tuple[str, ...]:
    return tuple(map(str, values))


def _shapes(shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    return tuple(f"{name}:{'x'.join(map(str, sizes))}" for name, sizes in shapes.items())


def _metric(metric: Any) -> tuple[str, ...]:
    if isinstance(metric, str):
        return (metric,)
    module, name = getattr(metric, "__module__", None), getattr(metric, "__qualname__", "")
    return (f"{module}:{name}" if module not in (None, "__main__") and name.isidentifier() else _FUNCTION,)


_OPTIONS: dict[str, tuple[str, Callable[[Any], tuple[str, ...]]]] = {
    "calibration": ("--calibration", _text),
    "inputs": ("--input", _text),
    "dataset": ("--dataset", _text),
    "engine": ("--engine", _text),
    "typing": ("--typing", _text),
    "strategy": ("--strategy", _text),
    "curve": ("--curve", _text),
    "memory": ("--memory", _mebibytes),
    "metric": ("--metric", _metric),
    "direction": ("--direction", _text),
    "threshold": ("--threshold", _text),
    "share": ("--share", _text),
    "precision": ("--precision", _text),
    "outputs": ("--outputs", _each),
    "samples": ("--samples", _text),
    "class_axis": ("--class-axis", _text),
    "calibrator": ("--calibrator", _text),
    "percentile": ("--percentile", _text),
    "keep_mask_ranges": ("--keep-mask-ranges", _switch),
    "trt_version": ("--trt-version", _text),
    "shapes": ("--shape", _shapes),
    "workspace": ("--workspace", _mebibytes),
    "optimization_level": ("--optimization-level", _text),
    "force_int8": ("--force-int8", _switch),
    "tactic_sources": ("--tactic-source", _each),
    "build_timeout": ("--build-timeout", _text),
    "explain": ("--explain", _text),
    "try_remedies": ("--try-remedies", _switch),
    "cluster": ("--cluster", _text),
    "cluster_cpus": ("--cluster-cpus", _text),
    "retries": ("--retries", _text),
    "history": ("--history", _text),
}
"""The parameters of ``trt_bisect.run`` that a suggested command repeats: all but those on output and display."""

RECOVERS = frozenset(
    option
    for option, _ in _OPTIONS.values()
    if option.lstrip("-")
    not in (
        "strategy curve share workspace optimization-level force-int8 tactic-source build-timeout explain try-remedies"
    ).split()
)
"""The options among them that ``trt-bisect recover`` has too."""


def options_of(run: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Returns the command-line options for the arguments of ``run`` that are not at their defaults.

    Args:
        run: ``trt_bisect.run``.
        given: its arguments by name. An argument without a name on the command line, such as an array, becomes a
            placeholder that the user fills in.
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(run).parameters.items()}
    options = {}
    for name, (option, texts) in _OPTIONS.items():
        value = given[name]
        if value is not None and name in _NAMELESS:
            value = name_of(value) or _NAMELESS[name]
        if value is None or value is False or _same(value, defaults[name]):
            continue
        options[option] = texts(value)
    return options


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, (list, tuple, Mapping)):
        return not value
    return bool(value == default) if isinstance(value, (str, int, float, Path)) else False


def words_of(options: Options) -> list[str]:
    """Returns the options as the words of a command line."""
    words: list[str] = []
    for option, values in options.items():
        words += [option] if not values else [word for value in values for word in (option, value)]
    return words
