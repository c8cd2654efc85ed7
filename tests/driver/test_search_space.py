"""The least loss within a cost, and the front of plans, on invented losses, against every plan there is."""

import math
from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings, strategies as st

from tests.support.editions import edition
from trt_bisect.answer.recipe_search import PATIENCE
from trt_bisect.driver.estimated import Estimates, LeastLoss, Measured
from trt_bisect.driver.search_space import Point, Space, knee, pareto, path
from trt_bisect.precision import Precision, PrecisionPlan, int8_set


def space_of(units, budget, costs=None):
    return Space(int8_set(units, ()), tuple((i,) for i in range(units)), costs or (1.0 / units,) * units, budget)


class Asked:
    """Losses of plans by a function of their INT8 layers; notes the plans that were asked for."""

    def __init__(self, loss):
        self.loss, self.asked = loss, []

    def __call__(self, plans):
        self.asked += plans
        return [self.loss(plan.int8) for plan in plans]


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
    return min(map(space.order, good))


@settings(max_examples=edition(12, 40), deadline=None)
@given(seed=st.integers(0, 10**6), most=st.floats(0.0, 1.0))
def test_the_most_accurate_plan_within_a_cost(seed, most):
    network = Network(seed, 7)
    space = space_of(7, 0.01, network.costs)

    def measure(_, kept):
        loss = network.loss(space.all - kept)
        return Measured(loss, {0: loss})

    def estimates_at(limit):
        alone = np.array([[network.loss({unit})] for unit in range(7)])
        return Estimates([0], alone, {0: network.loss(range(7))}, limit)

    search = LeastLoss(space, [], measure, [0], space.budget, most + 1e-9)
    chosen = search.search(estimates_at, PATIENCE, lambda: 1)
    payable = [network.loss(space.all - kept) for kept in every_set(7) if space.cost(kept) <= most]
    assert space.cost(chosen) <= most + 1e-9
    assert network.loss(space.all - chosen) <= 1.02 * min(payable) + 1e-12


def test_units_have_a_precision_of_their_own():
    space = Space(int8_set(6, {0, 5}), ((1,), (2,), (3,), (4,)), (0.25,) * 4, 0.1, Precision.FP16, Precision.FP32)
    assert space.plan(frozenset({2})).key() == "8*1.h*2.f*1.h*1.8*1"


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
    sets = path(space, frozenset({3, 8}), None, 10)
    assert sets[0] == frozenset()
    assert sets[-1] == space.all
    assert frozenset({3, 8}) in sets
    assert all(one < other for one, other in pairwise(sets))
