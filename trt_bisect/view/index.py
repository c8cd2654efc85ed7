"""The run folders under one folder, and the page that lists them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trt_bisect.history.trends import heights
from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.model import RECOVER, REPORT, SO_FAR
from trt_bisect.report.page.render import asset, icon
from trt_bisect.report.recovery import ACCURACY, RECOVERY
from trt_bisect.report.verdict import TONES, UNMEASURED
from trt_bisect.runs.progress_file import FINISHED, PROGRESS, RUNNING
from trt_bisect.view.live_state import LiveRun
from trt_bisect.view.result_pages import ResultPage, pages_in, time_text
from trt_bisect.view.snapshot import Gone, Snapshot
from trt_bisect.view.throttle import Throttled

_COLUMNS = (
    ("Folder", ""),
    ("Network", ""),
    ("Command", ""),
    ("Began", "number"),
    ("Took", "number"),
    ("Status", ""),
    ("Verdict", ""),
    ("INT8", "number"),
    ("Recipe", "number"),
    ("Culprits", "number"),
    ("Engine", ""),
    ("History", ""),
)
"""The titles of the columns, each with the CSS class of its cells."""
_WIDTH, _HEIGHT, _MARGIN = 96, 22, 4
_DEEPEST = 3
"""Run folders are looked for so many levels below the folder that is listed,"""
_MOST_FOLDERS = 5000
"""and in so many folders at most."""


class Listed(Protocol):
    """A row of the list: a run, or the result of another command."""

    @property
    def when(self) -> float:
        """The time that rows are sorted by, in seconds since the epoch."""


@dataclass(frozen=True)
class Entry:
    """One run in the list.

    Attributes:
        name: the name of its folder, relative to the folder that is listed.
        history: the figures of full INT8 in the runs of the same model and metric, the oldest first, up to this run.
    """

    name: str
    snapshot: Snapshot
    history: tuple[float, ...]

    @property
    def address(self) -> str:
        """The address of its page, relative to the list."""
        return f"run/{quote(self.name)}/{'#best' if self.command == RECOVER else ''}"

    @property
    def command(self) -> str:
        """The command that made it: ``run`` or ``recover``; empty if not known yet."""
        strategy = self.snapshot.report.strategy
        return RECOVER if strategy == RECOVER else "run" if strategy else ""

    @property
    def model_path(self) -> str:
        """The network's file as it was given."""
        return self.snapshot.report.model

    @property
    def model(self) -> str:
        """The name of the network's file."""
        return Path(self.model_path).name

    @property
    def when(self) -> float:
        """The start, in seconds since the epoch; 0 if not known."""
        return self.snapshot.when

    @property
    def status(self) -> str:
        """``finished``, ``running`` or ``interrupted``."""
        return self.snapshot.status

    @property
    def metric(self) -> str:
        """The metric that decides."""
        return self.snapshot.report.metric

    @property
    def culprits(self) -> tuple[str, ...] | None:
        """The names of the culprits; None for a command that names none."""
        return self.snapshot.report.culprits if self.command == "run" else None

    @property
    def began(self) -> str:
        """The start as ``time_text`` writes it."""
        return time_text(self.when)

    @property
    def seconds(self) -> float | None:
        """The time that a finished run took; None if not known."""
        return self.snapshot.report.seconds.total if self.snapshot.status == FINISHED else None

    @property
    def took(self) -> str:
        """The same as text."""
        seconds = self.seconds
        if seconds is None:
            return ""
        return (
            f"{seconds:.1f} s"
            if seconds < 90
            else f"{seconds / 60:.0f} min"
            if seconds < 5400
            else f"{seconds / 3600:.1f} h"
        )

    @property
    def verdict(self) -> str:
        """The verdict as a phrase."""
        snapshot, report = self.snapshot, self.snapshot.report
        if snapshot.status == RUNNING:
            return _stage(snapshot)
        if snapshot.status != FINISHED:
            return f"interrupted after {report.plans} plans"
        high, goal = len(report.recipe.high), "target" if self.command == RECOVER else "threshold"
        if report.verdict == UNMEASURED or not high:
            return report.verdict
        if not report.recipe.meets:
            return f"{report.verdict}, and so does the recipe"
        return f"{report.verdict}; {'1 layer high meets' if high == 1 else f'{high} layers high meet'} the {goal}"

    @property
    def tone(self) -> str:
        """The colour of the verdict, a CSS class: good, doubted, bad, or empty without a verdict."""
        return TONES[self.snapshot.report.verdict] if self.snapshot.status == FINISHED else ""

    @property
    def engine(self) -> str:
        """The engine and its arithmetic; empty if not known."""
        report = self.snapshot.report
        return f"{report.engine} ({report.arithmetic})" if report.engine else ""

    def value(self, plan: str) -> str:
        """Returns the metric of ``int8`` or ``recipe`` for sorting; empty if there is none."""
        value = getattr(self.snapshot.report.similarity, plan)
        return "" if value is None else repr(value)

    def figure(self, plan: str) -> str:
        """Returns the same with its unit, for the table."""
        report = self.snapshot.report
        value = getattr(report.similarity, plan)
        if value is None:
            return ""
        return f"{100 * value:.4f}%" if report.metric == ACCURACY else figure_text(report.metric, value)

    @property
    def points(self) -> list[tuple[float, float]]:
        """The history as points of a sparkline, from left to right, larger figures higher."""
        return sparkline(self.history)


def _stage(snapshot: Snapshot) -> str:
    progress = snapshot.progress or {}
    count = "" if progress.get("total") is None else f", {progress['done']} of {progress['total']}"
    return f"{progress.get('stage') or 'starting'}{count}"


def sparkline(values: Sequence[float]) -> list[tuple[float, float]]:
    """Returns points in a box of 96 by 22, y downwards; a single value and equal values are in the middle."""
    step = (_WIDTH - 2 * _MARGIN) / max(len(values) - 1, 1)
    return [
        (round(_MARGIN + place * step, 1), round(_MARGIN + (1 - height) * (_HEIGHT - 2 * _MARGIN), 1))
        for place, height in enumerate(heights(values))
    ]


def is_run_folder(folder: Path) -> bool:
    """Returns true if ``run`` or ``recover`` has written into the folder."""
    return any((folder / name).is_file() for name in (REPORT, SO_FAR, PROGRESS, RECOVERY))


class Runs:
    """The run folders under ``folder``, without links, hidden folders and names that are not valid text.

    The pages of results, such as ``compare.html``, are found there too, and in ``folder`` itself.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, LiveRun] = {}
        self._results: dict[str, ResultPage] = {}
        self._search = Throttled(self._find)

    def named(self, name: str) -> LiveRun | None:
        """Returns the run in the folder ``name``, None if there is none."""
        return self._search().get(name)

    def result(self, path: str) -> ResultPage | None:
        """Returns the page of a result by its path below the folder, None if there is none."""
        self._search()
        return self._results.get(path)

    def entries(self) -> list[Listed]:
        """Returns the runs and the results, the latest first; a ``recover`` in the folder of a ``run`` is one too."""
        snapshots: list[tuple[str, Snapshot]] = []
        for name, run in self._search().items():
            try:
                found = (run.folder.snapshot(), run.folder.recovered())
            except Gone:
                continue
            snapshots += [(name, snapshot) for snapshot in found if snapshot is not None]
        snapshots.sort(key=lambda found: found[1].when)
        histories: dict[tuple[str, str, bool], list[float]] = {}
        entries: list[Listed] = [entry for page in self._results.values() if (entry := page.entry()) is not None]
        for name, snapshot in snapshots:
            report = snapshot.report
            history = histories.setdefault((report.model, report.metric, report.strategy == RECOVER), [])
            figure = report.similarity.int8
            if figure is not None:
                history.append(figure)
            entries.append(Entry(name, snapshot, tuple(history)))
        return sorted(entries, key=lambda entry: entry.when, reverse=True)

    def _find(self) -> dict[str, LiveRun]:
        names = list(_folders_under(self.folder))
        kept = sorted(name for name in names if is_run_folder(self.folder / name))
        pages = {path: place for name in ("", *names) for path, place in pages_in(self.folder, name)}
        self._results = {path: self._results.get(path) or ResultPage(path, *place) for path, place in pages.items()}
        self._found = {name: self._found.get(name) or LiveRun(self.folder / name) for name in kept}
        return self._found


def _folders_under(folder: Path) -> Iterator[str]:
    """Yields the folders below ``folder`` by their relative paths, those of a level before those below them."""
    level, seen = [""], 0
    for _ in range(_DEEPEST):
        level = [f"{above}/{name}".lstrip("/") for above in level for name in _folders_in(folder / above)]
        yield from level[: _MOST_FOLDERS - seen]
        seen += len(level)
        if seen >= _MOST_FOLDERS:
            return


def _folders_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as found:
            names = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [name for name in names if _is_text(name) and not name.startswith(".")]


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def render_index(runs: Runs, nonce: str) -> str:
    """Returns the page with the list of runs; its script and style have ``nonce``."""
    template = _templates().get_template("index.html.j2")
    title, style = runs.folder.resolve().name, Markup(asset("page.css"))
    return template.render(icon=icon(), title=title, entries=runs.entries(), columns=_COLUMNS, nonce=nonce, style=style)


def render_rows(runs: Runs) -> str:
    """Returns the rows of the table in that page."""
    return _templates().get_template("rows.html.j2").render(entries=runs.entries())


@cache
def _templates() -> Environment:
    loader = PackageLoader("trt_bisect.view")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
