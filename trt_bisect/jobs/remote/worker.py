"""Does a whole run on a Ray worker, in a folder of its own, and sends the journal while the run goes on."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trt_bisect._version import versions
from trt_bisect.cluster.messages import Ended, Raised, Ran, Refused, refusal
from trt_bisect.data.staged import StagedFile
from trt_bisect.errors import EngineUnavailable, TrtBisectError
from trt_bisect.history.store import NONE
from trt_bisect.jobs.options.measuring import RunOptions
from trt_bisect.jobs.run.run import run_with
from trt_bisect.model.network import Network
from trt_bisect.runs.journal import JOURNAL
from trt_bisect.runs.progress_file import PROGRESS
from trt_bisect.support.machine import use_at_most
from trt_bisect.support.progress import Silent
from trt_bisect.support.scratch import ScratchFolder

_SECONDS = 1.0
"""Seconds between two messages to the mailbox."""

Send = Callable[[tuple[bytes, bytes]], None]


@dataclass(frozen=True)
class RunRequest:
    """A run that is to be done elsewhere.

    Attributes:
        network: the network.
        asked: the other arguments of ``trt_bisect.run``; files are ``StagedFile``.
        engine: the one that runs there.
        folder: the name of the run folder.
        facts: the versions on the machine that asks for it.
        processors: the number that the run may use; None where it has a GPU.
        fixing: the precisions of layers that the user fixed, for suggested commands; the network has them already.
    """

    network: Network
    asked: Mapping[str, Any]
    engine: str
    folder: str
    facts: Mapping[str, str]
    processors: int | None
    fixing: Mapping[str, Any] = field(default_factory=dict)


def work(node: str, _key: str, fetch: Callable[[], bytes], send: Send, files: Mapping[str, bytes]) -> Ended:
    """Does a run.

    Args:
        node: the name of this node.
        fetch: returns the ``RunRequest``, pickled.
        send: is called with the new lines of the journal and with the progress file.
        files: the files of the run folder, by name: the journal so far, and the ranges and inputs that were found
            before it.
    """
    wanted: RunRequest = pickle.loads(fetch())
    refused = refusal(node, wanted.facts, versions())
    if refused is not None:
        return refused
    if wanted.processors is not None:
        use_at_most(wanted.processors)
    with ScratchFolder() as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        try:
            with _Sender(folder, send):
                beside = {"output": StagedFile(wanted.folder, folder), "progress": Silent()}
                own = {**wanted.asked, **beside}
                asked = RunOptions.given("run", {**own, **wanted.fixing})
                options = replace(RunOptions.given("run", own), engine=wanted.engine, history=NONE)
                report = run_with(wanted.network, options, asked=asked)
        except EngineUnavailable as error:
            return Refused(node, error.problem)
        except TrtBisectError as error:
            return Raised(error)
        made = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        return Ran(report, made)


class _Sender:
    """Sends the new lines of a run's journal and its progress, once a second and at the end, from its own thread."""

    def __init__(self, folder: Path, send: Send) -> None:
        self._journal = folder / JOURNAL
        self._progress = folder / PROGRESS
        self._send = send
        self._sent = self._journal.stat().st_size if self._journal.exists() else 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="trt-bisect sender", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._send_new()

    def _watch(self) -> None:
        while not self._over.wait(_SECONDS):
            self._send_new()

    def _send_new(self) -> None:
        lines = b""
        if self._journal.exists():
            with self._journal.open("rb") as file:
                file.seek(self._sent)
                lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self._sent += len(lines)
        try:
            progress = self._progress.read_bytes()
        except OSError:
            progress = b""
        self._send((lines, progress))
