"""Searching ahead: the driver's own answer, in fewer and larger helpings."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.support.editions import edition
from trt_bisect.driver.curves import bisect, exhaustive
from trt_bisect.driver.search import Question, drive
from trt_bisect.driver.speculative import GoodOrBad, LastRises, drive_speculatively, foreseen
from trt_bisect.evaluator.passes import Leaf, arrange, buffer_rows, split_rows, stackable, stacked_axis
from trt_bisect.model.pieces import Piece
from trt_bisect.precision import all_but, int8_set, only, prefix

BUDGET = 0.01


def question(layers: int) -> Question:
    return Question(layers, tuple(range(layers)), BUDGET, BUDGET / 2)


class Helpings:
    """Measures by a function, and takes down how many plans came at once."""

    def __init__(self, loss):
        self.loss, self.sizes, self.seen = loss, [], []

    def __call__(self, plans):
        self.sizes.append(len(plans))
        self.seen += plans
        return [self.loss(plan) for plan in plans]


def saturating(costs):
    """Losses that add up as errors do under cosine: they approach 1."""
    return lambda plan: 1.0 - math.exp(-math.fsum(costs.get(k, 0.0) for k in plan.int8))


LOSSES = st.dictionaries(st.integers(0, 29), st.sampled_from([1e-4, 0.004, 0.02, 0.3, 2.0]), max_size=30)


@settings(max_examples=edition(12, 150), deadline=None)
@given(costs=LOSSES, failing=st.sets(st.integers(0, 29), max_size=2))
def test_the_exhaustive_answer_is_the_same(costs, failing):
    def loss(plan):
        return None if plan.int8 & failing else saturating(costs)(plan)

    helpings = Helpings(loss)
    found = drive_speculatively(lambda: exhaustive(question(30)), helpings, LastRises(question(30)))
    assert found == drive(exhaustive(question(30)), loss)
    assert len(helpings.seen) == len(set(helpings.seen)), "a plan was measured twice"


@pytest.mark.slow
@settings(max_examples=edition(12, 150), deadline=None)
@given(costs=LOSSES, limit=st.integers(1, 12))
def test_the_bisection_answer_is_the_same(costs, limit):
    helpings = Helpings(saturating(costs))
    found = drive_speculatively(lambda: bisect(question(30)), helpings, GoodOrBad(question(30)), limit)
    assert found == drive(bisect(question(30)), saturating(costs))
    assert max(helpings.sizes) <= limit


def test_a_healthy_network_takes_one_helping():
    helpings = Helpings(saturating(dict.fromkeys(range(100), 1e-6)))
    drive_speculatively(lambda: exhaustive(question(100)), helpings, LastRises(question(100)))
    assert helpings.sizes == [101]


@pytest.mark.parametrize("culprits", [(40,), (3, 40, 90), tuple(range(5, 95, 10))])
def test_after_a_surprise_helpings_are_small_and_grow(culprits):
    helpings = Helpings(saturating({**dict.fromkeys(range(100), 1e-5), **dict.fromkeys(culprits, 0.05)}))
    found = drive_speculatively(lambda: exhaustive(question(100)), helpings, LastRises(question(100)))
    assert found.suspects == culprits
    assert len(helpings.sizes) <= 5
    assert len(helpings.seen) <= 2 * 101


def test_helpings_shrink_while_each_forecast_fails():
    """The layers that raise the loss are others with each suspect kept high."""

    def loss(plan):
        last = max(plan.int8, default=-1)
        kept = last + 1 - len(plan.int8)
        raised = last >= 0 and random.Random(100 * kept + last).random() < 0.3
        return 1e-5 * len(plan.int8) + 0.05 * raised

    helpings = Helpings(loss)
    found = drive_speculatively(lambda: exhaustive(question(60)), helpings, LastRises(question(60)))
    assert found == drive(exhaustive(question(60)), loss)
    assert len(found.suspects) > 10
    assert helpings.sizes[:4] == [61, 12, 6, 3]
    assert max(helpings.sizes[3:]) <= 12


def test_bisection_by_eighths_takes_two_helpings_where_halving_takes_eight():
    helpings = Helpings(saturating({44: 0.5}))
    found = drive_speculatively(lambda: bisect(question(60)), helpings, GoodOrBad(question(60)), 9)
    assert found.suspects == (44,)
    assert len(helpings.sizes) <= 3


def test_what_is_foreseen_begins_with_what_is_asked():
    plans = foreseen(lambda: exhaustive(question(4)), {}, LastRises(question(4)), None)
    assert [plan.key() for plan in plans] == ["8*4", "f*4", "8*1.f*3", "8*2.f*2", "8*3.f*1"]


def pieces(*sizes) -> list[Piece]:
    starts = np.cumsum([0, *sizes])
    return [Piece(int(a), int(b), (), (), ()) for a, b in pairwise(starts)]


def test_the_curve_is_one_pass_along_the_int8_trunk():
    plans = [prefix(8, k) for k in range(-1, 8)]
    (job,) = arrange(plans, pieces(3, 3, 2), prefix(8, -1))
    assert job.trunk == prefix(8, 7)
    assert job.trunk_wanted
    assert job.after == prefix(8, -1)
    assert [place for place, _ in job.branches] == [0, 0, 0, 1, 1, 1, 2, 2]


def test_a_culprit_leaves_the_trunk_in_its_own_piece():
    """prefix(4) with layer 4 in INT8 leaves a trunk that keeps layer 4 high."""
    trunk = int8_set(8, {0, 1, 2, 3, 5, 6, 7})
    plans = [trunk, prefix(8, 4), int8_set(8, {0, 1, 2, 3, 5})]
    (job,) = arrange(plans, pieces(3, 3, 2), prefix(8, -1))
    assert job.trunk == trunk
    assert {plan: place for place, plan in job.branches} == {plans[1]: 1, plans[2]: 2}


@pytest.mark.parametrize(
    ("plans", "trunk", "after"),
    [
        ([only(8, k) for k in range(8)], prefix(8, -1), prefix(8, -1)),
        ([all_but(8, {k}) for k in range(8)] + [prefix(8, 7)], prefix(8, 7), prefix(8, 7)),
    ],
)
def test_sensitivities_are_one_pass_each(plans, trunk, after):
    (job,) = arrange(plans, pieces(3, 3, 2), prefix(8, -1))
    assert (job.trunk, job.after) == (trunk, after)


def test_plans_that_share_nothing_have_a_pass_each():
    plans = [int8_set(9, {0, 4, 8}), int8_set(9, {1, 5, 7})]
    passes = arrange(plans, pieces(3, 3, 3), prefix(9, -1))
    assert [(job.trunk, job.branches) for job in passes] == [(plan, ()) for plan in plans]


@settings(max_examples=edition(12, 150), deadline=None)
@given(
    chosen=st.lists(st.frozensets(st.integers(0, 8)), min_size=1, max_size=12),
    sizes=st.sampled_from([(3, 3, 3), (9,), (1,) * 9, (4, 5)]),
)
def test_every_plan_is_in_one_pass_and_its_pass_gives_it(chosen, sizes):
    plans = list({int8_set(9, layers) for layers in chosen})
    cut, nothing = pieces(*sizes), prefix(9, -1)
    passes = arrange(plans, cut, nothing)
    given_back = [plan for job in passes for _, plan in job.branches]
    given_back += [job.trunk for job in passes if job.trunk_wanted]
    assert sorted(plan.key() for plan in given_back) == sorted(plan.key() for plan in plans)
    for job in passes:
        for place, plan in job.branches:
            for number, piece in enumerate(cut):
                source = job.trunk if number < place else plan if number == place else job.after
                assert plan.precisions[piece.start : piece.stop] == source.precisions[piece.start : piece.stop]


def test_rows_of_a_leaf_are_its_own_and_then_the_trunks():
    buffer = np.arange(12.0).reshape(6, 2)
    leaf = Leaf(0, [buffer_rows(buffer, 3, row, row + 1) for row in range(2)], buffer, np.full((2, 2), 9.0))
    assert np.shares_memory(leaf.tile(0, 2), buffer)
    assert leaf.tile(1, 4).tolist() == [[4, 5], [6, 7], [9, 9], [9, 9], [9, 9], [9, 9]]
    leaf.append([np.full((2, 2), 7.0)])
    assert buffer[4:].tolist() == [[7, 7], [7, 7]]
    leaf.append([np.full((2, 2), 8.0)])
    assert leaf.buffer is None
    assert leaf.row(3).tolist() == [[8, 8], [8, 8]]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_axis_of_a_stack_is_seen(axis):
    rows = [np.random.default_rng(seed).normal(size=(2, 3, 4)) for seed in range(3)]
    stacked = np.concatenate(rows, axis=axis)
    assert stacked_axis(stacked, rows[2], 3) == (axis,)
    assert stacked_axis(stacked[::-1], rows[2] + 1.0, 3) is None
    for one, other in zip(split_rows(stacked, axis, 3), rows, strict=True):
        assert np.array_equal(one, other)


def test_what_does_not_grow_must_be_the_same():
    shape = np.array([1, 2, 3])
    assert stacked_axis(shape, shape.copy(), 4) == (None,)
    assert stacked_axis(shape, shape + 1, 4) is None
    assert stacked_axis([shape], [shape], 4) is None


def test_interleaved_rows_are_no_stack():
    rows = [np.arange(4.0) + 10 * row for row in range(2)]
    assert stacked_axis(np.stack(rows, axis=1).reshape(-1), rows[1], 2) is None


def test_a_tensor_that_does_not_grow_is_stacked_only_where_all_rows_have_it():
    same, other = np.array([3.0]), np.array([4.0])
    assert stackable({"t": Leaf(None, [same, same.copy()], None, same)}, ["t"], 3)
    assert not stackable({"t": Leaf(None, [same, other], None, same)}, ["t"], 3)
