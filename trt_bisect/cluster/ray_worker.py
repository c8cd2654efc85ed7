"""A worker process of Ray, on one of the nodes: it tries plans, or does a whole run in a folder of its own."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import ray

from trt_bisect._version import versions
from trt_bisect.builder.isolation import IsolatedBuilder, WorkerProcess
from trt_bisect.errors import EngineUnavailable
from trt_bisect.evaluator.workers import Attempt, TrialSpec, attempt
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.model import SO_FAR, Report
from trt_bisect.runs.journal import JOURNAL
from trt_bisect.runs.progress_file import PROGRESS
from trt_bisect.support.files import ScratchFolder

_SECONDS = 1.0
"""Seconds between two messages on a run's journal."""


def done(node: str, content: Any, mailbox: list[Any], subject: Any) -> tuple[str, str, Any]:
    """Tries a plan or does a run.

    Args:
        node: this node.
        content: the reference to what is worked on, pickled.
        mailbox: for a run the actor that keeps its files, else empty.
        subject: the plan's key, or the run's ticket.

    Returns:
        The node, the reason why it cannot be used, which is empty if it can, and the result.
    """
    try:
        return node, "", _do_run(content, mailbox[0], subject) if mailbox else _try_plan(node, content, subject)
    except EngineUnavailable as error:
        return node, error.problem, None


def _try_plan(node: str, content: Any, plan: str) -> tuple[str, Attempt, bytes]:
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


def _do_run(content: Any, mailbox: Any, ticket: int) -> tuple[Report, Mapping[str, bytes]]:
    """Does the run in ``content``, a ``commands.regress.remote.RunElsewhere``.

    Args:
        content: see above.
        mailbox: the actor that has the files of the run's folder: the journal so far, and the ranges and inputs that
            were found before.
        ticket: identifies the run there.

    Returns:
        The report, and the contents of its folder's files by relative path.
    """
    run = pickle.loads(ray.get(content))
    _refuse_others(run.facts, versions())
    with ScratchFolder() as folder:
        for name, file in ray.get(mailbox.read.remote(ticket)).items():
            (folder / name).write_bytes(file)
        with _sending(folder, mailbox, ticket):
            report: Report = run(folder)
        files = [file for file in folder.rglob("*") if file.is_file()]
        contents = {str(file.relative_to(folder)): file.read_bytes() for file in files}
        return report.changed(files=None, graph=None), contents  # which are among the contents


@contextmanager
def _sending(folder: Path, mailbox: Any, ticket: int) -> Iterator[None]:
    """Sends what a run writes for others, once a second and at the end, from another thread.

    That is the new lines of its journal, its progress and, if it is another one, its report so far.
    """
    sent, so_far = (folder / JOURNAL).stat().st_size, b""
    over = Event()

    def send_new() -> None:
        nonlocal sent, so_far
        with (folder / JOURNAL).open("rb") as file:
            file.seek(sent)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        sent += len(lines)
        shown = {}
        for name in (PROGRESS, SO_FAR):
            with suppress(OSError):
                shown[name] = (folder / name).read_bytes()
        if shown.get(SO_FAR) == so_far:
            del shown[SO_FAR]
        so_far = shown.get(SO_FAR, so_far)
        ray.get(mailbox.write.remote(ticket, JOURNAL, lines, shown))

    def watch() -> None:
        while not over.wait(_SECONDS):
            send_new()

    thread = Thread(target=watch, name="trt-bisect sender", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        send_new()
