"""The bound on inputs that nobody has seen, against closed forms, a table, exact sums and resampling."""

from fractions import Fraction
from math import ceil, comb, log

import numpy as np
import pytest

from tests.support.editions import edition
from trt_bisect.analyzer.doubts import bound_of, upper_bound


@pytest.mark.parametrize("inputs", [1, 4, 20, 59, 100, 299, 2995])
def test_without_a_miss_the_bound_is_a_root(inputs):
    """The share p at which none of n misses with probability 0.05: (1 - p)^n = 0.05."""
    assert upper_bound(inputs, 0) == pytest.approx(1 - 0.05 ** (1 / inputs), abs=1e-12)


@pytest.mark.parametrize(
    ("inputs", "missed", "most"),
    # scipy.stats.beta.ppf(0.95, missed + 1, inputs - missed), of SciPy 1.17.1
    [(10, 1, 0.3941633024), (20, 3, 0.3436638043), (100, 2, 0.0616192004), (50, 25, 0.6237541088), (10, 10, 1.0)],
)
def test_the_bound_is_a_quantile_of_the_beta_distribution(inputs, missed, most):
    assert upper_bound(inputs, missed) == pytest.approx(most, abs=1e-9)


@pytest.mark.parametrize(("inputs", "missed"), [(7, 2), (31, 5), (64, 1), (40, 39)])
def test_at_the_bound_so_few_misses_have_the_probability_of_one_in_twenty(inputs, missed):
    share = Fraction(upper_bound(inputs, missed))
    tail = sum(comb(inputs, k) * share**k * (1 - share) ** (inputs - k) for k in range(missed + 1))
    assert float(tail) == pytest.approx(0.05, rel=1e-9)


@pytest.mark.parametrize(
    ("inputs", "rounder"), [(4, 0.5), (5, 0.3), (20, 0.1), (99, 0.02), (100, 0.02), (200, 0.01), (400, 0.005)]
)
def test_without_a_miss_the_further_inputs_follow_from_a_logarithm(inputs, rounder):
    bound = bound_of(inputs, 0)
    assert bound.next == rounder
    assert bound.more == ceil(log(0.05) / log(1 - rounder)) - inputs


@pytest.mark.parametrize(("inputs", "missed"), [(100, 2), (20, 1), (300, 7), (1000, 9)])
def test_the_further_inputs_miss_as_rarely_and_lead_to_the_round_bound(inputs, missed):
    bound = bound_of(inputs, missed)
    assert missed / inputs < bound.next < bound.most

    def after(more):
        return upper_bound(inputs + more, ceil(Fraction(missed, inputs) * (inputs + more)))

    assert after(bound.more) <= bound.next
    assert bound.more == 1 or after(bound.more - 1) > bound.next


@pytest.mark.parametrize(("inputs", "missed"), [(5, 5), (50, 30), (10**5, 0)])
def test_where_no_round_bound_lies_below_there_is_no_number_of_further_inputs(inputs, missed):
    bound = bound_of(inputs, missed)
    assert (bound.next, bound.more) == (None, None)


@pytest.mark.parametrize("inputs", edition([10, 40], [10, 40, 200]))
def test_the_bound_holds_with_a_probability_of_95_in_100(inputs):
    """The sum of the probabilities of the numbers of misses whose bound is no smaller than the share that misses; and
    1,000 resamplings of a population of 100,000 inputs of which that share misses."""
    bounds = [upper_bound(inputs, missed) for missed in range(inputs + 1)]
    for share in (0.005, 0.03, 0.2):
        ways = (comb(inputs, k) * share**k * (1 - share) ** (inputs - k) for k in range(inputs + 1))
        assert sum(way for way, bound in zip(ways, bounds, strict=True) if bound >= share) >= 0.95, share
        random = np.random.default_rng(1)
        population = np.arange(100_000) < round(share * 100_000)
        misses = population[random.integers(0, len(population), (1000, inputs))].sum(axis=1)
        assert sum(bounds[missed] >= share for missed in misses) >= 950, share
