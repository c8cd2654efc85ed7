"""Drivers against functions that invent losses: no engine, no network."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.editions import edition
from trt_bisect.driver.curves import bisect, exhaustive
from trt_bisect.driver.search import Question, drive

BUDGET = 0.01


def question(layers: int, quantizable=None) -> Question:
    return Question(layers, tuple(quantizable if quantizable is not None else range(layers)), BUDGET, BUDGET / 2)


class Additive:
    """Losses that add up; counts the plans it was asked for."""

    def __init__(self, costs, failing=()):
        self.costs, self.failing, self.seen = costs, frozenset(failing), {}

    def __call__(self, plan):
        key = plan.key()
        if key not in self.seen:
            self.seen[key] = None if plan.int8 & self.failing else math.fsum(self.costs.get(i, 0.0) for i in plan.int8)
        return self.seen[key]


@pytest.mark.parametrize("driver", [exhaustive, bisect])
def test_nothing_wrong_names_nobody(driver):
    found = drive(driver(question(50)), Additive(dict.fromkeys(range(50), 1e-05)))
    assert found.suspects == ()
    assert found.full == pytest.approx(5e-4)


@pytest.mark.parametrize("driver", [exhaustive, bisect])
@pytest.mark.parametrize("culprits", [(0,), (49,), (7, 8), (0, 20, 30, 49)])
def test_planted_culprits_are_found_and_no_other(driver, culprits):
    losses = Additive({**dict.fromkeys(range(50), 1e-06), **dict.fromkeys(culprits, 0.3)})
    found = drive(driver(question(50)), losses)
    assert found.suspects == culprits


def test_exhaustive_measures_one_plan_a_quantizable_layer():
    losses = Additive({7: 0.3})
    drive(exhaustive(question(50, range(0, 50, 2))), losses)
    assert len(losses.seen) == 25 + 1  # one a layer, the last of them is full INT8, and prefix(-1)


def test_bisect_takes_about_log2_plans_a_culprit():
    losses = Additive({200: 0.3, 700: 0.2})
    found = drive(bisect(question(1000)), losses)
    assert found.suspects == (200, 700)
    assert len(losses.seen) <= 2 * (math.ceil(math.log2(1000)) + 1) + 2


@pytest.mark.parametrize("distance", [1, 2, 3, 5, 10])
def test_bisect_takes_few_more_plans_than_going_through_where_culprits_stand_close(distance):
    culprits = tuple(range(0, 120, distance))
    losses = Additive(dict.fromkeys(culprits, 0.3))
    assert drive(bisect(question(120)), losses).suspects == culprits
    assert len(losses.seen) <= 1.25 * 122


def test_masked_culprit_is_found_behind_the_first():
    """Layer 30 alone costs 0.2, but with layer 10 in INT8 as well it changes nothing: a plain sweep misses it."""

    def losses(plan):
        return 0.5 if 10 in plan.int8 else 0.2 if 30 in plan.int8 else 0.0

    for driver in (exhaustive, bisect):
        assert drive(driver(question(40)), losses).suspects == (10, 30)


def test_non_monotone_losses_give_real_boundaries_only():
    """Layer 20 undoes half of what layer 10 does."""

    def losses(plan):
        return 0.2 * (10 in plan.int8) - 0.1 * ({10, 20} <= plan.int8)

    for driver in (exhaustive, bisect):
        found = drive(driver(question(40)), losses)
        assert found.suspects == (10,)


def test_loss_that_accumulates_blames_nobody():
    costs = {i: 0.001 + i * 1e-5 for i in range(40)}
    for driver in (exhaustive, bisect):
        found = drive(driver(question(40)), Additive(costs))
        assert found.suspects == ()


@pytest.mark.parametrize("driver", [exhaustive, bisect])
def test_failed_builds_are_gone_around_and_are_no_culprits(driver):
    found = drive(driver(question(30)), Additive({20: 0.3}, failing={5, 12}))
    assert found.suspects == (20,)
    assert found.set_aside == (5, 12)


def test_bisect_goes_around_a_boundary_that_cannot_be_built():
    """Only the plan that ends exactly at layer 7 fails; layer 3 is the culprit."""

    def losses(plan):
        return None if max(plan.int8, default=-1) == 7 else 0.3 * (3 in plan.int8)

    found = drive(bisect(question(16)), losses)
    assert found.suspects == (3,)
    assert found.set_aside == ()


def test_everything_fails():
    for driver in (exhaustive, bisect):
        found = drive(driver(question(8)), lambda plan: None)
        assert found.suspects == ()
        assert found.set_aside == tuple(range(8))


def test_infinite_loss_is_a_culprits():
    def losses(plan):
        return math.inf if 4 in plan.int8 else 0.0

    for driver in (exhaustive, bisect):
        assert drive(driver(question(10)), losses).suspects == (4,)


def test_layers_that_only_follow_are_never_in_int8():
    seen = []

    def losses(plan):
        seen.append(plan.int8)
        return 0.3 * (6 in plan.int8)

    found = drive(exhaustive(question(10, (0, 3, 6, 9))), losses)
    assert found.suspects == (6,)
    assert all(plan <= {0, 3, 6, 9} for plan in seen)


@settings(max_examples=edition(12, 150), deadline=None)
@given(
    st.integers(1, 120).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=5), st.integers(0, 2**32 - 1))
    )
)
def test_on_monotone_losses_bisect_and_exhaustive_agree(case):
    layers, culprits, seed = case
    costs = {i: ((seed * (i + 1)) % 997) / 997 * BUDGET / 4 / layers for i in range(layers)}
    costs |= dict.fromkeys(culprits, 0.05)
    losses = Additive(costs)
    one, other = drive(exhaustive(question(layers)), losses), drive(bisect(question(layers)), losses)
    assert one.suspects == other.suspects == tuple(sorted(culprits))


@settings(max_examples=edition(12, 150), deadline=None)
@given(st.integers(2, 40), st.data())
def test_what_bisect_reports_is_a_boundary_it_measured_on_both_sides(layers, data):
    table, measured = {}, {}

    def losses(plan):
        key = plan.key()
        if key not in table:
            table[key] = measured[plan] = data.draw(st.one_of(st.none(), st.floats(0, 1)), label=key)
        return table[key]

    ask = question(layers)
    found = drive(bisect(ask), losses)
    for step in found.steps:
        if step.suspect:
            without = step.plan.keeping(step.layers)
            assert table[step.plan.key()] == step.loss
            assert table[without.key()] == step.before or not without.int8
            assert step.loss - step.before >= step.rise >= ask.step
            assert all(step.loss - loss >= ask.step for loss in _losses_of_parts(without, measured))
    assert set(found.suspects) | set(found.set_aside) <= set(range(layers))


def _losses_of_parts(plan, measured):
    """The losses of the plans that were measured with some of the same layers in INT8 and no other."""
    return [loss for other, loss in measured.items() if loss is not None and other.int8 <= plan.int8]


@pytest.mark.parametrize("driver", [exhaustive, bisect])
def test_a_layer_that_takes_back_a_dip_is_no_culprit(driver):
    """Layers 4 and 5 undo what layer 3 costs, layer 6 undoes that, within the budget; layer 7 alone is bad."""
    curve = (0.0, 0.0, 0.0, 0.0, 0.0049, 0.001, 0.0004, 0.0055, 0.3)
    found = drive(driver(question(8)), lambda plan: curve[max(plan.int8, default=-1) + 1])
    assert found.suspects == (7,)


@settings(max_examples=edition(12, 200), deadline=None)
@given(st.lists(st.floats(0, 0.03), min_size=2, max_size=40))
def test_a_culprit_is_worse_than_every_plan_that_stood_before_it(curve):
    """The loss depends on the boundary alone; ``curve[k + 1]`` is that of boundary k, the last is full INT8's."""
    ask = question(len(curve) - 1)
    expected = []
    for k, loss in enumerate(curve[1:]):
        stood = [curve[0], *(curve[j + 1] for j in range(k) if j not in expected)]
        if curve[-1] > BUDGET and all(loss - other >= ask.step for other in stood):
            expected.append(k)
    found = drive(exhaustive(ask), lambda plan: curve[max(plan.int8, default=-1) + 1])
    assert found.suspects == tuple(expected)
