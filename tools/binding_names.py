"""Writes the names of a Python binding, so that tests can check ours against it without having it installed.

    python tools/binding_names.py tensorrt tests/files/bindings/tensorrt-8.6.0.txt
    python tools/binding_names.py --signatures tensorrt tests/files/bindings/tensorrt-8.6.0.signatures.txt

It needs only the module; a GPU it does not need. Each line of the file holds a class and its public names, enum
members among them; the first line, after ``*``, the names of the module. With ``--signatures`` each line holds one way
to call a function, ``Class.method(argument optional=)``, as pybind11 writes it into the docstring; a class is its
constructor. docs/evidence/README.md says where the modules come from.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

_SIGNATURE = re.compile(r"^(?:\d+\. )?\w+\((.*)\) -> ", re.MULTILINE)
_ARGUMENT = re.compile(r"(\*{0,2}\w+): [^=]*?(=|$)")
_APART = re.compile(r", (?=\*{0,2}\w+: )")


def names_of(module: str) -> str:
    """Returns the names in an importable module, a line for the module and one for each class."""
    binding = importlib.import_module(module)
    lines = [" ".join(["*", *sorted(name for name in dir(binding) if not name.startswith("_"))])]
    for name, kind in _classes(binding):
        members = {member for base in kind.__mro__[:-1] for member in vars(base) if not member.startswith("_")}
        lines.append(" ".join([name, *sorted(members)]))
    return "\n".join(lines) + "\n"


def signatures_of(module: str) -> str:
    """Returns the ways to call the functions of an importable module and of its classes, a line for each."""
    binding = importlib.import_module(module)
    functions = {name: getattr(binding, name) for name in sorted(dir(binding)) if not name.startswith("_")}
    lines = [
        f"{name}({arguments})"
        for name, function in functions.items()
        if inspect.isbuiltin(function)
        for arguments in signatures_in(function.__doc__ or "")
    ]
    for name, kind in _classes(binding):
        for member in sorted({member for base in kind.__mro__[:-1] for member in vars(base)}):
            if member == "__init__" or not member.startswith("_"):
                called = name if member == "__init__" else f"{name}.{member}"
                lines += [f"{called}({arguments})" for arguments in signatures_in(_doc(kind, member))]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def _classes(module: ModuleType) -> Iterator[tuple[str, type]]:
    for name in sorted(dir(module)):
        if not name.startswith("_") and inspect.isclass(getattr(module, name)):
            yield name, getattr(module, name)


def _doc(kind: type, member: str) -> str:
    attribute: Any = inspect.getattr_static(kind, member)
    return str(getattr(getattr(attribute, "__func__", attribute), "__doc__", "") or "")


def signatures_in(doc: str) -> list[str]:
    """Returns the arguments of each signature in a docstring of pybind11, without ``self``; optional ones end with =.

    >>> signatures_in("parse(self: trt.OnnxParser, model: buffer, path: str = None) -> bool")
    ['model path=']
    """
    signatures = []
    for text in _SIGNATURE.findall(doc):
        arguments = [match.group(1) + match.group(2) for part in _APART.split(text) if (match := _ARGUMENT.match(part))]
        signatures.append(" ".join(argument for argument in arguments if argument != "self"))
    return signatures


def main() -> int:
    """Writes the file."""
    parser = argparse.ArgumentParser(prog="binding_names", description="Writes the names of a Python binding.")
    parser.add_argument("--signatures", action="store_true", help="the ways to call its functions instead")
    parser.add_argument("module", help="importable here")
    parser.add_argument("path", type=Path, help="the file to write")
    arguments = parser.parse_args()
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    arguments.path.write_text(signatures_of(arguments.module) if arguments.signatures else names_of(arguments.module))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
