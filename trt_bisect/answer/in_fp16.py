from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.search import costs_of
from trt_bisect.driver.search_space import Kept, Space
from trt_bisect.model.cost import Costs
from trt_bisect.precision import Precision

_LEAST_EXTRA_COST = 1e-9  # the least extra cost of FP32 over FP16, since costs must be above 0


def middle_space(space: Space, units: Sequence[int], costs: Costs) -> Space:
    """Returns a space in which each of ``units``, from ``space``, is in FP32 or in FP16 as the low precision."""
    layers = tuple(space.units[unit] for unit in units)
    pairs = zip(costs_of(layers, costs, Precision.FP32), costs_of(layers, costs, Precision.FP16), strict=True)
    saved = tuple(max(in_fp32 - in_fp16, _LEAST_EXTRA_COST) for in_fp32, in_fp16 in pairs)
    return Space(space.plan(frozenset(units)), layers, saved, space.budget, Precision.FP16, Precision.FP32)


def with_units_in(space: Space, units: Collection[int], precision: Precision, costs: Costs) -> Space:
    """Returns ``space`` with the high precision of ``units`` changed to ``precision``."""
    changed = {unit: sum(costs[k][precision] for k in space.units[unit]) for unit in units}
    in_it = (changed.get(unit, cost) for unit, cost in enumerate(space.costs))
    return replace(space, costs=tuple(in_it), others={**space.others, **dict.fromkeys(units, precision)})


def may_be_in_fp16(plans: AnswerPlans, space: Space, kept: Kept) -> bool:
    """Returns true if the units ``kept``, all in FP32, may be in FP16 and have known costs in FP16."""
    network, layers = plans.experiment.network, space.layers(kept)
    usual = (space.low, space.high, network.base_type) == (Precision.INT8, Precision.FP32, None)
    is_known = all(Precision.FP16 in plans.costs[k] for k in layers)
    is_float32 = any(network.layers[k].dtype != "float16" for k in layers or network.quantizable)
    return usual and not space.others and is_known and is_float32
