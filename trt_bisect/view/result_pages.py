"""The pages of saved results: of ``compare``, ``sensitivity``, ``worst``, ``profile`` and ``check``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from urllib.parse import quote

from trt_bisect.errors import BadInput
from trt_bisect.report.check import CheckReport
from trt_bisect.report.comparison import Comparison
from trt_bisect.report.page.render import render_tables
from trt_bisect.report.page.tables import TablePage
from trt_bisect.report.profile import Profile
from trt_bisect.report.result import Result
from trt_bisect.report.sensitivity import Sensitivity
from trt_bisect.report.worst import WorstReport
from trt_bisect.runs.progress_file import FINISHED
from trt_bisect.view.file_tail import Replaced

RESULTS: tuple[type[Result], ...] = (Comparison, Sensitivity, WorstReport, Profile, CheckReport)
"""The kinds of results that have such a page."""


def pages_in(folder: Path, name: str) -> Iterator[tuple[str, tuple[Path, type[Result]]]]:
    """Yields each saved result in a folder: its page's path below the folder that is listed, its file and its kind."""
    for kind in RESULTS:
        file = folder / name / f"{kind.COMMAND}.json"
        if file.is_file() and not file.is_symlink():
            yield f"{name}/{kind.COMMAND}.html".lstrip("/"), (file, kind)


class ResultPage:
    """The page of a saved result; it is made again when the file changes.

    Args:
        path: the path of the page, below the folder that is listed.
        file: the result's JSON file.
        kind: the result's class.
    """

    def __init__(self, path: str, file: Path, kind: type[Result]) -> None:
        self._path = path
        self._page: Replaced[TablePage] = Replaced(file, partial(_page_in, kind))

    def html(self) -> str | None:
        """Returns the page as HTML; None if the file cannot be read."""
        page = self._page.content()
        return None if page is None else render_tables(page)

    def entry(self) -> ResultEntry | None:
        """Returns the row of the list; None if the file cannot be read."""
        page, stamp = self._page.content(), self._page.stamp
        if page is None or stamp is None:
            return None
        return ResultEntry(self._path, page.command, page.model, page.headline, stamp[0] / 1e9)


def _page_in(kind: type[Result], file: Path) -> TablePage | None:
    try:
        return kind.load(file.parent).page()
    except BadInput:
        return None


@dataclass(frozen=True)
class ResultEntry:
    """One result in the list; it has what a run has, but no figures of its own.

    Attributes:
        path: the path of its page, below the folder that is listed.
        when: its file was written, in seconds since the epoch.
    """

    path: str
    command: str
    model_path: str
    verdict: str
    when: float
    status: str = FINISHED
    seconds: None = None
    culprits: None = None
    took: str = ""
    tone: str = ""
    engine: str = ""
    metric: str = ""
    history: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The path of its page."""
        return self.path

    @property
    def address(self) -> str:
        """The address of its page, relative to the list."""
        return f"result/{quote(self.path)}"

    @property
    def model(self) -> str:
        """The name of the network's file."""
        return Path(self.model_path).name

    @property
    def began(self) -> str:
        """The time of its file as ``time_text`` writes it."""
        return time_text(self.when)

    def value(self, _: str) -> str:
        """Returns nothing: it has no figure of a plan."""
        return ""

    figure = value


def time_text(when: float) -> str:
    """Returns a time in UTC, in ISO 8601; empty for 0. The page shows it in the reader's own time."""
    try:
        return datetime.fromtimestamp(when, timezone.utc).isoformat(timespec="seconds") if when else ""
    except (OSError, OverflowError, ValueError):
        return ""
