"""What a Ray worker does: it keeps one subject, with a builder in a process of its own, and tries plans on it."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from trt_bisect._version import versions
from trt_bisect.builder.isolation import IsolatedBuilder, WorkerProcess
from trt_bisect.cluster.messages import Ended, Raised, Refused, Tried, refusal
from trt_bisect.errors import EngineUnavailable, TrtBisectError
from trt_bisect.evaluator.attempt import attempt
from trt_bisect.evaluator.workers import TrialSpec
from trt_bisect.precision import PrecisionPlan


def work(node: str, key: str, fetch: Callable[[], bytes], _send: Callable[[object], None], plan: str) -> Ended:
    """Tries a plan on the subject that ``key`` stands for.

    Args:
        node: where this is.
        key: of the subject.
        fetch: gives the subject, pickled, if this process has not got it yet.
        plan: the key of what is tried.
    """
    try:
        station = _plan_worker(key, fetch)
        return refusal(node, station.wanted, station.facts) or station.tried(node, PrecisionPlan.from_key(plan))
    except EngineUnavailable as error:
        return Refused(node, error.problem)
    except TrtBisectError as error:
        return Raised(error)


class _PlanWorker:
    """A subject and its builder.

    Attributes:
        wanted: the versions and the device that figures are wanted of, and ``facts`` those that are here.
        workshop: the builder's process.
    """

    def __init__(self, key: str, subject: TrialSpec) -> None:
        self.key = key
        self._inputs = subject.inputs
        self._folder = tempfile.TemporaryDirectory(prefix="trt-bisect-")
        self._timings = Path(self._folder.name) / "timing.cache"
        self._told = subject.timings
        self._timings.write_bytes(subject.timings)
        options = replace(subject.options, timing_cache=self._timings)
        self.workshop = WorkerProcess()
        self._builder = IsolatedBuilder(partial(subject.make, options), options.timeout, self.workshop)
        self.wanted, self.facts = subject.facts, {**versions(), **self._builder.versions}

    def tried(self, node: str, plan: PrecisionPlan) -> Tried:
        """What came of a plan, and the timings where a build has added some."""
        worker = f"{node}-{os.getpid()}"
        found = attempt(plan, self._builder, self._inputs)
        timings = self._timings.read_bytes()
        if timings == self._told:
            return Tried(worker, found)
        self._told = timings
        return Tried(worker, found, timings)


_kept: list[_PlanWorker] = []
"""The one station of this process, once there is one."""


def _plan_worker(key: str, fetch: Callable[[], bytes]) -> _PlanWorker:
    if not _kept or _kept[0].key != key:
        while _kept:
            _kept.pop().workshop.stop()
        _kept.append(_PlanWorker(key, pickle.loads(fetch())))
    return _kept[0]
