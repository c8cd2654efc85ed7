"""The run folders and saved results under one folder, and the page that lists them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trt_bisect.errors import BadInput
from trt_bisect.history.queries import heights
from trt_bisect.report.check import CheckReport
from trt_bisect.report.comparison import Comparison, Profile
from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.losses import Sensitivity, WorstReport
from trt_bisect.report.model import REPORT, SO_FAR, Report
from trt_bisect.report.page.render import asset, icon
from trt_bisect.report.page.tables import TablePage
from trt_bisect.report.result import Result
from trt_bisect.report.summary import means
from trt_bisect.report.verdict import TONES, UNMEASURED, spoken
from trt_bisect.runs.progress_file import FINISHED, PROGRESS, RUNNING
from trt_bisect.support.figures import counted, duration
from trt_bisect.view.run_folder import Gone, Replaced, RunFolder, Snapshot, Throttled

RESULTS: tuple[type[Result], ...] = (Comparison, Sensitivity, WorstReport, Profile, CheckReport)
"""The kinds of results that have a page of tables."""
_WIDTH, _HEIGHT, _MARGIN = 96, 22, 4
_DEEPEST = 3
"""Run folders are looked for so many levels below the folder that is listed,"""
_MOST_FOLDERS = 5000
"""and in so many folders at most."""


@dataclass(frozen=True)
class Row:
    """A row of the list: a run, or the saved result of another command, which has no figures of a plan.

    Attributes:
        name: the path of its folder or page, below the folder that is listed.
        address: of its page, relative to the list.
        command: the command that made it; empty if not known yet.
        model_path: the network's file as it was given.
        when: the start of the run, or the time of the result's file, in seconds since the epoch; 0 if not known.
        verdict: the verdict as a phrase; the stage of a run that goes on.
        status: ``finished``, ``running`` or ``interrupted``.
        tone: the CSS class of the verdict: good, doubted, bad, or empty without a verdict.
        seconds: the time that a finished run took; None if not known.
        values: by plan, ``int8`` or ``recipe``, its figure.
        culprits: the names of the culprits; None for a command that names none.
        engine: the engine and its arithmetic; empty if not known.
        metric: the metric that decides.
        history: the figures of full INT8 in the runs of the same model and metric, the oldest first, up to this run.
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
    history: tuple[float, ...] = ()

    @property
    def model(self) -> str:
        """The name of the network's file."""
        return Path(self.model_path).name

    @property
    def began(self) -> str:
        """``when`` in UTC, in ISO 8601; empty for 0. The page shows it in the reader's own time."""
        try:
            return datetime.fromtimestamp(self.when, timezone.utc).isoformat(timespec="seconds") if self.when else ""
        except (OSError, OverflowError, ValueError):
            return ""

    @property
    def took(self) -> str:
        """``seconds`` as text."""
        return "" if self.seconds is None else duration(self.seconds)

    def value(self, plan: str) -> str:
        """Returns the figure of a plan for sorting; empty if there is none."""
        value = self.values.get(plan)
        return "" if value is None else repr(value)

    def figure(self, plan: str) -> str:
        """Returns the same with its unit, for the table."""
        value = self.values.get(plan)
        return "" if value is None else figure_text(self.metric, value)

    @property
    def points(self) -> list[tuple[float, float]]:
        """The history as points of a sparkline in a box of 96 by 22, y downwards; equal values are in the middle."""
        step = (_WIDTH - 2 * _MARGIN) / max(len(self.history) - 1, 1)
        return [
            (round(_MARGIN + place * step, 1), round(_MARGIN + (1 - height) * (_HEIGHT - 2 * _MARGIN), 1))
            for place, height in enumerate(heights(self.history))
        ]


def _row(name: str, found: Snapshot, history: tuple[float, ...]) -> Row:
    """Returns the row of a run; ``history`` is that of the row."""
    report, finished = found.report, found.status == FINISHED
    return Row(
        name,
        f"run/{quote(name)}/",
        "run" if report.strategy else "",
        report.model,
        found.when,
        verdict=_stage(found) if found.status == RUNNING else _verdict(report, finished=finished),
        status=found.status,
        tone=TONES[report.verdict] if finished else "",
        seconds=report.seconds.total if finished else None,
        values=dict(report.similarity.items()),
        culprits=report.culprits if report.strategy else None,
        engine=f"{report.engine} ({report.arithmetic})" if report.engine else "",
        metric=report.metric,
        history=history,
    )


def _stage(found: Snapshot) -> str:
    progress = found.progress or {}
    count = "" if progress.get("total") is None else f", {progress['done']} of {progress['total']}"
    left = "" if progress.get("left") is None else f", about {duration(progress['left'])} left"
    return f"{progress.get('stage') or 'starting'}{count}{left}"


def _verdict(report: Report, *, finished: bool) -> str:
    if not finished:
        return f"interrupted after {counted(report.plans, 'plan')}"
    if report.verdict == UNMEASURED or not report.has_recipe:
        return spoken(report.verdict)
    if not report.recipe.meets:
        return f"{report.verdict}, and so does the recipe"
    return f"{spoken(report.verdict)}; with {means(report)} it meets the threshold"


def _page_in(kind: type[Result], file: Path) -> TablePage | None:
    """Returns the page of a saved result, such as ``compare.html``; None if its file cannot be read."""
    try:
        return kind.load(file.parent).page()
    except BadInput:
        return None


def is_run_folder(folder: Path) -> bool:
    """Returns true if ``run`` has written into the folder."""
    return any((folder / name).is_file() for name in (REPORT, SO_FAR, PROGRESS))


class Runs:
    """The run folders under ``folder``, without links, hidden folders and names that are not valid text.

    The pages of results are found there too, and in ``folder`` itself.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, RunFolder] = {}
        self._results: dict[str, Replaced[TablePage]] = {}
        self._search = Throttled(self._find)

    def named(self, name: str) -> RunFolder | None:
        """Returns the run in the folder ``name``, None if there is none."""
        return self._search().get(name)

    def result(self, path: str) -> TablePage | None:
        """Returns the page of a result by its path below the folder, None if there is none."""
        self._search()
        return self._results[path].value() if path in self._results else None

    def rows(self) -> list[Row]:
        """Returns the runs and the results, the latest first."""
        snapshots: list[tuple[str, Snapshot]] = []
        for name, run in self._search().items():
            with suppress(Gone):
                snapshots.append((name, run.snapshot()))
        snapshots.sort(key=lambda found: found[1].when)
        histories: dict[tuple[str, str], list[float]] = {}
        rows = [
            Row(path, f"result/{quote(path)}", page.command, page.model, file.when, page.headline)
            for path, file in self._results.items()
            if (page := file.value()) is not None
        ]
        for name, snapshot in snapshots:
            report = snapshot.report
            history = histories.setdefault((report.model, report.metric), [])
            if report.similarity.int8 is not None:
                history.append(report.similarity.int8)
            rows.append(_row(name, snapshot, tuple(history)))
        return sorted(rows, key=lambda row: row.when, reverse=True)

    def _find(self) -> dict[str, RunFolder]:
        names = list(_folders_under(self.folder))
        kept = sorted(name for name in names if is_run_folder(self.folder / name))
        files = {
            f"{name}/{kind.COMMAND}.html".lstrip("/"): (
                self.folder / name / f"{kind.COMMAND}.json",
                partial(_page_in, kind),
            )
            for name in ("", *names)
            for kind in RESULTS
        }
        self._results = {
            path: self._results.get(path) or Replaced(*made_of)
            for path, made_of in files.items()
            if made_of[0].is_file() and not made_of[0].is_symlink()
        }
        self._found = {name: self._found.get(name) or RunFolder(self.folder / name) for name in kept}
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
    return [name for name in names if not name.startswith(".") and name == os.fsencode(name).decode(errors="replace")]


def render_index(runs: Runs, nonce: str) -> str:
    """Returns the page with the list of runs; its script and style have ``nonce``."""
    template = _templates().get_template("index.html.j2")
    title, style = runs.folder.resolve().name, Markup(asset("page.css"))
    return template.render(icon=icon(), title=title, entries=runs.rows(), nonce=nonce, style=style)


def render_rows(runs: Runs) -> str:
    """Returns the rows of the table in that page."""
    return _templates().get_template("rows.html.j2").render(entries=runs.rows())


@cache
def _templates() -> Environment:
    loader = PackageLoader("trt_bisect.view")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
