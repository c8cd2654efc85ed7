"""Tensors that a run saves: beside ONNX Runtime on the files themselves, and read back by ``compare``."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest

import trt_bisect
from tests.support import networks
from trt_bisect.errors import BadInput

OPTIONS = {"calibrator": "minmax", "engine": "onnxruntime", "metric": "sqnr", "threshold": 20.0, "explain": "none"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    model = networks.chain(3)
    networks.plant_between(model, "conv0", "conv1")
    return networks.save(model, tmp_path_factory.mktemp("planted")), networks.samples(model, 4)


def arrays(folder):
    found = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as archive:
            found[path.name] = {name: archive[name] for name in archive.files}
    return found


def test_outputs_of_three_plans_beside_onnx_runtime(planted, tmp_path):
    model, samples = planted
    trt_bisect.run(model, samples, **OPTIONS, output=tmp_path, save_tensors="outputs")
    for plan, file in (("fp32", model), ("recipe", tmp_path / "recipe" / "network.qdq.onnx")):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        saved = arrays(tmp_path / "tensors" / plan)
        assert list(saved) == [f"{k:06}.npz" for k in range(4)]
        for k, each in enumerate(saved.values()):
            (wanted,) = session.run(None, {"x": samples["x"][k : k + 1]})
            np.testing.assert_allclose(each["y"], wanted, rtol=1e-3, atol=1e-3)
    index = json.loads((tmp_path / "tensors" / "index.json").read_text())
    assert index["layers"] == {"y": {"layer": "fc", "op_type": "Gemm"}}
    assert len(index["samples"]) == index["given"] == 4


def test_tensors_of_layers_are_read_back_by_compare(planted, tmp_path):
    model, samples = planted
    trt_bisect.run(model, samples, **OPTIONS, output=tmp_path, save_tensors="layers")
    tensors = tmp_path / "tensors"
    read = trt_bisect.compare(model, fp32=tensors / "fp32", int8=tensors / "int8")
    direct = trt_bisect.compare(model, samples, calibrator="minmax")
    wanted = {row.origin.tensor: row.figures.cosine for row in direct.tensors if row.figures}
    found = {row.origin.tensor: row.figures.cosine for row in read.tensors if row.figures}
    assert set(found) == set(wanted)
    assert len(found) > 5
    for name, cosine in wanted.items():
        assert found[name] == pytest.approx(cosine, abs=1e-6), name
    assert {row.origin.layer for row in read.tensors} >= {"conv0", "conv1", "fc"}


def test_a_second_run_takes_up_what_is_there_and_another_fingerprint_does_not(planted, tmp_path):
    model, samples = planted
    trt_bisect.run(model, samples, **OPTIONS, output=tmp_path, save_tensors="outputs")
    first, gone = tmp_path / "tensors/int8/000000.npz", tmp_path / "tensors/int8/000001.npz"
    before, content = first.stat().st_ino, gone.read_bytes()
    gone.unlink()
    trt_bisect.run(model, samples, **OPTIONS, output=tmp_path, save_tensors="outputs")
    assert first.stat().st_ino == before
    assert arrays(gone.parent)["000001.npz"]["y"].tobytes() in content
    trt_bisect.run(model, samples, **{**OPTIONS, "calibrator": "entropy"}, output=tmp_path, save_tensors="outputs")
    assert first.stat().st_ino != before


def test_the_size_is_bounded(planted, tmp_path):
    """An output of 10 floats is 40 bytes, of three plans 120: two of the four samples fit into 250 bytes."""
    model, samples = planted
    report = trt_bisect.run(
        model, samples, **OPTIONS, output=tmp_path, save_tensors="outputs", max_size=250 / (1 << 20)
    )
    assert [len(list((tmp_path / "tensors" / plan).iterdir())) for plan in ("fp32", "int8", "recipe")] == [2, 2, 2]
    assert any("tensors of 2 of 4 inputs were saved" in note for note in report.notes)


def test_without_a_folder_nothing_can_be_saved(planted):
    with pytest.raises(BadInput, match="no folder to save tensors in"):
        trt_bisect.run(*planted, **OPTIONS, save_tensors="outputs")
