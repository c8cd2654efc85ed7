"""The data of a run's page, as bytes that all viewers share."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from trt_bisect.recipe.files import FOLDER
from trt_bisect.report.explanation import EXPLANATION, Explanation
from trt_bisect.report.network_graph import NETWORK, Graph
from trt_bisect.report.page.data import PageData, page_data, recipe_texts
from trt_bisect.report.page.render import render_page
from trt_bisect.report.recovery import RECOVERY, Recovery, read_recovery
from trt_bisect.report.run_files import explanation_for, graph_for, recovery_for
from trt_bisect.support.codec import encode, read
from trt_bisect.view.file_tail import Replaced
from trt_bisect.view.snapshot import RunFolder, Snapshot

LIVE = "data.json"
"""The address of the data, relative to the page."""


@dataclass(frozen=True)
class State:
    """The data of a page between two changes.

    Attributes:
        data: the value of ``page_data``.
        body: ``data`` as JSON.
        zipped: ``body``, compressed by gzip.
        etag: a digest of ``body``.
    """

    data: PageData
    body: bytes
    zipped: bytes
    etag: str

    @cached_property
    def page(self) -> str:
        """The page with this state, as HTML."""
        return render_page(self.data, LIVE)


class LiveRun:
    """The state of a run's page, made again when a file of the run changes."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self._graph = Replaced(path / NETWORK, partial(read, Graph))
        self._explanation = Replaced(path / EXPLANATION, partial(read, Explanation))
        self._recovery = Replaced(path / RECOVERY, read_recovery)
        self._parts: tuple[object, ...] = (None,) * 4
        self._moment: tuple[str, Any] = ("", None)
        self._state: State | None = None

    def state(self) -> State:
        """Returns the current state; the same object as before if nothing changed.

        Raises:
            Gone: the run no longer exists.
        """
        snapshot = self.folder.snapshot()
        graph, explanation = self._graph.content(), self._explanation.content() if snapshot.whole else None
        recovery = self._recovery.content()
        parts = (snapshot.report, graph, explanation, recovery)
        same = all(one is other for one, other in zip(parts, self._parts, strict=True))
        if self._state is None or not same or (snapshot.status, snapshot.progress) != self._moment:
            self._state = self._new_state(snapshot, graph, explanation, recovery)
            self._parts, self._moment = parts, (snapshot.status, snapshot.progress)
        return self._state

    def _new_state(
        self,
        snapshot: Snapshot,
        graph: Graph | None,
        explanation: Explanation | None,
        recovery: Recovery | None,
    ) -> State:
        data = page_data(
            snapshot.report,
            graph_for(graph, snapshot.report),
            explanation_for(explanation, snapshot.report),
            recipe_texts(self.folder.path / FOLDER) if snapshot.whole else None,
            recovery=recovery_for(recovery, snapshot.report),
            status=snapshot.status,
            progress=snapshot.progress,
            folder=str(self.folder.path),
        )
        body = encode(data)
        return State(data, body, gzip.compress(body, 1, mtime=0), f'"{hashlib.sha256(body).hexdigest()[:32]}"')
