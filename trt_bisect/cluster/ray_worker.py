"""A worker process of Ray, on one of the nodes: it tries plans, or does a whole run in a folder of its own."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import ray

from trt_bisect._version import versions
from trt_bisect.builder.isolation import WorkerProcess
from trt_bisect.evaluator.workers import Attempt, TrialSpec, attempt, refuse_others
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.model import SO_FAR, Report
from trt_bisect.runs.journal import JOURNAL, complete_lines
from trt_bisect.runs.progress_file import PROGRESS
from trt_bisect.support.files import ScratchFolder

_SECONDS = 1.0
"""Seconds between two messages on a run's journal."""


def try_plan(content: Any, plan: str) -> tuple[str, Attempt, bytes]:
    """Tries the plan with this key, for the ``TrialSpec`` in ``content``.

    Returns:
        The worker's name, which no other of the cluster has, the attempt, and the bytes of the timing cache if that has
        grown, else none.
    """
    key = content.hex()
    if key not in _kept:
        while _kept:
            _kept.popitem()[1].process.stop()
        _kept[key] = _PlanWorker(pickle.loads(ray.get(content)))
    name = f"{ray.get_runtime_context().get_node_id()}-{os.getpid()}"
    return name, *_kept[key].tried(PrecisionPlan.from_key(plan))


class _PlanWorker:
    """A ``TrialSpec``, and its builder in a ``process`` of its own."""

    def __init__(self, spec: TrialSpec) -> None:
        self._inputs = spec.inputs
        self._scratch = ScratchFolder()
        self._timing_cache, self._timings = self._scratch.path / "timing.cache", spec.timings
        self.process = WorkerProcess()
        options = replace(spec.options, timing_cache=self._timing_cache)
        self._builder = replace(spec, options=options).started(self.process)

    def tried(self, plan: PrecisionPlan) -> tuple[Attempt, bytes]:
        """Returns the attempt at a plan, and the timing cache if the build has added to it."""
        with self._scratch:  # closed between plans: Ray ends its processes without asking them
            self._timing_cache.write_bytes(self._timings)
            result = attempt(plan, self._builder, self._inputs)
            before, self._timings = self._timings, self._timing_cache.read_bytes()
        return result, b"" if self._timings == before else self._timings


_kept: dict[str, _PlanWorker] = {}
"""The plan worker of this process, once there is one, by the content that it works on."""


def do_run(content: Any, files: Mapping[str, bytes], queue: Any, key: tuple[str, int]) -> Any:
    """Does the run in ``content``, a ``commands.regress.remote.RunElsewhere``.

    Args:
        content: see above.
        files: what its folder has already: the journal so far, and the ranges and inputs that were found before.
        queue: takes what the run writes meanwhile.
        key: identifies the run there.

    Returns:
        The report, and the contents of its folder's files by relative path.
    """
    run = pickle.loads(ray.get(content))
    refuse_others(run.facts, versions())
    with ScratchFolder() as folder:
        for name, file in files.items():
            (folder / name).write_bytes(file)
        over = Event()
        sender = Thread(target=_send, args=(folder, queue, key, over), name="trt-bisect sender", daemon=True)
        sender.start()
        try:
            report: Report = run(folder)
        finally:
            over.set()
            sender.join()
        contents = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        return report.changed(files=None, graph=None), contents  # which are among the contents


def _send(folder: Path, queue: Any, key: tuple[str, int], over: Event) -> None:
    """Puts what a run writes into a queue, once a second and at the end.

    That is the new lines of its journal, and its progress and its report so far if they have changed.
    """
    sent, before, is_over = (folder / JOURNAL).stat().st_size, dict[str, bytes](), False
    while not is_over:
        is_over = over.wait(_SECONDS)
        with (folder / JOURNAL).open("rb") as journal:
            journal.seek(sent)
            lines = complete_lines(journal.read())
        shown = {}
        for name in (PROGRESS, SO_FAR):
            with suppress(OSError):
                shown[name] = (folder / name).read_bytes()
        changed = {name: content for name, content in shown.items() if before.get(name) != content}
        queue.put((key, lines, changed))
        sent, before = sent + len(lines), shown
