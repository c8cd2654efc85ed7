"""Attention masks: their ranges are of no use to INT8, which is said once, and nothing overflows on the way."""

from itertools import product

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.support import networks
from tests.support.editions import edition
from tests.support.flawed_structures import pair
from tests.support.quantized import round_trip
from tests.support.records import texts
from trt_bisect.model.quantizer import symmetric

LEAST = float(np.finfo(np.float32).min)
"""-3.4028235e38, what PyTorch's exporters write into masks."""
HEADS = 6
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def masked(tmp_path, monkeypatch):
    """In a folder of its own, a network whose mask is added in six layers, and data for it."""
    monkeypatch.chdir(tmp_path)
    return with_mask(tmp_path, HEADS)


def with_mask(tmp_path, heads):
    sketch = networks.Sketch(3)
    x = "x"
    for head in range(heads):
        scores = sketch.node("Add", [sketch.dense(x, f"dense{head}", 8, 8), "mask"], f"masked{head}")
        x = sketch.node("Softmax", [scores], f"softmax{head}", axis=-1)
    sketch.node("MatMul", [x, sketch.constant("w", np.eye(8))], "head", out="y")
    path = networks.save(sketch.model({"x": ["n", 4, 8], "mask": ["n", 1, 8]}, {"y": ["n", 4, 8]}), tmp_path)
    mask = np.zeros((4, 1, 8), np.float32)
    mask[:, :, 5:] = LEAST
    data = tmp_path / "data.npz"
    np.savez(data, x=networks.normal(0, 4, 4, 8), mask=mask)
    return path, data


@pytest.mark.parametrize(
    ("name", "calibrator"),
    edition(
        [("run", "percentile"), ("compare", "minmax"), ("run --front", "entropy")],
        list(product(("run", "compare", "run --front"), ("entropy", "minmax", "percentile"))),
    ),
)
def test_a_masks_range_is_said_once_with_its_value_and_without_pythons_warnings(command, masked, name, calibrator):
    path, data = masked
    everything = () if name == "compare" else ("--all-layers", "--explain", "none", "--effort", "quick")
    code, out, err = command(*name.split(), path, "--calibration", data, "--calibrator", calibrator, *everything)
    assert code in (0, 1), err
    said = " ".join(f"{out} {err}".split())
    assert said.count("no usable range") == 1
    assert f"{HEADS} layers ('masked0', 'masked1', 'masked2' and 3 more) are kept in high precision" in said
    assert f"reaches {-LEAST:.3g}, as a mask does" in said
    assert "reaches inf" not in said


def test_calibrate_counts_the_tensors_without_a_range(command, masked, tmp_path):
    path, data = masked
    code, _, err = command("calibrate", path, "--calibration", data, "--output", tmp_path / "c.cache")
    assert code == 0, err
    assert err.count("no usable range") == 1
    assert f"{1 + HEADS} tensors have no usable range" in err


def test_a_run_whose_plan_has_a_masks_scale_is_explained_without_pythons_warnings(tmp_path):
    path, data = with_mask(tmp_path, 1)
    plan = {"scales": {"mask": -LEAST / 127}}
    how = {"engine": "onnxruntime", "calibrator": "minmax", "explain": "full", "plan": plan}
    report = trt_bisect.run(path, data, inputs=data, **how)
    assert report.explanation is not None, texts(report.notes)


@pytest.mark.parametrize("reach", [LEAST, 0.9 * LEAST, -1e30, -1e-30])
def test_a_masks_scale_rounds_as_onnx_runtime_does_without_pythons_warnings(reach):
    scale = np.float32(-reach) / np.float32(127)
    values = np.array([LEAST, reach, -5.0, 0.0, -reach, -LEAST], np.float32)
    rounded = symmetric(scale).round_trip(values)
    np.testing.assert_array_equal(rounded, round_trip(values, scale, np.int8(0)))


def masked_attention(folder, mask_scale):
    """Scores with a mask added, a Softmax and a product; with a scale, pairs on activations and a stored mask."""
    sketch = networks.Sketch(3)
    rounded = (lambda x, name, scale: x) if mask_scale is None else (lambda *args: pair(sketch, *args))
    mask = np.zeros((4, 4), np.float32)
    mask[np.triu_indices(4, 1)] = -np.inf
    scores = sketch.node("MatMul", [rounded("x", "in", 0.03), sketch.constant("k", np.eye(8, 4))], "scores")
    if mask_scale is None:
        added = sketch.constant("mask", mask)
    else:
        stored = sketch.constant("mask", np.where(mask < 0, -127, 0), np.int8)
        scale, zero = sketch.constant("mask.scale", mask_scale), sketch.constant("mask.zero", 0, np.int8)
        added = sketch.node("DequantizeLinear", [stored, scale, zero], "mask.dq")
    weight = sketch.node("Softmax", [sketch.node("Add", [scores, added], "masked")], "attention", axis=-1)
    sketch.node("MatMul", [rounded(weight, "out", 0.008), sketch.constant("values", np.eye(4, 6))], "mixed", out="y")
    path = folder / f"{'float' if mask_scale is None else 'quantized'}.onnx"
    onnx.save(sketch.model([1, 4, 8], [1, 4, 6]), path)
    return path


def test_an_infinite_scale_is_the_cause_that_run_names_as_check_does(command, tmp_path, monkeypatch):
    """A quantizer that divides a mask of -inf by 127 stores integers and an infinite scale: 0 times that is NaN."""
    monkeypatch.chdir(tmp_path)
    quantized, plain = masked_attention(tmp_path, np.inf), masked_attention(tmp_path, None)
    (finding,) = [each for each in trt_bisect.check(quantized).findings if each.kind == "scale infinite"]
    assert finding.layers == ("masked",)
    np.savez("x.npz", x=networks.normal(0, 6, 1, 4, 8))
    code, out, err = command("run", quantized, "--reference", plain, "--input", "x.npz", "--effort", "quick")
    said = " ".join(f"{out} {err}".split())
    assert code == 1
    assert "SCALE INFINITE: 1 layer with such a Q/DQ pair in the file: 'masked'." in said
    assert finding.remedy in said
    assert "NEXT: quantize the network again" in said
    assert "check the data" not in said
    code, _, err = command("run", quantized, "--input", "x.npz")
    assert code == 3
    assert "Scale infinite, in the file's Q/DQ pairs at 'masked'" in " ".join(err.split())
