"""``python -m benchmarks.reliability WHAT ...``: prints its figures; exit code 1 where a promise is broken."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

WHAT = ("kill", "stop", "disk", "fuzz")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    subparsers = parser.add_subparsers(dest="what", required=True)
    modules = {name: importlib.import_module(f"benchmarks.reliability.{name}") for name in WHAT}
    for name, module in modules.items():
        described = subparsers.add_parser(name, help=str(module.__doc__).splitlines()[0])
        described.add_argument("--json", type=Path, help="also write the figures there", default=argparse.SUPPRESS)
        module.add_arguments(described)
    asked = parser.parse_args()
    figures, broken = modules[asked.what].measure(asked)
    print(json.dumps(figures, indent=1))
    if asked.json is not None:
        asked.json.write_text(json.dumps({"command": sys.argv[1:], **figures, "broken": broken}, indent=1) + "\n")
    for promise in broken:
        print(f"BROKEN: {promise}", file=sys.stderr)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
