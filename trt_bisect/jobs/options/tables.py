"""Options from TOML tables: the readers of a command's keys, and the file of ``--config``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trt_bisect.errors import BadInput
from trt_bisect.jobs.options import toml
from trt_bisect.jobs.options.declare import Options

OTHER_NAMES = {"input": "inputs", "shape": "shapes", "tactic_source": "tactic_sources"}
"""Keys that are called as the flag is, and mean the option."""


def readers(options: type[Options], leaving_out: Collection[str] = ()) -> dict[str, toml.Read]:
    """The readers of a command's keys: the options by name, and by the names that their flags have."""
    found = {
        info.name: info.kind.reader(info) for info in options.declared() if info.flags and info.name not in leaving_out
    }
    others = {other: found[name] for other, name in OTHER_NAMES.items() if name in found}
    return {**found, **others}


def read_config(file: Path, known: Mapping[str, toml.Read]) -> dict[str, Any]:
    """The values in a file for ``--config``, by the names of their options.

    Args:
        file: TOML. Paths in it are relative to its folder.
        known: the reader of each key that the file may have.

    Raises:
        BadInput: the file cannot be read, or has a key or a value that cannot be used.
    """
    table = toml.read_toml(file, "configuration", "Give --config the path of a TOML file with options.")
    toml.refuse_unknown(file, "", table, known)
    values = {key: toml.read_value(file, "", key, value, known[key]) for key, value in table.items()}
    return renamed(file, values)


def renamed(file: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the names of their options; raises BadInput where one stands there under two names."""
    for other, name in OTHER_NAMES.items():
        if other in values and name in values:
            raise BadInput(f"{file}: '{other}' and '{name}' are the same.", "Leave one of them out.")
    return {OTHER_NAMES.get(key, key): value for key, value in values.items()}
