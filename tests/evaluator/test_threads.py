"""Calls run in threads only where they take long enough."""

from __future__ import annotations

import threading
from functools import partial
from time import thread_time

import pytest

from tests.support.waiting import LIMIT
from trt_bisect.support.machine import ThreadsIfLong


def here(_: object = None) -> bool:
    return threading.current_thread() is threading.main_thread()


def long(together: threading.Barrier | None = None) -> bool:
    """Works for two milliseconds of the processor, together with another call if there is a barrier."""
    if together is not None:
        together.wait(LIMIT)
    began = thread_time()
    while thread_time() < began + 0.002:
        pass
    return here()


def test_short_calls_stay_in_this_thread():
    with ThreadsIfLong(2) as pool:
        assert list(pool.map(here, range(50))) == [True] * 50


def test_long_calls_run_in_threads_at_the_same_time_once_one_was_long():
    with ThreadsIfLong(2) as pool:
        assert pool.submit(long).result()
        together = threading.Barrier(2)
        assert list(pool.map(long, [together, together])) == [False, False]


def test_calls_that_became_short_return_to_this_thread():
    with ThreadsIfLong(2) as pool:
        pool.submit(long).result()
        while not pool.submit(here).result():
            pass
        assert pool.submit(here).result()


def test_with_one_thread_calls_keep_their_order_when_they_become_short():
    done = list[str]()
    begin, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        go_on.wait(LIMIT)
        done.append("slow")

    with ThreadsIfLong(1) as pool:
        pool.submit(long).result()
        pool.submit(begin.wait, LIMIT)
        short = [pool.submit(here) for _ in range(20)]
        pool.submit(slow)
        begin.set()
        assert not any(call.result() for call in short)
        pool.submit(done.append, "short")
        go_on.set()
    assert done == ["slow", "short"]


@pytest.mark.parametrize("first", [here, long])
def test_an_error_is_raised_where_the_result_is_asked_for(first):
    with ThreadsIfLong(1) as pool:
        pool.submit(first).result()
        failing = pool.submit(partial(int, "no number"))
        with pytest.raises(ValueError, match="no number"):
            failing.result()
