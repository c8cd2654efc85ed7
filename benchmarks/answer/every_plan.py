"""Compares a search with every possible plan, on small networks.

    python -m benchmarks.answer every_plan --json figures.json
    python -m benchmarks.answer every_plan --search package.module:function
    python -m benchmarks.answer every_plan --search run --target 0.99

The worst of four inputs decides. Each network is asked for targets that need 1, 2 and 4 layers high, and for 0.99.
A search is a function ``search(space, measure) -> kept``: it asks ``measure`` for the losses of plans and returns the
units to keep high. ``run`` stands for the whole job, which measures for itself (its plans are not counted). The losses
of all plans are measured once, on the session that switches precisions, and kept under ``.bench``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from rich.console import Console
from rich.table import Table

import trt_bisect
from benchmarks.answer.judge import cosine
from benchmarks.answer.small_networks import Small, small_networks
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.driver.recipes.cheapest import cheapest, orders, surely_cheapest
from trt_bisect.driver.recipes.search_space import Kept, MeasuredSets, Space, sensitivities
from trt_bisect.driver.suspects.search import drive
from trt_bisect.jobs.answer.search import CHEAP_RECIPE, IMPROVEMENTS
from trt_bisect.model.cost import shares, times_by_macs
from trt_bisect.model.network import Network
from trt_bisect.model.shapes import facts_for
from trt_bisect.precision import Precision, PrecisionPlan, int8_set
from trt_bisect.support.progress import Silent

WORK = Path(__file__).resolve().parents[2] / ".bench" / "every_plan"
HIGH_LAYERS = (1, 2, 4)
LEAST, MOST = 8, 14
THRESHOLD = 0.99


@dataclass
class Measure:
    """Gives the losses of plans from the table of all plans.

    Attributes:
        losses: [plans, inputs], 1 - cosine of the worst output; bit u of a plan's number is set if unit u is high.
        space: the units.
        asked: the plans asked for.
        inferences: the single inferences that these took.
    """

    losses: np.ndarray
    space: Space
    asked: set[int] = field(default_factory=set)
    inferences: set[tuple[int, int]] = field(default_factory=set)

    def __call__(self, plans: Sequence[PrecisionPlan]) -> list[float]:
        """The loss of each plan on its worst input."""
        return [max(self.on(plan, k) for k in range(self.losses.shape[1])) for plan in plans]

    def on(self, plan: PrecisionPlan, sample: int) -> float:
        """The loss of a plan on one input."""
        low = plan.int8
        number = sum(1 << u for u, unit in enumerate(self.space.units) if unit[0] not in low)
        self.asked.add(number)
        self.inferences.add((number, sample))
        return float(self.losses[number, sample])


Search = Callable[[Space, Measure], Kept]


def as_recover(space: Space, measure: Measure, limit: int = 400) -> Kept:
    """Runs the search of ``recover``."""
    alone = drive(sensitivities(MeasuredSets(space)), measure)
    return drive(cheapest(space, orders(space, alone), limit, alone), measure).kept


def as_run(space: Space, measure: Measure) -> Kept:
    """Runs the search of ``run``."""
    return as_recover(space, measure, IMPROVEMENTS)


def as_run_of_many(space: Space, measure: Measure) -> Kept:
    """The search of ``run`` in networks of more than 16 layers, which may end after one order."""
    sure = drive(surely_cheapest(space, CHEAP_RECIPE), measure)
    return as_run(space, measure) if sure is None else sure.kept


def by_run(small: Small) -> Search:
    """The recipe of ``run``, judged on the same inputs; it measures for itself."""

    def search(space: Space, _: Measure) -> Kept:
        network = trt_bisect.load_network(WORK / f"{small.name}.onnx")
        wishes: dict[str, Any] = {"calibrator": small.calibrator, "threshold": 1.0 - space.budget, "explain": "none"}
        data = {"x": small.calibration}, {"x": small.inputs}
        report = trt_bisect.run(network, *data, engine="onnxruntime", progress=Silent(), **wishes)
        unit = {network.layers[layers[0]].name: u for u, layers in enumerate(space.units)}
        return frozenset(unit[name] for name in report.recipe.high)

    return search


def _found(name: str) -> Search:
    module, _, function = name.partition(":")
    search: Search = getattr(importlib.import_module(module), function)
    return search


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--search", default="benchmarks.answer.every_plan:as_recover", help="module:function, or run")
    parser.add_argument("--target", nargs="+", help="only these: '1 high', '2 high', '4 high', 0.99")
    parser.add_argument("--only", nargs="+", help="names of networks, or their beginnings")


def measure(asked: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A row for each network and target; prints the summary and the rows where the cheapest set was not found."""
    rows = []
    for small in small_networks():
        if asked.only and not small.name.startswith(tuple(asked.only)):
            continue
        space, losses = space_and_losses(small)
        search = by_run(small) if asked.search == "run" else _found(asked.search)
        rows += [
            {"network": small.name, "target": name, "budget": budget} | compared(space, losses, budget, search)
            for name, budget in targets(losses).items()
            if not asked.target or name in asked.target
        ]
        console.print(f"{small.name}: {len(space.units)} layers, full INT8 loses {losses[0].max():.4f}")
    console.print(table(rows))
    return rows


def space_and_losses(small: Small) -> tuple[Space, np.ndarray]:
    """The units with their costs (its budget is 0), and the losses of all plans on all inputs."""
    WORK.mkdir(parents=True, exist_ok=True)
    path = WORK / f"{small.name}.onnx"
    onnx.save(small.model, str(path))
    network = trt_bisect.load_network(path)
    count = len(network.quantizable)
    if not LEAST <= count <= MOST:
        raise SystemExit(f"{small.name} has {count} layers that INT8 can take, not {LEAST} to {MOST}")
    costs = shares(times_by_macs(network, facts_for(network, {"x": small.inputs[:1]})))
    space = Space(
        int8_set(len(network.layers), ()),
        tuple((k,) for k in network.quantizable),
        tuple(costs[k][Precision.FP32] for k in network.quantizable),
        0.0,
    )
    arrays = [small.model.SerializeToString(deterministic=True), small.calibration.tobytes(), small.inputs.tobytes()]
    about = f"{small.calibrator} onnxruntime {onnxruntime.__version__} layers {network.quantizable}"
    digest = hashlib.sha256(b"".join([*arrays, about.encode()])).hexdigest()[:16]
    kept = WORK / f"{small.name}-{digest}.npy"
    if not kept.exists():
        losses = all_losses(network, space, small)
        np.save(kept, losses)
    return space, np.load(kept)


def all_losses(network: Network, space: Space, small: Small) -> np.ndarray:
    """The loss of every plan on every input, [2 to the number of units, inputs]; all inputs run as one batch."""
    ranges = trt_bisect.calibrate(network, [{"x": x[None]} for x in small.calibration], small.calibrator)
    builder = OnnxRuntimeBuilder(network, ranges.scales, BuildOptions(threads=1))
    session, feeds = builder.switch(), {"x": small.inputs}
    units = len(space.units)
    exact = session.infer(space.plan(space.all), feeds)["y"]
    losses = np.empty((1 << units, len(exact)))
    for number in range(1 << units):
        plan = space.plan(frozenset(u for u in range(units) if number >> u & 1))
        found = session.infer(plan, feeds)["y"]
        losses[number] = [1.0 - cosine(a, b) for a, b in zip(exact, found, strict=True)]
    return losses


def targets(losses: np.ndarray) -> dict[str, float]:
    """Budgets that need some number of layers high, and 0.99 where full INT8 misses it.

    Between the least loss with so many layers high and the least with one fewer lies the budget, their geometric mean.
    """
    worst = losses.max(axis=1)
    high = np.array([number.bit_count() for number in range(len(worst))])
    least = [float(worst[high <= count].min()) for count in range(max(HIGH_LAYERS) + 1)]
    found = {
        f"{count} high": (fewer * enough) ** 0.5
        for count, (fewer, enough) in enumerate(pairwise(least), 1)
        if count in HIGH_LAYERS and 0.0 < enough < fewer
    }
    if worst[0] > 1.0 - THRESHOLD:
        found[f"{THRESHOLD}"] = 1.0 - THRESHOLD
    return found


def compared(space: Space, losses: np.ndarray, budget: float, search: Search) -> dict[str, Any]:
    """Compares the answer of a search with the cheapest set of all."""
    wanted = Space(space.base, space.units, space.costs, budget)
    measuring = Measure(losses, wanted)
    kept = search(wanted, measuring)
    worst = losses.max(axis=1)
    good = np.flatnonzero(worst <= budget)
    best = min((_set(int(number)) for number in good), key=wanted.price)
    number = sum(1 << unit for unit in kept)
    return {
        "layers": len(space.units),
        "meets": bool(worst[number] <= budget),
        "cost": wanted.cost(kept),
        "cheapest": wanted.cost(best),
        "high": len(kept),
        "high in cheapest": len(best),
        "found": bool(worst[number] <= budget) and wanted.cost(kept) <= wanted.cost(best) + 1e-9,
        "minimal": all(worst[number & ~(1 << unit)] > budget for unit in kept),
        "plans": len(measuring.asked),
        "inferences": len(measuring.inferences),
    }


def _set(number: int) -> Kept:
    return frozenset(unit for unit in range(number.bit_length()) if number >> unit & 1)


def table(rows: list[dict[str, Any]]) -> Table:
    """Returns the lines to print: for each kind of target, for all, and for each answer that is not the cheapest."""
    heads = ("target", "answers", "meet it", "1-minimal", "cheapest found", "extra cost, most", "extra layers, most")
    result = Table(*heads, "plans, median", "most", box=None)
    kinds = list(dict.fromkeys(row["target"] for row in rows))
    for kind in [*kinds, "all"]:
        chosen = [row for row in rows if kind in ("all", row["target"])]
        plans = [row["plans"] for row in chosen]
        result.add_row(
            kind, str(len(chosen)), _share(chosen, "meets"), _share(chosen, "minimal"), _share(chosen, "found"),
            f"{max(row['cost'] / row['cheapest'] for row in chosen):.2f} times",
            f"{max(row['high'] - row['high in cheapest'] for row in chosen):+d}",
            f"{np.median(plans):.0f}", str(max(plans)),
        )  # fmt: skip
    for row in rows:
        if not row["found"]:
            figures = f"cost {row['cost']:.4f}, cheapest {row['cheapest']:.4f}"
            layers = f"{row['high']} layers, cheapest {row['high in cheapest']}"
            result.add_row(f"{row['network']}, {row['target']}", "", "", "", "not found", figures, layers)
    return result


def _share(rows: list[dict[str, Any]], key: str) -> str:
    return f"{sum(row[key] for row in rows)} of {len(rows)} ({100 * sum(row[key] for row in rows) / len(rows):.0f} %)"
