"""Values of options in TOML files: read, checked, and made into what the Python functions take.

A reader takes the value in the file and the file's folder, and raises ``Unfit``. Paths are relative to the folder.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trt_bisect.data import preprocessing
from trt_bisect.errors import BadInput, first_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Read = Callable[[Any, Path], Any]
"""From a value in the file and the file's folder to what the Python function takes; raises ``Unfit``."""
_MOST = 1 << 40
_Value = TypeVar("_Value")


class Unfit(Exception):
    """A value that a key cannot have: the problem, as the end of a sentence, and the remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


def read_toml(file: Path, kind: str, remedy: str) -> dict[str, Any]:
    """The table in a TOML file.

    Args:
        file: its path.
        kind: the kind of file, for messages: ``suite`` or ``configuration``.
        remedy: the remedy in the message if the file does not exist.

    Raises:
        BadInput: the file does not exist or cannot be read.
    """
    try:
        table: dict[str, Any] = tomllib.loads(file.read_bytes().decode())
    except FileNotFoundError:
        raise BadInput(f"The {kind} '{file}' does not exist.", remedy) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(
            f"The {kind} '{file}' cannot be read: {first_line(error)}",
            'Write TOML: threshold = 0.98, calibration = "data.npz", an option a line, texts in quotes.',
        ) from error
    return table


def refuse_unknown(file: Path, where: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises BadInput for a key that is not known, with the nearest one that is."""
    keys = list(known)
    for key in table:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            raise BadInput(
                f"{file}: {where + ' has' if where else 'there is'} no key {key!r}.",
                f"Did you mean '{near[0]}'?" if near else f"The keys are {', '.join(keys)}.",
            )


def read_value(file: Path, where: str, key: str, value: Any, read: Read) -> Any:
    """Reads a value with ``read``; raises BadInput with the file, the table and the key."""
    try:
        return read(value, file.parent)
    except Unfit as unfit:
        raise BadInput(f"{file}: {where + ': ' if where else ''}'{key}' {unfit.problem}.", unfit.remedy) from None


def text(value: Any, _folder: Path) -> str:
    """A text that is not empty and has no NUL in it."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise Unfit(f"is {shown(value)}, no text", "Write it in quotes.")
    return value


def name(value: Any, folder: Path) -> str:
    """A text in one line, without the control characters that a terminal obeys."""
    if not text(value, folder).isprintable():
        raise Unfit(f"is {shown(value)}", "Write a name that can be printed.")
    return str(value)


def shown(value: Any) -> str:
    """A value for a message, at most 60 letters of it."""
    letters = repr(value)
    return letters if len(letters) <= 60 else f"{letters[:57]}..."


def numbers(value: Any, _folder: Path) -> tuple[float, ...]:
    """One number, or a list of them."""
    return _read(preprocessing.numbers, value)


def size(value: Any, _folder: Path) -> tuple[int, int]:
    """Height and width."""
    return _read(preprocessing.size, value)


def _read(read: Callable[[Any], _Value], value: Any) -> _Value:
    try:
        return read(value)
    except BadInput as error:
        raise Unfit(f"is {shown(value)}", error.remedy) from error


def switch(value: Any, _folder: Path) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Unfit(f"is {shown(value)}", "Write true or false.")
    return value


def number(
    value: Any, _folder: Path, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> float:
    """A finite number within the bounds."""
    said = "".join(
        [
            f" above {above:g}" if above > -math.inf else "",
            f" from {least:g} on" if least > -math.inf else "",
            f", at most {most:g}" if most < math.inf else "",
        ]
    )
    try:
        found = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        found = math.nan
    if not (math.isfinite(found) and above < found and least <= found <= most):
        raise Unfit(f"is {shown(value)}", f"Write a number{said}.")
    return found


def whole(value: Any, _folder: Path, *, least: int, most: int = _MOST) -> int:
    """A whole number within the bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Unfit(f"is {shown(value)}", f"Write a whole number from {least} on, at most {most}.")
    return value


def one_of(value: Any, _folder: Path, *, known: Sequence[str]) -> str:
    """One of the known texts."""
    if value not in known:
        raise Unfit(f"is {shown(value)}", f"Use one of {', '.join(known)}.")
    return str(value)


def texts(value: Any, folder: Path) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(value, list):
        raise Unfit(f"is {shown(value)}, no list", 'Write a list of texts, ["one", "other"].')
    return tuple(text(entry, folder) for entry in value)


def text_or_number(value: Any, folder: Path) -> str | float:
    """A share: ``"5%"`` or ``0.05``."""
    return text(value, folder) if isinstance(value, str) else number(value, folder)


def trt_version(value: Any, folder: Path) -> str:
    """A version of TensorRT."""
    from trt_bisect.calibration.cache import parse_version

    try:
        parse_version(text(value, folder))
    except BadInput as error:
        raise Unfit(f"is {shown(value)}", error.remedy) from error
    return str(value)


def shapes(value: Any, folder: Path) -> dict[str, tuple[int, ...]]:
    """Sizes of inputs, by name."""
    if not isinstance(value, dict) or not all(isinstance(sizes, list) for sizes in value.values()):
        raise Unfit(f"is {shown(value)}", "Write a table of the inputs, { x = [1, 3, 224, 224] }.")
    return {key: tuple(whole(size, folder, least=1) for size in sizes) for key, sizes in value.items()}


def file(value: Any, folder: Path) -> str:
    """A file that exists."""
    path = folder / text(value, folder)
    if not _exists(path) or path.is_dir():
        raise Unfit(f"names '{path}', which is no file", "Paths are relative to the folder of this file.")
    return str(path)


def existing(value: Any, folder: Path) -> str:
    """A file or a folder that exists."""
    path = folder / text(value, folder)
    if not _exists(path):
        raise Unfit(f"names '{path}', which does not exist", "Paths are relative to the folder of this file.")
    return str(path)


def place(value: Any, folder: Path, *, known: Sequence[str] = ()) -> str:
    """A file or a folder to write, or one of the known words."""
    return str(value) if value in known else str(folder / text(value, folder))


def places(value: Any, folder: Path) -> list[str]:
    """Files or folders, in a list."""
    return [place(each, folder) for each in texts(value, folder)]


def data(value: Any, folder: Path) -> str:
    """A file, a folder, or a function, which is loaded to see that it is there."""
    path = folder / text(value, folder)
    if _exists(path):
        return str(path)
    if ":" not in value:
        raise Unfit(f"names '{path}', which does not exist", "Paths are relative to the folder of this file.")
    return function(value, folder)


def metric(value: Any, folder: Path) -> str:
    """A built-in metric's name as it is, which is checked later; a function loaded."""
    module, colon, _ = text(value, folder).rpartition(":")
    return function(value, folder) if colon and module.endswith(".py") else str(value)


def function(value: Any, folder: Path) -> str:
    """``module:function``, loaded to see that it is there; a module that is a file is relative to the folder."""
    from trt_bisect.data.named import load_function

    module, _, called = text(value, folder).rpartition(":")
    full = f"{folder / module if module.endswith('.py') else module}:{called}"
    try:
        load_function(full, "function")
    except BadInput as error:
        raise Unfit(f"cannot be used: {error.problem.rstrip('.')}", error.remedy) from error
    return full


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
