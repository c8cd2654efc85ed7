"""A Ray worker that tries plans: it keeps one ``TrialSpec``, with a builder in a process of its own."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from trt_bisect._version import versions
from trt_bisect.builder.isolation import IsolatedBuilder, WorkerProcess
from trt_bisect.cluster.messages import Ended, Raised, Refused, Tried, refusal
from trt_bisect.errors import EngineUnavailable, TrtBisectError
from trt_bisect.evaluator.attempt import attempt
from trt_bisect.evaluator.workers import TrialSpec
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.scratch import ScratchFolder


def work(node: str, key: str, fetch: Callable[[], bytes], _send: Callable[[object], None], plan: str) -> Ended:
    """Tries a plan.

    Args:
        node: the name of this node.
        key: the key of the ``TrialSpec`` in the object store.
        fetch: returns the ``TrialSpec``, pickled; called if this process does not keep it yet.
        plan: the plan's key.
    """
    try:
        worker = _plan_worker(key, fetch)
        return refusal(node, worker.wanted, worker.facts) or worker.tried(node, PrecisionPlan.from_key(plan))
    except EngineUnavailable as error:
        return Refused(node, error.problem)
    except TrtBisectError as error:
        return Raised(error)


class _PlanWorker:
    """A ``TrialSpec`` and its builder.

    Attributes:
        key: the key of the ``TrialSpec``.
        wanted: the versions and the device that the figures must come from.
        facts: the versions and the device of this worker.
        process: the builder's process.
    """

    def __init__(self, key: str, spec: TrialSpec) -> None:
        self.key = key
        self._inputs = spec.inputs
        self._scratch = ScratchFolder()
        self._timing_cache = self._scratch.path / "timing.cache"
        self._timings = spec.timings
        options = replace(spec.options, timing_cache=self._timing_cache)
        self.process = WorkerProcess()
        self._builder = IsolatedBuilder(partial(spec.make, options), options.timeout, self.process)
        self.wanted, self.facts = spec.facts, {**versions(), **self._builder.versions}

    def tried(self, node: str, plan: PrecisionPlan) -> Tried:
        """Returns the attempt at a plan, and the timing cache if the build has added to it."""
        worker = f"{node}-{os.getpid()}"
        with self._scratch:  # closed between plans: Ray ends its processes without asking them
            self._timing_cache.write_bytes(self._timings)
            result = attempt(plan, self._builder, self._inputs)
            timings = self._timing_cache.read_bytes()
        if timings == self._timings:
            return Tried(worker, result)
        self._timings = timings
        return Tried(worker, result, timings)


_kept: list[_PlanWorker] = []
"""The plan worker of this process, once there is one."""


def _plan_worker(key: str, fetch: Callable[[], bytes]) -> _PlanWorker:
    if not _kept or _kept[0].key != key:
        while _kept:
            _kept.pop().process.stop()
        _kept.append(_PlanWorker(key, pickle.loads(fetch())))
    return _kept[0]
