"""The nightly runs of a suite, a folder each with a number, and the reference that the next one is compared with.

Numbers give their order, so that it does not depend on the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from trt_bisect.commands.regress.suite import NetworkTask, Suite
from trt_bisect.errors import BadInput, first_line
from trt_bisect.report.changes import compared_part, metric_of
from trt_bisect.report.model import REPORT, Report
from trt_bisect.report.older import report_of
from trt_bisect.report.regression.result import PASSED, Baseline, read_baselines
from trt_bisect.support.codec import Malformed, encode_lines, read
from trt_bisect.support.files import locked, make_folder, unwritable, write_whole

LATEST = "latest"
RUNNING = "running"
BASELINE, NIGHTLY_RUN = "baseline", "night.json"
"""In the folder of a nightly run: the baseline for the nightly runs after it, and what is known about it."""
_OPTION = "'output' in the suite"
_RESUME_WITHIN = timedelta(hours=20)
"""An interrupted nightly run that began earlier is not resumed."""
_NAMED = 3
"""The most failed nightly runs that a description names."""


@dataclass(frozen=True)
class NightlyRun:
    """One nightly run.

    Attributes:
        number: one more than that of the nightly run before.
        began: in UTC, ISO 8601.
        suite: a digest of the suite; see ``Suite.digest``.
        status: ``running``, or the result.
        is_baseline: later nightly runs can be compared with it.
        folder: its folder, which the file does not name.
    """

    number: int
    began: str
    suite: str
    status: str = RUNNING
    is_baseline: bool = False
    folder: Path = Path()

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
        record = {name: value for name, value in vars(self).items() if name != "folder"}
        write_whole(self.folder / NIGHTLY_RUN, encode_lines(record))

    def is_resumable(self, suite: str, now: datetime) -> bool:
        """Returns true if it was interrupted, not long ago, and is of the suite with that digest."""
        try:
            age = now - datetime.fromisoformat(self.began)
        except (TypeError, ValueError):
            return False
        return self.status == RUNNING and self.suite == suite and abs(age) < _RESUME_WITHIN


class NightlyRuns:
    """The nightly runs in a folder, for one process at a time; see ``nightly_runs_in``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[NightlyRun]:
        """Returns the nightly runs, the first one first. Other folders are ignored."""
        found = ((path.parent, read(NightlyRun, path)) for path in self.folder.glob(f"*/{NIGHTLY_RUN}"))
        nights = [replace(night, folder=folder) for folder, night in found if night is not None]
        return sorted(nights, key=lambda night: night.number)

    def latest_baseline(self) -> NightlyRun | None:
        """Returns the newest nightly run with a baseline; None if there is none."""
        return next((night for night in reversed(self.all()) if night.is_baseline and night.baseline.is_dir()), None)

    def begin(self, suite: str) -> tuple[NightlyRun, bool]:
        """Resumes the newest nightly run if it was interrupted, else creates a new one.

        Args:
            suite: the digest of the suite. A nightly run of another suite is not resumed.

        Returns:
            The nightly run, and true if it is resumed.

        Raises:
            BadInput: the folder cannot be written.
        """
        earlier = self.all()
        now = datetime.now(timezone.utc)
        if earlier and earlier[-1].is_resumable(suite, now):
            return earlier[-1], True
        number = earlier[-1].number + 1 if earlier else 1
        night = NightlyRun(number, now.isoformat(timespec="seconds"), suite, folder=self._new_folder(now))
        night.save()
        return night, False

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


@dataclass(frozen=True)
class Reference:
    """The baselines that a nightly run is compared with.

    Attributes:
        description: the description for the user; empty if there is no reference yet.
        networks: the baselines by the network's name in the suite.
        folder: ``--update-baseline`` writes the baseline here; None if it is written into the nightly run only.
        is_latest: the reference is the latest nightly run; a nightly run that passes becomes the next reference.
    """

    description: str
    networks: Mapping[str, Baseline]
    folder: Path | None = None
    is_latest: bool = False


def find_reference(baseline: str | Path, nights: NightlyRuns, suite: Suite, *, update: bool) -> Reference:
    """Returns the reference that ``--baseline`` names.

    Args:
        baseline: ``latest``, a baseline folder, the folder of a nightly run or a run, or a ``report.json``.
        nights: the nightly runs of the suite.
        suite: the suite.
        update: the baseline is going to be replaced, so it need not exist, and must not be a run or a nightly run.

    Raises:
        BadInput: there is no baseline, it cannot be read or must not be replaced, or a run is of another network.
    """
    if str(baseline) == LATEST:
        night = nights.latest_baseline()
        if night is None:
            return Reference("", {}, is_latest=True)
        later = [each for each in nights.all() if each.number > night.number and each.status not in (RUNNING, PASSED)]
        failed = ", ".join(f"{each.number} ({each.status})" for each in later[-_NAMED:])
        why = "the newest that passed or was accepted" + (f"; not nightly run {failed}" if failed else "")
        networks = read_baselines(night.baseline, replacing=update)
        return Reference(f"{night.title}, {why}" if networks else "", networks, is_latest=True)
    path = Path(baseline)
    report, is_night = path / REPORT if path.is_dir() else path, (path / NIGHTLY_RUN).is_file()
    if update and (report.is_file() or is_night):
        raise BadInput(
            f"'{path}' is a run or a nightly run, and is not overwritten.",
            "Give --update-baseline with 'latest', or with a --baseline folder of its own.",
        )
    if report.is_file():
        return Reference(str(path), _of_run(report, suite))
    networks = read_baselines(path / BASELINE if is_night else path, replacing=update)
    if not networks and not update:
        raise BadInput(
            f"There is no baseline in '{path}'.",
            "Make one with --update-baseline, or give a run folder, a report.json, or 'latest'.",
        )
    return Reference(str(path) if networks else "", networks, None if is_night else path)


def _of_run(path: Path, suite: Suite) -> dict[str, Baseline]:
    """Returns the baseline of one run, for the network of the suite that it is of."""
    try:
        report = report_of(path.read_bytes())
        task = _task_of(report, path, suite)
        metric_of(report, task.direction)
        return {task.name: Baseline(task.name, 1, "", (compared_part(report),))}
    except (OSError, Malformed, RecursionError) as error:
        raise BadInput(
            f"'{path}' is not a report: {first_line(error)}",
            "Give a report.json that 'run' wrote.",
        ) from error


def _task_of(report: Report, path: Path, suite: Suite) -> NetworkTask:
    """Returns the network of a report, found by the name of the model file or of the run folder.

    Raises:
        BadInput: none or several networks of the suite have that model.
    """
    if len(suite.networks) == 1:
        return suite.networks[0]
    model = Path(report.model).name
    tasks = [task for task in suite.networks if Path(task.keywords["model"]).name == model]
    tasks = [task for task in tasks if path.parent.name == task.stem] or tasks
    if len(tasks) != 1:
        raise BadInput(
            f"The model '{model}' of '{path}' is the model of {len(tasks) or 'none'} of the suite's networks.",
            "Give a baseline of the whole suite; --update-baseline makes one.",
        )
    return tasks[0]
