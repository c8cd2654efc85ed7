"""The cost of the recipe of ``run`` against a plain search: lowering from all layers high, on every given input.

    python -m benchmarks.answer lowering --json figures.json
    python -m benchmarks.answer lowering --only sentence-encoder

The plain search takes each calibrator in turn. It begins with every layer high, lowers the layers with the most
multiply-adds first, in groups that are halved where they cannot go low, and then takes single layers back, dearest
first, until none can be spared. Its cost is that of the cheapest calibrator. ``run`` is asked for a recipe without a
margin for unseen inputs, which the plain search does not have either. The networks are those of ``published``.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import trt_bisect
from benchmarks.answer.judge import read_samples, session, worst
from benchmarks.answer.published import CASES, Case, make_networks, row
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.model.cost import shares, times_by_macs
from trt_bisect.model.shapes import facts_for
from trt_bisect.precision import Precision, int8_set

CALIBRATORS = {
    "entropy": ("entropy", 99.99),
    "percentile 99.99": ("percentile", 99.99),
    "percentile 99.999": ("percentile", 99.999),
    "mse": ("mse", 99.99),
}
GOAL = 1.1


@dataclass
class PlainSearch:
    """One network with one calibrator.

    Attributes:
        case: the network and what it is judged by.
        calibrator: a key of ``CALIBRATORS``.
        threshold: the least cosine of the worst output.
        inferences: the number of single inferences so far.
    """

    case: Case
    calibrator: str
    threshold: float
    inferences: int = 0
    _missed: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        path = self.case.folder / "network.onnx"
        self._network = trt_bisect.load_network(path)
        self._inputs = read_samples(self.case.folder / self.case.given, session(path, "off"))
        ranges = trt_bisect.calibrate(self._network, self._inputs, *CALIBRATORS[self.calibrator])
        self._switch = OnnxRuntimeBuilder(self._network, ranges.scales, BuildOptions(threads=2)).switch()
        costs = shares(times_by_macs(self._network, facts_for(self._network, self._inputs[0])))
        self.costs = {k: costs[k][Precision.FP32] for k in self._network.quantizable}
        nothing = int8_set(len(self._network.layers), ())
        self._exact = [dict(self._switch.infer(nothing, feeds)) for feeds in self._inputs]

    def holds(self, high: frozenset[int]) -> bool:
        """True if every input meets the threshold; the inputs that missed most often come first."""
        plan = int8_set(len(self._network.layers), self.costs.keys() - high)
        for k in sorted(range(len(self._inputs)), key=lambda k: -self._missed[k]):
            self.inferences += 1
            found = dict(self._switch.infer(plan, self._inputs[k]))
            if not worst(self._exact[k], found, self.case.cuts) >= self.threshold:
                self._missed[k] += 1
                return False
        return True

    def recipe(self) -> frozenset[int]:
        """The layers that stay high."""
        dearest_first = sorted(self.costs, key=lambda k: (-self.costs[k], k))
        high = self._lowered(frozenset(self.costs), dearest_first)
        while (fewer := self._without_spare(high, dearest_first)) != high:
            high = fewer
        return high

    def _lowered(self, high: frozenset[int], group: list[int]) -> frozenset[int]:
        if self.holds(high - frozenset(group)):
            return high - frozenset(group)
        if len(group) == 1:
            return high
        middle = (len(group) + 1) // 2
        return self._lowered(self._lowered(high, group[:middle]), group[middle:])

    def _without_spare(self, high: frozenset[int], order: list[int]) -> frozenset[int]:
        for k in order:
            if k in high and self.holds(high - {k}):
                high -= {k}
        return high


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES])


def measure(asked: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A row for each network; the table is printed again after each."""
    make_networks()
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if asked.only and case.name not in asked.only:
            continue
        console.print(f"{case.name} ...")
        rows.append({"network": case.name, "plain": _plain(case, console)} | {"run": row(case, case.threshold, 0.0)})
        if asked.json:
            asked.json.write_text(json.dumps(rows, indent=1) + "\n")
        console.print(table(rows))
    return rows


def _plain(case: Case, console: Console) -> dict[str, Any]:
    """Returns for each calibrator the layers left high, their cost, and the number of inferences."""
    found = {}
    for calibrator in CALIBRATORS:
        search = PlainSearch(case, calibrator, case.threshold)
        high = search.recipe()
        cost = float(np.sum([search.costs[k] for k in high]))
        found[calibrator] = {"high": len(high), "cost": cost, "inferences": search.inferences}
        console.print(f"  {calibrator}: {len(high)} high, {100 * cost:.1f} %, {search.inferences} inferences")
    return found


def table(rows: list[dict[str, Any]]) -> Table:
    result = Table("network", *CALIBRATORS, "plain search, %", "run, %", "ratio", "inferences", box=None)
    for found in rows:
        plain, ours = found["plain"], found["run"]
        least = min(each["cost"] for each in plain.values())
        inferences = sum(each["inferences"] for each in plain.values())
        costs = [f"{100 * each['cost']:.1f}" for each in plain.values()]
        ratio = "-" if not least else f"{ours['cost'] / least:.2f}"
        answer = f"{100 * least:.1f}", f"{100 * ours['cost']:.1f}", ratio, f"{inferences}; {ours['inferences']}"
        result.add_row(found["network"], *costs, *answer)
    result.caption = f"cost in % of INT8's gain by multiply-adds; the goal is a ratio of at most {GOAL:g}"
    return result
