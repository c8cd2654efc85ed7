"""The options that ask for what a run was asked for, so that a suggested command repeats them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_bisect.data.named import name_of
from trt_bisect.jobs.options.declare import Options
from trt_bisect.jobs.options.kinds import DATA
from trt_bisect.jobs.options.option_info import OptionInfo


def repeated(given: Options, command: type[Options] | None = None) -> dict[str, tuple[str, ...]]:
    """The flags that ask for what was given, each with its values; those at their defaults are left out.

    Data that has no name on the command line, such as an array, stands there as a word to be filled in.

    Args:
        given: the options of a run.
        command: the options of another command: only those that it has as well.
    """
    known = type(given) if command is None else command
    names = {info.name for info in known.declared()}
    flags = {}
    for info in given.declared():
        value = _named(info, getattr(given, info.name))
        if info.name in names and info.repeated and not _is_default(value, info.default):
            flags[info.flag] = info.kind.words(value)
    return flags


def _named(info: OptionInfo, value: Any) -> Any:
    return value if info.kind is not DATA or value is None else name_of(value) or info.stands_for


def _is_default(value: Any, default: Any) -> bool:
    if value is None or value is False:
        return True
    if isinstance(value, (list, tuple, Mapping)):
        return not value
    if isinstance(value, Path):
        return str(value) == str(default)
    return bool(value == default) if isinstance(value, (str, int, float)) else False
