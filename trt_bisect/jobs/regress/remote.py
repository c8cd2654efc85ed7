"""A suite's networks side by side on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trt_bisect.cluster.settings import ClusterOptions
from trt_bisect.errors import TrtBisectError
from trt_bisect.history.record_on_exit import NONE
from trt_bisect.jobs.regress.suite import NetworkTask
from trt_bisect.jobs.remote.dispatch import WantedRun, run_elsewhere
from trt_bisect.results.run_report import Report
from trt_bisect.support.progress import Progress


class Elsewhere:
    """Measures networks on a cluster: those known to be wanted all together, the others when they are asked for."""

    def __init__(self, cluster: ClusterOptions) -> None:
        self._cluster = cluster
        self._ended: dict[Path, Report | TrtBisectError] = {}

    def ahead(self, wanted: Iterable[tuple[NetworkTask, Path]], progress: Progress) -> None:
        """Has these runs done, as many at once as the cluster has places.

        Raises:
            BadInput: there is no such cluster.
            EngineUnavailable: no node can be used, or the cluster is gone; what the journals have is kept.
        """
        jobs = {folder: WantedRun(folder, {**task.keywords, "history": NONE}) for task, folder in wanted}
        names = {folder: task.name for task, folder in wanted}
        if not jobs:
            return
        progress.stage(f"Runs on the cluster {self._cluster.address}", len(jobs))
        for job, ended in run_elsewhere(self._cluster, list(jobs.values()), progress.say):
            progress.step(names[job.folder])
            self._ended[job.folder] = ended

    def __call__(self, task: NetworkTask, folder: Path, progress: Progress) -> Report:
        """The report of a run, which is done now where it was not done ahead; raises what a run here would raise."""
        if folder not in self._ended:
            self.ahead([(task, folder)], progress)
        ended = self._ended.pop(folder)
        if isinstance(ended, TrtBisectError):
            raise ended
        return ended
