"""Checks the types of dataclass fields that were read from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Facts = TypeVar("Facts")
_hints: Callable[[Any], Mapping[str, Any]] = cache(get_type_hints)


def checked(facts: Facts) -> Facts:
    """Returns an instance of a dataclass if every field has a value of its declared type; int is accepted for float.

    Raises:
        TypeError: a field has a value of another type.
    """
    hints = _hints(type(facts))
    for name in type(facts).__dataclass_fields__:  # type: ignore[attr-defined]
        value = getattr(facts, name)
        if not _fits(value, hints[name]):
            raise TypeError(f"'{name}' of a {type(facts).__name__} cannot be {value!r:.80}")
    return facts


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is tuple and inner[-1] is Ellipsis:
        return isinstance(value, tuple) and all(_fits(each, inner[0]) for each in value)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else origin or hint)
