"""The searches for the cheapest plan, on invented losses, against every plan there is."""

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.support.editions import edition
from trt_bisect.driver.cheapest import FEW_NEEDED, cheaper_few, cheapest, lowered, orders, surely_cheapest
from trt_bisect.driver.local_search import FEW_UNITS, all_sets, fit, within
from trt_bisect.driver.search import drive
from trt_bisect.driver.search_space import MeasuredSets, Point, Space, knee, pareto, path, sensitivities
from trt_bisect.precision import Precision, PrecisionPlan, int8_set


def space_of(units, budget, costs=None):
    return Space(int8_set(units, ()), tuple((i,) for i in range(units)), costs or (1.0 / units,) * units, budget)


def search(space, measure_all, limit=400):
    """Layers alone first, then the cheapest set, as the jobs do."""
    alone = drive(sensitivities(MeasuredSets(space)), measure_all)
    return drive(cheapest(space, orders(space, alone), limit, alone), measure_all)


class Asked:
    """Losses of plans by a function of their INT8 layers; notes the plans that were asked for."""

    def __init__(self, loss):
        self.loss, self.asked = loss, []

    def __call__(self, plans):
        self.asked += plans
        return [self.loss(plan.int8) for plan in plans]


def adding(costs):
    """Losses of layers that add up."""
    return Asked(lambda int8: math.fsum(costs.get(k, 0.0) for k in int8))


def planted(*groups):
    """A layer of each group has to be high; the noise of the others is far below the budget."""
    return Asked(lambda int8: sum(0.3 for group in groups if group <= int8) + 1e-5 * len(int8))


class Network(Asked):
    """Output errors as vectors, one a layer, that add up; the loss is 1 - cosine, or whatever ``loss`` says."""

    def __init__(self, seed, units):
        random = np.random.default_rng(seed)
        size = int(random.integers(8, 60))
        self.reference = random.normal(size=size)
        self.errors = random.normal(size=(units, size)) * 10 ** random.uniform(-2.5, 0.3, units)[:, None]
        costs = random.uniform(0.1, 1.0, units) ** 3
        self.costs = tuple(costs / costs.sum())
        self.asked = []

    def loss(self, int8):
        output = self.reference + self.errors[sorted(int8)].sum(axis=0)
        r = self.reference
        return 1.0 - float(output @ r / math.sqrt((output @ output) * (r @ r)))


def drawn(seed, units, share):
    """An invented network, and the space of its plans with a share of full INT8's loss as the budget."""
    network = Network(seed, units)
    return network, space_of(units, share * network.loss(range(units)), network.costs)


def every_set(units):
    return (frozenset(chosen) for count in range(units + 1) for chosen in combinations(range(units), count))


def best_of_all(space, loss):
    good = [kept for kept in every_set(len(space.units)) if loss(space.all - kept) <= space.budget]
    return min(map(space.price, good))


@pytest.mark.slow
def test_the_cheapest_plan_is_that_of_brute_force():
    """A hundred networks of 4 to 11 layers; 95 % of them equal, none a layer worse."""
    equal, worse = 0, []
    for seed in range(100):
        units = 4 + seed % 8
        network, space = drawn(seed, units, np.random.default_rng(seed).uniform(0.02, 0.6))
        chosen = search(space, network)
        best = best_of_all(space, network.loss)
        assert network.loss(space.all - chosen.kept) <= space.budget
        equal += space.price(chosen.kept) == best
        worse.append(space.price(chosen.kept)[1] - best[1])
    assert equal >= 95
    assert max(worse) <= 1


@settings(max_examples=edition(8, 24), deadline=None)
@given(seed=st.integers(0, 10**6), units=st.integers(2, 11), share=st.floats(0.01, 0.99), pairs=st.booleans())
def test_of_all_singles_and_pairs_those_that_meet_the_budget_are_found(seed, units, share, pairs):
    network, space = drawn(seed, units, share)
    alone = drive(sensitivities(MeasuredSets(space)), network) if pairs else None
    network.asked.clear()
    kept = frozenset(range(0, units, 2))
    found = drive(cheaper_few(space, kept, alone), network)
    sizes = (1, 2) if pairs else (1,)
    small = [one for one in every_set(units) if len(one) in sizes and space.price(one) < space.price(kept)]
    good = sorted((one for one in small if network.loss(space.all - one) <= space.budget), key=space.price)
    assert set(found) <= set(good)
    assert found[:1] == good[:1]
    assert len(network.asked) <= len(small)


@settings(max_examples=edition(6, 12), deadline=None)
@given(seed=st.integers(0, 10**6), units=st.integers(1, 24), share=st.floats(0.01, 0.99))
def test_what_is_chosen_is_measured_and_1_minimal(seed, units, share):
    network, space = drawn(seed, units, share)
    alone = drive(sensitivities(MeasuredSets(space)), network)
    network.asked.clear()
    chosen = drive(cheapest(space, orders(space, alone), 60, alone), network)
    asked = set(network.asked)
    assert len(asked) == len(network.asked), "no plan is asked for twice"
    assert chosen.meets
    assert space.plan(chosen.kept) in asked
    for unit in chosen.kept:
        back = chosen.kept - {unit}
        assert space.plan(back) in asked
        assert network.loss(space.all - back) > space.budget


@settings(max_examples=edition(6, 12), deadline=None)
@given(seed=st.integers(0, 10**6), units=st.integers(12, 30), share=st.floats(0.05, 0.5))
def test_other_sets_that_cost_little_more_were_measured_and_come_with_their_losses(seed, units, share):
    network, space = drawn(seed, units, share)
    chosen = search(space, network, 60)
    good = {
        plan
        for plan in network.asked
        if network.loss(plan.int8) <= space.budget
        and 0 < space.cost(space.all - plan.int8) <= 1.1 * space.cost(chosen.kept)
    }
    if units <= FEW_UNITS:
        assert chosen.near == {}
        return
    assert {space.plan(kept) for kept in chosen.near} == good - {space.plan(chosen.kept)}
    assert chosen.near == {kept: network.loss(space.all - kept) for kept in chosen.near}


@settings(max_examples=edition(8, 25), deadline=None)
@given(seed=st.integers(0, 10**6), units=st.integers(17, 40), share=st.floats(0.02, 0.5))
def test_ending_dear_orders_early_leaves_the_cheapest_recipe_as_it_is(seed, units, share):
    network, space = drawn(seed, units, share)
    rankings = orders(space, drive(sensitivities(MeasuredSets(space)), network))
    network.asked.clear()
    apart = [drive(cheapest(space, [ranking], 0), network) for ranking in rankings]
    each_to_the_end, network.asked = set(network.asked), []
    together = drive(cheapest(space, rankings, 0), network)
    assert len(network.asked) <= len(each_to_the_end)
    lowest = [drive(lowered(MeasuredSets(space), space.all, ranking), network) for ranking in rankings]
    first = min(range(len(rankings)), key=lambda order: space.price(lowest[order]))
    assert together.kept == apart[first].kept


@settings(max_examples=edition(15, 60), deadline=None)
@given(seed=st.integers(0, 10**6), units=st.integers(1, 10), share=st.floats(0.02, 0.9))
def test_what_is_surely_cheapest_is_that_of_brute_force_where_errors_only_add_up(seed, units, share):
    """Losses of units, and of pairs of them, that are never negative: more units in INT8 never lose less."""
    random = np.random.default_rng(seed)
    losses = np.triu(10 ** random.uniform(-4, 0, (units, units)) * (random.random((units, units)) < 0.3))
    losses += np.diag(10 ** random.uniform(-4, 0, units))
    costs = random.uniform(0.1, 1.0, units) ** 3
    space = space_of(units, share * losses.sum(), tuple(costs / costs.sum()))
    network = Asked(lambda int8: losses[np.ix_(sorted(int8), sorted(int8))].sum())
    loss = network.loss
    found = drive(surely_cheapest(space), network)
    if found is not None:
        best, _ = best_of_all(space, loss)
        assert loss(space.all - found.kept) <= space.budget
        assert space.cost(found.kept) <= best * 1.01
        assert {space.plan(found.kept - {unit}) for unit in found.kept} <= set(network.asked)
        assert all(found.taken_back[unit] == loss(space.all - found.kept | {unit}) for unit in found.kept)


@pytest.mark.parametrize("count", range(1, FEW_NEEDED + 2))
def test_few_planted_layers_are_surely_cheapest_after_few_plans(count):
    """Halving takes about 2 c log2(N / c) plans; then each is low beside all that could be paid for, and taken back."""
    bad = {13 * i + 3 for i in range(count)}
    network = planted(*({k} for k in bad))
    found = drive(surely_cheapest(space_of(96, 0.01)), network)
    assert (None if found is None else found.kept) == (bad if count <= FEW_NEEDED else None)
    assert len(network.asked) <= 2 * count * (math.log2(96 / count) + 1) + 2 * count + 2


def test_a_set_that_one_dearer_layer_replaces_is_not_surely_cheapest():
    """Either the dearest layer or two others have to be high. Lowered first, it leaves the two, which cost more."""
    space = space_of(20, 0.01, (0.25, 0.2, 0.15, *(0.4 / 17 for _ in range(17))))
    network = Asked(lambda int8: 0.3 * (0 in int8 and not int8.isdisjoint({1, 2})))
    assert drive(surely_cheapest(space), network) is None
    assert search(space, network).kept == {0}


def test_no_set_is_surely_cheapest_where_it_costs_too_much_or_none_is_good():
    space = space_of(20, 0.01)
    assert drive(surely_cheapest(space, dearest=0.04), planted({4})) is None
    assert drive(surely_cheapest(space, dearest=0.06), planted({4})).kept == {4}
    assert drive(surely_cheapest(space), lambda plans: [1.0 for _ in plans]) is None
    assert drive(surely_cheapest(space), lambda plans: [0.0 for _ in plans]).kept == frozenset()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_planted_layers_are_left_high_and_no_other(count):
    bad = [7 * i + 3 for i in range(count)]
    chosen = search(space_of(48, 0.01), planted(*({k} for k in bad)))
    assert chosen.kept == set(bad)


def test_layers_that_are_bad_only_together_cost_the_cheaper_one():
    costs = tuple(0.5 if k == 9 else 0.5 / 39 for k in range(40))
    chosen = search(space_of(40, 0.01, costs), planted({9, 30}, {2, 3, 4}))
    assert chosen.kept - {2, 3, 4} == {30}
    assert len(chosen.kept) == 2


def test_layers_that_look_bad_alone_but_cancel_stay_in_int8():
    network = Asked(lambda int8: 0.4 * abs((5 in int8) - (20 in int8)) + 0.3 * (12 in int8))
    assert search(space_of(30, 0.01), network).kept == {12}


def test_two_outputs_that_are_bad_alike_need_a_layer_each():
    """Leaving one of the two high gains nothing at all."""
    network = Asked(lambda int8: max(0.3 * (5 in int8), 0.3 * (20 in int8)))
    assert search(space_of(30, 0.01), network).kept == {5, 20}


def test_nothing_is_kept_where_full_int8_is_good_and_all_is_said_where_nothing_is():
    space = space_of(6, 0.5)
    good = search(space, lambda plans: [0.1 for _ in plans])
    bad = search(space, lambda plans: [1.0 + len(plan.int8) for plan in plans])
    assert (good.kept, good.meets) == (frozenset(), True)
    assert (bad.kept, bad.meets) == (space.all, False)


def test_plans_that_cannot_be_measured_are_gone_around():
    network = Asked(lambda int8: None if 4 in int8 else 0.3 * (2 in int8))
    assert search(space_of(8, 0.1), network).kept == {2, 4}


def test_units_go_to_fp16_where_that_is_enough():
    """Of four layers that are high only one needs FP32."""
    base = int8_set(6, {0, 5})
    space = Space(base, ((1,), (2,), (3,), (4,)), (0.25,) * 4, 0.1, Precision.FP16, Precision.FP32)

    def measure_all(plans):
        assert all(plan.int8 == {0, 5} for plan in plans)
        return [0.5 * (3 in plan.fp16) for plan in plans]

    chosen = search(space, measure_all)
    assert space.plan(chosen.kept).key() == "8*1.h*2.f*1.h*1.8*1"


@settings(max_examples=edition(12, 40), deadline=None)
@given(seed=st.integers(0, 10**6), most=st.floats(0.0, 1.0))
def test_the_most_accurate_plan_within_a_cost(seed, most):
    network = Network(seed, 7)
    space = space_of(7, 0.01, network.costs)
    chosen = drive(within(space, most, 400), network)
    payable = [network.loss(space.all - kept) for kept in every_set(7) if space.cost(kept) <= most]
    assert space.cost(chosen) <= most + 1e-9
    assert network.loss(space.all - chosen) <= 1.02 * min(payable) + 1e-12


@pytest.mark.parametrize("bad", [{517}, {3, 450, 999}, {100, 101, 102}, {7, 300, 301, 640, 990}])
def test_a_thousand_layers_take_tens_of_plans(bad):
    """Halving takes about 2 c log2(N / c) plans for c culprits; the last step, one plan a member."""
    network, space = planted(*({k} for k in bad)), space_of(1000, 0.02)
    found = drive(cheapest(space, orders(space), 400), network)
    assert found.kept == bad
    count = len(bad)
    assert len(network.asked) <= 2 * count * math.log2(1000 / count) + 3 * count + 4


def quadratic(units, seed=3):
    root = np.random.default_rng(seed).normal(size=(units, units))
    squares = root @ root.T
    sets = all_sets(units)
    assert sets.shape == (2**units, units)
    return {frozenset(np.flatnonzero(row).tolist()): 0.5 + float(~row @ squares @ ~row) for row in sets}


def test_losses_that_are_sums_over_pairs_are_foretold():
    losses = quadratic(6)
    some = {kept: loss for place, (kept, loss) in enumerate(losses.items()) if place % 3}
    surrogate = fit(some, range(6), frozenset(), 1.0)
    assert surrogate(~all_sets(6)) == pytest.approx(list(losses.values()), abs=1e-2)


def test_the_pairs_of_some_units_are_fitted_while_others_stay_high():
    losses = quadratic(8)
    some = {kept: loss for place, (kept, loss) in enumerate(losses.items()) if place % 3}
    surrogate = fit(some, range(7), frozenset({7}), 1.0)
    expected = [losses[frozenset({7, *np.flatnonzero(row).tolist()})] for row in all_sets(7)]
    assert surrogate(~all_sets(7)) == pytest.approx(expected, abs=1e-2)


@settings(max_examples=edition(6, 8), deadline=None)
@given(seed=st.integers(0, 10**6), units=st.integers(17, 30), share=st.floats(0.05, 0.5))
def test_local_search_makes_recipes_of_many_layers_no_dearer(seed, units, share):
    network, space = drawn(seed, units, share)
    lowered_only, improved = (search(space, network, limit) for limit in (0, 100))
    assert space.cost(improved.kept) <= space.cost(lowered_only.kept)
    assert network.loss(space.all - improved.kept) <= space.budget


def test_the_front_and_its_knee():
    """By hand: the log of the loss falls from 0 to -2; (0.2, -1.5) is 0.8 - 0.25 above the line, (0.5, -1.6) 0.3."""

    def point(cost, loss):
        return Point(PrecisionPlan(()), cost, loss)

    points = [point(0.0, 1.0), point(0.2, 10**-1.5), point(0.5, 10**-1.6), point(0.6, 0.5), point(1.0, 0.0)]
    front = pareto([*points, point(0.3, math.inf)])
    assert [p.cost for p in front] == [0.0, 0.2, 0.5, 1.0]
    assert knee(front, 1.0) == front[1]
    assert knee(front[:2], 1.0) is None


def test_a_path_goes_from_nothing_to_everything_by_way_of_what_was_chosen():
    space = space_of(40, 0.01)
    chosen = search(space, planted({3}, {8}))
    sets = path(space, chosen.kept, None, 10)
    assert sets[0] == frozenset()
    assert sets[-1] == space.all
    assert frozenset({3, 8}) in sets
    assert all(one < other for one, other in pairwise(sets))


@pytest.mark.slow
@settings(max_examples=edition(12, 40), deadline=None)
@given(bad=st.sets(st.integers(0, 999), min_size=1, max_size=6))
def test_the_bad_layers_among_a_thousand_stay_high_and_no_other(bad):
    """Each bad layer costs twice the budget."""
    losses = adding(dict.fromkeys(bad, 2.0))
    space = space_of(1000, 1.0)
    found = drive(cheapest(space, orders(space), 0), losses)
    assert found.kept == bad
    assert len(losses.asked) <= 2 + 2 * len(bad) * 10


@pytest.mark.slow
@settings(max_examples=edition(6, 20), deadline=None)
@given(needed=st.integers(1, 999), bad=st.sets(st.integers(0, 999), max_size=40))
def test_small_errors_of_a_thousand_layers_take_a_bounded_number_of_plans(needed, bad):
    """Each layer costs 1, so that 1000 - ``needed`` may be low; a bad one alone costs more than allowed."""
    costs = dict.fromkeys(range(1000), 1.0) | dict.fromkeys(bad, 2000.0)
    losses, space = adding(costs), space_of(1000, 1000.5 - needed)
    found = drive(cheapest(space, orders(space), 0), losses)
    assert found.meets
    assert found.kept >= bad
    assert losses([space.plan(found.kept)])[0] <= space.budget
    assert len(losses.asked) <= 2 * 32 * 10 + 10 + 3


def test_so_many_small_errors_leave_as_many_layers_high_as_they_must_and_few_more():
    losses, space = adding(dict.fromkeys(range(1000), 1.0)), space_of(1000, 300.5)
    found = drive(cheapest(space, orders(space), 0), losses)
    assert len(found.kept) == 700
