"""A run folder that a test may change, and clients of the server of ``trt-bisect view``."""

from __future__ import annotations

import contextlib
import shutil
import ssl
from functools import partial
from pathlib import Path

import httpx
import pytest

import trt_bisect
from tests.support.run_states import looked_at
from tests.support.view_server import TOKEN, serving
from trt_bisect import Report
from trt_bisect.view import index as pace


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "lenet"))


@pytest.fixture(scope="session")
def under_way(lenet, tmp_path_factory) -> list[Report]:
    """The reports so far of the run in ``finished``: the first knows nothing yet, the others have a layer more each."""
    asked = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    folder = tmp_path_factory.mktemp("under way")
    _, looking = looked_at(
        lambda shown: trt_bisect.run(*asked, output=folder, strategy="exhaustive", explain="none", progress=shown)
    )
    grown = {sum(row.outcome == "measured" for row in report.layers): report for report, _ in looking.kept}
    grown[0] = looking.kept[0][0]
    return [grown[count] for count in sorted(grown)]


@pytest.fixture
def _always_looks(monkeypatch):
    """Every request looks anew."""
    monkeypatch.setattr(pace, "BETWEEN", 0.0)
    monkeypatch.setattr(pace, "SHARE", float("inf"))


@pytest.fixture(scope="session")
def address_of():
    """Returns a function that serves a folder and gives its address; the servers run until the end."""
    with contextlib.ExitStack() as servers:
        known: dict[Path, str] = {}

        def serve(folder: Path) -> str:
            if folder not in known:
                known[folder] = servers.enter_context(serving(folder))
            return known[folder]

        yield serve


@pytest.fixture(scope="session")
def no_certificates():
    """Spares each client of a server without TLS the time to read all certificates of the machine."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@pytest.fixture
def client(address_of, no_certificates):
    """Connects to the server of a folder, with no cookies yet."""
    with contextlib.ExitStack() as clients:

        def connect(folder, **query):
            return clients.enter_context(
                httpx.Client(base_url=address_of(folder), verify=no_certificates, params=query)
            )

        yield connect


@pytest.fixture
def viewer(client):
    """The same with the token in every request."""
    return partial(client, token=TOKEN)
