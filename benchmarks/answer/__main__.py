"""``python -m benchmarks.answer published|prices|others|heads``: see the modules of these names."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from rich.console import Console

PARTS = ("published", "prices", "others", "heads")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answer", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in PARTS:
        module = importlib.import_module(f"benchmarks.answer.{name}")
        part = parts.add_parser(name, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        part.add_argument("--json", type=Path, help="also write every figure there")
        module.add_options(part)
    asked = parser.parse_args()
    figures = importlib.import_module(f"benchmarks.answer.{asked.part}").measure(asked, Console(width=160))
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
