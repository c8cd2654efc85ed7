"""Recipes with and without networks that lose less in INT8, on the published networks: price, seconds, unseen inputs.

    python -m benchmarks.answer candidates --only recogniser silero-vad --json figures.json

Each network is run twice, first on the user's network alone: see ``trt_bisect/answer/candidates.py``.
"""

from __future__ import annotations

import argparse
import json
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from benchmarks.answer import published
from trt_bisect.commands.run import run as command


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=[case.name for case in published.CASES])
    parser.add_argument("--effort", choices=("quick", "default", "thorough"), default="default")


def measure(asked: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A row for each network; the table is printed again after each."""
    published.make_networks()
    rows: list[dict[str, Any]] = []
    for case in published.CASES:
        if asked.only and case.name not in asked.only:
            continue
        with mock.patch.object(command, "improved", return_value=None):
            before = published.row(case, case.threshold, asked.effort)
        rows.append({"before": before, "after": published.row(case, case.threshold, asked.effort)})
        if asked.json:
            asked.json.write_text(json.dumps(rows, indent=1) + "\n")
        console.print(_table(rows))
    return rows


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("network", "cost, %: before", "after", "processor, s: before", "after", box=None)
    for head in ("given below: before", "after", "unseen below: before", "after"):
        table.add_column(head)
    for row in rows:
        found = [row["before"], row["after"]]
        if any("failed" in one for one in found):
            table.add_row(found[0]["network"], *(one.get("failed", "") for one in found))
            continue
        cells = [[f"{100 * one['cost']:.1f}" for one in found], [f"{one['processor']:.0f}" for one in found]]
        cells += [[published.below(one, part) for one in found] for part in ("given", "unseen")]
        table.add_row(found[0]["network"], *(cell for pair in cells for cell in pair))
    return table
