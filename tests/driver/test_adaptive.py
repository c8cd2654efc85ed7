"""The adaptive search against the exhaustive one, on invented losses: the same suspects, from fewer plans."""

from __future__ import annotations

import math
from itertools import chain

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.editions import edition
from trt_bisect.driver.adaptive import STRIDE, adaptive, one_at_a_time
from trt_bisect.driver.curves import exhaustive
from trt_bisect.driver.search import Question, Step, drive

BUDGET = 0.01


def question(layers: int) -> Question:
    return Question(layers, tuple(range(layers)), BUDGET, BUDGET / 2)


class Batches:
    """Measures by a function, and notes the plans that came together."""

    def __init__(self, loss):
        self.loss, self.batches = loss, []

    def __call__(self, plans):
        self.batches.append(list(plans))
        return [self.loss(plan) for plan in plans]

    @property
    def plans(self):
        return {plan.key() for plan in chain(*self.batches)}


def adding(costs, failing=frozenset()):
    return lambda plan: None if plan.int8 & failing else math.fsum(costs.get(k, 0.0) for k in plan.int8)


def approaching_one(costs):
    """Losses that add up as errors do under cosine."""
    return lambda plan: 1.0 - math.exp(-adding(costs)(plan))


LAYERS = st.integers(0, 119)
STEPS = st.dictionaries(LAYERS, st.sampled_from([1e-5, 0.001, 0.004, 0.006, 0.02, 0.3]), max_size=120)


@settings(max_examples=edition(12, 150), deadline=None)
@given(costs=STEPS, failing=st.frozensets(LAYERS, max_size=3))
def test_losses_that_rise_in_steps_have_the_suspects_of_the_exhaustive_search(costs, failing):
    asked, losses = question(120), adding(costs, failing)
    found, whole = drive(adaptive(asked), Batches(losses)), drive(exhaustive(asked), losses)
    assert (found.full, found.suspects, found.set_aside) == (whole.full, whole.suspects, whole.set_aside)


@settings(max_examples=edition(12, 150), deadline=None)
@given(costs=STEPS)
def test_losses_that_approach_one_have_the_suspects_of_the_exhaustive_search(costs):
    asked, losses = question(120), approaching_one(costs)
    assert drive(adaptive(asked), Batches(losses)).suspects == drive(exhaustive(asked), losses).suspects


@settings(max_examples=edition(12, 100), deadline=None)
@given(costs=STEPS, failing=st.frozensets(LAYERS, max_size=3))
def test_every_layer_is_in_one_step_and_every_step_was_measured(costs, failing):
    asked, losses = question(120), Batches(adding(costs, failing))
    found = drive(adaptive(asked), losses)
    assert [k for step in found.steps for k in step.layers] == list(range(120))
    assert all(step.plan.key() in losses.plans and step.loss == losses.loss(step.plan) for step in found.steps)
    assert all(len(step.layers) == 1 for step in found.steps if step.suspect or step.loss is None)


@settings(max_examples=edition(12, 100), deadline=None)
@given(costs=STEPS)
def test_plans_one_at_a_time_give_the_same_findings(costs):
    asked, losses = question(120), approaching_one(costs)
    watched: list[Step] = []
    found = drive(one_at_a_time(adaptive(asked, watched)), losses)
    assert found == drive(adaptive(asked), Batches(losses))
    assert tuple(watched) == found.steps


def test_a_healthy_network_of_2000_layers_takes_one_batch_of_the_ends_of_strides():
    losses = Batches(adding({}))
    found = drive(adaptive(question(2000)), losses)
    assert found.suspects == ()
    assert len(losses.batches) == 1
    assert len(losses.plans) == 2000 / STRIDE + 1


@pytest.mark.parametrize("culprits", [(1300,), (5, 6, 1999), (100, 900, 1700)])
def test_culprits_among_2000_layers_take_few_batches(culprits):
    losses = Batches(adding({**dict.fromkeys(range(2000), 1e-6), **dict.fromkeys(culprits, 0.3)}))
    assert drive(adaptive(question(2000)), losses).suspects == culprits
    assert len(losses.batches) <= 3 + 7 * len(culprits)
    assert len(losses.plans) <= 2000 / STRIDE * (2 + len(culprits))


def test_a_rise_that_its_stride_takes_back_is_found_where_sampled_strides_hide_rises_too():
    """Each second layer adds 0.006 and the next one takes it back: every suspect is hidden from the stride's ends."""

    def losses(plan):
        low = max(plan.int8, default=-1)
        return 0.02 * (low >= 60) + 0.006 * (low % 2)

    asked = question(400)
    found, whole = drive(adaptive(asked), Batches(losses)), drive(exhaustive(asked), losses)
    assert set(whole.suspects) <= set(found.suspects)
    assert len(whole.suspects) > 1


def rough(height):
    """Losses with two culprits, and small errors: each second layer adds ``height`` and the next one takes it back."""

    def losses(plan):
        low = max(plan.int8, default=-1)
        return 0.02 * (300 in plan.int8) + 0.02 * (700 in plan.int8) + height * ((low + 1) % 2)

    return losses


@pytest.mark.parametrize("height", [0.002, 0.0045])
def test_small_errors_of_many_layers_do_not_make_the_search_measure_every_boundary(height):
    """The smallest rise of a suspect is 0.005."""
    losses = Batches(rough(height))
    assert drive(adaptive(question(1000)), losses).suspects == (300, 700)
    assert len(losses.plans) < 300
    shorter = Batches(rough(height))
    drive(adaptive(question(500)), shorter)
    assert len(shorter.plans) >= 500


@pytest.mark.slow
def test_rises_of_a_suspect_s_size_that_strides_of_many_layers_hide_are_all_measured():
    losses = Batches(rough(0.006))
    found = drive(adaptive(question(1000)), losses)
    assert {300, 700} <= set(found.suspects) <= set(drive(exhaustive(question(1000)), rough(0.006)).suspects)
    assert len(losses.plans) >= 1000


def test_full_int8_that_is_good_blames_nobody_and_refines_nothing():
    losses = Batches(adding({50: 0.007}))
    found = drive(adaptive(question(120)), losses)
    assert found.suspects == ()
    assert len(losses.batches) == 1


def test_a_network_without_quantizable_layers_has_no_step():
    found = drive(adaptive(Question(3, (), BUDGET, BUDGET / 2)), Batches(adding({})))
    assert (found.full, found.steps, found.suspects) == (0.0, (), ())
