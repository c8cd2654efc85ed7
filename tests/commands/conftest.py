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

    def counted(written, groups, cut=observe._cut):
        counts.append(len(groups))
        return cut(written, groups)

    monkeypatch.setattr(observe, "_cut", counted)
    return counts
