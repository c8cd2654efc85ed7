"""Fixtures of several modules of this folder."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import networks
from tests.support.suites import SUITE
from trt_bisect.model import observe


@pytest.fixture
def suite(tmp_path):
    """A suite of one small network in a folder of its own."""
    model = networks.chain(3)
    networks.save(model, tmp_path, "chain.onnx")
    np.savez(tmp_path / "calibration.npz", **networks.samples(model, 8))
    np.savez(tmp_path / "inputs.npz", **networks.samples(model, 2, seed=5))
    path = tmp_path / "trt-bisect.toml"
    path.write_text(SUITE)
    return path


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
