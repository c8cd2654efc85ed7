"""Fixtures of several modules of this folder."""

from __future__ import annotations

import pytest

from tests.support.foreign import foreign
from tests.support.suites import save_suite
from trt_bisect.model import observe

__all__ = ["foreign"]


@pytest.fixture
def suite(tmp_path):
    """A suite of one small network in a folder of its own."""
    return save_suite(tmp_path)


@pytest.fixture
def segmented(monkeypatch) -> list[int]:
    """For each network that is run in segments from now on, the number of segments."""
    counts: list[int] = []

    class Counted(observe.Segments):
        def __init__(self, written, groups):
            counts.append(len(groups))
            super().__init__(written, groups)

    monkeypatch.setattr(observe, "Segments", Counted)
    return counts
