"""The search by estimated losses, against brute force, NumPy's normal equations, and lowering on whole networks."""

import math

import numpy as np
import pytest

from tests.driver.test_cheapest import best_of_all, drawn, space_of
from tests.support.editions import edition
from trt_bisect.driver.cheapest import cheapest, orders
from trt_bisect.driver.estimated import EstimatedSearch, Estimates, Measured, cheapest_within
from trt_bisect.driver.search import drive


def searched(space, by_input, **options):
    """A search whose plans have the losses that ``by_input`` returns for the low units; the sets it measured."""
    places, asked = range(len(by_input({0}))), []

    def measure(kept):
        asked.append(kept)
        losses = by_input(space.all - kept)
        return Measured(max(losses) <= space.budget, dict(enumerate(losses)))

    alone = np.array([by_input({unit}) for unit in sorted(space.all)])
    full = dict(enumerate(by_input(space.all)))
    estimates = Estimates(places, alone, full, space.budget)
    return EstimatedSearch(space, estimates, measure, places, space.budget, **options), asked


def best_found(search):
    search.improved(math.inf, 16)
    search.refined(16)
    return search.best


def test_where_losses_add_up_the_cheapest_set_is_that_of_brute_force():
    """Networks of 10 units and three inputs: 90 % equal, none dearer by a fifth."""
    ratios, networks = [], edition(5, 50)
    for seed in range(networks):
        random = np.random.default_rng(seed)
        losses = 10 ** random.uniform(-3, 0, (10, 3))
        costs = random.uniform(0.1, 1.0, 10) ** 3
        space = space_of(10, float(random.uniform(0.05, 0.6)) * losses.sum(axis=0).max(), tuple(costs / costs.sum()))
        search, asked = searched(space, lambda low, losses=losses: losses[sorted(low)].sum(axis=0))
        kept = best_found(search)
        least, _ = best_of_all(space, lambda low, losses=losses: losses[sorted(low)].sum(axis=0).max())
        assert kept in asked
        assert losses[sorted(space.all - kept)].sum(axis=0).max() <= space.budget
        assert len(asked) == len(set(asked))
        ratios.append(space.cost(kept) / least if least else 1.0 + space.cost(kept))
    assert sum(ratio < 1.0001 for ratio in ratios) >= 0.9 * networks
    assert max(ratios) < 1.2


def test_errors_that_cancel_take_few_plans_and_no_dearer_sets_than_lowering():
    """Forty units whose errors are vectors: against lowering in two orders, on average over networks."""
    ratios, plans = [], []
    for seed in range(edition(1, 10)):
        network, space = drawn(seed, 40, 0.2)
        lowest = drive(cheapest(space, orders(space), 0), network).kept
        search, asked = searched(space, lambda low, network=network: [network.loss(low)])
        kept = best_found(search)
        assert network.loss(space.all - kept) <= space.budget
        ratios.append(space.cost(kept) / space.cost(lowest))
        plans.append(len(asked))
    assert np.mean(ratios) <= 1.0
    assert max(plans) <= 200


def test_the_same_measurements_lead_to_the_same_sets():
    network, space = drawn(3, 30, 0.2)
    asked = []
    for _ in range(2):
        search, measured = searched(space, lambda low: [network.loss(low)])
        best_found(search)
        asked.append(measured)
    assert asked[0] == asked[1]


def test_a_bound_and_an_end_are_kept():
    network, space = drawn(5, 20, 0.3)
    search, asked = searched(space, lambda low: [network.loss(low)])
    assert search.improved(0.4, 20) == (search.best is not None and space.cost(search.best) < 0.4)
    assert all(space.cost(kept) < 0.4 for kept in asked)
    ended, asked = searched(space, lambda low: [network.loss(low)], goes_on=lambda: len(asked) < 3)
    ended.improved(math.inf, 50)
    ended.refined(50)
    assert len(asked) == 3


def test_a_measured_plan_corrects_the_estimates_as_bayes_rule_does():
    """The posterior of a linear Gaussian model, from the normal equations instead of Kalman's step."""
    random = np.random.default_rng(0)
    prior, limit = random.uniform(0.001, 0.1, 6), 0.1
    estimates = Estimates([0], prior[:, None], {0: 0.3}, limit)
    precision = np.diag(1.0 / ((0.7 * prior) ** 2 + (0.02 * limit) ** 2))
    weighted = precision @ prior
    for loss in (0.02, 0.3, 0.11):
        low = random.random(6) < 0.6
        estimates.learn(low, {0: loss})
        noise = (0.3 * loss) ** 2 + (0.1 * limit) ** 2
        precision = precision + np.outer(low, low) / noise
        weighted = weighted + low * loss / noise
    expected = np.linalg.solve(precision, weighted)
    assert estimates.rows([0])[:, 0] == pytest.approx(np.maximum(expected, 0.0), rel=1e-6)


def test_an_input_that_was_not_measured_alone_has_the_others_losses_in_its_own_scale():
    estimates = Estimates([0, 2], np.array([[0.1, 0.3], [0.02, 0.04]]), {0: 0.2, 1: 0.9, 2: 0.4}, 1.0)
    assert estimates.rows([1])[:, 0] == pytest.approx([0.2 * 3, 0.03 * 3])


def test_a_knapsack_leaves_within_the_limits_what_it_does_not_choose():
    random = np.random.default_rng(1)
    for _ in range(20):
        rows, costs = random.uniform(0, 1, (15, 4)), random.uniform(0.1, 1, 15)
        limits = rows.sum(axis=0) * random.uniform(0.1, 0.9)
        high = cheapest_within(rows, costs, limits, random, None)
        assert (rows[~high].sum(axis=0) <= limits + 1e-12).all()
        for unit in np.flatnonzero(high):
            assert (rows[~high].sum(axis=0) + rows[unit] > limits).any(), "no unit is chosen in vain"
