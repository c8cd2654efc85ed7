from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts with Ctrl-C ignored
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

SAMPLES = Path(__file__).parent.parent / "samples"


@pytest.fixture(scope="session")
def lenet() -> Path:
    return SAMPLES / "lenet"


@pytest.fixture(scope="session")
def ocr() -> Path:
    return SAMPLES / "ocr"


@pytest.fixture(scope="session")
def finished(lenet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, in a parent with nothing else; not to be changed."""
    import trt_bisect

    folder = tmp_path_factory.mktemp("runs") / "lenet"
    trt_bisect.run(lenet / "lenet_planted.onnx", lenet / "calibration.npz", output=folder, strategy="exhaustive")
    return folder


@pytest.fixture(scope="session")
def ray_nodes():
    """A Ray cluster of this machine: a head, and two nodes of one processor each."""
    pytest.importorskip("ray")
    from tests.support.ray_nodes import ray_cluster

    with ray_cluster() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A running Chromium, for one module: the event loop that Playwright keeps running would be in others' way."""
    import os

    from tests.support.browser import REQUIRED, chromium, find_chromium

    if find_chromium() is None:
        reason = "there is no Chromium here; tools/get_browser.sh installs Debian's"
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    with chromium() as running:
        yield running


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs ``trt-bisect`` in this process: exit code, stdout, stderr."""
    from trt_bisect.cli import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["trt-bisect", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return stopped.value.code or 0, out, err

    return call
