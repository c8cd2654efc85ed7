from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from time import perf_counter

from trt_bisect.commands.run.run import run
from trt_bisect.commands.suite import NetworkTask, Suite, read_suite, stem_of, suite_output
from trt_bisect.errors import BadInput, NothingMeasured, TrtBisectError, own_fault
from trt_bisect.history.store import HISTORY, NONE, recorded
from trt_bisect.options.declare import naming_keywords
from trt_bisect.report import nightly
from trt_bisect.report.changes import (
    BETTER,
    FAILING,
    LAYER,
    Change,
    changes,
    compared_part,
    differences,
    missed_targets,
    missed_thresholds,
)
from trt_bisect.report.model import Report, read_report
from trt_bisect.report.parts import REPORT
from trt_bisect.runs.progress_file import FINISHED, PROGRESS
from trt_bisect.support.codec import encode_lines, read
from trt_bisect.support.files import locked, make_folder, unwritable, write_whole
from trt_bisect.support.progress import PrefixedProgress, Progress, default_progress
from trt_bisect.support.text import together

LATEST = "latest"
RUNNING = "running"
BASELINE, NIGHTLY_RUN = "baseline", "night.json"
_OPTION = "'output' in the suite"
_RESUME_WITHIN = timedelta(hours=20)
_NAMED = 3


@dataclass(frozen=True)
class NightlyRun:
    """One nightly run, saved as ``night.json`` in its folder.

    Attributes:
        number: from 1; the numbers, not the clock, order the nightly runs.
        began: start in UTC, ISO 8601.
        suite: the SHA-256 of the suite's settings, versions and files.
        status: ``running``, ``passed``, ``failed`` or ``error``.
        is_baseline: later nightly runs can be compared with this one.
        passed: the networks that passed or were accepted; this run's baseline has earlier figures of the others.
    """

    number: int
    began: str
    suite: str
    status: str = RUNNING
    is_baseline: bool = False
    passed: tuple[str, ...] = ()
    folder: Path = Path()

    @property
    def title(self) -> str:
        """Number and start as text: ``nightly run 3 (2026-11-28T02:00:00+00:00)``."""
        return f"nightly run {self.number} ({self.began})"

    @property
    def baseline(self) -> Path:
        """The folder of this nightly run's baseline."""
        return self.folder / BASELINE

    def saved(self) -> NightlyRun:
        """Writes ``night.json`` and returns the nightly run; raises BadInput if it cannot be written."""
        record = {name: value for name, value in vars(self).items() if name != "folder"}
        write_whole(self.folder / NIGHTLY_RUN, encode_lines(record))
        return self

    def is_resumable(self, suite: str, now: datetime) -> bool:
        """Returns true if this nightly run was interrupted, began less than 20 hours ago, and ``suite`` is the digest
        of its suite.
        """
        try:
            age = now - datetime.fromisoformat(self.began)
        except (TypeError, ValueError):
            return False
        return self.status == RUNNING and self.suite == suite and abs(age) < _RESUME_WITHIN


def nightly_runs(output: Path) -> list[NightlyRun]:
    """Returns the nightly runs in a folder, the oldest first; skips folders without ``night.json``."""
    nights = []
    for path in output.glob(f"*/{NIGHTLY_RUN}"):
        night = read(NightlyRun, path)
        if night is not None:
            nights.append(replace(night, folder=path.parent))
    return sorted(nights, key=lambda night: night.number)


def latest_baseline(nights: Sequence[NightlyRun]) -> NightlyRun | None:
    """Returns the newest nightly run with a baseline; None without one."""
    return next((night for night in reversed(nights) if night.is_baseline and night.baseline.is_dir()), None)


def begin(output: Path, nights: Sequence[NightlyRun], suite: str) -> tuple[NightlyRun, bool]:
    """Resumes the newest nightly run if it was interrupted less than 20 hours ago with the same suite, else creates
    one.

    Args:
        output: the folder of the nightly runs ``nights``, which is locked.
        suite: digest of the suite.

    Returns the nightly run, and true if it is resumed. Raises BadInput if the folder cannot be written.
    """
    now, number = datetime.now(timezone.utc), 1
    if nights:
        number = nights[-1].number + 1
        if nights[-1].is_resumable(suite, now):
            return nights[-1], True
    name = now.strftime("%Y-%m-%dT%H%M%SZ")
    folder = output / name
    for count in itertools.count(2):
        try:
            folder.mkdir()
            break
        except FileExistsError:
            folder = output / f"{name}-{count}"
        except OSError as error:
            raise unwritable(output, error, _OPTION) from error
    return NightlyRun(number, now.isoformat(timespec="seconds"), suite, folder=folder).saved(), False


@dataclass(frozen=True)
class NightlyReference:
    """The baselines that a nightly run is compared with.

    Attributes:
        description: origin of the baselines, for the user; empty if there is none yet.
        networks: baseline of each network, by its name in the suite.
        folder: folder into which ``--update-baseline`` writes; None: into the nightly run only.
        is_latest: the baselines are from the latest nightly run, and a nightly run that passes becomes the next
            baseline.
    """

    description: str
    networks: Mapping[str, nightly.Baseline]
    folder: Path | None = None
    is_latest: bool = False


def find_reference(
    baseline: str | Path, nights: Sequence[NightlyRun], suite: Suite, *, update: bool
) -> NightlyReference:
    """Returns the baselines that ``--baseline`` names.

    Args:
        baseline: ``latest``, a baseline folder, the folder of a nightly run or a run, or a ``report.json``.
        nights: the nightly runs so far, the oldest first.
        update: the baseline is to be replaced: it need not exist, and must not be a run or a nightly run.

    Raises BadInput if there is no baseline (with ``latest`` the result then has none), it cannot be read or replaced,
    or a run is of another network.
    """
    if str(baseline) == LATEST:
        night = latest_baseline(nights)
        if night is None:
            return NightlyReference("", {}, is_latest=True)
        networks = nightly.read_baselines(night.baseline, replacing=update)
        described = _described(nights, night, list(networks)) if networks else ""
        return NightlyReference(described, networks, is_latest=True)
    report = path = Path(baseline)
    if path.is_dir():
        report = path / REPORT
    is_night = (path / NIGHTLY_RUN).is_file()
    if update and (report.is_file() or is_night):
        problem = f"'{path}' is a run or a nightly run, and is not overwritten."
        raise BadInput(problem, "Give --update-baseline with 'latest', or with a --baseline folder of its own.")
    if report.is_file():
        return NightlyReference(str(path), _of_run(report, suite))
    folder = path / BASELINE if is_night else path
    networks = nightly.read_baselines(folder, replacing=update)
    if not networks and not update:
        problem = f"There is no baseline in '{path}'."
        raise BadInput(problem, "Make one with --update-baseline, or give a run folder, a report.json, or 'latest'.")
    return NightlyReference(str(path) if networks else "", networks, None if is_night else path)


def _described(nights: Sequence[NightlyRun], latest: NightlyRun, names: Sequence[str]) -> str:
    earlier = [night for night in reversed(nights) if night.is_baseline and night.number <= latest.number]
    passed = {name: next((night for night in earlier if name in night.passed), latest) for name in names}
    last = sorted({night.number: night.title for night in passed.values()}.items())
    if len(last) > 1:
        return f"{together([title for _, title in last])}, the newest in which each network passed or was accepted"
    ((number, title),) = last
    later = [night for night in nights if night.number > number and night.status not in (RUNNING, nightly.PASSED)]
    described = f"{title}, the newest that passed or was accepted"
    if later:
        described += f"; not nightly run {', '.join(f'{night.number} ({night.status})' for night in later[-_NAMED:])}"
    return described


def _of_run(path: Path, suite: Suite) -> dict[str, nightly.Baseline]:
    # of several networks with the run's model file, the one that its folder is named after
    report = Report.load(path)
    model, tasks = Path(report.model).name, suite.networks
    if len(tasks) > 1:
        tasks = tuple(task for task in tasks if Path(task.keywords["model"]).name == model)
        tasks = tuple(task for task in tasks if path.parent.name == task.stem) or tasks
    if len(tasks) != 1:
        problem = f"The model '{model}' of '{path}' is the model of {len(tasks) or 'none'} of the suite's networks."
        raise BadInput(problem, "Give a baseline of the whole suite; --update-baseline makes one.")
    return {tasks[0].name: nightly.Baseline(tasks[0].name, 1, "", (compared_part(report),))}


RUNS, REPEATS = "runs", "repeats"

# a function that measures one network, and writes the files of ``run`` into a folder
Runner = Callable[[NetworkTask, Path, Progress], Report]


def run_network(task: NetworkTask, folder: Path, progress: Progress) -> Report:
    """Measures one network, and writes the files of ``trt-bisect run`` into the folder.

    Raises TrtBisectError if the network, its data or its engine cannot be used, or nothing could be measured.
    """
    return run(**task.keywords, output=folder, progress=progress, history=NONE)


@naming_keywords()
def regress(
    config: str | Path,
    baseline: str | Path = LATEST,
    *,
    update_baseline: bool = False,
    progress: Progress | None = None,
    runner: Runner = run_network,
) -> nightly.Regression:
    """Measures a suite of networks and reports the changes from a baseline.

    If a figure lies outside the baseline's range, the network is measured again, and only changes that both runs have
    are reported. A network that cannot be measured does not stop the others. An interrupted nightly run is resumed. The
    results are written into the folder of the nightly run and into the suite's output folder.

    Args:
        config: the suite, a TOML file.
        baseline: a folder that ``update_baseline`` wrote, the folder of a nightly run or of a run, or a
            ``report.json``; or ``latest``: for each network the newest nightly run in which it passed or was accepted.
            A network without such a run takes the present nightly run as its baseline, if it meets its targets and its
            recipe meets the threshold.
        update_baseline: the figures of this nightly run become the baseline in any case; each network runs ``repeats``
            times (a key of the suite).
        progress: shows the progress; a bar in a notebook by default.
        runner: measures one network and returns its report.

    Raises:
        BadInput: the suite or the baseline cannot be used, or another process uses the suite's output folder.
    """
    output = suite_output(config)
    with locked(make_folder(output, _OPTION), _OPTION), nightly.unfinished(output):
        suite, nights = read_suite(config), nightly_runs(output)
        with closing(progress or default_progress()) as shown:
            reference = find_reference(baseline, nights, suite, update=update_baseline)
            if update_baseline and reference.folder is not None:
                make_folder(reference.folder, "--baseline")
            nightly_run, is_resumed = begin(output, nights, suite.digest())
            if is_resumed:
                shown.say(f"Resuming the nightly run in {nightly_run.folder}")
            if not reference.networks:
                shown.say("There is no baseline yet: each network that passes tonight becomes its own.")
            return _Night(suite, nightly_run, reference, update_baseline, runner, shown).measure()


@dataclass(frozen=True)
class _Night:
    suite: Suite
    nightly_run: NightlyRun
    reference: NightlyReference
    accepts: bool
    runner: Runner
    progress: Progress

    def measure(self) -> nightly.Regression:
        measured = [self._network(task) for task in self.suite.networks]
        regression = self._regression(tuple(result for result, _ in measured))
        regression.save(self.nightly_run.folder)
        regression.save(self.suite.output)
        baselines = [baseline for _, baseline in measured if baseline is not None]
        passed = tuple(result.name for result in regression.networks if result.becomes_baseline)
        is_baseline = bool(baselines) and (self.accepts or (self.reference.is_latest and bool(passed)))
        if is_baseline:
            kept = [] if self.accepts else [self.reference.networks[name] for name in regression.gone]
            files = {stem_of(baseline.name): baseline for baseline in (*baselines, *kept)}
            nightly.write_baselines(self.nightly_run.baseline, files)
            if self.accepts and self.reference.folder is not None:
                nightly.write_baselines(self.reference.folder, files)
        replace(self.nightly_run, status=regression.status, is_baseline=is_baseline, passed=passed).saved()
        return regression

    def _network(self, task: NetworkTask) -> tuple[nightly.NetworkResult, nightly.Baseline | None]:
        baseline, began = self.reference.networks.get(task.name), perf_counter()
        blank = nightly.NetworkResult(task.name, f"{RUNS}/{task.stem}", accepted=self.accepts, targets=task.targets)
        if baseline is not None:
            outlines = tuple(replace(report, layers=()) for report in baseline.runs)
            blank = replace(blank, baseline=replace(baseline, runs=outlines))
        runs = _NetworkRuns(task, self.nightly_run.folder, self.runner, PrefixedProgress(self.progress, task.name))
        try:
            result = self._compared(blank, baseline, runs)
            renewed = self._next_baseline(result, baseline, runs)
        except Exception as error:
            message = error.line if isinstance(error, TrtBisectError) else own_fault(error).replace("\n", " ")
            result, renewed = replace(blank, message=message), baseline
        return replace(result, seconds=max(perf_counter() - began, runs.seconds)), renewed

    def _compared(
        self, blank: nightly.NetworkResult, baseline: nightly.Baseline | None, runs: _NetworkRuns
    ) -> nightly.NetworkResult:
        now, task = runs.report(1), runs.task
        noise: list[Change] = []
        if baseline is None:
            moved, differs = missed_thresholds(now, task.direction), None
        else:
            before = baseline.runs[0]
            if before.metric != now.metric and not self.accepts:
                raise BadInput(
                    f"The network is judged by '{now.metric}' and its baseline by '{before.metric}': their figures "
                    "cannot be compared.",
                    "Run it once with --update-baseline.",
                )
            moved, noise = self._confirmed(baseline, runs) if before.metric == now.metric else ((), [])
            differs = differences(before, now)
        moved = (*missed_targets(now, task.targets, task.direction), *moved)
        failures = tuple(change for change in moved if change.fails(self.accepts))
        return replace(
            blank,
            status=nightly.FAILED if failures else nightly.PASSED,
            tonight=replace(now, layers=()),
            failures=failures,
            changes=tuple(change for change in moved if not change.fails(self.accepts)),
            noise=tuple(noise),
            differs=differs,
        )

    def _confirmed(self, baseline: nightly.Baseline, runs: _NetworkRuns) -> tuple[tuple[Change, ...], list[Change]]:
        seen = runs.changes(1, baseline)
        if not seen:
            return (), []
        self.progress.say(f"{baseline.name}: {len(seen)} figures are outside the baseline's range; measuring again")
        again = {change.key for change in runs.changes(2, baseline)}
        return tuple(change for change in seen if change.key in again), [c for c in seen if c.key not in again]

    def _next_baseline(
        self, result: nightly.NetworkResult, baseline: nightly.Baseline | None, runs: _NetworkRuns
    ) -> nightly.Baseline | None:
        if not self.accepts and not (self.reference.is_latest and result.status == nightly.PASSED):
            return baseline
        # else the old figures stay, so that a slow decline shows when its sum exceeds the noise
        is_renewed = any(
            (change.effect == BETTER and change.kind in FAILING) or change.kind == LAYER for change in result.changes
        )
        if self.accepts or baseline is None or is_renewed:
            repeats = runs.task.repeats
            reports = [runs.report(number) for number in range(1, repeats + 1)]
            unique = tuple(report for k, report in enumerate(reports) if report not in reports[:k])
            return nightly.Baseline(result.name, repeats, self.nightly_run.title, unique)
        parts = ("made_of", "threshold", "budget", "share", "strategy")
        tonight = {name: getattr(runs.report(1), name) for name in parts}
        return replace(baseline, runs=tuple(replace(report, **tonight) for report in baseline.runs))

    def _regression(self, results: tuple[nightly.NetworkResult, ...]) -> nightly.Regression:
        named = {task.name for task in self.suite.networks}
        statuses = {result.status for result in results}
        status = next((status for status in (nightly.FAILED, nightly.ERROR) if status in statuses), nightly.PASSED)
        is_first = not self.reference.networks and nightly.PASSED in statuses
        return nightly.Regression(
            suite=str(self.suite.path),
            folder=self.nightly_run.folder,
            number=self.nightly_run.number,
            began=self.nightly_run.began,
            baseline=self.reference.description,
            accepted=self.accepts or is_first,
            status=status,
            exit_code={nightly.PASSED: 0, nightly.FAILED: 1, nightly.ERROR: NothingMeasured.exit_code}[status],
            networks=results,
            gone=tuple(name for name in self.reference.networks if name not in named),
            baseline_folder=self.reference.folder,
        )


@dataclass
class _NetworkRuns:
    task: NetworkTask
    folder: Path
    runner: Runner
    progress: Progress
    seconds: float = 0.0
    reports: dict[int, Report] = field(default_factory=dict)

    def report(self, number: int) -> Report:
        """Measures run ``number`` (from 1) at the first call, and returns the part of its report that is compared with
        a baseline.
        """
        if self.task.missing is not None:
            raise self.task.missing
        if number not in self.reports:
            folder = _folder(self.folder, self.task, number)
            with recorded(folder, self.folder.parent / HISTORY, self.progress.say, self.task.name):
                report = _finished(folder) or self.runner(self.task, folder, self.progress)
            self.seconds += report.seconds.total
            if report.exit_code == NothingMeasured.exit_code:
                texts = (*(row.message for row in report.layers), *(note.text for note in report.notes))
                raise NothingMeasured("No plan could be measured.", next(filter(None, texts), "").partition("\n")[0])
            self.reports[number] = compared_part(report)
        return self.reports[number]

    def changes(self, number: int, baseline: nightly.Baseline) -> tuple[Change, ...]:
        return changes(self.report(number), baseline.runs, self.task.tolerances, self.task.direction)


def _folder(nightly_run: Path, task: NetworkTask, number: int) -> Path:
    return nightly_run / RUNS / task.stem if number == 1 else nightly_run / REPEATS / task.stem / str(number)


def _finished(folder: Path) -> Report | None:
    report = None if (folder / PROGRESS).exists() else read_report(folder / REPORT)
    return None if report is None or report.state != FINISHED else report
