"""The layers of a recipe in FP16, with an invented target: what FP16 rounds takes the room of a small set."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from trt_bisect.answer.in_fp16 import in_fp16
from trt_bisect.answer.plans import Spent
from trt_bisect.answer.validation import Checked, Recipe
from trt_bisect.driver.search_space import Sensitivities, Space
from trt_bisect.precision import Precision, int8_set

UNITS, FOUND = 8, frozenset({6, 7})
COSTS = {k: {Precision.FP32: 0.03 * (k + 1), Precision.FP16: 0.01 * (k + 1)} for k in range(UNITS)}
SPACE = Space(
    int8_set(UNITS, ()), tuple((k,) for k in range(UNITS)), tuple(by[Precision.FP32] for by in COSTS.values()), 0.1
)
EXPERIMENT = SimpleNamespace(ranges=None)
HELPFUL = Sensitivities(losses=(0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.5, 0.5), gains=(0.0,) * UNITS)
"""Unit 3 loses most alone."""


class Target:
    """Units 6 and 7 have to be high; in FP16 each set has a loss of its own."""

    budget = SPACE.budget

    def __init__(self, in_fp16, in_fp32=lambda high: True):
        self.in_fp16, self.in_fp32 = in_fp16, in_fp32

    def losses(self, asked, ranges, *, to_the_end=False):
        return [self.check(None, plan).worst for plan in asked]

    def check(self, experiment, plan, *, own_engine=True):
        high = {kind: {k for k in range(UNITS) if plan.precisions[k] is kind} for kind in Precision}
        holds = self.in_fp16(high[Precision.FP16]) if high[Precision.FP16] else self.in_fp32(high[Precision.FP32])
        return Checked({"own engine": 0.0 if holds and high[Precision.INT8].isdisjoint(FOUND) else 0.5})


def searched(target, alone=None, most=0.4, ending=None):
    @contextmanager
    def endless(_):
        yield

    inputs = SimpleNamespace(counting=(0, 1))
    facts = {"inputs": inputs, "costs": COSTS, "switches": True, "judged": []}
    plans = SimpleNamespace(allowed=7.0, ending=ending or endless, **facts)
    result = in_fp16(plans, target, Recipe(SPACE, FOUND, EXPERIMENT, SPACE.budget), alone, most)
    assert plans.allowed == 7.0, "the bound of what follows is as it was"
    return result


def test_a_recipe_that_holds_in_fp16_gives_up_a_third():
    found = searched(Target(lambda high: True))
    assert (found.kept, found.for_fp16) == (FOUND, frozenset())
    assert found.cost == pytest.approx(SPACE.cost(FOUND) / 3)
    assert found.checked.meets(SPACE.budget)


def test_the_cheapest_units_join_until_it_holds():
    found = searched(Target(lambda high: {0, 1, 2} <= high))
    assert (found.kept, found.for_fp16) == (FOUND | {0, 1, 2}, {0, 1, 2})
    assert found.cost == pytest.approx(0.07 + 0.08 + 0.01 + 0.02 + 0.03)


def test_a_unit_with_a_large_effect_for_its_cost_joins_first():
    """By cost alone units 0, 1 and 2 would join with it."""
    target = Target(lambda high: 3 in high)
    assert searched(target).for_fp16 == {0, 1, 2, 3}
    assert searched(target, HELPFUL).for_fp16 == {3}


def test_a_set_that_holds_in_fp16_by_chance_is_passed_over():
    found = searched(Target(lambda high: 0 in high, in_fp32=lambda high: high == FOUND or 1 in high))
    assert found.for_fp16 == {0, 1}


def test_a_unit_that_fp16_cannot_hold_stays_in_fp32():
    """Also where more units would do, which costs more."""
    found = searched(Target(lambda high: 7 not in high or set(range(8)) <= high))
    assert (found.kept, found.for_fp16) == (FOUND, frozenset())
    assert dict(found.space.others) == {6: Precision.FP16}
    assert found.cost == pytest.approx(0.07 + 0.24)


@pytest.mark.parametrize(("most", "joins"), [(0.22, True), (0.20, False)])
def test_no_recipe_costs_more_than_is_allowed(most, joins):
    result = searched(Target(lambda high: {0, 1, 2} <= high), most=most)
    assert (result is not None) == joins


def test_the_recipe_stays_in_fp32_where_the_inferences_end():
    @contextmanager
    def spent(most):
        raise Spent
        yield

    assert searched(Target(lambda high: True), ending=spent) is None
