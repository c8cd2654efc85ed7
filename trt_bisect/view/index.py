"""The runs and saved results under one folder, their state, and the page that lists them."""

from __future__ import annotations

import gzip
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from markupsafe import Markup

from trt_bisect._version import __version__
from trt_bisect.analyzer.judge import DEFAULT_SHARE
from trt_bisect.analyzer.metrics import DEFAULT_THRESHOLDS, figure_text
from trt_bisect.errors import BadInput
from trt_bisect.history.queries import heights
from trt_bisect.precision import Precision
from trt_bisect.recipe.files import FOLDER, PLAN
from trt_bisect.report.choices import ships_fp16
from trt_bisect.report.comparison import Comparison, Profile
from trt_bisect.report.explanation import EXPLANATION, PICTURES, Explanation, Pictures
from trt_bisect.report.html import asset, environment, icon
from trt_bisect.report.losses import Sensitivity, WorstReport
from trt_bisect.report.model import Report, read_report
from trt_bisect.report.network_graph import NETWORK, Graph
from trt_bisect.report.page import PageData, page_data, recipe_texts, render_page
from trt_bisect.report.parts import REPORT, SO_FAR, TONES, UNMEASURED, spoken, with_low
from trt_bisect.report.result import Result, TablePage
from trt_bisect.report.structure import CheckReport
from trt_bisect.report.words import means
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED, PROGRESS, RUNNING, is_running
from trt_bisect.support.codec import encode, read
from trt_bisect.support.text import counted, duration

Value = TypeVar("Value")
LIVE = "data.json"  # the address of a page's data, relative to the page
BETWEEN = 1.0  # seconds
SHARE = 0.01  # of one core
_SHOWN = ("stage", "done", "total", "seconds", "what")


class Throttled(Generic[Value]):
    """A value shared by all callers, computed at most once a second and in at most 1 % of one core."""

    def __init__(self, find: Callable[[], Value], clock: Callable[[], float] = time.monotonic) -> None:
        self._find, self._clock = find, clock
        self._value: Value | None = None
        self._until = float("-inf")

    def __call__(self) -> Value:
        """Returns the value, computed anew if it is too old. If this raises an error, the next call tries again."""
        if self._value is None or self._clock() >= self._until:
            began = time.process_time()
            self._value = self._find()
            self._until = self._clock() + max(BETWEEN, (time.process_time() - began) / SHARE)
        return self._value


class Replaced(Generic[Value]):
    """A file that its writer replaces as a whole; parsed again after each replacement.

    Attributes:
        stamp: modification time in nanoseconds, size in bytes and inode; zeros without a file.
    """

    def __init__(self, path: Path, parse: Callable[[Path], Value | None]) -> None:
        self._path, self._parse = path, parse
        self._value: Value | None = None
        self.stamp = (0, 0, 0)

    def value(self) -> Value | None:
        """Returns the parsed content of the current file, None if it cannot be read."""
        try:
            stat = self._path.stat()
            stamp = stat.st_mtime_ns, stat.st_size, stat.st_ino
        except OSError:
            stamp = (0, 0, 0)
        if stamp != self.stamp:
            self._value, self.stamp = self._parse(self._path) if any(stamp) else None, stamp
        return self._value

    @property
    def when(self) -> float:
        """The file's modification time in seconds since the epoch; 0 without a file."""
        return self.stamp[0] / 1e9


class Gone(Exception):
    """The folder has no run, or no longer has one."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one moment.

    Attributes:
        report: report so far, or the finished one; without layers while the first run in a folder still prepares.
        status: ``running``, ``finished`` or ``interrupted``.
        progress: content of ``progress.json``; None if the run is not running.
        when: start of the run, in seconds since the epoch.
        whole: true if the report is finished.
    """

    report: Report
    status: str
    progress: Mapping[str, Any] | None
    when: float
    whole: bool


def etag_of(body: bytes) -> str:
    """Returns the tag by which a browser knows that an answer is the same."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


class State:
    """The data of a run's page until its next change; ``body`` is its JSON, ``zipped`` the same with gzip."""

    def __init__(self, data: PageData) -> None:
        self.data, self.body = data, encode(data)
        self.zipped, self.etag = gzip.compress(self.body, 1, mtime=0), etag_of(self.body)

    @cached_property
    def page(self) -> str:
        """The page as HTML."""
        return render_page(self.data, LIVE)


class RunFolder:
    """A run folder, whose changed files are read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._so_far = Replaced(path / SO_FAR, read_report)
        self._report = Replaced(path / REPORT, read_report)
        self._progress = Replaced(path / PROGRESS, partial(read, dict))
        kinds = {NETWORK: Graph, EXPLANATION: Explanation, PICTURES: Pictures, f"{FOLDER}/{PLAN}": dict}
        self._others = [Replaced[Any](path / name, partial(read, kind)) for name, kind in kinds.items()]
        self._made_of: tuple[object, ...] = ()
        self._state: State | None = None

    def snapshot(self) -> Snapshot:
        """Returns the run's current state; raises Gone if no file of a run can be read."""
        so_far, report, running = self._so_far.value(), self._report.value(), self._progress.value()
        if running is not None and not (
            {*_SHOWN, "began"} <= set(running)
            and isinstance(running["began"], (int, float))
            and is_running(running, time.time() - self._progress.when)
        ):
            running = None
        if so_far is not None and report is not None and so_far.started == report.started:
            so_far = None
        shown = so_far or report
        if shown is None and running is None:
            raise Gone(self.path)
        progress = None if running is None else {name: running.get(name) for name in (*_SHOWN, "left")}
        whole = shown is not None and shown is not so_far
        status = shown.state if shown is not None and whole else INTERRUPTED
        if running is not None:
            status = RUNNING
        when = max(shown.started if shown is not None else 0.0, running["began"] if running is not None else 0.0)
        if shown is None:
            limits = DEFAULT_THRESHOLDS["cosine"], DEFAULT_SHARE
            versions = {"trt_bisect": __version__}
            shown = Report(self.path.name, "", "", "", "", "cosine", *limits, "fp32", versions, "")
        return Snapshot(shown, status, progress, when, whole)

    def state(self) -> State:
        """Returns the page's data, the same object if nothing changed; raises Gone if no file of a run can be read."""
        snapshot = self.snapshot()
        graph, explanation, pictures, plan = (file.value() for file in self._others)
        layers = (plan or {}).get("layers")
        names: dict[str, str] = layers if isinstance(layers, dict) else {}
        stamps = [file.stamp for file in (self._so_far, self._report, *self._others)]
        made_of = (*stamps, snapshot.status, snapshot.progress)
        if self._state is None or made_of != self._made_of:
            rows = {row.name: row.recipe for row in snapshot.report.layers}
            is_named = snapshot.report.answer is not None and names.items() <= rows.items()
            data = page_data(
                snapshot.report,
                graph,
                explanation if snapshot.whole else None,
                recipe_texts(self.path / FOLDER) if snapshot.whole or (names and is_named) else None,
                status=snapshot.status,
                progress=snapshot.progress,
                folder=str(self.path),
                pictures=pictures if snapshot.whole else None,
            )
            self._state, self._made_of = State(data), made_of
        return self._state


# the kinds of results that have a page of tables
RESULTS: tuple[type[Result], ...] = (Comparison, Sensitivity, WorstReport, Profile, CheckReport)
_WIDTH, _HEIGHT, _MARGIN = 96, 22, 4
DEEPEST = 3  # levels below the listed folder
_MOST_FOLDERS = 5000


@dataclass(frozen=True)
class Row:
    """A row of the list: a run, or the saved result of another command, which has no figures of a plan.

    Attributes:
        name: path of the run folder or of the result's page, below the listed folder.
        address: address of the page, relative to the list.
        command: empty if not known yet.
        when: start of the run, or the time of the result's file, in seconds since the epoch; 0 if unknown.
        seconds: duration of a finished run.
        values: figures by plan, ``int8`` and ``recipe``.
        culprits: None for a command that names no culprits.
        history: full INT8's figures in all runs of the same model, metric and low precision, the oldest first, up to
            this run.
    """

    name: str
    address: str
    command: str
    model_path: str
    when: float
    verdict: str
    status: str = FINISHED
    tone: str = ""
    seconds: float | None = None
    values: Mapping[str, float | None] = field(default_factory=dict)
    culprits: tuple[str, ...] | None = None
    engine: str = ""
    metric: str = ""
    low: str = str(Precision.INT8)
    history: tuple[float, ...] = ()

    @property
    def model(self) -> str:
        """The name of the network's file."""
        return Path(self.model_path).name

    @property
    def began(self) -> str:
        """The start in UTC, in ISO 8601; empty if unknown."""
        try:
            return datetime.fromtimestamp(self.when, timezone.utc).isoformat(timespec="seconds") if self.when else ""
        except (OSError, OverflowError, ValueError):
            return ""

    @property
    def took(self) -> str:
        """The duration as text; empty if unknown."""
        return "" if self.seconds is None else duration(self.seconds)

    def value(self, plan: str) -> str:
        """Returns the figure of ``int8`` or ``recipe`` as text to sort by; else empty."""
        value = self.values.get(plan)
        return "" if value is None else repr(value)

    def figure(self, plan: str) -> str:
        """Returns the figure of ``int8`` or ``recipe`` with its unit; else empty."""
        value = self.values.get(plan)
        text = "" if value is None else figure_text(self.metric, value)
        return with_low(text, self.low) if text and plan == "int8" else text

    @property
    def points(self) -> list[tuple[float, float]]:
        """``history`` as points of a sparkline, 96 by 22, y downwards; equal values are in the middle."""
        step = (_WIDTH - 2 * _MARGIN) / max(len(self.history) - 1, 1)
        return [
            (round(_MARGIN + k * step, 1), round(_MARGIN + (1 - height) * (_HEIGHT - 2 * _MARGIN), 1))
            for k, height in enumerate(heights(self.history))
        ]


def _row(name: str, snapshot: Snapshot, history: tuple[float, ...]) -> Row:
    report, finished = snapshot.report, snapshot.status == FINISHED
    return Row(
        name,
        f"run/{quote(name)}/",
        "run" if report.strategy else "",
        report.model,
        snapshot.when,
        verdict=_verdict(snapshot),
        status=snapshot.status,
        tone=TONES[report.verdict] if finished else "",
        seconds=report.seconds.total if finished else None,
        values=dict(report.similarity.items()),
        culprits=report.culprits if report.strategy else None,
        engine=f"{report.engine} ({report.arithmetic})" if report.engine else "",
        metric=report.metric,
        low=report.low,
        history=history,
    )


def _verdict(snapshot: Snapshot) -> str:
    report, progress = snapshot.report, snapshot.progress or {}
    if snapshot.status == RUNNING:
        count = "" if progress.get("total") is None else f", {progress['done']} of {progress['total']}"
        remaining = "" if progress.get("left") is None else f", about {duration(progress['left'])} left"
        return f"{progress.get('stage') or 'starting'}{count}{remaining}"
    if snapshot.status != FINISHED:
        return f"interrupted after {counted(report.plans, 'plan')}"
    if ships_fp16(report):
        return f"{spoken(report.verdict)}; ship FP16"
    if report.verdict == UNMEASURED or not report.has_recipe:
        return spoken(report.verdict)
    if not report.recipe.meets:
        return f"{report.verdict}, and so does the recipe"
    return f"{spoken(report.verdict)}; with {means(report)} it meets the threshold"


def _page_in(kind: type[Result], file: Path) -> TablePage | None:
    try:
        return kind.load(file.parent).page()
    except BadInput:
        return None


def is_run_folder(folder: Path) -> bool:
    """Returns true if ``run`` has written into the folder."""
    return any((folder / name).is_file() for name in (REPORT, SO_FAR, PROGRESS))


class Runs:
    """The run folders and results under ``folder``, without links, hidden folders and names that are not UTF-8."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, RunFolder] = {}
        self._results: dict[str, Replaced[TablePage]] = {}
        self._search = Throttled(self._find)

    def named(self, name: str) -> RunFolder | None:
        """Returns the run in a folder by its relative path, None without one."""
        return self._search().get(name)

    def result(self, path: str) -> TablePage | None:
        """Returns the page of a result by its path below the folder, None without one."""
        self._search()
        return self._results[path].value() if path in self._results else None

    def rows(self) -> list[Row]:
        """Returns the runs and the results, the latest first."""
        snapshots: list[tuple[str, Snapshot]] = []
        for name, run in self._search().items():
            with suppress(Gone):
                snapshots.append((name, run.snapshot()))
        snapshots.sort(key=lambda named: named[1].when)
        histories: dict[tuple[str, str, str], list[float]] = {}
        rows = [
            Row(path, f"result/{quote(path)}", page.command, page.model, file.when, page.headline)
            for path, file in self._results.items()
            if (page := file.value()) is not None
        ]
        for name, snapshot in snapshots:
            report = snapshot.report
            history = histories.setdefault((report.model, report.metric, report.low), [])
            if report.similarity.int8 is not None:
                history.append(report.similarity.int8)
            rows.append(_row(name, snapshot, tuple(history)))
        return sorted(rows, key=lambda row: row.when, reverse=True)

    def _find(self) -> dict[str, RunFolder]:
        names, results = list(folders_under(self.folder)), {}
        for name in ("", *names):
            for kind in RESULTS:
                file, path = self.folder / name / f"{kind.COMMAND}.json", f"{name}/{kind.COMMAND}.html".lstrip("/")
                if file.is_file() and not file.is_symlink():
                    results[path] = self._results.get(path) or Replaced(file, partial(_page_in, kind))
        self._results = results
        run_folders = sorted(name for name in names if is_run_folder(self.folder / name))
        self._runs = {name: self._runs.get(name) or RunFolder(self.folder / name) for name in run_folders}
        return self._runs


def folders_under(folder: Path) -> Iterator[str]:
    """Yields the relative paths of at most 5000 folders, up to three levels below ``folder``, level by level."""
    level, seen = [""], 0
    for _ in range(DEEPEST):
        level = [f"{above}/{name}".lstrip("/") for above in level for name in _folders_in(folder / above)]
        yield from level[: _MOST_FOLDERS - seen]
        seen += len(level)
        if seen >= _MOST_FOLDERS:
            return


def _folders_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [name for name in names if not name.startswith(".") and name == os.fsencode(name).decode(errors="replace")]


_PACKAGE = "trt_bisect.view"


def render_index(runs: Runs, nonce: str) -> str:
    """Returns the HTML page that lists the runs; ``nonce`` permits its style and script in the browser."""
    template = environment(_PACKAGE).get_template("index.html.j2")
    title, style, script = runs.folder.resolve().name, Markup(asset("page.css")), Markup(asset("index.js"))
    return template.render(icon=icon(), title=title, entries=runs.rows(), nonce=nonce, style=style, script=script)


def render_rows(runs: Runs) -> str:
    """Returns the rows of the table of runs as HTML."""
    return environment(_PACKAGE).get_template("rows.html.j2").render(entries=runs.rows())
