"""A digest of a user's function, so that figures of another function are never taken for its own.

Seen are its bytecode with that of nested functions, its defaults, what it closes over, and the globals that it reads;
of the user's own modules and classes, the file that they stand in. Installed packages and Python's own modules count
by name and version. What a function reads from elsewhere while it runs, such as a file, is not seen.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from uuid import uuid4

import numpy as np

_UNKNOWN = "known in this run alone "
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range, slice)
_CODE = (
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_flags",
    "co_code",
    "co_exceptiontable",
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
)


_MADE_BY_STATEMENT = 1 << 9
"""Of ``type.__flags__``: ``Py_TPFLAGS_HEAPTYPE``."""
_OF_EVERY_CLASS = (
    "__module__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__annotations__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__firstlineno__",
    "__static_attributes__",
)


class _Undigestible(Exception):
    """An object whose state cannot be seen."""


def code_digest(function: Callable[..., Any], *facts: object) -> str:
    """SHA-256 of a function and of what else tells its figures from others.

    Args:
        function: or any callable.
        facts: plain values, such as the name that its figures go by.

    Returns:
        The digest in hexadecimal. Where the function uses something whose state cannot be seen, such as an open
        session, a text that no other call gives: see ``is_reusable``.
    """
    try:
        parts = [sys.implementation.cache_tag or "", *_parts((function, facts), {})]
    except (_Undigestible, RecursionError):
        return _UNKNOWN + uuid4().hex
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def is_reusable(digest: str) -> bool:
    """Whether another run can find figures under a digest of ``code_digest``."""
    return not digest.startswith(_UNKNOWN)


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """What a value is made of, as texts.

    Args:
        value: any object.
        seen: those that were come to before, by ``id``: an object is told once. Constants are told each time, since
            which of them are one object depends on whether Python compiled a file or read its cache.

    Raises:
        _Undigestible: that cannot be seen.
    """
    kind = type(value)
    yield kind.__name__
    if kind in _PLAIN:
        yield repr(value)
    elif kind is tuple:
        yield str(len(value))
        for each in value:
            yield from _parts(each, seen)
    elif kind in (set, frozenset):
        yield from sorted("\1".join(_parts(each, {**seen})) for each in value)
    elif kind is CodeType:
        yield from (repr(getattr(value, attribute, None)) for attribute in _CODE)
        yield from _parts(value.co_consts, seen)
    elif id(value) in seen:
        yield f"again {list(seen).index(id(value))}"
    else:
        seen[id(value)] = value
        yield from _object(value, seen)


def _object(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    if type(value) is list:
        yield from _parts(tuple(value), seen)
    elif type(value) is dict:
        yield from _parts(tuple(value.items()), seen)
    elif isinstance(value, (np.ndarray, np.generic)):
        yield from _array(np.asarray(value), seen)
    elif (name := _installed_name(value)) is not None:
        yield name
    elif isinstance(value, FunctionType):
        names = sorted(_names(value.__code__) & value.__globals__.keys())
        used = tuple((name, value.__globals__[name]) for name in names)
        closed = tuple(_content(cell) for cell in value.__closure__ or ())
        yield from _parts((value.__code__, value.__defaults__, value.__kwdefaults__, closed, used), seen)
    elif isinstance(value, MethodType):
        yield from _parts((value.__func__, value.__self__), seen)
    elif isinstance(value, functools.partial):
        yield from _parts((value.func, value.args, value.keywords), seen)
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _parts(value.__func__, seen)
    elif isinstance(value, property):
        yield from _parts((value.fget, value.fset), seen)
    elif isinstance(value, ModuleType):
        yield from _module(value, seen)
    else:
        yield from _class_or_instance(value, seen)


def _module(module: ModuleType, seen: dict[int, Any]) -> Iterator[str]:
    """The digest of a module's file, and the user's other modules that it takes something from."""
    path = Path(module.__file__ or "")
    if path.suffix != ".py" or not path.is_file():
        raise _Undigestible
    yield hashlib.sha256(path.read_bytes()).hexdigest()
    for name, value in list(vars(module).items()):
        source = value if isinstance(value, ModuleType) else sys.modules.get(str(getattr(value, "__module__", "")))
        if source is not None and source is not module and not _is_installed(source.__name__):
            yield name
            yield from _parts(source, seen)


def _class_or_instance(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """A class of the user's, or an instance of one, whose state stands in its attributes."""
    if not isinstance(value, type):
        if any(_is_installed(base.__module__) for base in type(value).__mro__[:-1]) or not hasattr(value, "__dict__"):
            raise _Undigestible
        yield from _parts((type(value), vars(value)), seen)
        return
    if not value.__flags__ & _MADE_BY_STATEMENT:
        raise _Undigestible
    own = tuple((name, each) for name, each in vars(value).items() if name not in _OF_EVERY_CLASS)
    yield value.__qualname__
    yield from _parts((*(base for base in value.__bases__ if base is not object), own), seen)


def _array(array: np.ndarray, seen: dict[int, Any]) -> Iterator[str]:
    yield f"{array.dtype.str} {array.shape}"
    if array.dtype.hasobject:
        yield from _parts(array.tolist(), seen)
    else:
        yield hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _names(code: CodeType) -> set[str]:
    """The names that a code object and those nested in it may read from the globals."""
    nested = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*nested)


def _installed_name(value: Any) -> str | None:
    """The name and version of what an installed package or Python itself holds under a name; None for all else."""
    if isinstance(value, np.ufunc):
        return f"numpy.{value.__name__} {np.__version__}"
    if isinstance(value, ModuleType):
        return _versioned(value.__name__) if _is_installed(value.__name__) else None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not _is_installed(module):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{_versioned(module)} {name}" if found is value else None


def _versioned(module: str) -> str:
    return f"{module} {getattr(sys.modules.get(module.partition('.')[0]), '__version__', '')}"


def _is_installed(name: str) -> bool:
    """Whether a module changes with its version alone."""
    root = name.partition(".")[0]
    if root in sys.stdlib_module_names or root == __name__.partition(".")[0]:
        return root != "__main__"
    path = getattr(sys.modules.get(root), "__file__", None)
    places = (sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    return path is not None and any(Path(path).is_relative_to(place) for place in places)
