"""Searching ahead: the plans that a search will ask for."""

from trt_bisect.driver.curves import exhaustive
from trt_bisect.driver.search import Question
from trt_bisect.driver.speculative import LastRises, foreseen

BUDGET = 0.01


def question(layers: int) -> Question:
    return Question(layers, tuple(range(layers)), BUDGET, BUDGET / 2)


def test_what_is_foreseen_begins_with_what_is_asked():
    plans = foreseen(lambda: exhaustive(question(4)), {}, LastRises(question(4)), None)
    assert [plan.key() for plan in plans] == ["8*4", "f*4", "8*1.f*3", "8*2.f*2", "8*3.f*1"]
