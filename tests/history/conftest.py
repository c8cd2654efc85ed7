"""The history that a test records runs in."""

import pytest

from trt_bisect import History
from trt_bisect.history.store import HISTORY


@pytest.fixture
def kept(tmp_path):
    """A history beside the runs in ``tmp_path``; its file is made by the first of them."""
    return History(tmp_path / HISTORY)
