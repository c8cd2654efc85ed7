"""Measures the networks of a suite in parallel on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trt_bisect.cluster.settings import ClusterSettings
from trt_bisect.errors import TrtBisectError
from trt_bisect.history.store import NONE
from trt_bisect.jobs.regress.suite import NetworkTask
from trt_bisect.jobs.remote.dispatch import WantedRun, run_elsewhere
from trt_bisect.report.model import Report
from trt_bisect.support.progress import Progress


class ClusterRunner:
    """Measures networks on a cluster, several at once with ``measure_all`` or one when it is called."""

    def __init__(self, cluster: ClusterSettings) -> None:
        self._cluster = cluster
        self._results: dict[Path, Report | TrtBisectError] = {}

    def measure_all(self, tasks: Sequence[tuple[NetworkTask, Path]], progress: Progress) -> None:
        """Measures networks in their folders, as many at once as the cluster has places.

        Raises:
            BadInput: there is no such cluster.
            EngineUnavailable: no node can be used, or the cluster is gone. The journals keep all measured trials.
        """
        if not tasks:
            return
        runs = [WantedRun(folder, {**task.keywords, "history": NONE}) for task, folder in tasks]
        names = {folder: task.name for task, folder in tasks}
        progress.stage(f"Runs on the cluster {self._cluster.address}", len(runs))
        for run, result in run_elsewhere(self._cluster, runs, progress.say):
            progress.step(names[run.folder])
            self._results[run.folder] = result

    def __call__(self, task: NetworkTask, folder: Path, progress: Progress) -> Report:
        """Returns the report of a run; measures it now if ``measure_all`` did not.

        Raises:
            TrtBisectError: as ``run`` raises it.
        """
        if folder not in self._results:
            self.measure_all([(task, folder)], progress)
        result = self._results.pop(folder)
        if isinstance(result, TrtBisectError):
            raise result
        return result
