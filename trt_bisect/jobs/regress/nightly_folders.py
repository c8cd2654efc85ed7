"""The nightly runs of a suite: one folder each, with numbers, so that their order does not depend on the clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from trt_bisect.runs.lock import locked
from trt_bisect.support.files import make_folder, unwritable, write_whole

RUNNING = "running"
BASELINE = "baseline"
"""In the folder of a nightly run: the baseline for the nightly runs after it."""
NIGHTLY_RUN = "night.json"
_OPTION = "'output' in the suite"
_RESUME_WITHIN = timedelta(hours=20)
"""An interrupted nightly run that began earlier is not resumed."""


@dataclass(frozen=True)
class NightlyRun:
    """One nightly run.

    Attributes:
        folder: its folder.
        number: one more than that of the nightly run before.
        began: in UTC, ISO 8601.
        suite: a digest of the suite; see ``Suite.digest``.
        status: ``running``, or the result.
        is_baseline: later nightly runs can be compared with it.
    """

    folder: Path
    number: int
    began: str
    suite: str
    status: str = RUNNING
    is_baseline: bool = False

    @property
    def title(self) -> str:
        """Its number and the time of its start."""
        return f"nightly run {self.number} ({self.began})"

    @property
    def baseline(self) -> Path:
        """The folder of its baseline."""
        return self.folder / BASELINE

    def finish(self, status: str, is_baseline: bool) -> NightlyRun:
        """Returns the nightly run with its result, and writes it to disk.

        Raises:
            BadInput: it cannot be written.
        """
        finished = replace(self, status=status, is_baseline=is_baseline)
        finished.save()
        return finished

    def save(self) -> None:
        """Writes ``night.json``.

        Raises:
            BadInput: it cannot be written.
        """
        record = {name: value for name, value in asdict(self).items() if name != "folder"}
        write_whole(self.folder / NIGHTLY_RUN, (json.dumps(record, indent=1) + "\n").encode())


class NightlyRuns:
    """The nightly runs in a folder, for one process at a time; see ``nightly_runs_in``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[NightlyRun]:
        """Returns the nightly runs, the first one first. Other folders are ignored."""
        found = (_nightly_run(path.parent) for path in self.folder.glob(f"*/{NIGHTLY_RUN}"))
        return sorted(filter(None, found), key=lambda nightly_run: nightly_run.number)

    def latest_baseline(self) -> NightlyRun | None:
        """Returns the newest nightly run with a baseline; None if there is none."""
        found = [each for each in self.all() if each.is_baseline and each.baseline.is_dir()]
        return found[-1] if found else None

    def begin(self, suite: str) -> tuple[NightlyRun, bool]:
        """Resumes the newest nightly run if it was interrupted, else creates a new one.

        Args:
            suite: the digest of the suite. A nightly run of another suite is not resumed.

        Returns:
            The nightly run, and true if it is resumed.

        Raises:
            BadInput: the folder cannot be written.
        """
        known = self.all()
        now = datetime.now(timezone.utc)
        if known and _is_resumable(known[-1], suite, now):
            return known[-1], True
        nightly_run = NightlyRun(
            self._new_folder(now), known[-1].number + 1 if known else 1, now.isoformat(timespec="seconds"), suite
        )
        nightly_run.save()
        return nightly_run, False

    def _new_folder(self, now: datetime) -> Path:
        """Creates a folder with the time as its name. A second folder in the same second gets a number."""
        name, count = now.strftime("%Y-%m-%dT%H%M%SZ"), 1
        while True:
            folder = self.folder / (name if count == 1 else f"{name}-{count}")
            try:
                folder.mkdir()
            except FileExistsError:
                count += 1
            except OSError as error:
                raise unwritable(self.folder, error, _OPTION) from error
            else:
                return folder


@contextmanager
def nightly_runs_in(folder: Path) -> Iterator[NightlyRuns]:
    """Locks a folder and gives its nightly runs; creates the folder if there is none.

    Raises:
        BadInput: the folder cannot be written, or another process has locked it.
    """
    with locked(make_folder(folder, _OPTION), _OPTION):
        yield NightlyRuns(folder)


def _is_resumable(nightly_run: NightlyRun, suite: str, now: datetime) -> bool:
    try:
        age = now - datetime.fromisoformat(nightly_run.began)
    except (TypeError, ValueError):
        return False
    return nightly_run.status == RUNNING and nightly_run.suite == suite and abs(age) < _RESUME_WITHIN


def _nightly_run(folder: Path) -> NightlyRun | None:
    try:
        record = json.loads((folder / NIGHTLY_RUN).read_bytes())
        nightly_run = NightlyRun(folder, **record)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return nightly_run if isinstance(nightly_run.number, int) else None
