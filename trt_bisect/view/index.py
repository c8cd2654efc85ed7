"""The run folders under one folder, and the page that lists them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trt_bisect.history.sparkline import heights
from trt_bisect.report.page.render import asset
from trt_bisect.results.figure_text import figure_text
from trt_bisect.results.manifest import MANIFEST
from trt_bisect.results.recovery import RECOVERY
from trt_bisect.results.run_report import REPORT
from trt_bisect.runs.progress_file import FINISHED, PROGRESS, RUNNING
from trt_bisect.view.live_state import LiveRun
from trt_bisect.view.snapshot import Gone, Snapshot
from trt_bisect.view.throttle import Throttled

_COLUMNS = (
    ("Run", ""),
    ("Model", ""),
    ("Began", "number"),
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


@dataclass(frozen=True)
class Entry:
    """One run in the list.

    Attributes:
        history: the figures of full INT8 in the runs of the same model and metric, the oldest first, up to this run.
    """

    name: str
    snapshot: Snapshot
    history: tuple[float, ...]

    @property
    def address(self) -> str:
        """The address of its page, relative to the list."""
        return f"run/{quote(self.name, safe='')}/"

    @property
    def model(self) -> str:
        """The name of the network's file."""
        return Path(self.snapshot.report.model).name

    @property
    def began(self) -> str:
        """The start, in this machine's local time; empty if not known."""
        try:
            return datetime.fromtimestamp(self.snapshot.when).isoformat(" ", "minutes") if self.snapshot.when else ""
        except (OSError, OverflowError, ValueError):
            return ""

    @property
    def verdict(self) -> str:
        """The verdict as a phrase."""
        snapshot, report = self.snapshot, self.snapshot.report
        if snapshot.status == RUNNING:
            return _stage(snapshot)
        if snapshot.status != FINISHED:
            return f"interrupted after {report.plans} plans"
        if report.exit_code == 0:
            return "INT8 meets the threshold"
        if report.exit_code != 1:
            return "nothing measured"
        repaired = "the recipe meets it" if report.recipe.get("meets") else "and so does the recipe"
        return f"INT8 misses the threshold, {repaired}"

    @property
    def engine(self) -> str:
        """The engine and its arithmetic; empty if not known."""
        report = self.snapshot.report
        return f"{report.engine} ({report.arithmetic})" if report.engine else ""

    def value(self, plan: str) -> str:
        """Returns the metric of ``int8`` or ``recipe`` for sorting; empty if there is none."""
        value = self.snapshot.report.similarity.get(plan)
        return "" if value is None else repr(value)

    def figure(self, plan: str) -> str:
        """Returns the same with its unit, for the table."""
        report = self.snapshot.report
        return figure_text(report.metric, report.similarity.get(plan)) if self.value(plan) else ""

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
    return any((folder / name).is_file() for name in (REPORT, MANIFEST, PROGRESS, RECOVERY))


class Runs:
    """The run folders directly under ``folder``, without links and names that are not valid text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, LiveRun] = {}
        self._search = Throttled(self._find)

    def named(self, name: str) -> LiveRun | None:
        """Returns the run in the folder ``name``, None if there is none."""
        return self._search().get(name)

    def entries(self) -> list[Entry]:
        """Returns the runs, the latest first."""
        snapshots: list[tuple[str, Snapshot]] = []
        for name, run in self._search().items():
            try:
                snapshots.append((name, run.folder.snapshot()))
            except Gone:
                continue
        snapshots.sort(key=lambda found: found[1].when)
        histories: dict[tuple[str, str], list[float]] = {}
        entries = []
        for name, snapshot in snapshots:
            history = histories.setdefault((snapshot.report.model, snapshot.report.metric), [])
            figure = snapshot.report.similarity.get("int8")
            if figure is not None:
                history.append(figure)
            entries.append(Entry(name, snapshot, tuple(history)))
        return entries[::-1]

    def _find(self) -> dict[str, LiveRun]:
        try:
            with os.scandir(self.folder) as found:
                names = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
        except OSError:
            names = []
        kept = [name for name in sorted(names) if _is_text(name) and is_run_folder(self.folder / name)]
        self._found = {name: self._found.get(name) or LiveRun(self.folder / name) for name in kept}
        return self._found


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
    return template.render(title=title, entries=runs.entries(), columns=_COLUMNS, nonce=nonce, style=style)


def render_rows(runs: Runs) -> str:
    """Returns the rows of the table in that page."""
    return _templates().get_template("rows.html.j2").render(entries=runs.entries())


@cache
def _templates() -> Environment:
    loader = PackageLoader("trt_bisect.view")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
