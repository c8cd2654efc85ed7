from __future__ import annotations

import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent.parent / "samples"


@pytest.fixture(scope="session")
def lenet() -> Path:
    return SAMPLES / "lenet"


@pytest.fixture(scope="session")
def ocr() -> Path:
    return SAMPLES / "ocr"


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
