"""Whole runs on a Ray cluster, a task each: a suite's networks side by side.

The contents of the network, the calibration data and the inputs are sent once. Their names stay those on this machine,
so the reports are the same. The journal is sent back while a run goes on: if its node dies, the run goes on from there
on another node.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trt_bisect._version import versions
from trt_bisect.builder.engines import AUTO, ONNXRUNTIME, choose_engine
from trt_bisect.calibration.cache import is_cache_path, ranges_of_cache
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.cluster.address import is_ray
from trt_bisect.cluster.ray_cluster import RayCluster
from trt_bisect.commands.run.run import run
from trt_bisect.commands.suite import NetworkTask
from trt_bisect.data.datasets import open_dataset
from trt_bisect.data.named import StagedFile, name_of
from trt_bisect.data.preprocessing import Preprocessing, preprocessing
from trt_bisect.errors import BadInput, TrtBisectError, first_line
from trt_bisect.evaluator.accuracy import read_labels
from trt_bisect.history.store import BESIDE, NONE, recorded
from trt_bisect.model.network import Network
from trt_bisect.options.concerns import FIXING, PICTURE_OPTIONS, RunOptions
from trt_bisect.preparation.asked_network import asked_network
from trt_bisect.preparation.workspace import refuse_another_network
from trt_bisect.report.model import SO_FAR, Report
from trt_bisect.runs.cached_inputs import CANDIDATES, INPUTS, INPUTS_ABOUT, MAGNITUDES, RANGES
from trt_bisect.runs.journal import JOURNAL, append, complete_lines, opened
from trt_bisect.runs.progress_file import PROGRESS
from trt_bisect.support.files import locked, make_folder, write_whole
from trt_bisect.support.machine import use_at_most
from trt_bisect.support.progress import Progress, Silent

_FOUND_BEFORE = (MAGNITUDES.file, RANGES.file, CANDIDATES.file, INPUTS, INPUTS_ABOUT)
_NOT_ELSEWHERE = (*("tensorboard", "tensorboard_detail"), *("progress", "output", "cluster", "plugins", "reference"))
_OF_NETWORK = ("low", "base", "precision")
"""The options, besides those that fix layers, that change the network; it is read here."""


@dataclass(frozen=True)
class WantedRun:
    """A run that is wanted: its folder, and the keywords of ``trt_bisect.run``."""

    folder: Path
    keywords: Mapping[str, Any]


@dataclass(frozen=True)
class RunElsewhere:
    """A run that was sent to another machine; called there.

    Attributes:
        keywords: the other arguments of ``trt_bisect.run``; files are ``StagedFile``.
        facts: the versions on the machine that asks for it; a node with others is not used.
        fixing: the precisions of layers that the user fixed, for suggested commands; the network has them already.
    """

    network: Network
    keywords: Mapping[str, Any]
    engine: str
    folder: str
    facts: Mapping[str, str]
    fixing: Mapping[str, Any]

    def __call__(self, folder: Path) -> Report:
        """Does the run in a folder of this machine."""
        if self.engine == ONNXRUNTIME:
            use_at_most(1)
        keywords = {**self.keywords, "output": StagedFile(self.folder, folder), "progress": Silent()}
        options = replace(RunOptions.given("run", keywords), engine=self.engine, history=NONE)
        return run.job(self.network, options, asked=RunOptions.given("run", {**keywords, **self.fixing}))


def run_elsewhere(
    address: str, jobs: Sequence[WantedRun], say: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[WantedRun, Report | TrtBisectError]]:
    """Does runs on a Ray cluster, as many at once as it has places; each folder ends as after a run here.

    Args:
        address: the address of a Ray cluster. Each run has a GPU, or, where its engine is ONNX Runtime, a processor; a
            run whose node dies goes on elsewhere, from where its journal is.
        say: is called with a line for each node that is lost or not used.

    Yields:
        Each job, as it ends, with its report, or the error that a run here would have raised.

    Raises:
        BadInput: there is no such cluster.
        EngineUnavailable: no node can be used, or the cluster is gone; what the journals have is kept.
    """
    if not is_ray(address):
        raise BadInput(f"Whole runs cannot be sent to '{address}'.", "Give the address of a Ray cluster, or 'auto'.")
    waiting, under_way = deque(sorted(jobs, key=lambda job: _engine(job) == ONNXRUNTIME)), dict[str, _Folder]()
    with RayCluster(address, say) as cluster, ExitStack() as folders:
        folders.callback(cluster.abandon)
        while waiting or under_way:
            if not waiting or len(under_way) > cluster.size:  # one more than there are places is sent ahead
                name, result = cluster.ended(lambda name, *news: under_way[name].write(*news))
                folder = under_way.pop(name)
                yield folder.job, folder.ended(result)
                continue
            job = waiting.popleft()
            try:
                content = pickled(job)
                folder = _Folder(job, say)
            except TrtBisectError as error:
                yield job, error
            else:
                folders.callback(folder.close)
                under_way[str(job.folder)] = folder
                cluster.employ(_engine(job))
                cluster.begin(str(job.folder), content, folder.so_far())


def _engine(job: WantedRun) -> str:
    """The engine of a job. What this machine has decides for ``auto``, and only for that."""
    engine: str = job.keywords.get("engine", AUTO)
    return choose_engine(engine) if engine == AUTO else engine


def pickled(job: WantedRun) -> bytes:
    """Returns a job as a ``RunElsewhere``, pickled with all that it needs.

    Raises BadInput if something of the job cannot be used, or cannot be sent.
    """
    keywords = dict(job.keywords)
    keywords.pop("history", None)
    here_only = [name for name in _NOT_ELSEWHERE if keywords.pop(name, None)]
    if here_only:
        raise BadInput(f"A run elsewhere takes no '{here_only[0]}'.", "Leave it out.")
    model, shapes = keywords.pop("model"), keywords.pop("shapes", None)
    fixing = {name: keywords.pop(name) for name in FIXING if name in keywords}
    of_network = {name: keywords[name] for name in _OF_NETWORK if name in keywords}
    network = asked_network(RunOptions(**of_network, **fixing), model, shapes)
    refuse_another_network(job.folder, network)
    if isinstance(keywords.get("labels"), (str, Path)):
        keywords["labels"] = read_labels(Path(keywords["labels"]))
    pictures = preprocessing({name: keywords.get(name) for name in PICTURE_OPTIONS})
    for name in ("calibration", "inputs", "dataset", "validation"):
        keywords[name] = _carried(keywords.get(name), network, pictures)
    there = RunElsewhere(replace(network, has_file=False), keywords, _engine(job), str(job.folder), versions(), fixing)
    try:
        return pickle.dumps(there, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        problem = f"The arguments of the run '{job.folder}' cannot be sent to the cluster: {first_line(error)}"
        raise BadInput(problem, "Name functions as module:function, and give data as files.") from error


def _carried(value: Any, network: Network, pictures: Preprocessing) -> Any:
    """Data or a calibration cache as what it holds, under its name; objects as they are."""
    name = name_of(value)
    if not name:
        return value
    if is_cache_path(value):
        return StagedFile(name, Ranges({}, {}, "") if network.has_pairs else ranges_of_cache(Path(name), network))
    data = open_dataset(value, network.inputs, pictures=pictures)
    return StagedFile(name, replace(data, samples=partial(list, list(data.samples()))))


class _Folder:
    """The run folder of a job, which no other run can have meanwhile."""

    def __init__(self, job: WantedRun, say: Callable[[str], None]) -> None:
        self.job = job
        self._path = make_folder(job.folder)
        with ExitStack() as opening:
            opening.enter_context(locked(self._path))
            opening.enter_context(recorded(self._path, job.keywords.get("history", BESIDE), say))
            self._journal = opening.enter_context(opened(self._path / JOURNAL))
            opening.callback(lambda: (self._path / PROGRESS).unlink(missing_ok=True))
            self._open = opening.pop_all()

    def so_far(self) -> dict[str, bytes]:
        """The files that the run continues from: the whole lines of its journal, the ranges and the inputs."""
        self._journal.seek(0)
        journal = complete_lines(self._journal.read())
        self._journal.truncate(len(journal))
        files = {name: (self._path / name).read_bytes() for name in _FOUND_BEFORE if (self._path / name).is_file()}
        return {**files, JOURNAL: journal}

    def write(self, lines: bytes, shown: Mapping[str, bytes]) -> None:
        """Keeps what the run has written meanwhile: lines of its journal, its progress, its report so far."""
        append(self._journal, self._path / JOURNAL, lines)
        for name in {PROGRESS, SO_FAR} & set(shown):
            with suppress(BadInput):
                write_whole(self._path / name, shown[name])

    def ended(self, result: tuple[Report, Mapping[str, bytes]] | TrtBisectError) -> Report | TrtBisectError:
        """Returns the report of the run, when its files are in the folder; or its error."""
        try:
            if isinstance(result, TrtBisectError):
                return result
            report, files = result
            for name, content in files.items():
                path = self._path / name
                if name != JOURNAL and path.resolve().is_relative_to(self._path.resolve()):
                    make_folder(path.parent)
                    write_whole(path, content)
            (self._path / SO_FAR).unlink(missing_ok=True)
            return report
        finally:
            self.close()

    def close(self) -> None:
        """Leaves the folder, and records the run; harmless afterwards."""
        self._open.close()


class ClusterRunner:
    """Measures the networks of a suite on a cluster: several at once with ``measure_all``, or one when it is called."""

    def __init__(self, address: str) -> None:
        self._address = address
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
        progress.stage(f"Runs on the cluster {self._address}", len(runs))
        for job, result in run_elsewhere(self._address, runs, progress.say):
            progress.step(names[job.folder])
            self._results[job.folder] = result

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
