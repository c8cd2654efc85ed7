"""A run folder as ``view`` reads it: the report of its run, also of one under way, and the data of its page."""

from __future__ import annotations

import gzip
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from trt_bisect._version import __version__
from trt_bisect.analyzer.judge import DEFAULT_SHARE
from trt_bisect.analyzer.metrics import DEFAULT_THRESHOLDS
from trt_bisect.recipe.files import FOLDER, PLAN
from trt_bisect.report.explanation import EXPLANATION, Explanation
from trt_bisect.report.model import REPORT, SO_FAR, Report
from trt_bisect.report.network_graph import NETWORK, Graph
from trt_bisect.report.older import read_report
from trt_bisect.report.page.data import PageData, page_data, recipe_texts
from trt_bisect.report.page.render import render_page
from trt_bisect.report.pictures import PICTURES, Pictures
from trt_bisect.runs.progress_file import INTERRUPTED, PROGRESS, RUNNING, is_running
from trt_bisect.support.codec import encode, read

Value = TypeVar("Value")
LIVE = "data.json"
"""The address of a page's data, relative to the page."""
BETWEEN = 1.0
"""The least time between two computations of what viewers share, in seconds."""
SHARE = 0.01
"""The largest fraction of one core that the computations take."""
_SHOWN = ("stage", "done", "total", "seconds", "what")


class Throttled(Generic[Value]):
    """A value shared by all callers, computed again after 1 s or 100 times its own CPU time, whichever is longer.

    Args:
        find: computes the value.
        clock: returns the time in seconds.
    """

    def __init__(self, find: Callable[[], Value], clock: Callable[[], float] = time.monotonic) -> None:
        self._find, self._clock = find, clock
        self._value: Value | None = None
        self._until = float("-inf")

    def __call__(self) -> Value:
        """Returns the value; an error of ``find`` is raised and not kept."""
        if self._value is None or self._clock() >= self._until:
            began = time.process_time()
            self._value = self._find()
            self._until = self._clock() + max(BETWEEN, (time.process_time() - began) / SHARE)
        return self._value


class Replaced(Generic[Value]):
    """A file that its writer replaces as a whole, and that is read again after each replacement.

    Attributes:
        stamp: its time in nanoseconds, size in bytes and inode, which change with it; zeros without a file.
    """

    def __init__(self, path: Path, parse: Callable[[Path], Value | None]) -> None:
        self._path, self._parse = path, parse
        self._value: Value | None = None
        self.stamp = (0, 0, 0)

    def value(self) -> Value | None:
        """Returns ``parse`` of the current file, None if it cannot be read."""
        try:
            found = self._path.stat()
            stamp = found.st_mtime_ns, found.st_size, found.st_ino
        except OSError:
            stamp = (0, 0, 0)
        if stamp != self.stamp:
            self._value, self.stamp = self._parse(self._path) if any(stamp) else None, stamp
        return self._value

    @property
    def when(self) -> float:
        """The time of the file, in seconds since the epoch; 0 without a file."""
        return self.stamp[0] / 1e9


class Gone(Exception):
    """The folder has no run, or no longer has one."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one moment.

    Attributes:
        report: the report so far of a run that has not ended, else the finished report;
            without layers while the first run in a folder still prepares.
        status: ``finished``, ``running`` or ``interrupted``.
        progress: the progress of a running run: ``stage``, ``done``, ``total``, ``seconds``, ``what``; ``left`` for
            the seconds left of the whole run, None if they are not known.
        when: the start of the run, in seconds since the epoch; the end for an old folder.
        whole: true for a finished report, with its explanation in the folder.
    """

    report: Report
    status: str
    progress: Mapping[str, Any] | None
    when: float
    whole: bool


@dataclass(frozen=True)
class State:
    """The data of a page between two changes.

    Attributes:
        data: the value of ``page_data``.
        body: ``data`` as JSON.
        zipped: ``body``, compressed by gzip.
        etag: a digest of ``body``.
    """

    data: PageData
    body: bytes
    zipped: bytes
    etag: str

    @cached_property
    def page(self) -> str:
        """The page with this state, as HTML."""
        return render_page(self.data, LIVE)


class RunFolder:
    """A run folder that is read repeatedly; a file is read, and the page's data made again, only if it changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._so_far = Replaced(path / SO_FAR, read_report)
        self._report = Replaced(path / REPORT, read_report)
        self._progress = Replaced(path / PROGRESS, partial(read, dict))
        self._graph = Replaced(path / NETWORK, partial(read, Graph))
        self._explanation = Replaced(path / EXPLANATION, partial(read, Explanation))
        self._pictures = Replaced(path / PICTURES, partial(read, Pictures))
        self._plan = Replaced(path / FOLDER / PLAN, partial(read, dict))
        self._made_of: tuple[object, ...] = ()
        self._state: State | None = None

    def snapshot(self) -> Snapshot:
        """Returns the current state. A run removes its report so far when it has saved the finished one.

        Raises:
            Gone: no file of a run can be read.
        """
        so_far, report, running = self._so_far.value(), self._report.value(), self._running()
        if so_far is not None and report is not None and so_far.started == report.started:
            so_far = None
        found = so_far or report
        if found is None and running is None:
            raise Gone(self.path)
        progress = (
            None if running is None else {**{name: running[name] for name in _SHOWN}, "left": running.get("left")}
        )
        whole = found is not None and found is not so_far
        status = RUNNING if running is not None else found.state if found is not None and whole else INTERRUPTED
        when = max(found.started if found is not None else 0.0, running["began"] if running is not None else 0.0)
        return Snapshot(found or _unread(self.path.name), status, progress, when or self._report.when, whole)

    def state(self) -> State:
        """Returns the data of the page; the same object as before if nothing changed.

        Raises:
            Gone: as for ``snapshot``.
        """
        found = self.snapshot()
        graph, explanation, pictures = self._graph.value(), self._explanation.value(), self._pictures.value()
        layers = (self._plan.value() or {}).get("layers")
        names: dict[str, str] = layers if isinstance(layers, dict) else {}
        files = (self._so_far, self._report, self._graph, self._explanation, self._pictures, self._plan)
        made_of = (*(file.stamp for file in files), found.status, found.progress)
        if self._state is None or made_of != self._made_of:
            rows = {row.name: row.recipe for row in found.report.layers}
            is_named = found.report.answer is not None and names.items() <= rows.items()
            data = page_data(
                found.report,
                graph,
                explanation if found.whole else None,
                recipe_texts(self.path / FOLDER) if found.whole or (names and is_named) else None,
                status=found.status,
                progress=found.progress,
                folder=str(self.path),
                pictures=pictures if found.whole else None,
            )
            body = encode(data)
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            self._state, self._made_of = State(data, body, gzip.compress(body, 1, mtime=0), etag), made_of
        return self._state

    def _running(self) -> dict[str, Any] | None:
        """Returns the progress file of a running run, None if no run is running."""
        record = self._progress.value()
        if record is None or not {*_SHOWN, "began"} <= set(record) or not isinstance(record["began"], (int, float)):
            return None
        return record if is_running(record, time.time() - self._progress.when) else None


def _unread(model: str) -> Report:
    """Returns the report of a run that has nothing but the name of its folder."""
    limits = DEFAULT_THRESHOLDS["cosine"], DEFAULT_SHARE
    return Report(model, "", "", "", "", "cosine", *limits, "fp32", {"trt_bisect": __version__}, "")
