"""Suites of ``regress`` for tests: one small network, and questions about a night's result."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tests.support import networks
from trt_bisect.commands.regress import run_network

NETWORK = """[[network]]
name = "chain"
model = "chain.onnx"
calibration = "calibration.npz"
input = "inputs.npz"
"""
SUITE = (
    """
[defaults]
engine = "onnxruntime"
calibrator = "minmax"
explain = "none"
effort = "quick"
repeats = 2

"""
    + NETWORK
)
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


def calibrate_louder(folder: Path) -> None:
    """Replaces the suite's calibration data by forty times as large ones: INT8 becomes coarse."""
    data = networks.samples(networks.chain(3), 8)
    np.savez(folder / "calibration.npz", **{name: 40 * array for name, array in data.items()})


class Remembered:
    """A runner that measures a network once; asked again with the same files and options it copies the run folder."""

    def __init__(self):
        self.runs = {}

    def __call__(self, task, folder, progress):
        asked = []
        for name, value in task.keywords.items():
            file = Path(str(value))
            asked.append((name, file.read_bytes() if file.is_file() else str(value)))
        asked = tuple(asked)
        if asked in self.runs:
            report, made = self.runs[asked]
            shutil.copytree(made, folder, dirs_exist_ok=True)
        else:
            report = run_network(task, folder, progress)
            self.runs[asked] = report, folder
        return report


def only(regression):
    (result,) = regression.networks
    return result


def failing(regression):
    return [(change.kind, change.what) for change in only(regression).failures]


def differing(regression):
    return {difference.what for difference in only(regression).differs}
