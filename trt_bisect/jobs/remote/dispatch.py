"""Whole runs on a Ray cluster, a task each: a suite's networks side by side.

The contents of the network, the calibration data and the inputs are sent once. Their names stay those on this machine,
so the reports are the same. The journal is sent back while a run goes on: if its node dies, the run goes on from there
on another node.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect._version import versions
from trt_bisect.builder.engines import AUTO, ONNXRUNTIME, choose_engine
from trt_bisect.calibration.cache import is_cache_path, read_cache
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.cluster.connection import Connection
from trt_bisect.cluster.messages import Lost, Mail, Raised, Ran, Tried
from trt_bisect.cluster.ray_workers import needs
from trt_bisect.cluster.settings import ClusterSettings
from trt_bisect.cluster.tasks import Task, Tasks
from trt_bisect.data.datasets import open_dataset
from trt_bisect.data.preprocessing import Preprocessing, preprocessing
from trt_bisect.data.staged import StagedFile, name_of
from trt_bisect.errors import BadInput, EngineUnavailable, TrtBisectError, first_line
from trt_bisect.evaluator.accuracy import read_labels
from trt_bisect.history.store import BESIDE, recorded
from trt_bisect.jobs.options.fixing import FIXING
from trt_bisect.jobs.options.measuring import RunOptions
from trt_bisect.jobs.options.pictures import NAMES as PICTURE_OPTIONS
from trt_bisect.jobs.remote.worker import RunRequest
from trt_bisect.jobs.workspace import refuse_another_network
from trt_bisect.model.network import Network
from trt_bisect.report.model import Report
from trt_bisect.runs.cached_inputs import CANDIDATES, INPUTS, INPUTS_ABOUT, MAGNITUDES, RANGES
from trt_bisect.runs.journal import JOURNAL, append, opened
from trt_bisect.runs.lock import locked
from trt_bisect.runs.progress_file import PROGRESS
from trt_bisect.support.files import make_folder, write_whole

_FOUND_BEFORE = (MAGNITUDES, RANGES, CANDIDATES, INPUTS, INPUTS_ABOUT)
_NOT_ELSEWHERE = (
    *("tensorboard", "tensorboard_channels", "progress", "output", "cluster", "cluster_cpus", "retries"),
    *("plugins", "ort_ops", "reference", "load_outputs"),
)
_OF_NETWORK = ("low", "activations", "base", "precision", "weight_scales", "unknown_ops")
"""The options, besides those that fix layers, that change the network; it is read here."""


@dataclass(frozen=True)
class WantedRun:
    """A run that is wanted: its folder, and the keywords of ``trt_bisect.run``."""

    folder: Path
    keywords: Mapping[str, Any]


def run_elsewhere(
    cluster: ClusterSettings, jobs: Sequence[WantedRun], say: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[WantedRun, Report | TrtBisectError]]:
    """Does runs on a Ray cluster, as many at once as it has places; each folder ends as after a run here.

    Args:
        cluster: a Ray cluster. Each run has a GPU, or, where its engine is ONNX Runtime, ``cpus`` processors; a run
            whose node dies is done again at most ``retries`` times, from where its journal is.
        jobs: the runs to start.
        say: is called with a sentence on each node and worker that is lost.

    Yields:
        Each job, as it ends, with its report, or the error that a run here would have raised.

    Raises:
        BadInput: there is no such cluster.
        EngineUnavailable: no node can be used, or the cluster is gone; what the journals have is kept.
    """
    if not cluster.address or cluster.is_local:
        raise BadInput(
            f"Whole runs cannot be sent to '{cluster.address}'.", "Give the address of a Ray cluster, or 'auto'."
        )
    connection = Connection(cluster, say)
    try:
        connection.ask("open_mailbox")
        by_engine: dict[bool, list[WantedRun]] = {}
        for job in jobs:
            by_engine.setdefault(_engine(job) == ONNXRUNTIME, []).append(job)
        for alike in by_engine.values():
            yield from _runs_of_a_kind(connection, alike)
    finally:
        connection.close()


def _engine(job: WantedRun) -> str:
    """The engine of a job. What this machine has decides for ``auto``, and only for that."""
    asked: str = job.keywords.get("engine", AUTO)
    return choose_engine(asked) if asked == AUTO else asked


def _runs_of_a_kind(
    connection: Connection, jobs: Sequence[WantedRun]
) -> Iterator[tuple[WantedRun, Report | TrtBisectError]]:
    """Runs that need the same of a node; one more than there are places is sent ahead."""
    tasks = Tasks(connection, "jobs.remote.worker", needs(_engine(jobs[0]), connection.cluster))
    waiting, under_way, folders = deque(jobs), 0, ExitStack()
    try:
        while waiting or under_way:
            if waiting and under_way <= tasks.size:
                job = waiting.popleft()
                try:
                    task = _task(connection, job)
                except TrtBisectError as error:
                    yield job, error
                else:
                    folders.callback(task.of.close)
                    tasks.begin(task)
                    under_way += 1
                continue
            task, ended = tasks.ended()
            under_way -= 1
            connection.ask("drop", task.key)
            assert not isinstance(ended, Tried)
            yield task.of.job, task.of.ended(ended)
    finally:
        tasks.abandon()
        folders.close()


def _task(connection: Connection, job: WantedRun) -> Task:
    """The task of a job, what it works on in the object store.

    Raises:
        BadInput: something of the job cannot be used.
    """
    asked = dict(job.keywords)
    history = asked.pop("history", BESIDE)
    here_only = [name for name in _NOT_ELSEWHERE if asked.pop(name, None)]
    if here_only:
        raise BadInput(f"A run elsewhere takes no '{here_only[0]}'.", "Leave it out.")
    model, shapes = asked.pop("model"), asked.pop("shapes", None)
    fixing = {name: asked.pop(name) for name in FIXING if name in asked}
    kept = {name: asked[name] for name in _OF_NETWORK if name in asked}
    network = RunOptions(**kept, **fixing).network(model, shapes)
    refuse_another_network(job.folder, network)
    if isinstance(asked.get("labels"), (str, Path)):
        asked["labels"] = read_labels(Path(asked["labels"]))
    pictures = preprocessing({name: asked.get(name) for name in PICTURE_OPTIONS})
    for name in ("calibration", "inputs", "dataset", "validation"):
        asked[name] = _carried(asked.get(name), network, pictures, keep_masks=asked.get("keep_mask_ranges", False))
    engine = _engine(job)
    processors = connection.cluster.cpus if engine == ONNXRUNTIME else None
    request = RunRequest(
        replace(network, has_file=False),
        {**asked, "history": history},
        engine,
        str(job.folder),
        versions(),
        processors,
        fixing,
    )
    content = _pickled(request)
    folder = _Folder(job, history, connection.say)
    key = str(job.folder)
    connection.ask("put", key, content)
    return Task(f"the run '{job.folder}'", folder, key, folder.so_far, folder.post)


def _pickled(request: RunRequest) -> bytes:
    try:
        return pickle.dumps(request, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BadInput(
            f"The arguments of the run '{request.folder}' cannot be sent to the cluster: {first_line(error)}",
            "Name functions as module:function, and give data as files.",
        ) from error


def _carried(given: Any, network: Network, pictures: Preprocessing, *, keep_masks: bool) -> Any:
    """Data or a calibration cache as what it holds, under its name; objects as they are."""
    name = name_of(given)
    if not name:
        return given
    if is_cache_path(given):
        if network.has_pairs:
            return StagedFile(name, Ranges({}, {}, ""))
        return StagedFile(name, read_cache(Path(name), network.rounded_activations, keep_masks=keep_masks))
    data = open_dataset(given, network.inputs, pictures=pictures)
    return StagedFile(name, replace(data, samples=partial(_again, list(data.samples()))))


def _again(samples: list[Mapping[str, np.ndarray]]) -> list[Mapping[str, np.ndarray]]:
    return samples


class _Folder:
    """The run folder of a job, which no other run can have meanwhile."""

    def __init__(self, job: WantedRun, history: str | Path, say: Callable[[str], None]) -> None:
        self.job = job
        self._path = make_folder(job.folder)
        with ExitStack() as opening:
            opening.enter_context(locked(self._path))
            opening.enter_context(recorded(self._path, history, say))
            self._journal = opening.enter_context(opened(self._path / JOURNAL))
            opening.callback(lambda: (self._path / PROGRESS).unlink(missing_ok=True))
            self._open = opening.pop_all()

    def so_far(self) -> tuple[dict[str, bytes]]:
        """The files that the run continues from: the whole lines of its journal, the ranges and the inputs."""
        self._journal.seek(0)
        journal = self._journal.read()
        self._journal.truncate(journal.rfind(b"\n") + 1)
        files = {name: (self._path / name).read_bytes() for name in _FOUND_BEFORE if (self._path / name).is_file()}
        return ({**files, JOURNAL: journal[: journal.rfind(b"\n") + 1]},)

    def post(self, mail: Mail) -> None:
        """Keeps what the run has written meanwhile."""
        append(self._journal, self._path / JOURNAL, mail.journal)
        if mail.progress:
            write_whole(self._path / PROGRESS, mail.progress)

    def ended(self, ended: Ran | Raised | Lost) -> Report | TrtBisectError:
        """The report, when its files are in the folder; or the error."""
        try:
            if isinstance(ended, Ran):
                for name, content in ended.files.items():
                    self._write(name, content)
                return ended.report
            return ended.error if isinstance(ended, Raised) else EngineUnavailable(ended.why)
        finally:
            self.close()

    def close(self) -> None:
        """Leaves the folder, and records the run; harmless afterwards."""
        self._open.close()

    def _write(self, name: str, content: bytes) -> None:
        """A file that the run made; the journal is here already."""
        path = self._path / name
        if name == JOURNAL or not path.resolve().is_relative_to(self._path.resolve()):
            return
        make_folder(path.parent)
        write_whole(path, content)
