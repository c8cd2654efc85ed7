"""A night: the suite's networks measured and compared with a baseline. The command line calls this too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

from trt_bisect.analyzer.changes import BETTER, FAILING, LAYER, Change, changes, confirmed, missed_targets
from trt_bisect.analyzer.differences import differences
from trt_bisect.analyzer.figures import Figures
from trt_bisect.cluster.settings import RETRIES, ClusterOptions
from trt_bisect.errors import BadInput, NothingMeasured, TrtBisectError, own_fault
from trt_bisect.history.record_on_exit import NONE, recorded
from trt_bisect.history.store import HISTORY
from trt_bisect.jobs.regress.baseline_source import LATEST, ReferenceRun, find_reference, refuse_update
from trt_bisect.jobs.regress.nightly_folders import NightlyRun, nightly_runs_in
from trt_bisect.jobs.regress.remote import Elsewhere
from trt_bisect.jobs.regress.run_figures import figures_of, origin_of
from trt_bisect.jobs.regress.suite import NetworkTask, Suite, read_suite, stem_of
from trt_bisect.jobs.run.run import run
from trt_bisect.results.baseline import NetworkBaseline, baseline_of, write_baseline
from trt_bisect.results.regression import FILES, PASSED, NetworkResult, Regression
from trt_bisect.results.run_report import REPORT, Report
from trt_bisect.runs.progress_file import PROGRESS
from trt_bisect.support.files import make_folder
from trt_bisect.support.json_files import read_record
from trt_bisect.support.progress import PrefixedProgress, Progress, default_progress

RUNS, REPEATS = "runs", "repeats"
"""In a night's folder: a run folder a network, and a folder a network with one for each repeat."""

Runner = Callable[[NetworkTask, Path, Progress], Report]
"""Measures one network in a folder."""


def run_network(task: NetworkTask, folder: Path, progress: Progress, cluster: str = "") -> Report:
    """One run of one network; its folder has all that ``trt-bisect run`` writes. ``cluster`` is that of ``run``.

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
    cluster: str = "",
    cluster_cpus: int = 1,
    retries: int = RETRIES,
    runner: Runner | None = None,
) -> Regression:
    """Measures a suite of networks, and says what is worse than in a baseline.

    What lies outside the baseline's range is measured once more in a fresh folder, and told only if it is there again.
    A network that cannot be measured does not cost the others. A night that was interrupted is gone on with. What the
    night says is in its folder, and in that of the nights until the next one begins.

    Args:
        config: the suite, a TOML file.
        baseline: a folder that ``update_baseline`` wrote, a night's, a run's, or a ``report.json``; or ``latest``, the
            newest night that passed or was accepted. With ``latest`` and no such night, tonight becomes the baseline.
        update_baseline: whether tonight's figures, of ``repeats`` runs, become the baseline whatever they are.
        progress: where progress is shown; tqdm in a notebook by default.
        cluster: a Ray cluster, as ``run`` takes it, on which networks are measured side by side, a task each; or
            ``local:N`` for N processes here that try the plans of one network after the other.
        cluster_cpus: of a task that has no GPU.
        retries: how often a run whose node died is done again, from where its journal is.
        runner: measures one network, in place of all that.

    Raises:
        BadInput: the suite, the baseline or the cluster cannot be used, or another process is in the suite's output
            folder.
        EngineUnavailable: the cluster is gone. The same call goes on with the night.
    """
    suite = read_suite(config)
    places = ClusterOptions(cluster, cluster_cpus, retries)
    elsewhere = Elsewhere(places) if cluster and not places.is_local and runner is None else None
    if update_baseline:
        refuse_update(baseline)
    with nightly_runs_in(suite.output) as nights, closing(progress or default_progress()) as shown:
        standard = find_reference(baseline, nights, suite, must_exist=not update_baseline)
        if update_baseline and standard.folder is not None:
            make_folder(standard.folder, "--baseline")
        for name in FILES:
            (suite.output / name).unlink(missing_ok=True)
        night, goes_on = nights.tonight(suite.digest())
        if goes_on:
            shown.say(f"Going on with the night in {night.folder}")
        if not standard.networks:
            shown.say("There is no baseline yet: tonight's figures become it.")
        measures = runner or elsewhere or partial(run_network, cluster=cluster)
        desk = _RegressionRunner(suite, night, standard, update_baseline or not standard.networks, measures, shown)
        if elsewhere is not None:
            elsewhere.ahead(list(desk.wanted()), shown)
        found = [desk.result(task) for task in suite.networks]
        regression = desk.regression([result for result, _ in found])
        regression.save(night.folder)
        regression.save(suite.output)
        kept = [network for _, network in found if network is not None]
        night.ended(regression.status, desk.keep(regression, kept, standard.folder if update_baseline else None))
    return regression


@dataclass(frozen=True)
class _RegressionRunner:
    """What a night's networks are measured with and compared with.

    Attributes:
        accepts: tonight's figures become the baseline whatever they are.
    """

    suite: Suite
    night: NightlyRun
    standard: ReferenceRun
    accepts: bool
    runner: Runner
    progress: Progress

    def wanted(self) -> Iterator[tuple[NetworkTask, Path]]:
        """The runs that are wanted whatever comes of them, and that an interrupted night has not done."""
        for task in self.suite.networks:
            count = task.repeats if self.accepts or task.name not in self.standard.networks else 1
            for number in range(1, count + 1):
                folder = _folder(self.night.folder, task, number)
                if _finished(folder) is None:
                    yield task, folder

    def result(self, task: NetworkTask) -> tuple[NetworkResult, NetworkBaseline | None]:
        """One network's result, and what the nights after this one compare it with."""
        known = self.standard.networks.get(task.name)
        began = perf_counter()
        blank = NetworkResult(
            task.name, f"{RUNS}/{task.stem}", 0.0, baseline=known, accepted=self.accepts, targets=task.targets
        )
        measuring = _Repeats(task, self.night.folder, self.runner, PrefixedProgress(self.progress, task.name))
        try:
            result = self._compared(blank, measuring)
            kept = self._handed_on(result, measuring)
        except TrtBisectError as error:
            result, kept = replace(blank, message=str(error).replace("\n", " ")), known
        except Exception as error:
            result, kept = replace(blank, message=own_fault(error).replace("\n", " ")), known
        return replace(result, seconds=max(perf_counter() - began, measuring.seconds)), kept

    def _compared(self, blank: NetworkResult, measuring: _Repeats) -> NetworkResult:
        figures = measuring.figures(1)
        missed = missed_targets(figures, measuring.task.targets)
        known = blank.baseline
        if known is None:
            return replace(blank, figures=figures, changes=missed)
        seen = _changes(figures, known, measuring.task) if _is_comparable(figures, known, self.accepts) else ()
        lasting, noise = self._confirmed(seen, known, measuring)
        return replace(
            blank,
            figures=figures,
            changes=(*missed, *lasting),
            noise=noise,
            differs=differences(known.origin, origin_of(measuring.report(1))),
        )

    def _confirmed(
        self, seen: Sequence[Change], known: NetworkBaseline, measuring: _Repeats
    ) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
        """What a run in a fresh folder shows again of what was seen, and the rest."""
        if not seen:
            return (), ()
        self.progress.say(f"{known.name}: {len(seen)} figures are outside the baseline's range: once more")
        return confirmed(seen, _changes(measuring.figures(2), known, measuring.task))

    def _handed_on(self, result: NetworkResult, measuring: _Repeats) -> NetworkBaseline | None:
        """The baseline after tonight.

        What has not changed keeps its figures, so that a slide in small steps is seen as soon as it leaves the noise.
        """
        known = result.baseline
        if not self.accepts and not (self.standard.is_latest and result.status == PASSED):
            return known
        made_of = origin_of(measuring.report(1))
        if self.accepts or known is None or _is_renewed(result.changes):
            count = measuring.task.repeats
            return baseline_of(result.name, made_of, [measuring.figures(k) for k in range(1, count + 1)])
        return replace(known, origin=made_of)

    def keep(self, regression: Regression, kept: Sequence[NetworkBaseline], folder: Path | None) -> bool:
        """Writes the baseline that the night hands on, into ``folder`` too; False where it hands on none.

        Networks that the suite has no longer stay in it until a baseline is accepted.
        """
        passed = self.standard.is_latest and regression.status == PASSED
        if not kept or not (self.accepts or passed):
            return False
        gone = [] if self.accepts else [self.standard.networks[name] for name in regression.gone]
        files = {stem_of(network.name): network for network in (*kept, *gone)}
        for target in (self.night.baseline, folder):
            if target is not None:
                write_baseline(target, files)
        return True

    def regression(self, results: Iterable[NetworkResult]) -> Regression:
        """The night as a whole."""
        named = {task.name for task in self.suite.networks}
        return Regression(
            suite=str(self.suite.path),
            folder=self.night.folder,
            number=self.night.number,
            began=self.night.began,
            baseline=self.standard.said,
            accepted=self.accepts,
            networks=tuple(results),
            gone=tuple(name for name in self.standard.networks if name not in named),
            baseline_folder=self.standard.folder,
        )


class _Repeats:
    """The runs of one network tonight, each made when it is first asked for; the first one is what is judged.

    One that was finished before the night was interrupted is taken as it is.
    """

    def __init__(self, task: NetworkTask, night: Path, runner: Runner, progress: Progress) -> None:
        self.task = task
        self._nightly_run = night
        self._runner = runner
        self._progress = progress
        self._reports: dict[int, Report] = {}

    def report(self, number: int) -> Report:
        """Run ``number``, from 1; raises NothingMeasured, too, where no plan of it could be measured."""
        if number not in self._reports:
            folder = _folder(self._nightly_run, self.task, number)
            with recorded(folder, self._nightly_run.parent / HISTORY, self._progress.say, self.task.name):
                report = _finished(folder) or self._runner(self.task, folder, self._progress)
            if report.exit_code == NothingMeasured.exit_code:
                raise NothingMeasured("No plan could be measured.", _first_message(report))
            self._reports[number] = report
        return self._reports[number]

    @property
    def seconds(self) -> float:
        """What they took, wherever they were done."""
        return sum(report.seconds.get("total", 0.0) for report in self._reports.values())

    def figures(self, number: int) -> Figures:
        """What is compared of run ``number``."""
        return figures_of(self.report(number), self.task.direction)


def _folder(night: Path, task: NetworkTask, number: int) -> Path:
    """The run folder of a network's run, from 1, in a night's folder."""
    return night / RUNS / task.stem if number == 1 else night / REPEATS / task.stem / str(number)


def _finished(folder: Path) -> Report | None:
    """The report of a run that came to its end, None where there is none."""
    record = None if (folder / PROGRESS).exists() else read_record(folder / REPORT)
    try:
        return None if record is None else Report.from_json(record)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _changes(figures: Figures, known: NetworkBaseline, task: NetworkTask) -> tuple[Change, ...]:
    return changes(figures, known.runs, task.tolerances)


def _is_comparable(figures: Figures, known: NetworkBaseline, accepts: bool) -> bool:
    before, now = known.runs[0].judge.name, figures.judge.name
    if before != now and not accepts:
        raise BadInput(
            f"It is judged by '{now}', the baseline by '{before}': their figures cannot be compared.",
            "Run it with --update-baseline once.",
        )
    return before == now


def _is_renewed(found: Iterable[Change]) -> bool:
    """Whether the network is better, or of other layers, so that tonight's figures take the old ones' place."""
    return any((change.effect == BETTER and change.kind in FAILING) or change.kind == LAYER for change in found)


def _first_message(report: Report) -> str:
    said = [row.message for row in report.layers if row.message] or list(report.notes)
    return said[0].splitlines()[0] if said else ""
