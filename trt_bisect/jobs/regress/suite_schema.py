"""The keys of a network in a suite: what each may hold, and how it is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trt_bisect.builder.engines import AUTO, ENGINES, TYPINGS
from trt_bisect.calibration.cache import parse_version
from trt_bisect.calibration.calibrator import METHODS
from trt_bisect.data.user_functions import load_function
from trt_bisect.errors import BadInput
from trt_bisect.jobs.options import CURVES, EXPLAIN, STRATEGIES
from trt_bisect.precision import Precision

Read = Callable[[Any, Path], Any]
"""From a value in the file and the file's folder to what ``trt_bisect.run`` takes; raises ``Unfit``."""


class Unfit(Exception):
    """A value that a key cannot have: why, as the end of a sentence, and what to do."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


def text(value: Any, _folder: Path) -> str:
    """A text that is not empty and has no NUL in it."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise Unfit(f"is {_shown(value)}, no text", "Write it in quotes.")
    return value


def name(value: Any, folder: Path) -> str:
    """A text in one line, without the control characters that a terminal obeys."""
    if not text(value, folder).isprintable():
        raise Unfit(f"is {_shown(value)}", "Write a name that can be printed.")
    return str(value)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _flag(value: Any, _folder: Path) -> bool:
    if not isinstance(value, bool):
        raise Unfit(f"is {_shown(value)}", "Write true or false.")
    return value


def _number(value: Any, _folder: Path, *, above: float = -math.inf, most: float = math.inf) -> float:
    said = "".join([f" above {above:g}" if above > -math.inf else "", f", at most {most:g}" if most < math.inf else ""])
    try:
        number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.nan
    if not (math.isfinite(number) and above < number <= most):
        raise Unfit(f"is {_shown(value)}", f"Write a number{said}.")
    return number


def _whole(value: Any, _folder: Path, *, least: int, most: int = 1 << 40, times: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Unfit(f"is {_shown(value)}", f"Write a whole number from {least} on, at most {most}.")
    return value * times


def _one_of(value: Any, _folder: Path, *, known: Sequence[str]) -> str:
    if value not in known:
        raise Unfit(f"is {_shown(value)}", f"Use one of {', '.join(known)}.")
    return str(value)


def _texts(value: Any, folder: Path) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Unfit(f"is {_shown(value)}, no list", 'Write a list of texts, ["one", "other"].')
    return tuple(text(entry, folder) for entry in value)


def _trt_version(value: Any, folder: Path) -> str:
    try:
        parse_version(text(value, folder))
    except BadInput as error:
        raise Unfit(f"is {_shown(value)}", error.remedy) from error
    return str(value)


def _shapes(value: Any, folder: Path) -> dict[str, tuple[int, ...]]:
    if not isinstance(value, dict) or not all(isinstance(sizes, list) for sizes in value.values()):
        raise Unfit(f"is {_shown(value)}", "Write a table of the inputs, { x = [1, 3, 224, 224] }.")
    return {key: tuple(_whole(size, folder, least=1) for size in sizes) for key, sizes in value.items()}


def _file(value: Any, folder: Path) -> str:
    path = folder / text(value, folder)
    if not _exists(path) or path.is_dir():
        raise Unfit(f"names '{path}', which is no file", "Paths are relative to the suite's folder.")
    return str(path)


def _data(value: Any, folder: Path) -> str:
    """A file, a folder, or a function, which is loaded to see that it is there."""
    path = folder / text(value, folder)
    if _exists(path):
        return str(path)
    module, colon, function = value.rpartition(":")
    if not colon:
        raise Unfit(f"names '{path}', which does not exist", "Paths are relative to the suite's folder.")
    return _function(f"{folder / module if module.endswith('.py') else module}:{function}")


def _metric(value: Any, folder: Path) -> str:
    """A built-in metric's name as it is, which the suite checks; a function loaded."""
    module, colon, function = text(value, folder).rpartition(":")
    return _function(f"{folder / module}:{function}") if colon and module.endswith(".py") else str(value)


def _function(name: str) -> str:
    try:
        load_function(name, "function")
    except BadInput as error:
        raise Unfit(f"cannot be used: {error.problem.rstrip('.')}", error.remedy) from error
    return name


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


_MIB = 1 << 20
OF_NIGHTS = ("name", "target", "target_recipe", "similarity_tolerance", "latency_tolerance", "repeats")
"""Keys that are not ``trt_bisect.run``'s."""

NETWORK_KEYS: dict[str, Read] = {
    "name": name,
    "model": _file,
    "calibration": _data,
    "input": _data,
    "dataset": _data,
    "engine": partial(_one_of, known=(AUTO, *ENGINES)),
    "typing": partial(_one_of, known=(AUTO, *TYPINGS)),
    "strategy": partial(_one_of, known=STRATEGIES),
    "curve": partial(_one_of, known=CURVES),
    "memory": partial(_whole, least=1, times=_MIB),
    "metric": _metric,
    "direction": partial(_one_of, known=("higher", "lower")),
    "threshold": _number,
    "share": partial(_number, above=0.0),
    "precision": partial(_one_of, known=(Precision.FP32.value, Precision.FP16.value)),
    "outputs": _texts,
    "samples": partial(_whole, least=1),
    "class_axis": partial(_whole, least=-32, most=31),
    "calibrator": partial(_one_of, known=METHODS),
    "percentile": partial(_number, above=0.0, most=100.0),
    "keep_mask_ranges": _flag,
    "trt_version": _trt_version,
    "shapes": _shapes,
    "workspace": partial(_whole, least=1, times=_MIB),
    "optimization_level": partial(_whole, least=0, most=5),
    "force_int8": _flag,
    "tactic_sources": _texts,
    "build_timeout": partial(_number, above=0.0),
    "explain": partial(_one_of, known=EXPLAIN),
    "target": _number,
    "target_recipe": _number,
    "similarity_tolerance": partial(_number, above=0.0),
    "latency_tolerance": partial(_number, above=0.0),
    "repeats": partial(_whole, least=1, most=100),
}
