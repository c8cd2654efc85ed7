"""Options in TOML files: the suite of ``regress``, plans, and the file of ``--config``."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trt_bisect.errors import BadInput, first_line
from trt_bisect.model.gpu_time import GPU_KEYS, Gpu, gpu_named, gpu_of
from trt_bisect.options.declare import GONE, Declared, by_key
from trt_bisect.options.kinds import Kind

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(file: Path, kind: str, remedy: str) -> dict[str, Any]:
    """Returns the table in a TOML file, of a ``kind`` as messages name it; ``remedy``: if the file does not exist.

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
            "Write TOML: one 'key = value' per line, texts in quotes.",
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
                GONE.get(key) or (f"Did you mean '{near[0]}'?" if near else f"The keys are {', '.join(keys)}."),
            )


def read_value(file: Path, where: str, key: str, value: Any, kind: Kind) -> Any:
    """Returns the value of a key; raises BadInput with the file, the table and the key."""
    place = f"{file}: {where + ': ' if where else ''}"
    try:
        located = kind.located(value, file.parent)
    except BadInput as error:
        raise BadInput(f"{place}'{key}' {error.problem}.", error.remedy) from error
    try:
        return kind.read(located, f"'{key}'")
    except BadInput as error:
        raise BadInput(f"{place}{error.problem}", error.remedy) from error


def read_table(file: Path, where: str, table: Mapping[str, Any], known: Mapping[str, Declared]) -> dict[str, Any]:
    """Returns the values of a file's table, called ``where``, by the names of their options; paths are relative to it.

    Raises:
        BadInput: a key or a value cannot be used, or an option is there under two names.
    """
    refuse_unknown(file, where, table, known)
    values: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, value in table.items():
        name = known[key].name
        if name in keys:
            raise BadInput(f"{file}: '{keys[name]}' and '{key}' are the same.", "Leave out one of the two.")
        keys[name] = key
        values[name] = read_value(file, where, key, value, known[key].option.kind)
    return values


def read_config(file: Path, command: str, others: Sequence[str], options: Sequence[Declared]) -> dict[str, Any]:
    """Returns the values in a file for ``--config`` by the names of their options.

    Options stand at the top, in the table of the command (``[run]``) or of a panel (``[data]``, ``[run.data]``); those
    in the command's table come first. Tables of other commands, and of panels that it does not have, are left out.

    Args:
        file: TOML. Paths in it are relative to its folder.
        command: the command's name.
        others: the names of all commands and panels.
        options: the command's options.

    Raises:
        BadInput: the file cannot be read, or has a key or a value that cannot be used.
    """
    table = read_toml(file, "configuration", "Give --config the path of a TOML file with options.")
    known = by_key(options)
    panels = {option.option.panel.lower() for option in options}
    own = table.pop(command, {}) if command not in known else {}
    values: dict[str, Any] = {}
    for where, given in (("", table), (f"[{command}]", own)):
        tables = {key: part for key, part in given.items() if isinstance(part, dict) and key not in known}
        for key, part in tables.items():
            if key in panels:
                values |= read_table(file, f"[{key}]", part, known)
        skipped = {key for key in tables if key in panels or key in others}
        values |= read_table(file, where, {key: part for key, part in given.items() if key not in skipped}, known)
    return values


def asked_gpu(text: str) -> Gpu:
    """Returns a GPU by its name in the model's table, or as a TOML file of the user's describes it.

    Raises:
        BadInput: the name is not known, or the file cannot be used.
    """
    file = Path(text)
    if file.suffix.lower() != ".toml":
        return gpu_named(text)
    table = read_toml(file, "GPU", "Give --gpu the name of a GPU, or a TOML file with its peaks.")
    refuse_unknown(file, "", table, GPU_KEYS)
    return gpu_of(table, file.stem)
