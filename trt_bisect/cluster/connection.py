"""The connection to a Ray cluster, through a process that uses Ray."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from trt_bisect.builder.isolation import Worker
from trt_bisect.cluster.settings import AUTO, GOES_ON, ClusterSettings
from trt_bisect.errors import BadInput, EngineUnavailable, TrialFailed, first_line, install

_SCHEME = "ray://"
_REACH_SECONDS = 5.0
_JOIN_SECONDS = 60.0
_ANSWER_SECONDS = 90.0
"""Longer than Ray waits for a head that does not answer."""


class Connection:
    """A Ray cluster that was joined; see ``ray_process``."""

    def __init__(self, cluster: ClusterSettings, say: Callable[[str], None]) -> None:
        """Joins the cluster.

        Raises:
            BadInput: Ray is not installed, or there is no cluster that can be joined.
        """
        address = cluster.address
        if importlib.util.find_spec("ray") is None:
            raise BadInput(f"The cluster '{address}' needs Ray, which is not installed.", install("cluster"))
        _reach(address)
        self.cluster = cluster
        self.say = say
        self._worker = Worker({"RAY_USAGE_STATS_ENABLED": "0"}, "trt_bisect.cluster.ray_process")
        try:
            self._worker.ask(("connect", address), _JOIN_SECONDS)
        except TrialFailed as failure:
            raise BadInput(
                f"'{address}' answers, but cannot be joined as a Ray cluster: {first_line(failure)}",
                "Give the address that 'ray start --head' printed, or ray://HOST:10001 for its client server.",
            ) from failure

    def ask(self, request: str, *arguments: Any) -> Any:
        """Returns the answer of the process that uses Ray.

        Raises:
            EngineUnavailable: there is no answer: the cluster is gone.
        """
        try:
            return self._worker.ask((request, *arguments), _ANSWER_SECONDS)
        except TrialFailed as failure:
            raise EngineUnavailable(
                f"The cluster '{self.cluster.address}' does not answer any more: {first_line(failure)}",
                GOES_ON,
            ) from failure

    @property
    def alive(self) -> bool:
        """True if the process that uses Ray can be asked."""
        return self._worker.alive

    def close(self) -> None:
        """Leaves the cluster."""
        if self.alive:
            with suppress(EngineUnavailable):
                self.ask("close")
        self._worker.end()


def _reach(address: str) -> None:
    """Raises BadInput if nothing listens there: Ray itself would try for a minute or more, and say little."""
    if address == AUTO:
        return
    host, _, port = address.removeprefix(_SCHEME).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise BadInput(
            f"Nothing answers at '{address}': {first_line(error)}",
            "Give the address that 'ray start --head' printed, or ray://HOST:10001 for its client server.",
        ) from error
