"""Makes dataclasses of what was read from a JSON or CSV file, by the types of their fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Facts = TypeVar("Facts")
_hints: Callable[[Any], Mapping[str, Any]] = cache(get_type_hints)


def built(kind: type[Facts], record: Mapping[str, Any], **known: Any) -> Facts:
    """Returns an instance of a dataclass from an object of a file; keys that are no fields are left out.

    Lists become tuples, and None becomes NaN where a field is a float that cannot be None. A dataclass with a class
    method ``from_record`` is made by that.

    Args:
        kind: the dataclass.
        record: the values by field; a field with a default may be missing.
        known: fields that are known already.

    Raises:
        KeyError, TypeError, ValueError: a field is missing, or a value is not of its type.
    """
    hints = _hints(kind)
    given = dict(known)
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name in given or (each.name not in record and not each.default is each.default_factory is MISSING):
            continue
        given[each.name] = _value(hints[each.name], record[each.name])
    return kind(**given)


def _value(hint: Any, value: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if NoneType in inner and value in (None, ""):
            return None
        return _value(next(each for each in inner if each is not NoneType), value)
    if origin is tuple:
        return tuple(_value(inner[0], each) for each in value)
    if origin is not None and issubclass(origin, Mapping):
        return {inner[0](key): _value(inner[1], each) for key, each in value.items()}
    if hasattr(hint, "__dataclass_fields__"):
        return hint.from_record(value) if hasattr(hint, "from_record") else built(hint, value)
    if hint is float:
        return math.nan if value in (None, "") else float(value)
    if hint in (int, str):
        return hint(value)
    if hint is bool and not isinstance(value, bool):
        raise TypeError(f"{value!r:.80} is neither true nor false")
    return value
