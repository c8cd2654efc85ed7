"""The last steps to a recipe, with an invented target that misses where the search cannot see it."""

from types import SimpleNamespace

import pytest

from trt_bisect.answer import steps_back
from trt_bisect.answer.steps_back import minimal, with_more_high
from trt_bisect.answer.validation import Checked, PutBack, Recipe
from trt_bisect.driver import search_space
from trt_bisect.driver.search_space import Space
from trt_bisect.precision import int8_set
from trt_bisect.report.answer import NUDGED, OFF, OWN

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

    def put_back(self, plan, experiment, setting, *, to_the_end=True):
        """The loss of the search, or of the check in another setting, all of them on five inputs."""
        if setting == OFF:
            return PutBack(*self.losses([plan], None, to_the_end=to_the_end), OFF, 5)
        return PutBack(self.check(experiment, plan).losses[setting], setting, 5)

    def check(self, experiment, plan, *, own_engine=True):
        self.checks += 1
        return Checked({OWN: 0.5 if self.needed & plan.lowered else 0.0})


@pytest.mark.parametrize("needed", [(), (0,), (5, 2), (11,)])
def test_units_are_added_until_the_recipe_holds_and_those_in_vain_go_back(needed):
    target = Target(needed)
    found = with_more_high(target, recipe_with(()))
    assert found.checked.meets(target.budget)
    assert set(needed) <= found.kept
    assert target.checks <= 6, "twice as many units each time"
    found = minimal(target, found, switches=True)
    assert found.kept == set(needed)
    assert found.checked.meets(target.budget)
    assert found.put_back == dict.fromkeys(needed, PutBack(0.5, OWN, 5))


def test_only_the_steps_back_that_remain_are_run_to_the_end():
    """Layer 3 shows in the search, on one input more than on others; layer 5 on the engine; 7 is not needed."""

    class Inputs(Target):
        to_the_end = 0

        def losses(self, asked, ranges, *, to_the_end=False):
            self.to_the_end += len(asked) * to_the_end
            return [(0.4 if to_the_end else 0.2) if 3 in plan.lowered else 0.0 for plan in asked]

    target = Inputs({5})
    found = minimal(target, recipe_with({3, 5, 7}), switches=True)
    assert (found.kept, found.put_back) == ({3, 5}, {3: PutBack(0.4, OFF, 5), 5: PutBack(0.5, OWN, 5)})
    assert target.to_the_end == 1


def test_a_step_back_that_only_moved_scales_make_miss_says_so():
    """The budget is 0.1. Layer 2 misses with moved scales alone, layer 5 on the engine already."""

    class Moved(Target):
        def check(self, experiment, plan, *, own_engine=True):
            settings = {OFF: 0.05, OWN: 0.5 if 5 in plan.lowered else 0.06}
            if settings[OWN] <= self.budget:
                settings[NUDGED] = 0.2 if 2 in plan.lowered else 0.07
            return Checked(settings)

    found = minimal(Moved(()), recipe_with({2, 5, 8}, Checked({OWN: 0.06})), switches=True)
    assert found.kept == {2, 5}
    assert found.put_back == {5: PutBack(0.5, OWN, 5), 2: PutBack(0.2, NUDGED, 5)}


class Counted(Target):
    """Notes the layers that are high in each plan that misses."""

    def __init__(self, needed):
        super().__init__(needed)
        self.missed = set()
        self.engines = 0

    def check(self, experiment, plan, *, own_engine=True):
        self.engines += own_engine
        found = super().check(experiment, plan)
        if not found.meets(self.budget):
            self.missed.add(frozenset(range(UNITS)) - plan.lowered)
        return found


@pytest.fixture
def many(monkeypatch):
    """Twelve units are many; sets of more than four are put back in groups."""
    monkeypatch.setattr(search_space, "MANY_UNITS", 4)
    monkeypatch.setattr(steps_back, "_GROUPS", 4)
    monkeypatch.setattr(steps_back, "_ENGINE", 0)


def stepped_back(target, kept):
    """The set that ``minimal`` leaves of a set that holds, and its steps."""
    whole = target.check(EXPERIMENT, SPACE.plan(frozenset(kept)))
    found = minimal(target, recipe_with(kept, whole), switches=True)
    assert found.checked.meets(target.budget)
    return found.kept, found.put_back


@pytest.mark.parametrize("needed", [(0,), (5, 2), (11, 3, 7)])
def test_many_units_are_put_back_in_groups_and_then_one_by_one(many, needed):
    target = Counted(needed)
    kept, put_back = stepped_back(target, range(UNITS))
    assert kept == put_back.keys() == set(needed)
    assert all(kept - {unit} in target.missed for unit in put_back)


@pytest.mark.parametrize("steps", [0, 1, 3, 5, 8, 20])
def test_of_many_units_each_culprit_was_measured_beside_the_others_however_few_the_steps(many, monkeypatch, steps):
    """Six units are kept, three of them needed; the groups of two hide one that is not."""
    monkeypatch.setattr(steps_back, "_STEPS", steps)
    target = Counted((0, 3, 4))
    kept, put_back = stepped_back(target, range(6))
    assert {0, 3, 4} <= kept
    assert put_back.keys() <= {0, 3, 4}
    assert all(kept - {unit} in target.missed for unit in put_back)
    assert len(put_back) >= min(steps, 2)
    if steps >= 8:
        assert kept == put_back.keys()


def test_of_many_units_few_engines_are_built(many, monkeypatch):
    """A step with an engine counts as five, and one is left for the last unit: 20 steps give three engines."""
    monkeypatch.setattr(steps_back, "_ENGINE", 4)
    monkeypatch.setattr(steps_back, "_STEPS", 20)
    target = Counted(())
    kept, put_back = stepped_back(target, range(4))
    assert target.engines == 1 + 3
    assert (len(kept), put_back) == (1, {})


def test_a_recipe_that_would_be_too_expensive_is_not_searched_further():
    target = Target({11})
    found = with_more_high(target, recipe_with(()), limit=5.0)
    assert not found.checked.meets(target.budget)
    assert SPACE.cost(found.kept) > 5.0
    assert found.kept != SPACE.all
