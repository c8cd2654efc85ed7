"""The nights of a suite: a folder each under one folder, numbered, so that no clock decides which came last."""

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
"""In a night's folder: what the nights after it are compared with."""
NIGHT = "night.json"
_OPTION = "'output' in the suite"
_GONE_ON_WITH = timedelta(hours=20)
"""An interrupted night that began earlier is left alone: the next night has come."""


@dataclass(frozen=True)
class NightlyRun:
    """One night.

    Attributes:
        folder: its own.
        number: one more than that of the night before.
        began: in UTC, ISO 8601.
        suite: a digest of what was asked for.
        status: ``running``, or what came of it.
        is_baseline: the nights after it can be compared with it.
    """

    folder: Path
    number: int
    began: str
    suite: str
    status: str = RUNNING
    is_baseline: bool = False

    @property
    def baseline(self) -> Path:
        """The folder of its baseline."""
        return self.folder / BASELINE

    def ended(self, status: str, is_baseline: bool) -> NightlyRun:
        """The same night, over, also on disk; raises BadInput where that cannot be written."""
        over = replace(self, status=status, is_baseline=is_baseline)
        over.save()
        return over

    def save(self) -> None:
        """Writes ``night.json``; raises BadInput where it cannot be written."""
        record = {name: value for name, value in asdict(self).items() if name != "folder"}
        write_whole(self.folder / NIGHT, (json.dumps(record, indent=1) + "\n").encode())


class NightlyRuns:
    """The nights in a folder, for one process at a time (see ``nightly_runs_in``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[NightlyRun]:
        """The first one first; folders that are no night's are passed over."""
        found = (_nightly_run(path.parent) for path in self.folder.glob(f"*/{NIGHT}"))
        return sorted((night for night in found if night), key=lambda night: night.number)

    def latest_baseline(self) -> NightlyRun | None:
        """The newest night that others can be compared with."""
        return next((night for night in reversed(self.all()) if night.is_baseline and night.baseline.is_dir()), None)

    def tonight(self, suite: str) -> tuple[NightlyRun, bool]:
        """The newest night where it was interrupted and asked for the same, else a new one; and whether it is gone on.

        Raises:
            BadInput: the folder cannot be written.
        """
        known = self.all()
        now = datetime.now(timezone.utc)
        if known and _goes_on(known[-1], suite, now):
            return known[-1], True
        night = NightlyRun(
            self._new_folder(now), known[-1].number + 1 if known else 1, now.isoformat(timespec="seconds"), suite
        )
        night.save()
        return night, False

    def _new_folder(self, now: datetime) -> Path:
        """A folder named for the time; a second one of the same second gets a number."""
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
    """The nights of a folder, made if need be, as long as no other process has them.

    Raises:
        BadInput: the folder cannot be written, or another process has it.
    """
    with locked(make_folder(folder, _OPTION), _OPTION):
        yield NightlyRuns(folder)


def _goes_on(night: NightlyRun, suite: str, now: datetime) -> bool:
    try:
        age = now - datetime.fromisoformat(night.began)
    except (TypeError, ValueError):
        return False
    return night.status == RUNNING and night.suite == suite and abs(age) < _GONE_ON_WITH


def _nightly_run(folder: Path) -> NightlyRun | None:
    try:
        record = json.loads((folder / NIGHT).read_bytes())
        night = NightlyRun(folder, **record)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return night if isinstance(night.number, int) else None
