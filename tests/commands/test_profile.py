"""``profile``: each layer's tensors with NumPy's figures, filters, and what is known without data."""

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import trt_bisect
from tests.support import networks
from tests.support.quantized import plain_tensors
from trt_bisect.options.commands import ProfileOptions


def test_figures_are_numpys(tmp_path):
    model = networks.chain(4)
    path, feeds = networks.given(model, tmp_path)
    found = trt_bisect.profile(path, inputs=feeds)
    names = [name for node in model.graph.node for name in node.output]
    tensors = plain_tensors(model, names, networks.feeds(feeds["x"]))
    tensors = {**tensors, "x": feeds["x"], **{t.name: numpy_helper.to_array(t) for t in model.graph.initializer}}
    assert found.samples == 8
    assert {row.role for row in found.tensors} == {"input", "output", "weight", "bias"}
    for row in found.tensors:
        values = tensors[row.tensor].astype(np.float64)
        seen = (row.spread.min, row.spread.max, row.spread.mean, row.spread.variance, row.spread.count)
        expected = (values.min(), values.max(), values.mean(), values.var(), values.size)
        assert seen == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert row.dtype == "float32"
    rows = {(row.layer, row.role): row for row in found.tensors}
    assert rows["conv1", "weight"].shape == (8, 8, 3, 3)
    assert rows["conv1", "input"].shape == (1, 8, 16, 16)
    weight = tensors["conv1.weight"]
    assert rows["conv1", "weight"].scale == (np.abs(weight).max(axis=(1, 2, 3)) / np.float32(127)).max()
    assert rows["conv1", "input"].scale is None


def test_filters_and_scales(command, lenet, tmp_path):
    code, out, _ = command(
        "profile", lenet / "lenet.onnx", "--calibration", lenet / "calibration.npz", "--prefix", "ip", "--op", "Gemm",
        "-o", tmp_path,
    )  # fmt: skip
    assert code == 0
    assert "conv1" not in out
    record = json.loads((tmp_path / "profile.json").read_text())
    assert {row["layer"] for row in record["tensors"]} == {"ip1", "ip2"}
    quantized = {(row["layer"], row["role"]) for row in record["tensors"] if row["scale"] is not None}
    assert quantized == {("ip1", "input"), ("ip1", "weight"), ("ip2", "input"), ("ip2", "weight")}


def test_little_memory_gives_the_same_in_parts(tmp_path, monkeypatch, segmented):
    path, feeds = networks.given(networks.chain(4), tmp_path)
    whole = trt_bisect.profile(path, inputs=feeds)
    assert not segmented
    monkeypatch.setattr(ProfileOptions, "memory_bytes", 20_000)
    parts = trt_bisect.profile(path, inputs=feeds)
    assert segmented[0] > 1
    assert (parts.samples, len(parts.tensors)) == (8, len(whole.tensors))
    for one, other in zip(parts.tensors, whole.tensors, strict=True):
        assert (one.tensor, one.shape, one.dtype) == (other.tensor, other.shape, other.dtype)
        assert vars(one.spread) == pytest.approx(vars(other.spread), rel=1e-5, abs=1e-6)


def test_without_data_what_is_constant(command, lenet):
    code, out, _ = command("profile", lenet / "lenet.onnx", "--top", "2")
    assert code == 0
    assert "constant" in out
    found = trt_bisect.profile(lenet / "lenet.onnx")
    assert {row.role for row in found.tensors if row.spread} == {"weight", "bias"}
    assert len(found.table()) == len(found.tensors)


def test_the_columns_that_were_asked_for(command, lenet):
    """By their names in the CSV file."""
    model = lenet / "lenet.onnx"
    code, out, _ = command("profile", model, "--prefix", "ip2", "--columns", "layer,role,std", "-q")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["Layer", "Role", "Std"]
    (weight,) = [each for each in onnx.load(str(model)).graph.initializer if each.name == "ip2.weight"]
    weight = numpy_helper.to_array(weight)
    assert ["ip2", "weight", f"{weight.astype(np.float64).std():.4g}"] in lines
