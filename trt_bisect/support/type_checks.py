"""Checks the types of dataclass fields that were read from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Facts = TypeVar("Facts")
_Fits = Callable[[Any], bool]
_PLAIN: dict[Any, set[type]] = {int: {int}, float: {int, float}, str: {str}, bool: {bool}}
"""By type, the classes whose values are of it; the values of other classes are looked at one by one."""


def checked(facts: Facts) -> Facts:
    """Returns an instance of a dataclass if every field has a value of its declared type; int is accepted for float.

    Raises:
        TypeError: a field has a value of another type.
    """
    for name, fits in _checks_of(type(facts)):
        value = getattr(facts, name)
        if not fits(value):
            raise TypeError(f"'{name}' of a {type(facts).__name__} cannot be {value!r:.80}")
    return facts


def _make_checks(kind: Any) -> tuple[tuple[str, _Fits], ...]:
    """The fields of a dataclass, with the check of each: a history has thousands of rows of the same class."""
    hints = get_type_hints(kind)
    return tuple((name, _check_of(hints[name])) for name in kind.__dataclass_fields__)


_checks_of: Callable[[Any], tuple[tuple[str, _Fits], ...]] = cache(_make_checks)


def _check_of(hint: Any) -> _Fits:
    """Returns a function that tells if a value is of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda _: True
    if origin in (Union, UnionType):
        return _any_of([_check_of(one) for one in inner])
    if origin is tuple and inner[-1] is Ellipsis:
        each = _check_of_all(inner[0])
        return lambda value: isinstance(value, tuple) and each(value)
    if origin is not None and issubclass(origin, Mapping):
        keys, items = map(_check_of_all, inner)
        return lambda value: isinstance(value, Mapping) and keys(value) and items(value.values())
    if hint is bool:
        return lambda value: isinstance(value, bool)
    kinds = (int, float) if hint is float else origin or hint
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool)


def _check_of_all(hint: Any) -> Callable[[Iterable[Any]], bool]:
    """Returns a function that tells if all values are of a type; one look at their classes settles most cases."""
    fits, plain = _check_of(hint), _PLAIN.get(hint, set())
    return lambda values: plain.issuperset(map(type, values)) or all(map(fits, values))


def _any_of(checks: list[_Fits]) -> _Fits:
    return lambda value: any(fits(value) for fits in checks)
