"""Recipes with more units high: so that they hold, or so that they are faster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from trt_bisect.answer.validation import Recipe, Target


def with_more_high(
    target: Target, recipe: Recipe, limit: float = math.inf, alone: Mapping[int, float] = MappingProxyType({})
) -> Recipe:
    """Keeps more units high until the recipe holds in all settings: the cheapest first, twice as many each time.

    Units whose losses alone are known come first, by loss per cost; all units but one are tried before all of them.
    This is for a recipe that misses only in a setting of which the search has no figure: the number of detections, for
    example, jumps without warning.

    Returns:
        The larger recipe. It may miss too, if it costs more than ``limit`` or all units are high.
    """
    space = recipe.space
    helps = {unit: alone.get(unit, 0.0) / space.costs[unit] for unit in space.all - recipe.kept}
    others = sorted(helps, key=lambda unit: (-helps[unit], space.costs[unit], unit))
    count = 1
    while True:
        larger = replace(recipe, kept=recipe.kept.union(others[:count]), equals=()).checked_by(target)
        if larger.holds or larger.kept == space.all or larger.cost > limit:
            return larger
        is_last = count < len(others) - 1 <= 2 * count
        count = len(others) - 1 if is_last else 2 * count


def with_faster(target: Target, recipe: Recipe) -> Recipe:
    """Keeps more units high where that makes the plan cheaper: neighbours then need fewer changes of type.

    Returns:
        The larger recipe; ``recipe`` itself, which must hold, if no unit makes it cheaper (as where the cost is a sum)
        or the larger one misses in a setting.
    """
    space, kept, before = recipe.space, recipe.kept, None
    while space.cost_of is not None and kept != before:
        before = kept
        for unit in sorted(space.all - kept, key=lambda unit: (space.costs[unit], unit)):
            if space.cost(kept | {unit}) < space.cost(kept):
                kept |= {unit}
    if kept == recipe.kept:
        return recipe
    larger = replace(recipe, kept=kept, equals=()).checked_by(target)
    return larger if larger.holds else recipe
