"""The bound on inputs that nobody has seen, against closed forms and exact sums."""

from fractions import Fraction
from math import ceil, comb, log

import pytest

from trt_bisect.analyzer.doubts import bound_of, upper_bound


@pytest.mark.parametrize(("inputs", "missed"), [(1, 0), (20, 0), (2995, 0), (7, 2), (31, 5), (64, 1), (40, 39)])
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
    assert (bound.next, bound.more, bound.most == 1.0) == (None, None, inputs == missed)
