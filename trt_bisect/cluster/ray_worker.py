"""A worker process of Ray, on one of the nodes: it tries plans, or does a whole run in a folder of its own."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import sleep
from typing import Any

import ray

from trt_bisect._version import versions
from trt_bisect.builder.isolation import IsolatedBuilder, WorkerProcess
from trt_bisect.errors import EngineUnavailable, TrtBisectError
from trt_bisect.evaluator.workers import Attempt, TrialSpec, attempt
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.model import SO_FAR, Report
from trt_bisect.runs.journal import JOURNAL, complete_lines
from trt_bisect.runs.progress_file import PROGRESS
from trt_bisect.support.files import ScratchFolder

_SECONDS = 1.0
"""Seconds between two answers about a run's journal."""


def call(function: str, node: str, content: list[Any], argument: Any) -> tuple[str, Any]:
    """Calls a function of this module by its name.

    Returns:
        The reason why this node cannot be used, which is empty if it can, and the result.
    """
    try:
        match function:
            case "tried":
                return "", tried(node, content[0], argument)
            case "done":
                return "", done(content[0], argument)
            case _:
                return "", written(argument)
    except EngineUnavailable as error:
        return error.problem, None


def tried(node: str, content: Any, plan: str) -> tuple[str, Attempt, bytes]:
    """Tries the plan with this key, for the ``TrialSpec`` in ``content``.

    Returns:
        The worker's name, which no other of the cluster has, the attempt, and the bytes of the timing cache if that has
        grown, else none.
    """
    if not _kept or _kept[0].key != content.hex():
        while _kept:
            _kept.pop().process.stop()
        _kept.append(_PlanWorker(content.hex(), pickle.loads(ray.get(content))))
    return f"{node}-{os.getpid()}", *_kept[0].tried(PrecisionPlan.from_key(plan))


class _PlanWorker:
    """A ``TrialSpec``, identified by ``key``, and its builder in a ``process`` of its own."""

    def __init__(self, key: str, spec: TrialSpec) -> None:
        """Starts the builder; raises EngineUnavailable if its figures would differ, or it does not start."""
        self.key = key
        self._inputs = spec.inputs
        self._scratch = ScratchFolder()
        self._timing_cache, self._timings = self._scratch.path / "timing.cache", spec.timings
        options = replace(spec.options, timing_cache=self._timing_cache)
        self.process = WorkerProcess()
        self._builder = IsolatedBuilder(partial(spec.make, options), options.timeout, self.process)
        _refuse_others(spec.facts, {**versions(), **self._builder.versions})

    def tried(self, plan: PrecisionPlan) -> tuple[Attempt, bytes]:
        """Returns the attempt at a plan, and the timing cache if the build has added to it."""
        with self._scratch:  # closed between plans: Ray ends its processes without asking them
            self._timing_cache.write_bytes(self._timings)
            result = attempt(plan, self._builder, self._inputs)
            before, self._timings = self._timings, self._timing_cache.read_bytes()
        return result, b"" if self._timings == before else self._timings


_kept: list[_PlanWorker] = []
"""The plan worker of this process, once there is one."""


def _refuse_others(facts: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Raises EngineUnavailable if the versions and the device of this node, ``own``, are not those of ``facts``."""
    differing = [f"{name} {own.get(name)} instead of {fact}" for name, fact in facts.items() if own.get(name) != fact]
    if differing:
        raise EngineUnavailable(", ".join(differing))


_scratch = ScratchFolder()
"""The folder of this process's run."""
_shown: dict[str, bytes] = {}
"""What was last told of the files that show how far the run is."""


def done(content: Any, files: Mapping[str, bytes]) -> tuple[Report | TrtBisectError, Mapping[str, bytes]]:
    """Does the run in ``content``, a ``commands.regress.remote.RunElsewhere``, in a folder that holds ``files``.

    Returns:
        The report, or the run's error, and the contents of its folder's files by relative path.
    """
    run = pickle.loads(ray.get(content))
    _refuse_others(run.facts, versions())
    with _scratch as folder:
        for name, file in files.items():
            (folder / name).write_bytes(file)
        try:
            report: Report = run(folder)
            result: Report | TrtBisectError = report.changed(files=None, graph=None)  # which are among the contents
        except EngineUnavailable:
            raise
        except TrtBisectError as error:
            result = error
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return result, {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def written(start: int) -> tuple[bytes, Mapping[str, bytes]]:
    """Returns what the run has written for others, after a second.

    Returns:
        The whole lines of its journal from byte ``start`` on; and its progress and its report so far, if they have
        changed.
    """
    sleep(_SECONDS)
    lines = b""
    with suppress(OSError), (_scratch.path / JOURNAL).open("rb") as journal:
        journal.seek(start)
        lines = complete_lines(journal.read())
    shown = {}
    for name in (PROGRESS, SO_FAR):
        with suppress(OSError):
            shown[name] = (_scratch.path / name).read_bytes()
    shown = {name: content for name, content in shown.items() if _shown.get(name) != content}
    _shown.update(shown)
    return lines, shown
