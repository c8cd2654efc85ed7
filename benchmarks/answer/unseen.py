"""Recipes of small networks on many unseen inputs: what a margin gives, and what more inputs give.

    python -m benchmarks.answer unseen --json figures.json

The first small network of each family (``small_networks``: no culprit is planted) gets 20 inputs. The loss allowed is
a share of the loss of full INT8 on the worst of them. ``run`` searches recipes with several margins, and one without a
margin on 80 inputs. Plain ONNX Runtime then judges each on 200 inputs that ``run`` did not see. All inputs of a network
are drawn alike, so recipes that fit the inputs given are the only reason why unseen ones lose more.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

import trt_bisect
from benchmarks.answer.judge import judged
from benchmarks.answer.small_networks import Small, samples, small_networks
from trt_bisect.support.progress import Silent

SHARE = 0.35
"""The loss allowed, of that of full INT8."""
FEW, MANY, UNSEEN = 20, 80, 200
WAYS = ((FEW, 0.0), (FEW, 0.2), (FEW, 0.5), (MANY, 0.0))
"""The number of inputs given, and the margin."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", help="families of networks")


def measure(asked: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A row for each network and way."""
    rows = []
    for small in small_networks():
        family, _, number = small.name.partition("-")
        if number == "0" and (not asked.only or family in asked.only):
            with tempfile.TemporaryDirectory() as folder:
                rows += [each | {"network": family} for each in _rows(small, Path(folder))]
    console.print(table(rows))
    return rows


def _rows(small: Small, folder: Path) -> Iterable[dict[str, Any]]:
    path, data = folder / "network.onnx", {"few": FEW, "many": MANY, "unseen": UNSEEN}
    onnx.save(small.model, path)
    for seed, (name, count) in enumerate(data.items()):
        np.savez(folder / f"{name}.npz", x=samples(small.model, count, 500 + seed))
    full = _run(path, 0.01, 0.0, FEW, folder).similarity.int8
    assert full is not None
    budget = SHARE * (1.0 - full)
    for inputs, margin in WAYS:
        report = _run(path, 1.0 - budget, margin, inputs, folder)
        assert report.answer is not None
        recipe = folder / "run" / "recipe" / "network.qdq.onnx"
        given, unseen = (
            [(1.0 - cosine) / budget for cosine in judged(path, recipe, folder / f"{part}.npz", {})["off"]]
            for part in ("few" if inputs == FEW else "many", "unseen")
        )
        yield {"inputs": inputs, "margin": margin, "cost": report.answer.cost, "given": given, "unseen": unseen}


def _run(path: Path, threshold: float, margin: float, inputs: int, folder: Path) -> trt_bisect.Report:
    data = folder / ("few.npz" if inputs == FEW else "many.npz")
    wishes: dict[str, Any] = {
        "threshold": threshold,
        "margin": margin,
        "holdout": 0.0,
        "explain": "none",
        "engine": "onnxruntime",
    }
    return trt_bisect.run(path, folder / "few.npz", inputs=data, output=folder / "run", progress=Silent(), **wishes)


def table(rows: list[dict[str, Any]]) -> Table:
    """By network: the cost, the share of unseen inputs that miss, and by how much more unseen inputs lose."""
    result = Table("network", *(f"{inputs} inputs, margin {margin:g}" for inputs, margin in WAYS), box=None)
    networks = list(dict.fromkeys(row["network"] for row in rows))
    for network in networks:
        found = [row for row in rows if row["network"] == network]
        result.add_row(network, *(_cell([row]) for row in found))
    for_all = [[row for row in rows if (row["inputs"], row["margin"]) == way] for way in WAYS]
    result.add_row("mean", *map(_cell, for_all))
    result.caption = "cost; unseen inputs below the target; mean loss of unseen inputs by that of those given"
    return result


def _cell(rows: list[dict[str, Any]]) -> str:
    cost = np.mean([row["cost"] for row in rows])
    misses = np.mean([np.mean(np.array(row["unseen"]) > 1.0) for row in rows])
    ratio = np.median([np.mean(row["unseen"]) / np.mean(row["given"]) for row in rows])
    return f"{100 * cost:.1f} %; {100 * misses:.1f} %; {ratio:.2f}"
