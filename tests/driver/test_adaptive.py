"""The adaptive search against the exhaustive one, on invented losses: the same suspects, from fewer plans."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.editions import edition
from trt_bisect.driver.curves import ADAPTIVE, STRIDE, exhaustive, search_for
from trt_bisect.driver.search import Question, Step, drive

BUDGET = 0.01


def question(layers: int) -> Question:
    return Question(layers, tuple(range(layers)), BUDGET, BUDGET / 2)


class Measured:
    """Measures by a function, and notes the plans."""

    def __init__(self, loss):
        self.loss, self.plans = loss, set()

    def __call__(self, plan):
        self.plans.add(plan.key())
        return self.loss(plan)


def adaptive(question, watched=None):
    return search_for(ADAPTIVE, question, watched)


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
    found, whole = drive(adaptive(asked), Measured(losses)), drive(exhaustive(asked), losses)
    assert (found.full, found.suspects, found.set_aside) == (whole.full, whole.suspects, whole.set_aside)


@settings(max_examples=edition(12, 150), deadline=None)
@given(costs=STEPS)
def test_losses_that_approach_one_have_the_suspects_of_the_exhaustive_search(costs):
    asked, losses = question(120), approaching_one(costs)
    assert drive(adaptive(asked), Measured(losses)).suspects == drive(exhaustive(asked), losses).suspects


@settings(max_examples=edition(12, 100), deadline=None)
@given(costs=STEPS, failing=st.frozensets(LAYERS, max_size=3))
def test_every_layer_is_in_one_step_and_every_step_was_measured(costs, failing):
    asked, losses = question(120), Measured(adding(costs, failing))
    found = drive(adaptive(asked), losses)
    assert [k for step in found.steps for k in step.layers] == list(range(120))
    assert all(step.plan.key() in losses.plans and step.loss == losses.loss(step.plan) for step in found.steps)
    assert all(len(step.layers) == 1 for step in found.steps if step.suspect or step.loss is None)


def test_steps_are_watched_as_they_are_settled():
    watched: list[Step] = []
    found = drive(adaptive(question(120), watched), adding({50: 0.02}))
    assert tuple(watched) == found.steps
    assert [step.layers for step in watched if step.suspect] == [(50,)]


def test_a_healthy_network_of_2000_layers_takes_the_ends_of_strides():
    losses = Measured(adding({}))
    found = drive(adaptive(question(2000)), losses)
    assert found.suspects == ()
    assert len(losses.plans) == 2000 / STRIDE + 1


@pytest.mark.parametrize("culprits", [(1300,), (5, 6, 1999), (100, 900, 1700)])
def test_culprits_among_2000_layers_take_their_strides_besides(culprits):
    losses = Measured(adding({**dict.fromkeys(range(2000), 1e-6), **dict.fromkeys(culprits, 0.3)}))
    assert drive(adaptive(question(2000)), losses).suspects == culprits
    assert len(losses.plans) <= 2000 / STRIDE + 2 + (STRIDE + 1) * len(culprits)


def test_a_rise_that_its_stride_takes_back_is_not_seen():
    """Layer 300 adds a suspect's rise, which the next one takes back; layer 700 adds one that stays."""

    def losses(plan):
        low = max(plan.int8, default=-1)
        return 0.02 * (700 in plan.int8) + 0.006 * (low == 300)

    measured = Measured(losses)
    assert drive(adaptive(question(1000)), measured).suspects == (700,)
    assert len(measured.plans) <= 1000 / STRIDE + 3 + STRIDE


def test_full_int8_that_is_good_blames_nobody_and_refines_nothing():
    losses = Measured(adding({50: 0.007}))
    found = drive(adaptive(question(120)), losses)
    assert found.suspects == ()
    assert max(len(step.layers) for step in found.steps) == STRIDE
    assert len(losses.plans) == 120 // STRIDE + 2


def test_a_network_without_quantizable_layers_has_no_step():
    found = drive(adaptive(Question(3, (), BUDGET, BUDGET / 2)), Measured(adding({})))
    assert (found.full, found.steps, found.suspects) == (0.0, (), ())
