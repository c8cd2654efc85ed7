"""The search by estimated losses, against brute force, NumPy's normal equations, and lowering on whole networks."""

from statistics import NormalDist

import numpy as np
import pytest

from tests.driver.test_search_space import Network, best_of_all, drawn, every_set, space_of
from tests.support.editions import edition
from trt_bisect.driver.estimated import (
    EACH,
    TOGETHER,
    WIDE,
    Estimates,
    Measured,
    NoiseEstimates,
    SetSearch,
    cover,
    even_limits,
)


def searched(space, by_input, estimates=None, most=200):
    """Returns a search at its end whose plans have the losses ``by_input`` of their low units, and its sets."""
    places, asked = range(len(by_input({0}))), []

    def measure(number, kept):
        assert number == 0
        asked.append(kept)
        losses = by_input(space.all - kept)
        return Measured(max(losses), dict(enumerate(losses)), float(np.mean(losses)))

    if estimates is None:
        alone = np.array([by_input({unit}) for unit in sorted(space.all)])
        estimates = Estimates(places, alone, dict(enumerate(by_input(space.all))), space.budget)
    search = SetSearch(space, [estimates], measure, list(places), space.budget)
    while len(asked) < most and search.step(2e-4):
        pass
    return search, asked


def lowered(space, loss):
    """The units that stay high when one after the other goes low, the most expensive first."""
    kept = space.all
    for unit in sorted(space.all, key=lambda unit: -space.costs[unit]):
        if loss(space.all - kept | {unit}) <= space.budget:
            kept -= {unit}
    return kept


def kept_by(search):
    return search.space.all if search.best is None else search.best[1]


def test_where_losses_add_up_the_cheapest_set_is_that_of_brute_force():
    """Networks of 10 units and three inputs: 90 % equal, none more expensive by a fifth."""
    ratios, networks = [], edition(5, 50)
    for seed in range(networks):
        random = np.random.default_rng(seed)
        losses = 10 ** random.uniform(-3, 0, (10, 3))
        costs = random.uniform(0.1, 1.0, 10) ** 3
        space = space_of(10, float(random.uniform(0.05, 0.6)) * losses.sum(axis=0).max(), tuple(costs / costs.sum()))
        search, asked = searched(space, lambda low, losses=losses: losses[sorted(low)].sum(axis=0))
        kept = kept_by(search)
        least, _ = best_of_all(space, lambda low, losses=losses: losses[sorted(low)].sum(axis=0).max())
        assert kept in asked
        assert losses[sorted(space.all - kept)].sum(axis=0).max() <= space.budget
        assert len(asked) == len(set(asked)), "no set is measured twice"
        ratios.append(space.cost(kept) / least if least else 1.0 + space.cost(kept))
    assert sum(ratio < 1.0 + 2 * EACH * 10 for ratio in ratios) >= 0.9 * networks
    assert max(ratios) < 1.2


@pytest.mark.slow
def test_where_errors_cancel_the_cheapest_set_is_that_of_brute_force():
    """Networks of 8 to 11 units, the errors of each on three inputs are vectors; docs/howto/goals.md has the counts."""
    equal, networks = 0, edition(2, 232)
    for seed in range(networks):
        random = np.random.default_rng(seed + 1000)
        units = int(random.integers(8, 12))
        on_inputs = [Network(7 * seed + k, units) for k in range(3)]

        def by_input(low, on_inputs=on_inputs):
            return [network.loss(low) for network in on_inputs]

        budget = float(random.uniform(0.05, 0.8)) * max(by_input(range(units)))
        space = space_of(units, budget, on_inputs[0].costs)
        search, _ = searched(space, by_input, most=1000)
        prices = [search.price(kept) for kept in every_set(units) if max(by_input(space.all - kept)) <= budget]
        price = search.price(kept_by(search))
        equal += price <= min(prices) + 1e-12
        assert price <= 1.02 * min(prices)
    assert equal >= 0.95 * networks


@pytest.mark.slow
def test_errors_that_cancel_take_few_plans_and_no_more_expensive_sets_than_lowering():
    """Forty units whose errors are vectors: against lowering, on average over networks."""
    ratios, plans = [], []
    for seed in range(edition(1, 10)):
        network, space = drawn(seed, 40, 0.2)
        lowest = lowered(space, network.loss)
        search, asked = searched(space, lambda low, network=network: [network.loss(low)])
        kept = kept_by(search)
        assert network.loss(space.all - kept) <= space.budget
        ratios.append(space.cost(kept) / space.cost(lowest))
        plans.append(len(asked))
    assert np.mean(ratios) <= 1.0
    assert max(plans) <= 200


def test_layers_that_look_bad_alone_but_cancel_stay_low():
    search, _ = searched(
        space_of(30, 0.01), lambda low: [0.4 * abs((5 in low) - (20 in low)) + 0.3 * (12 in low) + 1e-6 * len(low)]
    )
    assert kept_by(search) == {12}


def test_hopeless_sets_are_not_measured_because_they_are_cheap():
    """Each of ten units loses 50 times the limit but the last: of 1,024 sets all but a few are out of reach."""
    search, asked = searched(space_of(10, 0.01), lambda low: [0.5 * len(low - {9}) + 1e-3 * len(low)])
    assert kept_by(search) == set(range(9))
    assert len(asked) <= 20


@pytest.mark.slow
def test_the_same_measurements_lead_to_the_same_sets():
    network, space = drawn(3, 30, 0.2)
    first, again = (searched(space, lambda low: [network.loss(low)])[1] for _ in range(2))
    assert first == again


def test_no_set_above_a_bound_of_the_price_is_measured():
    network, space = drawn(5, 20, 0.3)
    search, asked = searched(space, lambda low: [network.loss(low)], most=0)
    search.aim(space.budget, 0.4)
    while search.step(2e-4) and len(asked) < 50:
        pass
    assert asked
    assert all(space.cost(kept) + EACH * len(kept) < 0.4 for kept in asked)


def test_what_was_measured_counts_for_another_limit():
    """Two sets hold within 1; within half of that only the second one, which the search knows already."""
    losses = np.array([0.6, 0.3, 0.2])
    space = space_of(3, 1.0, (0.5, 0.3, 0.2))
    search, _ = searched(space, lambda low: [float(losses[sorted(low)].sum())])
    assert kept_by(search) == {2}, "0.9 is left, at the least cost"
    before = len(search.tried)
    search.take(0, frozenset({0}))
    search.aim(0.5)
    assert (search.best, len(search.tried)) == ((0, frozenset({0})), before + 1)


def test_a_measured_plan_corrects_the_estimates_as_bayes_rule_does():
    """The posterior of a linear Gaussian model, from the normal equations instead of Kalman's step."""
    random = np.random.default_rng(0)
    prior, limit = random.uniform(0.001, 0.1, 6), 0.1
    estimates = Estimates([0], prior[:, None], {0: 0.3}, limit)
    covariance = np.diag((0.7 * prior) ** 2 + (0.02 * limit) ** 2) + np.outer(prior, prior) * 0.5**2
    precision = np.linalg.inv(covariance)
    weighted = precision @ prior
    for loss in (0.1, 0.2, 0.11):
        low = random.random(6) < 0.6
        estimates.learn(low, Measured(loss, {0: loss}), limit)
        noise = (0.2 * loss) ** 2 + (0.02 * limit) ** 2
        precision = precision + np.outer(low, low) / noise
        weighted = weighted + low * loss / noise
    expected = np.linalg.solve(precision, weighted)
    assert estimates.sums([0])[:, 0] == pytest.approx(np.maximum(expected, 0.0), rel=1e-6)


def test_a_loss_that_no_unit_alone_shows_is_believed():
    """Errors cancel alone and with all units low, so an input promises a loss of about 0; with two units high, it loses
    ten times the limit.
    """
    estimates = Estimates([0], np.full((13, 1), 1e-6), {0: 1e-5}, 0.01)
    low = np.arange(13) >= 2
    assert estimates.chances(low[None], [0], 0.01)[0] > 0.9
    estimates.learn(low, Measured(0.1, {0: 0.1}), 0.01)
    assert estimates.sums([0])[low].sum() == pytest.approx(0.1, rel=0.1)
    assert estimates.chances(low[None], [0], 0.01)[0] < 1e-3


def test_the_loss_over_all_inputs_together_is_learned_too():
    """Twenty units; on each input all is well, and over the inputs together units 3 and 4 lose twice the limit."""
    costs = tuple(np.linspace(0.02, 0.08, 20))
    space = space_of(20, 1.0, costs)

    def measure(_number, kept):
        is_bad = not kept & {3, 4}
        return Measured(2.0, {0: 0.3, TOGETHER: 2.0}) if is_bad else Measured(0.3, {0: 0.3})

    alone = np.full((20, 1), 0.01)
    alone[[3, 4]] = 0.1
    search = SetSearch(space, [Estimates([0], alone, {0: 0.3}, 1.0)], measure, [0], 1.0)
    while search.step(2e-4):
        pass
    assert kept_by(search) == {3}
    assert len(search.tried) < 40


def test_an_input_that_was_not_measured_alone_has_the_others_losses_in_its_own_scale():
    estimates = Estimates([0, 2], np.array([[0.1, 0.3], [0.02, 0.04]]), {0: 0.2, 1: 0.9, 2: 0.4}, 1.0)
    assert estimates.sums([1])[:, 0] == pytest.approx([0.2 * 3, 0.03 * 3])


def test_the_chance_of_a_set_is_that_of_draws_from_the_estimates():
    """The lognormal stands for the sum of what the low units add, times what a plan adds beside it."""
    prior, limit = np.array([0.02, 0.05, 0.01]), 0.08
    estimates = Estimates([0], prior[:, None], {0: 0.09}, limit)
    (chance,), (misled,) = estimates.chances(np.array([[True, True, False]]), [0], limit)
    random = np.random.default_rng(0)
    covariance = np.diag((0.7 * prior) ** 2 + (0.02 * limit) ** 2) + np.outer(prior, prior) * 0.5**2
    sums = random.multivariate_normal(prior, covariance, 200_000)[:, :2].sum(axis=1)
    plans = sums + 0.2 * 0.07 * random.standard_normal(len(sums))
    assert chance == pytest.approx(np.mean(plans <= limit), abs=0.04)
    assert misled == pytest.approx(NormalDist().cdf(np.log(limit / 0.07) / WIDE), abs=1e-3)


def test_figures_that_jump_teach_the_noise_up_to_which_plans_hold():
    """Plans hold up to a noise of 0.3; one unit adds most of it, and the search keeps that unit and no more."""
    noise = np.array([0.05, 0.9, 0.1, 0.05, 0.1])
    space = space_of(5, 0.01, (0.2,) * 5)
    estimates = NoiseEstimates([0], noise[:, None], {0: 1.2}, even_limits())
    search, asked = searched(space, lambda low: [0.0 if noise[sorted(low)].sum() <= 0.31 else 1.0], estimates)
    assert kept_by(search) == {1}
    assert len(asked) <= 20
    chances, _ = estimates.chances(np.array([[True, False, True, True, True], [True] * 5]), [0], 0.01)
    assert chances[0] > 0.5 > chances[1]


def test_a_cover_leaves_within_the_limits_what_it_does_not_choose():
    random = np.random.default_rng(1)
    for _ in range(20):
        rows, costs = random.uniform(0, 1, (15, 4)), random.uniform(0.1, 1, 15)
        limits = rows.sum(axis=0) * random.uniform(0.1, 0.9)
        kept = cover(rows, costs, limits)
        left = rows[[unit for unit in range(15) if unit not in kept]].sum(axis=0)
        assert (left <= limits + 1e-12).all()
        assert all((left + rows[unit] > limits).any() for unit in kept), "no unit is chosen in vain"
