"""The sets that the search finds without each of its tuning numbers, on drawn networks.

    python -m benchmarks.answer tuning
    python -m benchmarks.answer tuning --few 232 --many 4 --only WIDE FEW

The networks are those of ``tests/driver``: the error of each unit is a vector, so errors cancel and reinforce each
other. *Equal* counts the networks of 8 to 11 units where the set is the cheapest of all that hold. For networks of 16,
28 and 48 units the price is relative to that of the search as it is (geometric mean). *Plans* are means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.measure import tell_rows
from tests.driver.test_estimated import kept_by, searched
from tests.driver.test_search_space import Network, every_set, space_of
from trt_bisect.driver import estimated
from trt_bisect.driver.search_space import Space

WITHOUT: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "APART, doubled": {"APART": 2 * estimated.APART},
    "IN_STEP": {"IN_STEP": 1e-6},
    "NOISE, halved": {"NOISE": estimated.NOISE / 2},
    "SURPRISE": {"SURPRISE": math.inf},
    "LEAST, MOST, nearer": {"LEAST": 5 * estimated.LEAST, "MOST": estimated.MOST / 2.5},
    "FEW": {"FEW": 0},
    "FACTORS, one": {"FACTORS": np.ones(1)},
    "LEAST_CHANCE": {"LEAST_CHANCE": 0.0},
    "WIDE": {"WIDE": 1e-6},
    "SMALL": {"SMALL": 0},
}
"""By name, the values that take a number out of the search, or change it much."""
MANY = (16, 28, 48)


@dataclass(frozen=True)
class Problem:
    """A drawn network: the units, and the losses on three inputs by the units that are low."""

    space: Space
    by_input: Callable[[Collection[int]], list[float]]

    def found(self, most: int) -> tuple[float, int]:
        """The price of the set that the search finds, and the plans that it measures, ``most`` at most."""
        search, asked = searched(self.space, self.by_input, most=most)
        return search.price(kept_by(search)), len(asked)

    def least(self) -> float:
        """The price of the cheapest set of all."""
        search, _ = searched(self.space, self.by_input, most=0)
        good = [
            kept
            for kept in every_set(len(self.space.units))
            if max(self.by_input(self.space.all - kept)) <= self.space.budget
        ]
        return min(map(search.price, good))


def drawn(seed: int, units: int) -> Problem:
    networks = [Network(7 * seed + k, units) for k in range(3)]
    losses: dict[frozenset[int], list[float]] = {}

    def by_input(low: Collection[int]) -> list[float]:
        key = frozenset(low)
        if key not in losses:
            losses[key] = [network.loss(key) for network in networks]
        return losses[key]

    budget = float(np.random.default_rng(seed).uniform(0.05, 0.8)) * max(by_input(range(units)))
    return Problem(space_of(units, budget, networks[0].costs), by_input)


def measure(*, few: int = 60, many: int = 6, only: tuple[str, ...] = (), json: Path | None = None) -> None:
    """A row for each number, on ``few`` networks of 8 to 11 units and ``many`` of each larger size."""
    small = [drawn(seed, 8 + seed % 4) for seed in range(few)]
    large = [drawn(1000 + seed, units) for seed in range(many) for units in MANY]
    cheapest = [problem.least() for problem in small]
    usual = np.array([problem.found(400)[0] for problem in large])

    def row(name: str) -> dict[str, Any]:
        before = {number: getattr(estimated, number) for number in WITHOUT[name]}
        vars(estimated).update(WITHOUT[name])
        try:
            of_small = [problem.found(1000) for problem in small]
            of_large = [problem.found(400) for problem in large]
        finally:
            vars(estimated).update(before)
        pairs = zip(of_small, cheapest, strict=True)
        return {
            "without": name,
            "equal": sum(price <= least + 1e-12 for (price, _), least in pairs),
            "of": few,
            "plans of few": float(np.mean([plans for _, plans in of_small])),
            "price": float(np.exp(np.log(np.array([price for price, _ in of_large]) / usual).mean())),
            "plans of many": float(np.mean([plans for _, plans in of_large])),
        }

    tell_rows({name: partial(row, name) for name in WITHOUT}, only, table, json)


def table(rows: list[dict[str, Any]]) -> Table:
    result = Table("without", "equal", "plans", "price, more units", "plans", box=None)
    for figures in rows:
        result.add_row(
            figures["without"],
            f"{figures['equal']} of {figures['of']}",
            f"{figures['plans of few']:.0f}",
            f"{figures['price']:.3f}",
            f"{figures['plans of many']:.0f}",
        )
    return result
