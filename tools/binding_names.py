"""Writes the names of a Python binding, so that tests can check ours against it without having it installed.

    python tools/binding_names.py tensorrt tests/files/bindings/tensorrt-8.6.0.txt

It needs only the module; a GPU it does not need. Each line of the file holds a class and its public names, enum members
among them; the first line, after ``*``, the names of the module. docs/evidence/README.md says where the modules come
from.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path


def names_of(module: str) -> str:
    """Returns the names in an importable module, a line for the module and one for each class."""
    found = importlib.import_module(module)
    public = {name: getattr(found, name) for name in dir(found) if not name.startswith("_")}
    lines = [" ".join(["*", *sorted(public)])]
    for name, kind in sorted(public.items()):
        if inspect.isclass(kind):
            own = {member for base in kind.__mro__[:-1] for member in vars(base) if not member.startswith("_")}
            lines.append(" ".join([name, *sorted(own)]))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the file."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    path = Path(sys.argv[2])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(names_of(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
