"""The report tells the data that the network was fed; data that cannot be right are told first, above the verdict."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

import trt_bisect
from tests.support import networks
from tests.support.networks import Sketch, reshaped_as_told, save, scale_constant
from tests.support.quantized import plain_session
from tests.support.records import record_of, texts
from trt_bisect.analyzer.data_warnings import first_layer, has_large_weights, on_growing_ranges, on_values
from trt_bisect.calibration.collect import magnitudes
from trt_bisect.data.datasets import open_dataset
from trt_bisect.data.statistics import statistics
from trt_bisect.report.given import DATA, DOUBTED
from trt_bisect.report.parts import WITH_DOUBTS

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


@pytest.fixture
def network(tmp_path):
    sketch = Sketch(seed=4)
    x = sketch.node("Relu", [sketch.conv("x", "first", 3, 6)], "relu")
    sketch.conv(x, "second", 6, 4)
    return save(sketch.model({"x": [1, 3, 8, 8]}, {"second_out": [1, 4, 8, 8]}), tmp_path)


def run(network, calibration, **options):
    how = {"engine": "onnxruntime", "explain": "none", "curve": "culprits", "effort": "quick", "calibrator": "minmax"}
    return trt_bisect.run(network, calibration, **how, **options)


def test_statistics_by_numpy(random):
    samples = [random.normal(3, 2, (1, 3, 8, 8)).astype(np.float32) for _ in range(7)]
    [found] = statistics({"x": sample} for sample in samples)
    all_values = np.stack(samples).astype(np.float64)
    np.testing.assert_allclose(
        (found.least, found.most, found.mean, found.std),
        (all_values.min(), all_values.max(), all_values.mean(), all_values.std()),
    )
    assert found.samples == 7


def test_the_report_says_what_was_fed(network, random):
    data, judged = random.random((8, 3, 8, 8), np.float32), random.random((2, 3, 8, 8), np.float32)
    report = run(network, data, inputs=judged)
    fed = record_of(report)["inputs"]["fed"]
    assert fed["calibration"]["x"]["samples"] == 8
    np.testing.assert_allclose(fed["calibration"]["x"]["mean"], data.mean(), rtol=1e-5)
    np.testing.assert_allclose(fed["judged"]["x"]["std"], judged.std(), rtol=1e-4)
    assert not report.inputs.warnings


def test_pixels_of_0_to_255_are_told_first_and_do_not_pass(network, random):
    pixels = random.integers(0, 256, (8, 3, 8, 8)).astype(np.float32)
    report = run(network, pixels, threshold=0.5)
    assert [line.kind for line in report.lines[:2]] == [DATA, WITH_DOUBTS]
    assert "'x' is fed pixels" in report.lines[0].text
    assert report.exit_code == 1
    assert run(network, pixels, threshold=0.5, accept=True).exit_code == 0
    assert run(network, pixels / 255, threshold=0.5).exit_code == 0


@pytest.mark.parametrize("options", [{}, {"task": "classify"}])
def test_a_network_that_is_dead_on_its_data_does_not_pass(tmp_path, random, options):
    """The bias of its first layer is for pixels of 0 to 255. On 0 to 1 the Relu gives 0, and the last bias is left."""
    sketch = Sketch(seed=4)
    x = sketch.node("Relu", [sketch.conv("x", "first", 3, 6)], "relu")
    pooled = sketch.node("Flatten", [sketch.node("GlobalAveragePool", [x], "pool")], "flat")
    sketch.dense(pooled, "last", 6, 4)
    model = sketch.model({"x": [1, 3, 8, 8]}, {"last_bias_out": [1, 4]})
    scale_constant(model, "first.bias", lambda bias: bias - 50)
    path = save(model, tmp_path)
    data = random.random((8, 3, 8, 8), np.float32)
    session = plain_session(path)
    for sample in data:
        np.testing.assert_array_equal(session.run(None, {"x": sample[None]}), session.run(None, {"x": data[:1]}))
    report = run(path, data, **options)
    assert [line.kind for line in report.lines[:2]] == [DATA, DOUBTED]
    assert report.exit_code == 1
    assert run(path, data, accept=True, **options).exit_code == 0
    assert run(path, 255 * data - 60, **options).exit_code == 0


def test_a_network_for_pixels_takes_them(network, random):
    """The YOLOX family, and others, take pixels of 0 to 255: their first weights are a hundredth of others'."""
    model = onnx.load(network)
    scale_constant(model, "first.weight", lambda weight: weight / 255)
    onnx.save(model, network)
    loaded = trt_bisect.load_network(network)
    assert not has_large_weights(loaded, first_layer(loaded, "x"))
    report = run(network, random.integers(0, 256, (8, 3, 8, 8)).astype(np.float32), threshold=0.5)
    assert not report.inputs.warnings


def told(path, data):
    """The warnings on data, for the inputs of a network."""
    network = trt_bisect.load_network(path)
    samples = open_dataset(data, network.inputs)
    return list(on_values(network, statistics(samples), samples, "the data"))


@pytest.mark.parametrize(
    ("network", "data"),
    [
        ("lenet/lenet.onnx", "lenet/calibration.npz"),
        ("lenet/lenet_planted.onnx", "lenet/digits.npz"),
        ("detector/detector.onnx", "detector/test.npz"),
        ("ocr/network.onnx", "ocr/calibration.npz"),
        ("transformer/encoder.onnx", "transformer/calibration.npz"),
    ],
)
def test_the_right_data_of_trained_networks_raise_no_warning(network, data):
    assert told(SAMPLES / network, SAMPLES / data) == []


@pytest.mark.parametrize("scale", [1 / 255, 1 / 58])
def test_data_so_small_that_the_first_layer_hardly_moves(scale):
    """FP32 itself then recognises 17 of 100 digits, instead of 100 of 100: so says ONNX Runtime on the file."""
    path, labels = SAMPLES / "lenet/lenet.onnx", np.load(SAMPLES / "lenet/labels.npy")
    with np.load(SAMPLES / "lenet/digits.npz") as file:
        digits = file["data"]
    session, found = plain_session(path), {}
    for factor in (1, scale):
        given = (digits * factor).astype(np.float32)
        outputs = [session.run(None, {"data": digit[None]})[0].argmax() for digit in given]
        found[factor] = (np.mean(outputs == labels), len(told(path, given)))
    assert found[1] == (1.0, 0)
    assert found[scale] == (0.17, 1)


def normalising(folder, mean, std):
    """A convolution behind a mean taken off, and a division by a deviation."""
    sketch = Sketch(seed=4)
    x = sketch.node("Sub", ["x", sketch.constant("mean", mean)], "sub")
    sketch.conv(sketch.node("Div", [x, sketch.constant("std", std)], "div"), "first", 3, 6)
    return save(sketch.model({"x": [1, 3, 24, 24]}, {"first_out": [1, 6, 24, 24]}), folder)


def test_a_network_that_normalises_pixels_itself(tmp_path, random):
    network, pixels = normalising(tmp_path, 123.7, 58.4), random.integers(0, 256, (4, 3, 24, 24))
    assert told(network, pixels.astype(np.float32)) == []
    for values in (pixels / 255, (pixels - 127.5) / 127.5, -123.7 + random.random((4, 3, 24, 24))):
        assert len(told(network, values.astype(np.float32))) == 1


def test_a_network_that_normalises_values_of_0_to_1_itself(tmp_path, random):
    network = normalising(tmp_path, 0.485, 0.229)
    pixels = random.integers(0, 256, (4, 3, 24, 24)).astype(np.float32)
    assert ["is fed pixels" in warning for warning in told(network, pixels)] == [True]
    assert told(network, pixels / 255) == []


def test_data_that_are_nearly_constant(tmp_path, random):
    sketch = Sketch(seed=4)
    sketch.dense("x", "dense", 6, 4)
    path = save(sketch.model({"x": [1, 6]}, {"dense_bias_out": [1, 4]}), tmp_path)
    data = random.random((8, 6)).astype(np.float32)
    assert told(path, data) == []
    assert len(told(path, 100 + data)) == 1


def pictures_of(folder, arrays):
    """A folder of PNG files of arrays ``[H, W, 3]``, numbered."""
    (folder / "pictures").mkdir()
    for place, pixels in enumerate(arrays):
        Image.fromarray(pixels).save(folder / "pictures" / f"{place:03d}.png")
    return str(folder / "pictures")


def test_a_wrong_mean_of_pictures_does_not_pass(tmp_path, random):
    """Pixels divided by 255 and then less 123.7: -123.7 to -102.5, as an option that nobody gave once made them."""
    sketch = Sketch(seed=4)
    sketch.conv(sketch.node("Relu", [sketch.conv("x", "first", 3, 6)], "relu"), "second", 6, 4)
    model = sketch.model({"x": [1, 3, 24, 24]}, {"second_out": [1, 4, 24, 24]})
    scale_constant(model, "first.weight", lambda weight: weight / 58)
    path = save(model, tmp_path)
    pictures = pictures_of(tmp_path, random.integers(0, 256, (4, 24, 24, 3), np.uint8))
    mean = "123.7,116.3,103.5"
    right = run(path, pictures, mean=mean, threshold=0.5)
    assert (right.inputs.warnings, right.exit_code) == ((), 0)
    wrong = run(path, pictures, mean=mean, scale=255, threshold=0.5)
    assert (len(wrong.inputs.warnings), wrong.exit_code) == (1, 1)
    assert "divided by 255, mean 123.7,116.3,103.5" in wrong.lines[0].text


def recurrent(folder, *, by_output):
    """A network with a state: that of an LSTM, or one that only an output of the same shape shows."""
    sketch = Sketch(seed=4)
    random = np.random.default_rng(0)
    if by_output:
        joined = sketch.node("Concat", ["x", "h0"], "join", axis=1)
        next_state = sketch.node("Tanh", [sketch.dense(joined, "cell", 8, 4)], "next")
        sketch.dense(next_state, "last", 4, 3)
        inputs, outputs = {"x": [1, 4], "h0": [1, 4]}, {"last_bias_out": [1, 3], next_state: [1, 4]}
    else:
        shapes = {"w": (1, 16, 4), "r": (1, 16, 4), "b": (1, 32)}
        cell = [sketch.constant(name, random.normal(0, 0.4, shape)) for name, shape in shapes.items()]
        state = sketch.node("Unsqueeze", ["h0", sketch.constant("axis", [0], np.int64)], "state")
        more = ["", state, sketch.constant("c0", np.zeros((1, 1, 4)))]
        sketch.node("LSTM", ["x", *cell, *more], "lstm", hidden_size=4)
        sketch.dense("lstm_out", "last", 4, 3)
        inputs, outputs = {"x": [5, 1, 4], "h0": [1, 4]}, {"last_bias_out": [5, 1, 1, 3]}
    return save(sketch.model(inputs, outputs), folder)


@pytest.mark.parametrize("by_output", [True, False])
def test_a_recurrent_state_of_zeros_is_a_note_beside_data_that_vary(tmp_path, random, by_output):
    path = recurrent(tmp_path, by_output=by_output)
    x = random.normal(size=(6, 4) if by_output else (30, 1, 4)).astype(np.float32)
    zeros = np.zeros((6, 4), np.float32)
    report = run(path, {"x": x, "h0": zeros}, threshold=0.5)
    assert (report.inputs.warnings, report.exit_code) == ((), 0)
    assert len([note for note in texts(report.notes) if note.startswith("'h0'")]) == 1
    nothing = run(path, {"x": 0 * x, "h0": zeros}, threshold=0.5)
    assert (len(nothing.inputs.warnings), nothing.exit_code) == (2, 1)
    assert len(told(path, {"x": x, "h0": zeros + 1})) == 1


def test_an_input_of_zeros_that_is_no_state_is_no_real_data(tmp_path, random):
    sketch = Sketch(seed=4)
    sketch.dense(sketch.node("Concat", ["x", "more"], "join", axis=1), "last", 8, 4)
    path = save(sketch.model({"x": [1, 4], "more": [1, 4]}, {"last_bias_out": [1, 4]}), tmp_path)
    data = {"x": random.normal(size=(6, 4)).astype(np.float32), "more": np.zeros((6, 4), np.float32)}
    assert len(told(path, data)) == 1


def test_a_network_that_scales_its_pixels_itself(tmp_path, random):
    sketch = Sketch(seed=4)
    scaled = sketch.node("Div", ["x", sketch.constant("by", np.float32(255))], "div")
    sketch.conv(scaled, "first", 3, 6)
    path = save(sketch.model({"x": [1, 3, 8, 8]}, {"first_out": [1, 6, 8, 8]}), tmp_path)
    assert first_layer(trt_bisect.load_network(path), "x").scaled


def test_inputs_in_other_units_than_the_cache(network, random, tmp_path):
    data = random.normal(0, 1, (8, 3, 8, 8)).astype(np.float32)
    loaded = trt_bisect.load_network(network)
    ranges = trt_bisect.calibrate(loaded, open_dataset(data, loaded.inputs), "minmax")
    (tmp_path / "c.cache").write_text(trt_bisect.format_cache(ranges.scales))
    (warning,) = run(network, tmp_path / "c.cache", inputs=100 * data[:1]).inputs.warnings
    assert "'x'" in warning
    assert not run(network, tmp_path / "c.cache", inputs=data[:1]).inputs.warnings


def test_ranges_that_still_grow(network, random):
    loaded = trt_bisect.load_network(network)
    steady = random.normal(0, 1, (40, 3, 8, 8)).astype(np.float32)
    growing = steady * np.linspace(0.1, 3, 40, dtype=np.float32)[:, None, None, None]

    def told(data, total):
        return list(on_growing_ranges(magnitudes(loaded, open_dataset(data, loaded.inputs), total=total), total))

    assert told(steady, 40) == []
    [sentence] = told(growing, 40)
    assert "too few samples (40)" in sentence
    assert told(growing, None) == []
    assert "too few" in told(steady[:2], 2)[0]


def test_growth_is_that_of_numpys_percentiles(network, random):
    loaded = trt_bisect.load_network(network)
    data = random.normal(0, 1, (20, 3, 8, 8)).astype(np.float32)
    data[15:] *= 2
    grown = magnitudes(loaded, open_dataset(data, loaded.inputs), total=20).growth()["x"]
    before, after = (np.percentile(np.abs(part), 99.99, method="higher") for part in (data[:15], data))
    assert grown == pytest.approx(after / before - 1, rel=0.02)


def test_growth_is_kept_in_the_run_folder(network, random, tmp_path):
    data = (random.normal(0, 1, (12, 3, 8, 8)) * np.linspace(0.1, 3, 12)[:, None, None, None]).astype(np.float32)
    first = run(network, data, output=tmp_path / "run", history="none", validation=0)
    again = run(network, data, output=tmp_path / "run", history="none", validation=0)
    assert [note for note in first.notes if note.kind == "data" and "(12)" in note.text]
    assert again.notes == first.notes


def test_dynamic_inputs_get_the_shapes_of_the_data(tmp_path, random):
    sketch = Sketch(seed=4)
    sketch.conv("x", "first", 3, 6)
    model = sketch.model({"x": ["n", 3, "h", "w"]}, {"first_out": ["n", 6, "h", "w"]})
    path = save(model, tmp_path)
    data = random.random((6, 3, 8, 10), np.float32)
    report = run(path, data)
    assert report.inputs.shapes == {"x": "1x3x8x10"}
    assert any("--shape x:1x3x8x10" in note for note in texts(report.notes))
    fixed = run(path, data, shapes={"x": (1, 3, 8, 10)})
    assert not fixed.inputs.shapes
    assert fixed.similarity == report.similarity


def test_one_command_from_pictures_to_a_recipe(network, random, tmp_path):
    """The pictures of a folder give the same answer as the arrays that they hold."""
    pixels = random.integers(0, 256, (24, 8, 8, 3), np.uint8)
    pictures = pictures_of(tmp_path, pixels)
    of_pictures = run(network, pictures, output=tmp_path / "run", history="none")
    of_arrays = run(network, (pixels.transpose(0, 3, 1, 2) / 255).astype(np.float32))
    assert of_pictures.similarity.int8 == pytest.approx(of_arrays.similarity.int8, abs=1e-6)
    assert (tmp_path / "run/recipe/network.qdq.onnx").exists()
    assert of_pictures.inputs.pictures == {pictures: "8x8, RGB, NCHW, divided by 255"}
    named, numbered = of_pictures.answer.given, of_arrays.answer.given
    places = {int(name.split()[-1]): value for name, value in numbered.figures.items()}
    assert named.figures == {f"{pictures}/{k:03d}.png": pytest.approx(v) for k, v in places.items()}
    assert named.source == pictures


def test_pictures_whose_own_sizes_a_network_does_not_take(tmp_path, random):
    """Two strides of 2, and what comes back from the second one is concatenated: sizes must be multiples of 4."""
    sketch = Sketch(seed=4)
    half = sketch.conv("x", "half", 3, 8, strides=[2, 2])
    quarter = sketch.conv(half, "quarter", 8, 8, strides=[2, 2])
    back = sketch.node("Resize", [quarter, "", sketch.constant("scales", [1, 1, 2, 2])], "back", mode="nearest")
    sketch.conv(sketch.node("Concat", [half, back], "both", axis=1), "head", 16, 6)
    network = save(sketch.model({"x": ["n", 3, "h", "w"]}, {"head_out": ["n", 6, "a", "b"]}), tmp_path)
    sizes = [(32, 40), (30, 41), (28, 44)]
    pictures = pictures_of(tmp_path, [random.integers(0, 256, (*size, 3), np.uint8) for size in sizes])
    options = {"resize": "32x32", "letterbox": True}
    for given in ({"calibration": pictures}, {"calibration": None, "inputs": pictures, "low": "fp16"}):
        with pytest.raises(trt_bisect.TrtBisectError) as refused:
            run(network, **given)
        assert "resize 320x320 letterbox" in refused.value.remedy
        assert run(network, **given, **options).inputs.shapes == {"x": "1x3x32x32"}


def test_a_quiet_sample_of_the_calibration_data_is_not_scaled_otherwise(network, random):
    data = random.random((8, 3, 8, 8), np.float32)
    data[3] *= 0.02
    report = run(network, data)
    judged = record_of(report)["inputs"]["fed"]["judged"]["x"]
    np.testing.assert_allclose(judged["most"], data[3].max(), rtol=1e-5)
    assert not report.inputs.warnings


def test_samples_that_are_reshaped_to_other_sizes_after_the_first_layer_are_measured(tmp_path):
    """An input holds the sizes of a Reshape that follows the convolution: its outputs have no axis of channels."""
    x = networks.normal(0, 4, 1, 3, 8, 8)
    samples = [{"x": x[k], "sizes": np.array(((8, 32), (16, 16))[k % 2])} for k in range(4)]
    report = trt_bisect.run(save(reshaped_as_told(), tmp_path), samples, engine="onnxruntime", output=tmp_path / "run")
    assert [layer.name for layer in report.layers] == ["conv", "reshape", "relu"]


def test_ragged_samples_are_noted_with_their_range_over_all_data(tmp_path):
    sketch = Sketch(1)
    out = sketch.dense(sketch.node("Relu", [sketch.dense("x", "a", 8, 16)], "relu"), "b", 16, 4)
    path = save(sketch.model({"x": ["batch", "tokens", 8]}, {out: ["batch", "tokens", 4]}), tmp_path)
    random = np.random.default_rng(0)
    data = [{"x": random.normal(size=(1, tokens, 8)).astype(np.float32)} for tokens in (5, 9, 7, 12)]
    report = trt_bisect.run(path, data, engine="onnxruntime", explain="none", samples=1)
    (note,) = [note.text for note in report.notes if "dynamic" in note.text]
    assert "'x' 1x5x8 to 1x12x8" in note
    assert "to fix them" not in note
