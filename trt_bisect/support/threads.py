"""Executors that run calls in threads only where that pays."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from time import thread_time
from typing import Any, TypeVar

_WORTH_A_THREAD = 0.0005
"""Seconds of the processor."""
_Result = TypeVar("_Result")


class InThisThread(Executor):
    """Runs calls at once, in this thread: an engine on a GPU must run in the thread that made it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Calls ``fn`` and returns a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class ThreadsIfLong(Executor):
    """Runs calls in threads while the calls so far took more than half a millisecond of the processor on average.

    A shorter call costs less than its way to another thread and back, which may take 0.1 ms and more where threads wait
    for Python's lock. The first call runs in this thread. With one thread, calls run one after another, in the order in
    which they were submitted.
    """

    def __init__(self, threads: int) -> None:
        """Starts no thread yet.

        Args:
            threads: the largest number of calls that run in threads at the same time.
        """
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._here = InThisThread()
        self._last: Future[Any] | None = None
        self._calls = 0
        self._seconds = 0.0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Calls ``fn``, here or in a thread, and returns its future."""
        if self._is_short() and (self._last is None or self._last.done()):
            return self._here.submit(self._timed, fn, *args, **kwargs)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads)
        self._last = self._pool.submit(self._timed, fn, *args, **kwargs)
        return self._last

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads, if there are any."""
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _is_short(self) -> bool:
        return self._seconds <= _WORTH_A_THREAD * self._calls

    def _timed(self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> _Result:
        began = thread_time()
        try:
            return fn(*args, **kwargs)
        finally:
            self._calls += 1
            self._seconds += thread_time() - began
