"""A nightly run: measures the networks of a suite and compares them with a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from trt_bisect.analyzer.changes import (
    BETTER,
    FAILING,
    LAYER,
    Change,
    changes,
    confirmed,
    missed_targets,
    missed_thresholds,
)
from trt_bisect.analyzer.differences import differences
from trt_bisect.analyzer.figures import Figures
from trt_bisect.cluster.settings import ClusterSettings
from trt_bisect.errors import BadInput, NothingMeasured, TrtBisectError, own_fault
from trt_bisect.history.record_on_exit import NONE, recorded
from trt_bisect.history.store import HISTORY
from trt_bisect.jobs.regress.baseline_source import LATEST, ReferenceRun, find_reference, refuse_update
from trt_bisect.jobs.regress.nightly_folders import NightlyRun, nightly_runs_in
from trt_bisect.jobs.regress.remote import ClusterRunner
from trt_bisect.jobs.regress.suite import NetworkTask, Suite, read_suite, stem_of
from trt_bisect.jobs.run.run import run
from trt_bisect.report.model import REPORT, Report
from trt_bisect.report.older import read_report
from trt_bisect.report.regression.baseline import NetworkBaseline, baseline_of, write_baseline
from trt_bisect.report.regression.result import FAILED, FILES, PASSED, NetworkResult, Regression
from trt_bisect.report.regression.run_changes import figures_of, origin_of
from trt_bisect.runs.progress_file import PROGRESS
from trt_bisect.support.files import make_folder
from trt_bisect.support.progress import PrefixedProgress, Progress, default_progress

RUNS, REPEATS = "runs", "repeats"
"""In the folder of a nightly run: a run folder for each network, and for each network a folder with its repeats."""

Runner = Callable[[NetworkTask, Path, Progress], Report]
"""Measures one network in a folder."""


def run_network(task: NetworkTask, folder: Path, progress: Progress, cluster: str = "") -> Report:
    """Measures one network. The folder gets all files that ``trt-bisect run`` writes.

    Args:
        task: the network.
        folder: the run folder.
        progress: shows the progress.
        cluster: as for ``run``.

    Raises:
        TrtBisectError: the network, its data or its engine cannot be used, or nothing could be measured.
    """
    return run(**task.keywords, output=folder, progress=progress, history=NONE, cluster=cluster)


def regress(
    config: str | Path,
    baseline: str | Path = LATEST,
    *,
    update_baseline: bool = False,
    progress: Progress | None = None,
    cluster: str | None = None,
    cluster_cpus: int | None = None,
    retries: int | None = None,
    runner: Runner | None = None,
) -> Regression:
    """Measures a suite of networks and reports the changes from a baseline.

    If a figure lies outside the baseline's range, the network is measured again in a new folder, and only the changes
    of both runs are reported. A network that cannot be measured does not stop the others. An interrupted nightly run is
    resumed. The results are written into the folder of the nightly run, and into the suite's output folder, where they
    stay until the next nightly run begins.

    Args:
        config: the suite, a TOML file.
        baseline: a folder that ``update_baseline`` wrote, the folder of a nightly run or of a run, or a
            ``report.json``; or ``latest``, the newest nightly run that passed or was accepted. With ``latest`` and no
            such nightly run, this one becomes the baseline if it passes: if it meets all targets, and each recipe meets
            its threshold.
        update_baseline: the figures of this nightly run, of ``repeats`` runs, become the baseline in any case.
        progress: shows the progress; tqdm in a notebook by default.
        cluster: a Ray cluster, as for ``run``, on which networks are measured in parallel, one task each; or
            ``local:N`` for N processes on this machine, which try the plans of one network after the other.
        cluster_cpus: CPUs of a task without a GPU.
        retries: how often a run is resumed from its journal after its node died. These three are the suite's where
            they are None.
        runner: measures one network; replaces the default, on this machine or on the cluster.

    Raises:
        BadInput: the suite, the baseline or the cluster cannot be used, or another process uses the suite's output
            folder.
        EngineUnavailable: the cluster is gone. The same call resumes the nightly run.
    """
    suite = read_suite(config)
    places = _given_places(suite, address=cluster, cpus=cluster_cpus, retries=retries)
    on_cluster = ClusterRunner(places) if places.address and not places.is_local and runner is None else None
    if update_baseline:
        refuse_update(baseline)
    with nightly_runs_in(suite.output) as nightly_runs, closing(progress or default_progress()) as shown:
        reference = find_reference(baseline, nightly_runs, suite, must_exist=not update_baseline)
        new_baseline = reference.folder if update_baseline else None
        if new_baseline is not None:
            make_folder(new_baseline, "--baseline")
        for name in FILES:
            (suite.output / name).unlink(missing_ok=True)
        nightly_run, is_resumed = nightly_runs.begin(suite.digest())
        if is_resumed:
            shown.say(f"Resuming the nightly run in {nightly_run.folder}")
        if not reference.networks:
            shown.say("There is no baseline yet: if this nightly run passes, its figures become the baseline.")
        measure = runner or on_cluster or partial(run_network, cluster=places.address)
        regression_runner = _RegressionRunner(suite, nightly_run, reference, update_baseline, measure, shown)
        if on_cluster is not None:
            on_cluster.measure_all(list(regression_runner.certain_runs()), shown)
        return regression_runner.run(new_baseline)


def _given_places(suite: Suite, **given: Any) -> ClusterSettings:
    """Returns the suite's settings of the cluster, with those that the call gives."""
    return replace(suite.cluster, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class _RegressionRunner:
    """Measures a night's networks and compares them with the reference.

    Attributes:
        suite: the networks.
        nightly_run: the nightly run.
        reference: the figures to compare with.
        accepts: the figures of this nightly run become the baseline in any case: the user says so.
        runner: measures one network.
        progress: shows the progress.
    """

    suite: Suite
    nightly_run: NightlyRun
    reference: ReferenceRun
    accepts: bool
    runner: Runner
    progress: Progress

    def run(self, new_baseline: Path | None) -> Regression:
        """Measures and compares all networks, writes the results and the baseline, and finishes the nightly run.

        Args:
            new_baseline: a folder into which the baseline is written too.
        """
        found = [self.result(task) for task in self.suite.networks]
        regression = self.regression([result for result, _ in found])
        regression.save(self.nightly_run.folder)
        regression.save(self.suite.output)
        baselines = [network for _, network in found if network is not None]
        is_baseline = self.write_baselines(regression, baselines, new_baseline)
        self.nightly_run.finish(regression.status, is_baseline)
        return regression

    def certain_runs(self) -> Iterator[tuple[NetworkTask, Path]]:
        """Yields the runs that are needed whatever their results are, without those that are finished already."""
        for task in self.suite.networks:
            count = task.repeats if self.accepts or task.name not in self.reference.networks else 1
            for number in range(1, count + 1):
                folder = _folder(self.nightly_run.folder, task, number)
                if _finished(folder) is None:
                    yield task, folder

    def result(self, task: NetworkTask) -> tuple[NetworkResult, NetworkBaseline | None]:
        """Returns the result of one network, and its baseline for the next nightly runs."""
        known = self.reference.networks.get(task.name)
        began = perf_counter()
        blank = NetworkResult(
            task.name, f"{RUNS}/{task.stem}", 0.0, baseline=known, accepted=self.accepts, targets=task.targets
        )
        repeats = _Repeats(task, self.nightly_run.folder, self.runner, PrefixedProgress(self.progress, task.name))
        try:
            result = self._compared(blank, repeats)
            baseline = self._next_baseline(result, repeats)
        except TrtBisectError as error:
            result, baseline = replace(blank, message=str(error).replace("\n", " ")), known
        except Exception as error:
            result, baseline = replace(blank, message=own_fault(error).replace("\n", " ")), known
        return replace(result, seconds=max(perf_counter() - began, repeats.seconds)), baseline

    def _compared(self, blank: NetworkResult, repeats: _Repeats) -> NetworkResult:
        figures = repeats.figures(1)
        missed = missed_targets(figures, repeats.task.targets)
        known = blank.baseline
        if known is None:
            return replace(blank, figures=figures, changes=(*missed, *missed_thresholds(figures)))
        seen = _changes(figures, known, repeats.task) if _is_comparable(figures, known, self.accepts) else ()
        lasting, noise = self._confirmed(seen, known, repeats)
        return replace(
            blank,
            figures=figures,
            changes=(*missed, *lasting),
            noise=noise,
            differs=differences(known.origin, origin_of(repeats.report(1))),
        )

    def _confirmed(
        self, seen: Sequence[Change], known: NetworkBaseline, repeats: _Repeats
    ) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
        """The changes that a run in a fresh folder shows again, and the others."""
        if not seen:
            return (), ()
        self.progress.say(f"{known.name}: {len(seen)} figures are outside the baseline's range; measuring again")
        return confirmed(seen, _changes(repeats.figures(2), known, repeats.task))

    def _next_baseline(self, result: NetworkResult, repeats: _Repeats) -> NetworkBaseline | None:
        """Returns the baseline of a network for the next nightly runs.

        A network without changes keeps its old figures. So a slow decline in small steps is seen as soon as its sum is
        larger than the noise.
        """
        known = result.baseline
        if not self.accepts and not (self.reference.is_latest and result.status == PASSED):
            return known
        made_of = origin_of(repeats.report(1))
        if self.accepts or known is None or _is_renewed(result.changes):
            count = repeats.task.repeats
            runs = [repeats.figures(k) for k in range(1, count + 1)]
            return baseline_of(result.name, made_of, runs, self.nightly_run.title)
        return replace(known, origin=made_of)

    def write_baselines(
        self, regression: Regression, baselines: Sequence[NetworkBaseline], folder: Path | None
    ) -> bool:
        """Writes the baseline for the next nightly runs if this one passed or is accepted.

        Networks that are no longer in the suite stay in the baseline until a baseline is accepted.

        Args:
            regression: the results.
            baselines: one for each network.
            folder: a folder into which they are written too.

        Returns:
            True if the baseline was written.
        """
        passed = self.reference.is_latest and (regression.status == PASSED or regression.accepted)
        if not baselines or not (self.accepts or passed):
            return False
        gone = [] if self.accepts else [self.reference.networks[name] for name in regression.gone]
        files = {stem_of(network.name): network for network in (*baselines, *gone)}
        for target in (self.nightly_run.baseline, folder):
            if target is not None:
                write_baseline(target, files)
        return True

    def regression(self, results: Iterable[NetworkResult]) -> Regression:
        """Returns the result of the whole nightly run."""
        named = {task.name for task in self.suite.networks}
        results = tuple(results)
        statuses = {result.status for result in results}
        is_first = not self.reference.networks and PASSED in statuses and FAILED not in statuses
        return Regression(
            suite=str(self.suite.path),
            folder=self.nightly_run.folder,
            number=self.nightly_run.number,
            began=self.nightly_run.began,
            baseline=self.reference.description,
            accepted=self.accepts or is_first,
            networks=results,
            gone=tuple(name for name in self.reference.networks if name not in named),
            baseline_folder=self.reference.folder,
        )


class _Repeats:
    """The runs of one network in a nightly run. Each is measured when it is first needed; the first one is judged.

    A run that was finished before the nightly run was interrupted is read from its folder.

    Args:
        task: the network.
        folder: the folder of the nightly run.
        runner: measures one network.
        progress: shows the progress.
    """

    def __init__(self, task: NetworkTask, folder: Path, runner: Runner, progress: Progress) -> None:
        self.task = task
        self._folder = folder
        self._runner = runner
        self._progress = progress
        self._reports: dict[int, Report] = {}

    def report(self, number: int) -> Report:
        """Returns the report of run ``number``, from 1.

        Raises:
            NothingMeasured: no plan of the run could be measured.
            TrtBisectError: as the runner raises it.
        """
        if number not in self._reports:
            folder = _folder(self._folder, self.task, number)
            with recorded(folder, self._folder.parent / HISTORY, self._progress.say, self.task.name):
                report = _finished(folder) or self._runner(self.task, folder, self._progress)
            if report.exit_code == NothingMeasured.exit_code:
                raise NothingMeasured("No plan could be measured.", _first_message(report))
            self._reports[number] = report
        return self._reports[number]

    @property
    def seconds(self) -> float:
        """The seconds that the runs took, on whichever machine."""
        return sum(report.seconds.total for report in self._reports.values())

    def figures(self, number: int) -> Figures:
        """The figures of run ``number`` that are compared."""
        return figures_of(self.report(number), self.task.direction)


def _folder(nightly_run: Path, task: NetworkTask, number: int) -> Path:
    """Returns the folder of a network's run ``number``, from 1, in the folder of a nightly run."""
    return nightly_run / RUNS / task.stem if number == 1 else nightly_run / REPEATS / task.stem / str(number)


def _finished(folder: Path) -> Report | None:
    """Returns the report of a finished run; None if the run is not finished."""
    return None if (folder / PROGRESS).exists() else read_report(folder / REPORT)


def _changes(figures: Figures, known: NetworkBaseline, task: NetworkTask) -> tuple[Change, ...]:
    return changes(figures, known.runs, task.tolerances)


def _is_comparable(figures: Figures, known: NetworkBaseline, accepts: bool) -> bool:
    before, now = known.runs[0].judge.name, figures.judge.name
    if before != now and not accepts:
        raise BadInput(
            f"The network is judged by '{now}' and its baseline by '{before}': their figures cannot be compared.",
            "Run it once with --update-baseline.",
        )
    return before == now


def _is_renewed(found: Iterable[Change]) -> bool:
    """Returns true if the network is better or has other layers: tonight's figures then replace the old ones."""
    return any((change.effect == BETTER and change.kind in FAILING) or change.kind == LAYER for change in found)


def _first_message(report: Report) -> str:
    messages = [row.message for row in report.layers if row.message] or [note.text for note in report.notes]
    return messages[0].splitlines()[0] if messages else ""
