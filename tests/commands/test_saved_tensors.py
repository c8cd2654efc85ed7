"""Tensors that a run saves: beside ONNX Runtime on the files themselves, and read back by ``compare``."""

import json

import numpy as np
import pytest
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.comparator import Comparator, CompareFunc, RunResults
from polygraphy.json import load_json

import trt_bisect
from tests.support import networks
from tests.support.quantized import plain_session
from trt_bisect.errors import BadInput
from trt_bisect.support.text import TENSORS

OPTIONS = {"calibrator": "minmax", "engine": "onnxruntime", "metric": "sqnr", "threshold": 20.0, "effort": "quick"}
OPTIONS |= {"explain": "none", "effort": "quick"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    model = networks.planted(networks.chain(3), ("conv0", "conv1"))
    return networks.save(model, tmp_path_factory.mktemp("planted")), networks.samples(model, 4)


def arrays(folder):
    found = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as archive:
            found[path.name] = {name: archive[name] for name in archive.files}
    return found


def test_outputs_of_three_plans_are_onnx_runtimes_and_are_taken_up_under_the_same_fingerprint(planted, tmp_path):
    model, samples = planted
    trt_bisect.run(model, samples, **OPTIONS, output=tmp_path, save_tensors="outputs")
    for plan, file in (("fp32", model), ("recipe", tmp_path / "recipe" / "network.qdq.onnx")):
        session = plain_session(file, optimised=False)
        saved = arrays(tmp_path / "tensors" / plan)
        assert list(saved) == [f"{k:06}.npz" for k in range(4)]
        for k, each in enumerate(saved.values()):
            (wanted,) = session.run(None, {"x": samples["x"][k : k + 1]})
            np.testing.assert_allclose(each["y"], wanted, rtol=1e-3, atol=1e-3)
    index = json.loads((tmp_path / "tensors" / "index.json").read_text())
    assert index["layers"] == {"y": {"layer": "fc", "op_type": "Gemm"}}
    assert len(index["samples"]) == index["given"] == 4
    first, gone = tmp_path / "tensors/int8/000000.npz", tmp_path / "tensors/int8/000001.npz"
    before, content = first.stat().st_mtime_ns, gone.read_bytes()
    gone.unlink()
    trt_bisect.run(model, samples, **OPTIONS, output=tmp_path, save_tensors="outputs")
    assert first.stat().st_mtime_ns == before
    assert arrays(gone.parent)["000001.npz"]["y"].tobytes() in content
    trt_bisect.run(model, samples, **{**OPTIONS, "calibrator": "entropy"}, output=tmp_path, save_tensors="outputs")
    assert first.stat().st_mtime_ns != before


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


def test_the_size_is_bounded(planted, tmp_path, monkeypatch):
    """An output of 10 floats is 40 bytes, of three plans 120: two of the four samples fit into 250 bytes."""
    model, samples = planted
    monkeypatch.setattr("trt_bisect.commands.run.save_tensors.MOST", 250)
    report = trt_bisect.run(model, samples, **OPTIONS, output=tmp_path, save_tensors="outputs")
    assert [len(list((tmp_path / "tensors" / plan).iterdir())) for plan in ("fp32", "int8", "recipe")] == [2, 2, 2]
    assert any(note.kind == TENSORS and "2 of 4 inputs" in note.text for note in report.notes)


def test_held_out_samples_are_saved_and_samples_are_matched_by_their_names(planted, tmp_path):
    """A float file judges its calibration data without the held-out fifth, a Q/DQ file all of it: in other orders."""
    model, _ = planted
    np.savez(tmp_path / "data.npz", **networks.samples(networks.chain(3), 10))
    trt_bisect.run(model, tmp_path / "data.npz", **OPTIONS, output=tmp_path / "one", save_tensors="layers")
    names = json.loads((tmp_path / "one/tensors/index.json").read_text())["samples"]
    assert sorted(names) == sorted(f"{tmp_path / 'data.npz'} {k}" for k in range(10))
    assert len(arrays(tmp_path / "one/tensors/fp32")) == 10
    quantized = tmp_path / "one/recipe/network.qdq.onnx"
    trt_bisect.run(quantized, tmp_path / "data.npz", **OPTIONS, output=tmp_path / "two", save_tensors="layers")
    read = trt_bisect.compare(fp32=tmp_path / "one/tensors/recipe", int8=tmp_path / "two/tensors/int8")
    assert read.samples == 10
    assert min(row.figures.cosine for row in read.tensors) > 0.99999, "the same plan on the same samples"
    (tmp_path / "two/tensors/int8/000003.npz").unlink()
    read = trt_bisect.compare(fp32=tmp_path / "one/tensors/recipe", int8=tmp_path / "two/tensors/int8")
    assert read.samples == 9
    assert "9 samples are in both runs, 1 in one of them only" in read.notes


@pytest.mark.parametrize("strategy", ["auto", "exhaustive"])
def test_the_curve_can_be_made_again_from_the_outputs_of_its_boundaries(planted, tmp_path, strategy):
    model, samples = planted
    given = {**OPTIONS, "metric": "cosine", "threshold": 0.99, "strategy": strategy}
    report = trt_bisect.run(model, samples, samples, **given, output=tmp_path, save_tensors="boundaries")
    place = tmp_path / "tensors" / "boundaries"
    fp32 = arrays(place / "fp32")
    assert len(fp32) == report.inputs.judged == 4
    measured = [row for row in report.layers if row.outcome == "measured"]
    assert {path.name for path in place.iterdir() if path.is_dir()} == {
        "fp32", *(f"{row.index}-{row.name}" for row in measured)
    }  # fmt: skip
    for row in measured:
        cosines = []
        for name, values in arrays(place / f"{row.index}-{row.name}").items():
            one, other = (np.ravel(each["y"]).astype(float) for each in (fp32[name], values))
            cosines.append(one @ other / np.sqrt((one @ one) * (other @ other)))
        assert row.similarity == pytest.approx(min(cosines), abs=1e-6)


def test_the_outputs_of_the_one_prefix_measured_alone(planted, tmp_path):
    model, samples = planted
    trt_bisect.run(model, samples, **OPTIONS, scoped="conv1", output=tmp_path, save_tensors="boundaries")
    place = tmp_path / "tensors"
    (last,) = (path for path in (place / "boundaries").iterdir() if path.is_dir() and path.name != "fp32")
    assert last.name.endswith("-conv1")
    assert np.array_equal(arrays(last)["000000.npz"]["y"], arrays(place / "int8")["000000.npz"]["y"])


def test_without_a_folder_nothing_can_be_saved(planted):
    with pytest.raises(BadInput, match="output"):
        trt_bisect.run(*planted, **OPTIONS, save_tensors="outputs")


def test_polygraphy_reads_the_runs_and_compares_them_itself(planted, tmp_path):
    """Polygraphy's comparator, with its own runner of the FP32 file and its own tolerances, judges what was saved."""
    model, samples = planted
    trt_bisect.run(model, samples, samples, **OPTIONS, output=tmp_path, save_tensors="polygraphy", validation=0.0)
    place = tmp_path / "tensors" / "polygraphy"
    inputs = load_json(str(place / "inputs.json"))
    own = Comparator.run([OnnxrtRunner(SessionFromOnnx(str(model)))], data_loader=inputs)
    passed = {}
    for plan in ("fp32", "int8", "recipe"):
        results = RunResults.load(str(place / f"{plan}.json"))
        assert [name for name, _ in results] == [f"trt-bisect-{plan}"]
        own_and_saved = RunResults([*own, *results])
        compared = Comparator.compare_accuracy(own_and_saved, compare_func=CompareFunc.simple(atol=1e-3, rtol=1e-3))
        passed[plan] = bool(compared)
    assert passed == {"fp32": True, "int8": False, "recipe": False}
    assert len(inputs) == 4


def test_outputs_saved_by_polygraphy_are_the_reference(planted, tmp_path):
    model, samples = planted
    loader = [{"x": samples["x"][k : k + 1]} for k in range(4)]
    Comparator.run([OnnxrtRunner(SessionFromOnnx(str(model)))], data_loader=loader).save(str(tmp_path / "out.json"))
    given = {"calibration": loader, "inputs": loader, "validation": 0.0, **OPTIONS}
    judged = trt_bisect.run(model, **given, reference=tmp_path / "out.json")
    own = trt_bisect.run(model, **given)
    assert judged.culprits == own.culprits == ("conv1",)
    assert judged.similarity.int8 == pytest.approx(own.similarity.int8, abs=1e-3)
    # Outputs twice as large have the cosine of equal ones and the relative error of one half: an SQNR of 6.02 dB.
    doubled = RunResults.load(str(tmp_path / "out.json"))
    for _, iterations in doubled:
        for iteration in iterations:
            iteration["y"] = iteration["y"] * 2
    doubled.save(str(tmp_path / "doubled.json"))
    other = trt_bisect.run(model, **given, reference=tmp_path / "doubled.json")
    assert other.similarity.recipe == pytest.approx(20 * np.log10(2), abs=0.3)


def test_saved_outputs_that_do_not_fit_are_refused(planted, tmp_path):
    model, samples = planted
    loader = [{"x": samples["x"][k : k + 1]} for k in range(4)]
    np.savez(tmp_path / "one.npz", y=np.zeros((1, 10), np.float32))
    with pytest.raises(BadInput, match=r"one\.npz"):
        trt_bisect.run(model, loader, loader, **OPTIONS, reference=tmp_path / "one.npz")
    np.savez(tmp_path / "z.npz", z=np.zeros((1, 10), np.float32))
    with pytest.raises(BadInput, match=r"\('y'\).*'z'"):
        trt_bisect.run(model, loader, loader[:1], **OPTIONS, reference=tmp_path / "z.npz")
    with pytest.raises(BadInput, match=r"one\.npz' has outputs"):
        trt_bisect.run(model, loader, loader[:1], **OPTIONS, reference=tmp_path / "one.npz")
