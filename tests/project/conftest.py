"""``tools/gpu_check`` for the modules that test it; they import its modules by name."""

import importlib.util
import shutil
import sys

import numpy as np
import pytest

from tests.support.foreign import foreign
from tests.support.gpu_tool import TOOL

__all__ = ["foreign"]

sys.path.append(str(TOOL))


@pytest.fixture(scope="module")
def gpu_check():
    """The module that is run as ``python tools/gpu_check``."""
    spec = importlib.util.spec_from_file_location("gpu_check_main", TOOL / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def make_bench(tmp_path, lenet, ocr, monkeypatch):
    """Makes the bench that a check works on, for an engine. The LeNet sample has less data."""
    import bench
    import subjects

    samples = tmp_path / "root" / "samples"
    samples.mkdir(parents=True)
    (samples / "ocr").symlink_to(ocr)
    shutil.copytree(lenet, samples / "lenet", symlinks=True)
    digits = samples / "lenet" / "digits.npz"
    np.savez(digits, data=np.load(digits)["data"][:5])
    monkeypatch.setattr(subjects, "ROOT", samples.parent)

    def make(engine="onnxruntime"):
        folder = tmp_path / "work"
        folder.mkdir()
        return bench.Experiment(engine, folder, tmp_path / "results.json", gpu=True)

    return make
