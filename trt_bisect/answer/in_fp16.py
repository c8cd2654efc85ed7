"""The layers of a recipe in FP16, where that is cheaper and good enough.

By multiply-adds a layer in FP16 gives up a third of what it gives up in FP32. But the set was searched in FP32 and has
no room left: each of its units is needed, and the rounding to FP16 may be too much. Two units in FP16 cost less than
one in FP32, so more units may stay high:

    in FP32     a b c                  30 %, holds
    in FP16     a b c                  10 %, misses
                a b c + d              11 %, misses with moved scales
                a b c + e              13 %, holds: taken
                a b c + d f g h        15 %

Units are added in three orders: the cheapest first; those with the most effect for their cost alone in INT8; and those
with the most effect alone in high precision, where these effects were measured. The sets are checked from the cheapest
on, in all settings, until one holds. It has to hold in FP32 too, so that the roundings of FP16 do not decide by chance.
Most sets that miss do so on the first inputs. If the recipe itself misses in FP16, a second search puts as many of its
units there as are good enough, and leaves the others in FP32. The cheaper result is taken.

Culprits and steps back are those of the recipe in FP32: the added units are there for FP16 alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from math import inf

from trt_bisect.answer.plans import AnswerPlans, Spent
from trt_bisect.answer.search import CLOSER, CLOSEST, costs_of
from trt_bisect.answer.validation import Recipe, Target
from trt_bisect.driver.cheapest import cheapest, orders
from trt_bisect.driver.search import drive
from trt_bisect.driver.search_space import Kept, Sensitivities, Space
from trt_bisect.model.cost import Costs
from trt_bisect.precision import Precision

_FURTHER = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""The numbers of further units that are tried."""
_SWEEPS, _ALWAYS = 0.5, 200
"""The inferences that the search may take: a share of the units times the inputs given, and the least number."""
_BUILT = 8
"""The number of sets that are checked where an engine is built for each."""
_ROUNDS = 3
_LEAST = 1e-9


def in_fp16(
    plans: AnswerPlans, target: Target, recipe: Recipe, alone: Sensitivities | None, most: float
) -> Recipe | None:
    """Puts a recipe into FP16, with more units high where it needs them; None if no such recipe costs little enough.

    Args:
        recipe: it holds with all units in FP32.
        most: the largest cost.
    """
    best: Recipe | None = None
    space, kept, experiment = recipe.space, recipe.kept, recipe.experiment
    all_in = with_units_in(space, space.all, Precision.FP16, plans.costs)
    # The searches before this one may have left any number of inferences.
    allowed, plans.allowed = plans.allowed, inf
    try:
        with suppress(Spent), plans.ending(max(_SWEEPS * len(space.units) * len(plans.inputs.counting), _ALWAYS)):
            for larger in _sets(plans, all_in, kept, alone, most):
                checked = target.check(experiment, all_in.plan(larger))
                holds = checked.meets(space.budget)
                if holds and (larger == kept or target.check(experiment, space.plan(larger)).meets(space.budget)):
                    changed = with_units_in(space, larger, Precision.FP16, plans.costs)
                    best = replace(recipe, space=changed, kept=larger, checked=checked, for_fp16=larger - kept)
                    most = best.cost
                    break
            if best is None or best.for_fp16:
                best = _lowered(plans, target, recipe, most) or best
    finally:
        plans.allowed = allowed
    return best


def _sets(plans: AnswerPlans, all_in: Space, kept: Kept, alone: Sensitivities | None, most: float) -> Iterator[Kept]:
    """Yields the sets with the recipe's units and further ones, the cheapest first, up to a cost."""
    rankings = [[unit for unit in reversed(order) if unit not in kept] for order in orders(all_in, alone)]
    sets = {kept.union(ranking[:count]) for ranking in rankings for count in _FURTHER if count <= len(ranking)}
    in_order = islice(sorted(sets, key=all_in.price), None if plans.switches else _BUILT)
    return takewhile(lambda larger: all_in.cost(larger) <= most, in_order)


def _lowered(plans: AnswerPlans, target: Target, recipe: Recipe, most: float) -> Recipe | None:
    """The recipe with as many of its units in FP16 as are good enough there; None if that costs more than ``most``."""
    space, kept, experiment, units = recipe.space, recipe.kept, recipe.experiment, sorted(recipe.kept)
    chosen = tuple(space.units[unit] for unit in units)
    highest, lower = (costs_of(chosen, plans.costs, precision) for precision in (Precision.FP32, Precision.FP16))
    saved = tuple(max(in_fp32 - less, _LEAST) for in_fp32, less in zip(highest, lower, strict=True))
    middle = Space(space.plan(kept), chosen, saved, space.budget, Precision.FP16, Precision.FP32)
    for _ in range(_ROUNDS):
        high = drive(cheapest(middle, orders(middle), 0), partial(target.losses, ranges=experiment.ranges))
        lowered = {unit for k, unit in enumerate(units) if k not in high.kept} if high.meets else set()
        changed = with_units_in(space, lowered, Precision.FP16, plans.costs)
        if not lowered or changed.cost(kept) > most:
            break
        checked = target.check(experiment, changed.plan(kept))
        if checked.meets(space.budget):
            return replace(recipe, space=changed, checked=checked)
        new = [input_index for input_index in checked.missed if input_index not in plans.judged]
        plans.judged += new
        if not new:
            closer = max(min(space.budget / checked.worst, 1.0) * CLOSER, CLOSEST)
            middle = replace(middle, budget=closer * middle.budget)
    return None


def with_units_in(space: Space, units: Collection[int], precision: Precision, costs: Costs) -> Space:
    """Returns ``space`` with some units in another high precision, and the costs that they have there."""
    changed = {unit: sum(costs[k][precision] for k in space.units[unit]) for unit in units}
    in_it = (changed.get(unit, cost) for unit, cost in enumerate(space.costs))
    return replace(space, costs=tuple(in_it), others={**space.others, **dict.fromkeys(units, precision)})


def may_be_in_fp16(plans: AnswerPlans, space: Space, kept: Kept) -> bool:
    """Returns true if units of a recipe, all in FP32, may be in FP16: their costs there are known."""
    network, layers = plans.experiment.network, space.layers(kept)
    usual = (space.low, space.high, network.base_type) == (Precision.INT8, Precision.FP32, None)
    is_known = all(Precision.FP16 in plans.costs[k] for k in layers)
    is_float32 = any(network.layers[k].dtype != "float16" for k in layers or network.quantizable)
    return usual and not space.others and is_known and is_float32
