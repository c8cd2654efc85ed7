"""Units kept high until a recipe holds, with an invented target that misses where the search cannot see it."""

from types import SimpleNamespace

import pytest

from trt_bisect.answer.steps_back import with_more_high
from trt_bisect.answer.validation import Checked, Recipe
from trt_bisect.driver.search_space import Space
from trt_bisect.precision import int8_set
from trt_bisect.report.answer import OWN

UNITS = 12
SPACE = Space(int8_set(UNITS, ()), tuple((k,) for k in range(UNITS)), tuple(range(1, UNITS + 1)), 0.1)
EXPERIMENT = SimpleNamespace(ranges=None)
HOLDS = Checked({OWN: 0.0})


def recipe_with(kept, checked=HOLDS, **facts):
    """A recipe of these units, which is said to hold."""
    return Recipe(SPACE, frozenset(kept), EXPERIMENT, SPACE.budget, checked, **facts)


class Target:
    """In the search every plan loses nothing; on its engine a plan misses if one of some layers is low."""

    budget = SPACE.budget

    def __init__(self, needed):
        self.needed = set(needed)
        self.checks = 0

    def losses(self, asked, ranges, *, to_the_end=False):
        return [0.0 for _ in asked]

    def check(self, experiment, plan, **_):
        self.checks += 1
        return Checked({OWN: 0.5 if self.needed & plan.lowered else 0.0})


@pytest.mark.parametrize("needed", [(), (0,), (5, 2), (11,)])
def test_units_are_added_until_the_recipe_holds(needed):
    target = Target(needed)
    found = with_more_high(target, recipe_with(()))
    assert found.checked.meets(target.budget)
    assert set(needed) <= found.kept
    assert target.checks <= 6, "twice as many units each time"


def test_a_recipe_that_would_be_too_expensive_is_not_searched_further():
    target = Target({11})
    found = with_more_high(target, recipe_with(()), limit=5.0)
    assert not found.checked.meets(target.budget)
    assert SPACE.cost(found.kept) > 5.0
    assert found.kept != SPACE.all
