"""Suites of ``regress`` for tests: one small network, and questions about a night's result."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support import networks

SUITE = """
[defaults]
engine = "onnxruntime"
calibrator = "minmax"
explain = "none"
repeats = 2

[[network]]
name = "chain"
model = "chain.onnx"
calibration = "calibration.npz"
input = "inputs.npz"
"""
ONCE = SUITE.replace("repeats = 2", "repeats = 1")


def save_suite(folder: Path) -> Path:
    """Writes the suite with its network and its data into a folder, and returns its file."""
    model = networks.chain(3)
    networks.save(model, folder, "chain.onnx")
    np.savez(folder / "calibration.npz", **networks.samples(model, 8))
    np.savez(folder / "inputs.npz", **networks.samples(model, 2, seed=5))
    path = folder / "trt-bisect.toml"
    path.write_text(SUITE)
    return path


def only(regression):
    (result,) = regression.networks
    return result


def failing(regression):
    return [(change.kind, change.what) for change in only(regression).failures]


def differing(regression):
    return {difference.what for difference in only(regression).differs}
