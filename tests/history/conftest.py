"""The history that a test records runs in, and the runs of invented nights."""

import pytest

from tests.support import nights
from trt_bisect import History
from trt_bisect.history.store import HISTORY


@pytest.fixture
def kept(tmp_path):
    """A history beside the runs in ``tmp_path``; its file is made by the first of them."""
    return History(tmp_path / HISTORY)


@pytest.fixture
def night(finished, tmp_path):
    """Returns a function that makes the run folder of a day of November 2026, in ``tmp_path``."""

    def make(name, day=1, **changed):
        return nights.night(finished, tmp_path / name, nights.at("2026-11-01") + (day - 1) * 86400.0, **changed)

    return make
