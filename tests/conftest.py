from __future__ import annotations

from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent.parent / "samples"


@pytest.fixture(scope="session")
def lenet() -> Path:
    return SAMPLES / "lenet"


@pytest.fixture(scope="session")
def ocr() -> Path:
    return SAMPLES / "ocr"
