"""Recipes with more units high, so that they pass in all settings or are faster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from trt_bisect.answer.validation import Recipe, Target


def with_more_high(
    target: Target, recipe: Recipe, limit: float = math.inf, alone: Mapping[int, float] = MappingProxyType({})
) -> Recipe:
    """Returns the recipe with the first 1, 2, 4, ... further units in high precision, until it passes in all settings.

    Units with the largest loss per cost come first, then the cheapest. The result may miss, if it costs more than
    ``limit`` or has all units in high precision.

    Args:
        alone: by unit, the loss with only this unit in low precision; units without a loss count as 0.
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
    """Returns the recipe with more units in high precision where this makes it cheaper, because fewer neighbours differ
    in type.

    The recipe must pass; it stays unchanged if nothing makes it cheaper, or the larger recipe misses.
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
