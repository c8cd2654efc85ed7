"""The last steps to a recipe, with an invented target that misses where the search cannot see it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trt_bisect.driver.recipes.cheapest import Cheapest
from trt_bisect.driver.recipes.search_space import Space
from trt_bisect.evaluator.each_input import NO_MARGIN
from trt_bisect.jobs.answer.steps_back import minimal, with_more_high
from trt_bisect.jobs.answer.validation import Checked
from trt_bisect.precision import int8_set

UNITS = 12
SPACE = Space(int8_set(UNITS, ()), tuple((k,) for k in range(UNITS)), tuple(range(1, UNITS + 1)), 0.1)
EXPERIMENT = SimpleNamespace(ranges=None)


class Target:
    """In the search every plan loses nothing; on its engine a plan misses if one of some layers is low."""

    budget = SPACE.budget

    def __init__(self, needed):
        self.needed = set(needed)
        self.checks = 0

    def losses(self, asked, ranges, *, to_the_end=False):
        return [0.0 for _ in asked]

    def check(self, experiment, plan):
        self.checks += 1
        return Checked({"own engine": 0.5 if self.needed & plan.lowered else 0.0})


@pytest.mark.parametrize("needed", [(), (0,), (5, 2), (11,)])
def test_units_are_added_until_the_recipe_holds_and_those_in_vain_go_back(needed):
    target = Target(needed)
    found, checked = with_more_high(target, SPACE, Cheapest(frozenset(), True, {}), EXPERIMENT)
    assert checked.meets(target.budget)
    assert set(needed) <= found.kept
    assert target.checks <= 6, "twice as many units each time"
    plans = SimpleNamespace(margin=NO_MARGIN)
    found, checked, taken_back = minimal(plans, target, SPACE, found, EXPERIMENT, checked)
    assert found.kept == set(needed)
    assert checked.meets(target.budget)
    assert taken_back == dict.fromkeys(needed, 0.5)


def test_a_recipe_that_would_be_too_dear_is_not_searched_further():
    target = Target({11})
    found, checked = with_more_high(target, SPACE, Cheapest(frozenset(), True, {}), EXPERIMENT, dearest=5.0)
    assert not checked.meets(target.budget)
    assert SPACE.cost(found.kept) > 5.0
    assert found.kept != SPACE.all
