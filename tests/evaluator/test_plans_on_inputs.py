"""Plans on many inputs, one by one, with invented losses for each plan and input."""

import threading
from contextlib import contextmanager
from time import thread_time

import numpy as np
import pytest

from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.each_input import EachInput, GivenInputs
from trt_bisect.evaluator.inferences import InputLoss
from trt_bisect.evaluator.trial import OutputFigures, TrialStore
from trt_bisect.precision import int8_set
from trt_bisect.runs.journal import Journal

BUDGET = 0.1
GIVEN = GivenInputs(
    [{"x": np.float32([place])} for place in range(4)], [{}] * 4, [f"data {k}" for k in range(4)], ["data"] * 4
)
PLANS = [int8_set(3, layers) for layers in ((), (0,), (1,), (0, 1, 2))]
LOSSES = {PLANS[0]: [0, 0, 0, 0], PLANS[1]: [0.01, 0.2, 0.02, 0.3], PLANS[2]: [0.01, 0.02, 0.09, 0.03]}


class Invented:
    """Runs plans whose outputs are their losses; counts the inferences. A plan without losses cannot be built."""

    def __init__(self, at_once=2):
        self.at_once = at_once
        self.calls = []

    @contextmanager
    def opened(self, plan):
        if plan not in LOSSES:
            raise TrialFailed("build failed", "no tactic")

        def infer(feeds):
            place = int(feeds["x"][0])
            self.calls.append((plan, place))
            return {"y": np.float64(LOSSES[plan][place])}

        yield infer

    def ran(self, plan):
        return {0: "int8", 1: "region"} if plan == PLANS[1] else {}


def judge(_, outputs):
    loss = float(outputs["y"])
    return {"y": OutputFigures({"cosine": 1.0 - loss})}, InputLoss(loss)


def evaluator(runner, store=None, judge=judge, **how):
    return EachInput(GIVEN, judge, BUDGET, runner, store or TrialStore(), "ranges", "cosine", lambda plan: plan, **how)


@pytest.mark.parametrize("at_once", [1, 2])
def test_the_loss_is_that_of_the_worst_input_that_was_run(at_once):
    each = evaluator(Invented(at_once))
    assert each.losses(PLANS[:3], range(4)) == [0, 0.2, 0.09]
    assert each.losses(PLANS[1:2], range(4), to_the_end=True) == [0.3]
    assert each.by_place(PLANS[1]) == dict(enumerate(LOSSES[PLANS[1]]))
    assert each.losses(PLANS[2:3], [0, 1]) == [0.02]


def test_a_plan_that_misses_on_one_input_is_not_run_on_the_others():
    runner = Invented(at_once=1)
    each = evaluator(runner)
    each.losses(PLANS[1:2], range(4))
    assert runner.calls == [(PLANS[1], 0), (PLANS[1], 1)]
    each.losses(PLANS[2:3], range(4))
    assert runner.calls[2:] == [(PLANS[2], place) for place in (1, 0, 2, 3)]  # where others missed, first


def test_no_inference_is_done_twice():
    runner = Invented()
    each = evaluator(runner)
    for _ in range(2):
        each.losses(PLANS[:3], range(4))
        each.losses(PLANS[:3], [3, 1])
    assert len(runner.calls) == len(set(runner.calls))


def test_a_plan_that_cannot_be_built_has_no_loss_and_is_not_tried_again():
    store = TrialStore()
    each = evaluator(Invented(), store)
    assert each.losses([PLANS[3], PLANS[2]], range(4)) == [None, 0.09]
    assert [trial.outcome for key, trial in store.trials.items() if key.endswith(PLANS[3].key())] == ["build failed"]


class Slow(Invented):
    """Takes ``seconds`` of the processor on the first input, twice as long on the second; keeps the threads."""

    def __init__(self, seconds=0.002):
        super().__init__()
        self.seconds = seconds
        self.began = []
        self.ended = []

    @contextmanager
    def opened(self, plan):
        with super().opened(plan) as infer:

            def slowly(feeds):
                self.began.append(threading.current_thread())
                until = thread_time() + self.seconds * (1 + feeds["x"][0])
                while thread_time() < until:
                    pass
                self.ended.append(threading.current_thread())
                return infer(feeds)

            yield slowly


def test_inferences_that_take_long_run_in_threads_from_the_second_on_whatever_plan_they_are_of():
    each = evaluator(runner := Slow())
    each.losses(PLANS[2:3], range(4))
    each.losses(PLANS[:1], range(4))
    assert [thread is threading.main_thread() for thread in runner.began] == [True] + 7 * [False]


@pytest.mark.slow
def test_no_inference_is_under_way_after_an_error():
    runner = Slow(0.03)

    def fail_at_the_second_plan(place, outputs):
        if len(runner.began) > 4:
            raise ValueError("a metric of the user's")
        return judge(place, outputs)

    each = evaluator(runner, judge=fail_at_the_second_plan)
    each.losses(PLANS[2:3], range(4))
    with pytest.raises(ValueError, match="metric"):
        each.losses(PLANS[:1], range(4))
    assert len(runner.began) == len(runner.ended) == 6


def judge_items(_, outputs):
    """On an input with the loss l, 10 things were compared; with the loss 0.3 it is 30."""
    figures, loss = judge(_, outputs)
    return figures, InputLoss(loss.share, 30.0 if loss.share == 0.3 else 10.0)


def test_together_the_share_of_all_things_decides(tmp_path):
    def made(store):
        return evaluator(Invented(at_once=1), store, judge_items, together=dict.fromkeys(range(4), 10.0))

    with Journal(tmp_path, "key", {}) as journal:
        each = made(journal)
        assert each.losses(PLANS[2:3], range(4)) == [pytest.approx(sum(LOSSES[PLANS[2]]) / 4)]
        (loss,) = each.losses(PLANS[1:2], range(4), to_the_end=True)
        assert LOSSES[PLANS[1]].count(0.3) == 1
        wanted = (0.3 * 30 + sum(one * 10 for one in LOSSES[PLANS[1]] if one != 0.3)) / 60
        assert loss == pytest.approx(wanted)
        assert each.loss(PLANS[1]) == pytest.approx(wanted)
    with Journal(tmp_path, "key", {}) as journal:
        assert made(journal).losses(PLANS[1:2], range(4), to_the_end=True) == [pytest.approx(wanted)]


def test_a_resumed_search_asks_in_the_same_order_and_runs_nothing_again(tmp_path):
    """The first run saw a plan on all inputs in the end: the second must not take those losses too early."""
    with Journal(tmp_path, "key", {}) as journal:
        each = evaluator(Invented(at_once=1), journal)
        first = each.losses(PLANS[:3], range(4)), dict(each.by_place(PLANS[1]))
        each.losses(PLANS[1:2], range(4), to_the_end=True)
    with Journal(tmp_path, "key", {}) as journal:
        runner = Invented(at_once=1)
        each = evaluator(runner, journal)
        assert (each.losses(PLANS[:3], range(4)), each.by_place(PLANS[1])) == first
        assert each.losses(PLANS[1:2], range(4), to_the_end=True) == [0.3]
        assert runner.calls == []


def test_what_an_engine_said_of_its_layers_is_kept():
    store = TrialStore()
    evaluator(Invented(), store).losses(PLANS[:2], range(4))
    assert {trial.plan.split()[-1]: dict(trial.ran) for trial in store.trials.values()} == {
        PLANS[0].key(): {},
        PLANS[1].key(): {0: "int8", 1: "region"},
    }


class InTurn(Invented):
    """An inference waits until others have begun: ``after`` has by plan and place the plan and place to wait for."""

    def __init__(self, after):
        super().__init__()
        self.after = after
        self.begun = {(plan, place): threading.Event() for plan in LOSSES for place in range(4)}
        self.open = 0
        self.most_open = 0

    @contextmanager
    def opened(self, plan):
        with super().opened(plan) as infer:
            self.open += 1
            self.most_open = max(self.most_open, self.open)

            def waiting(feeds):
                until = thread_time() + 0.002
                while thread_time() < until:
                    pass
                place = int(feeds["x"][0])
                self.begun[plan, place].set()
                if (plan, place) in self.after:
                    assert self.begun[self.after[plan, place]].wait(60)
                return infer(feeds)

            yield waiting
            self.open -= 1


def test_no_inference_waits_for_a_slow_one_of_another_plan():
    """Those that differ late come one after another. The first one's second input ends only after the third has begun
    its second, which comes after the second plan's last."""
    runner, store = InTurn({(PLANS[0], 1): (PLANS[1], 1)}), TrialStore()
    each = evaluator(runner, store)
    assert each.losses(PLANS[:3], range(4)) == [0, 0.2, 0.09]
    assert (runner.open, runner.most_open) == (0, 2)
    kept = [next(plan for plan in LOSSES if key.endswith(plan.key())) for key in store.trials]
    assert kept == [PLANS[0], PLANS[2], PLANS[1]], "in their order"


def test_results_after_a_miss_are_not_taken_even_if_they_come_first():
    runner = InTurn({(PLANS[1], 1): (PLANS[1], 2)})
    each = evaluator(runner)
    each.losses(PLANS[1:2], range(4))
    assert each.by_place(PLANS[1]) == {0: 0.01, 1: 0.2}
