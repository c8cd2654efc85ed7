"""Plans all the way from all units low to all units high, for the front of accuracy against cost."""

from __future__ import annotations

from trt_bisect.driver.recipes.search_space import Kept, Sensitivities, Space


def path(space: Space, chosen: Kept, alone: Sensitivities | None, points: int) -> list[Kept]:
    """Returns sets of units, each part of the next: chosen units first, and those that gain most for their cost first.

    Args:
        space: the units to choose from.
        chosen: the choice of a search.
        alone: the sensitivities; None where they were not measured.
        points: the largest number of sets, the empty one and the whole one included.
    """
    units = sorted(space.all)

    def worth(unit: int) -> tuple[bool, float, int]:
        figures = (alone.gains if unit in chosen else alone.losses) if alone else (0.0,) * len(units)
        return unit not in chosen, -figures[unit] / space.costs[unit], unit

    order = sorted(units, key=worth)
    sizes = {round(place * len(order) / (points - 1)) for place in range(points)} | {len(chosen)}
    return [frozenset(order[:size]) for size in sorted(sizes)]
