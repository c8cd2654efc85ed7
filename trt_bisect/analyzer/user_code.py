"""A digest of a user's function, so that figures of another function are never used as its own.

The digest covers the function's bytecode and that of nested functions, its defaults, its closure, and the globals that
it reads. The user's own modules and classes count by their source file, installed packages and Python's own modules by
name and version. Other data that the function reads while it runs, such as a file, is not covered.
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
    """An object has a state that cannot be read."""


def code_digest(function: Callable[..., Any], *facts: object) -> str:
    """Returns the SHA-256 of a function and of ``facts``.

    Args:
        function: a function or any callable.
        facts: plain values that change the figures, such as the metric's name.

    Returns:
        The digest in hexadecimal. If the function uses an object with a state that cannot be read, such as an open
        session, the text is different for every call; see ``is_reusable``.
    """
    try:
        parts = [sys.implementation.cache_tag or "", *_parts((function, facts), {})]
    except (_Undigestible, RecursionError):
        return _UNKNOWN + uuid4().hex
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def is_reusable(digest: str) -> bool:
    """Returns true if another run gets the same digest from ``code_digest``, so that it can reuse figures."""
    return not digest.startswith(_UNKNOWN)


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """Yields the content of a value as texts.

    Args:
        value: any object.
        seen: the objects met before, by ``id``; the content of an object is given once. Constants are given each time:
            equal ones can be one object or several, depending on Python's cache of compiled files.

    Raises:
        _Undigestible: the value has a state that cannot be read.
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
    """Yields the digest of a module's file, and the content of the user's other modules from which it imports."""
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
    """Yields the content of a user's class, or of an instance of one, from its attributes."""
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
    """Returns the names that a code object and those nested in it may read from the globals."""
    nested = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*nested)


def _installed_name(value: Any) -> str | None:
    """Returns name and version of an object that an installed package or Python itself defines; None for others."""
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
    """Returns true if a module belongs to Python, to an installed package, or to trt-bisect itself."""
    root = name.partition(".")[0]
    if root in sys.stdlib_module_names or root == __name__.partition(".")[0]:
        return root != "__main__"
    path = getattr(sys.modules.get(root), "__file__", None)
    places = (sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    return path is not None and any(Path(path).is_relative_to(place) for place in places)
