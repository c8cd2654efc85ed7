"""``compare``: figures equal NumPy's on the same tensors, planted causes named with their reasons, memory flat."""

from __future__ import annotations

import csv
import json
from functools import partial

import numpy as np
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import trt_bisect
from tests.model.test_unquantized import swish
from tests.support import networks
from tests.support.compared import calibrated, row_of, tensors_of
from tests.support.flawed_pairs import pairs
from tests.support.flawed_structures import ACTIVATION, two_pairs
from tests.support.quantized import plain_tensors
from trt_bisect.analyzer import blame as advisor
from trt_bisect.analyzer.compare_output import similarity
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.options.commands import CompareOptions
from trt_bisect.support.text import number, percent

COLUMNS = (
    "index layer tensor kind op_type int8_op_type module code shape dtype quantized_dtype scale "
    "cosine mse l1 kl sqnr max_abs max_rel "
    "fp32_count fp32_nonfinite fp32_min fp32_max fp32_mean fp32_std fp32_variance "
    "int8_count int8_nonfinite int8_min int8_max int8_mean int8_std int8_variance"
).split()


def reasons(found, reason=None):
    """Tensor and layers of the findings with a reason."""
    return [(advice.tensor, advice.layers) for advice in found.advice if reason in (None, advice.reason)]


def words(found, reason, tensor):
    return next(a.words for a in found.advice if (a.reason, a.tensor) == (reason, tensor))


FAMILIES = [partial(make, 1) for make in (networks.residual, networks.depthwise, networks.transformer)]


@pytest.mark.parametrize("make", FAMILIES)
def test_every_figure_is_numpys_on_the_same_tensors_and_no_healthy_layer_is_abnormal(make, tmp_path):
    path, feeds = networks.given(make(), tmp_path)
    network, ranges = calibrated(path, feeds, "minmax")
    found = trt_bisect.compare(path, ranges, feeds, threshold=0.95)
    assert found.advice == trt_bisect.compare(path, feeds, threshold=0.95).advice == ()
    fp32, int8 = tensors_of(network, feeds), tensors_of(network, feeds, ranges.scales, network.quantizable)
    assert {row.origin.tensor for row in found.tensors} == {"x", *network.producers}
    assert found.samples == 8
    for row in found.tensors:
        if row.origin.kind == "input":
            assert row.figures.cosine == 1.0
            continue
        r, o = (run[row.origin.tensor].astype(np.float64) for run in (fp32, int8))
        flat = r.reshape(1, -1), o.reshape(1, -1)
        assert row.shape == r.shape[1:]
        assert row.figures.cosine == pytest.approx(similarity(*flat), abs=1e-9)
        assert row.figures.mse == pytest.approx(np.mean((r - o) ** 2), rel=1e-6, abs=1e-15)
        alone = [similarity(*pair) for pair in zip(r, o, strict=True)]
        assert row.worst_cosine == pytest.approx(min(alone), abs=1e-9)
        assert alone[row.worst_sample] == min(alone)
        for spread, run in ((row.fp32, r), (row.int8, o)):
            seen = (spread.min, spread.max, spread.mean, spread.std, spread.variance)
            assert seen == pytest.approx((run.min(), run.max(), run.mean(), run.std(), run.var()), rel=1e-6, abs=1e-9)
        if row.scale is not None:
            assert row.scale == pytest.approx(np.abs(r).max() / 127, rel=1e-6)
            assert row.rounding.clipped == 0.0
    result = found.tensors[-1]
    assert (result.origin.kind, result.origin.tensor) == ("output", "y")
    rows = [run["y"].reshape(-1, 10).astype(np.float64) for run in (fp32, int8)]
    p, q = (np.exp(row) / np.exp(row).sum(axis=-1, keepdims=True) for row in rows)
    expected = np.mean(np.sum(p * np.log(p / q), axis=-1))
    assert result.figures.kl == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_a_starved_range_and_its_channel(tmp_path):
    model = networks.planted(networks.chain(5), ("conv2", "conv3"))
    found = trt_bisect.compare(*networks.given(model, tmp_path), calibrator="minmax")
    assert reasons(found, advisor.STARVED) == [("relu3_out", ("conv3",))]
    assert "255 levels" in words(found, advisor.STARVED, "relu3_out")
    assert ("relu3_out", ("conv3",)) in reasons(found, advisor.ONE_CHANNEL)
    assert words(found, advisor.ONE_CHANNEL, "relu3_out").startswith("channel 1 reaches")
    row = row_of(found, "relu3_out")
    assert row.loud.channel == 1
    assert row.rounding.near_zero > 0.5
    first_low = reasons(found, advisor.LOW_SIMILARITY)[0]
    assert first_low[1] == ("conv3",)
    assert not reasons(found, advisor.SATURATION)


def test_an_axis_without_channels_is_named_by_its_number(tmp_path):
    """A matrix product makes ``[1, tokens, features]``: a feature is an index of axis 2."""
    sketch = networks.Sketch()
    weight = np.eye(8, dtype=np.float32)
    weight[5, 5] = 500.0
    x = sketch.node("MatMul", ["x", sketch.constant("first.weight", weight)], "first")
    sketch.node("MatMul", [x, sketch.constant("second.weight", np.eye(8, dtype=np.float32))], "y")
    model = sketch.model({"x": [1, 3, 8]}, {"y_out": [1, 3, 8]})
    found = trt_bisect.compare(*networks.given(model, tmp_path), calibrator="minmax")
    assert words(found, advisor.ONE_CHANNEL, "first_out").startswith("on axis 2, index 5 reaches")


def test_the_scales_of_weights_on_the_screen(tmp_path, command):
    """Each channel's scale is its largest magnitude divided by 127."""
    model = networks.chain(5)
    path = networks.save(model, tmp_path)
    np.savez(tmp_path / "data.npz", **networks.samples(model))
    weight = next(numpy_helper.to_array(each) for each in model.graph.initializer if each.name == "conv3.weight")
    scales = np.abs(weight).max(axis=(1, 2, 3)) / 127
    _, out, _ = command("compare", path, "--calibration", tmp_path / "data.npz", "--weight-scales", "--top", "0")
    row = next(line.split() for line in out.splitlines() if "conv3.weight" in line)
    assert row[3:5] == ["largest", "value"]
    assert row[5:7] == ["0", str(len(scales))]
    assert float(row[7]) == pytest.approx(scales.min(), rel=1e-3)
    assert row[8] == "int8"
    assert float(row[9]) == pytest.approx(scales.max(), rel=1e-3)
    channels = [line.split() for line in out.split("channels:")[1].splitlines() if "conv3.weight" in line]
    assert [float(cells[4]) for cells in channels] == pytest.approx(scales.tolist(), rel=1e-3)


def test_one_loud_weight_channel(tmp_path):
    model = networks.chain(5)
    networks.change_at(model, "conv3.weight", np.s_[:, 2], lambda weights: 300 * weights)
    found = trt_bisect.compare(*networks.given(model, tmp_path))
    assert ("conv3.weight", ("conv3",)) in reasons(found, advisor.ONE_CHANNEL)
    assert words(found, advisor.ONE_CHANNEL, "conv3.weight").startswith("input channel 2 reaches")
    assert ("conv3.weight", ("conv3",)) in reasons(found, advisor.STARVED)
    assert {tensor for tensor, _ in reasons(found, advisor.ONE_CHANNEL)} == {"conv3.weight"}


def test_a_clipped_calibration(tmp_path):
    path, feeds = networks.given(networks.chain(5), tmp_path)
    network, ranges = calibrated(path, feeds, "minmax")
    scales = {**ranges.scales, "relu4_out": ranges.scales["relu4_out"] / np.float32(8)}
    found = trt_bisect.compare(path, Ranges(scales), feeds)
    assert reasons(found, advisor.SATURATION) == [("relu4_out", ("conv4",))]
    share = np.mean(np.rint(tensors_of(network, feeds)["relu4_out"] / scales["relu4_out"]) > 127)
    assert row_of(found, "relu4_out").rounding.clipped == pytest.approx(share, abs=1e-6)
    assert f"clips {100 * share:.2f}%" in words(found, advisor.SATURATION, "relu4_out")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: 127 + 60 * x, "pixels from 0 to 255"),
        (lambda x: 5 + x, "from zero"),
        (lambda x: x / 255, "divided twice"),
    ],
)
def test_an_input_that_is_not_normalised(change, said, tmp_path):
    model = networks.chain(5)
    feeds = {"x": change(networks.samples(model)["x"]).astype(np.float32)}
    found = trt_bisect.compare(networks.save(model, tmp_path), feeds)
    assert reasons(found, advisor.NOT_NORMALISED) == [("x", ("conv0",))]
    assert said in words(found, advisor.NOT_NORMALISED, "x")


def test_a_result_that_is_quantized(tmp_path):
    model = pairs(input_scale=0.05, weight_scale=0.05, result_scale=0.05)
    path, feeds = networks.given(model, tmp_path)
    found = trt_bisect.compare(path, inputs=feeds)
    assert reasons(found, advisor.RESULT_QUANTIZED) == [("y", ("conv",))]
    row = found.tensors[-1]
    assert (row.origin.kind, row.quantized_dtype) == ("output", "int8")
    session = ort.InferenceSession(str(path))
    final = np.stack([session.run(["y"], {"x": sample[None]})[0] for sample in feeds["x"]])
    assert np.unique(final).size < 256
    assert row.int8.std == pytest.approx(final.std(), rel=0.05)
    assert row.int8.min != final.min(), "the tensor as it was made, not as it was rounded"


def test_the_planted_lenet(command, lenet, tmp_path):
    code, out, _ = command(
        "compare", lenet / "lenet_planted.onnx", "--calibration", lenet / "calibration.npz", "-o", tmp_path / "out",
        "--sort", "mse", "--top", "3",
    )  # fmt: skip
    assert code == 0
    assert "'ip2': starved range" in out
    assert "channel 477 reaches" in out
    record = json.loads((tmp_path / "out/compare.json").read_text())
    with (tmp_path / "out/tensors.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[: len(COLUMNS)] == COLUMNS
    assert {"loud_channel_times", "loud_input_channel_times", "worst_cosine", "rounding_clipped"} < set(rows[0])
    assert [row["tensor"] for row in rows] == [row["origin"]["tensor"] for row in record["tensors"]]
    assert rows[0]["shape"] == "1x1x28x28"
    found = trt_bisect.Comparison.load(tmp_path / "out")
    assert {layers for _, layers in reasons(found, advisor.STARVED)} == {("ip2",)}
    assert found.sorted_by("atol") == found.sorted_by("max_abs"), "its earlier name"
    assert found.sorted_by() == found.sorted_by("mse"), "the order of the screen is the page's too"
    tensors = next(each for each in found.page().sections if each.id == "tensors")
    assert (tensors.sort, tensors.descending) == ("mse", True)
    places = {layer.name: layer.index for layer in trt_bisect.load_network(lenet / "lenet_planted.onnx").layers}
    assert all(advice.index == places[advice.layers[0]] for advice in found.advice), "of the layer, not of the maker"


def test_scales_have_what_chose_them_and_their_axis(tmp_path):
    model = networks.chain(2)
    path, data = networks.given(model, tmp_path)
    found = trt_bisect.compare(path, data, calibrator="percentile=99.9")
    assert {row.observer for row in found.tensors if row.scale is not None} == {"percentile 99.9"}
    assert {row.observer for row in found.tensors if row.scale is None} == {""}
    axes = {"Conv": 0, "Gemm": 1}
    assert [(row.observer, row.axis) for row in found.weights] == [
        ("largest value", axes[row.origin.op_type]) for row in found.weights
    ]
    assert {row.axis for row in trt_bisect.compare(path, data, one_scale=["*"]).weights} == {None}
    assert {"observer", "axis", "dtype", "scale"} <= set(found.table().columns)
    planned = trt_bisect.compare(path, data, plan={"scales": {"x": 0.5}})
    chosen = {row.origin.tensor: (row.observer, row.scale) for row in planned.tensors if row.scale is not None}
    assert chosen.pop("x") == ("the plan", 0.5)
    assert {observer for observer, _ in chosen.values()} == {"entropy"}


def test_layers_that_only_follow_are_rounded_where_asked_for(command, tmp_path):
    """Beside NumPy: what ``relu`` makes is in INT8 with --unquantized int8 alone, and its rounding has an error."""
    model = swish()
    path, data = networks.given(model, tmp_path, 3)
    np.savez(tmp_path / "data.npz", **data)
    words = ["compare", path, "--calibration", tmp_path / "data.npz", "--calibrator", "minmax", "--output"]
    for unquantized, rounded in (
        ("high", {"swish_out", "turn_out"}),
        ("int8", {"swish_out", "turn_out", "a_out", "relu_out"}),
    ):
        assert command(*words, tmp_path / unquantized, "--unquantized", unquantized)[0] == 0
        found = trt_bisect.Comparison.load(tmp_path / unquantized)
        assert {row.origin.tensor for row in found.tensors if row.rounding} == rounded | {"x"}
    relu, values = row_of(found, "relu_out"), tensors_of(trt_bisect.load_network(path), data)["relu_out"]
    error = values - np.clip(np.rint(values / np.float32(relu.scale)), -127, 127) * np.float32(relu.scale)
    assert relu.rounding.sqnr == pytest.approx(10 * np.log10((values**2).mean() / (error**2).mean()), abs=0.01)


def test_little_memory_gives_the_same_in_parts(tmp_path, monkeypatch, segmented):
    """But for float noise: ONNX Runtime fuses what is no output."""
    path, feeds = networks.given(networks.chain(depth=5), tmp_path)
    whole = trt_bisect.compare(path, feeds, calibrator="minmax")
    assert not segmented
    monkeypatch.setattr(CompareOptions, "memory_bytes", 40_000)
    parts = trt_bisect.compare(path, feeds, calibrator="minmax", tensorboard=tmp_path / "logs")
    assert min(segmented) > 1
    assert parts.samples == whole.samples == 8
    assert [each.origin.tensor for each in parts.tensors] == [each.origin.tensor for each in whole.tensors]
    for one, other in zip(parts.tensors, whole.tensors, strict=True):
        assert one.figures.sqnr == pytest.approx(other.figures.sqnr, abs=0.1)
        assert (one.fp32.count, one.int8.count) == (other.fp32.count, other.int8.count)


@pytest.mark.parametrize(("other", "reader"), [(0.004, "right"), (5.0, "right"), (0.9 * ACTIVATION, "left")])
def test_of_two_pairs_on_one_tensor_the_worse_is_shown_and_both_are_named(other, reader, tmp_path):
    """One pair clips, is too coarse, or is the finer one; the clipped shares are NumPy's."""
    model = two_pairs(other)
    stem = networks.Sketch(1).weight("stem", 4, 3, 3, 3).astype(np.float32)
    x = networks.normal(0, 4, 1, 3, 8, 8)
    plain = networks.Sketch()
    made = plain.node("Conv", ["x", plain.constant("w", stem)], "stem", pads=[1] * 4)
    plain.node("Relu", [made], "relu", out="relu_out")
    unrounded = plain.model({"x": [1, 3, 8, 8]}, {"relu_out": [1, 4, 8, 8]})
    values = plain_tensors(unrounded, ["relu_out"], [{"x": sample} for sample in x])["relu_out"]
    scales = {"left": ACTIVATION, "right": other}
    clipped = {name: float(np.mean(np.rint(values / scale) > 127)) for name, scale in scales.items()}
    found = trt_bisect.compare(networks.save(model, tmp_path), None, {"x": x})
    row = row_of(found, "relu_out")
    assert row.scale == np.float32(scales[reader])
    assert row.rounding.clipped == pytest.approx(clipped[reader], abs=1e-4)
    assert row.note.startswith("it has 2 pairs, ")
    for name, scale in scales.items():
        assert f"scale {number(scale)} for '{name}' clips {percent(clipped[name])}" in row.note
    saturated = [advice.layers for advice in found.advice if advice.reason == advisor.SATURATION]
    assert saturated == ([("right",)] if other == 0.004 else [])
