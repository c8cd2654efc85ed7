"""Six finished runs that the tests of reports, pages, ``view``, histories, TensorBoard and notebooks share.

Each is made once for all workers of a session, by the code as it is. A test that changes a run copies its folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.support import networks, odd_names, pages, squares
from tests.support.advised import run as advised
from tests.support.quantized import plain_session
from trt_bisect import Report
from trt_bisect.report.explanation import EXPLANATION, Explanation
from trt_bisect.support.codec import read

ASKED_FRONT = {"threshold": 0.99999, "effort": "thorough", "explain": "none", "front": True, "precision": "fp32"}
"""The options of ``fronted``."""


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns the folder of that name that all workers of a session share; the first that asks fills it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / name
    with (base / f"{name}.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if not lock.read():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            lock.write("made")
    return folder


def _planted(lenet: Path, _: Path, **asked: object) -> None:
    """LeNet with its culprit, the curve on whole engines."""
    asked |= {"strategy": "exhaustive", "tensorboard_detail": {"channels": 8, "plans": 0}}
    trt_bisect.run(lenet / "lenet_planted.onnx", lenet / "calibration.npz", **asked)


def _labelled(lenet: Path, _: Path, **asked: object) -> None:
    """The same, judged by the accuracy on labelled digits, with its front."""
    with np.load(lenet / "digits.npz") as found:
        digits = {name: found[name][:20] for name in found.files}
    asked |= {"dataset": digits, "labels": np.load(lenet / "labels.npy")[:20], "drop": 0.5, "validation": 0}
    trt_bisect.run(lenet / "lenet_planted.onnx", lenet / "calibration.npz", front=True, explain="none", **asked)


def _strange(_: Path, folder: Path, **asked: object) -> None:
    """Skip connections, names that break pages, and one culprit."""
    pages.run_on(pages.strange_network(folder), samples=2, trt_version="10.3.0", **asked)


def _fronted(_: Path, folder: Path, **asked: object) -> None:
    """The same with a front."""
    pages.run_on(pages.strange_network(folder), margin=0.0, **ASKED_FRONT, **asked)


def _odd(_: Path, folder: Path, **asked: object) -> None:
    """Four culprits with names that break lists and quotes; remedies are tried."""
    advised(odd_names.odd_network(), folder, 4, explain="remedies", trt_version="10.3.0", **asked)


def _pictured(_: Path, folder: Path, **asked: object) -> None:
    """A detector that finds nothing in INT8."""
    model, data = networks.save(squares.detector(3), folder), squares.coloured()
    asked |= {**squares.JUDGED, "explain": "tensors", "save_tensors": "outputs"}
    trt_bisect.run(model, data, inputs=data, task="detect", **asked)


RUNS = {
    "lenet": _planted,
    "labelled": _labelled,
    "strange": _strange,
    "fronted": _fronted,
    "odd": _odd,
    "pictured": _pictured,
}


def results(factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a result of each other command, on the network of ``strange``; not to be changed."""

    def make(folder: Path) -> None:
        model, data = pages.strange_network(folder), folder / "data.npz"
        np.savez(data, **networks.samples(onnx.load(model)))
        options = {"calibrator": "minmax", "output": folder}
        for command in (trt_bisect.compare, trt_bisect.profile, trt_bisect.sensitivity):
            command(model, data, **options)
        trt_bisect.worst(model, data, data, **options)
        trt_bisect.check(model, output=folder)
        got, session = networks.samples(onnx.load(model), 4), plain_session(str(model))
        gave = session.run(None, {name: 2 * array for name, array in got.items()})
        np.savez(folder / "gave.npz", **{output.name: x for output, x in zip(session.get_outputs(), gave, strict=True)})
        trt_bisect.verify(model, inputs=got, outputs=folder / "gave.npz", output=folder)
        network = (
            '[[network]]\nmodel = "strange.onnx"\ncalibration = "data.npz"\nengine = "onnxruntime"\ntarget = 0.9\n'
        )
        (folder / "suite.toml").write_text(network)
        trt_bisect.regress(folder / "suite.toml").save(folder)

    return shared(factory, "results", make)


def explained(folder: Path) -> Report:
    """Returns the report in a run folder with its explanation."""
    report = Report.load(folder)
    return report.changed(explanation=read(Explanation, folder / EXPLANATION))


def recorded(factory: pytest.TempPathFactory, lenet: Path, name: str) -> Path:
    """Returns the folder of one of ``RUNS``; in it are ``runs/NAME`` and ``logs``, those of TensorBoard."""

    def make(folder: Path) -> None:
        RUNS[name](lenet, folder, engine="onnxruntime", output=folder / "runs" / name, tensorboard=folder / "logs")

    return shared(factory, name, make)
