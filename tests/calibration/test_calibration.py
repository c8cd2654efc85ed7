import struct

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import numpy_helper

from tests.support import networks
from trt_bisect import BadInput, calibrate, load_network, read_cache, run
from trt_bisect.calibration.cache import format_cache, parse_cache, parse_version, version_of_engine
from trt_bisect.calibration.collect import CANDIDATES, Magnitudes, candidates, magnitudes
from trt_bisect.calibration.histogram import (
    BINS,
    AbsHistogram,
    Calibrator,
    entropy_threshold,
    mse_thresholds,
    percentile_threshold,
)
from trt_bisect.calibration.ranges import with_scales_of


def histogram_of(*parts):
    histogram = AbsHistogram()
    for part in parts:
        histogram.add(np.asarray(part, np.float32))
    return histogram


def test_histogram_keeps_counts_and_size_whatever_comes():
    random = np.random.default_rng(0)
    parts = [random.normal(0, 10.0**power, 1000) for power in (-3, 0, 2, -1)]
    histogram = histogram_of(*parts)
    everything = np.abs(np.concatenate(parts).astype(np.float32))
    assert histogram.counts.shape == (BINS,)
    assert histogram.counts.sum() == 4000
    assert histogram.absmax == everything.max()
    edges = np.arange(BINS + 1) * histogram.width
    expected, _ = np.histogram(everything, edges)
    assert np.abs(np.cumsum(histogram.counts) - np.cumsum(expected)).max() <= 2  # values on an edge, in float32


def test_tiny_first_sample_does_not_blow_up_memory():
    histogram = histogram_of([1e-30], [1e30])
    assert histogram.counts.size == BINS
    assert histogram.absmax == np.float32(1e30)


def test_nonfinite_values_are_counted_apart():
    histogram = histogram_of([1.0, np.nan, np.inf, -2.0])
    assert histogram.nonfinite == 2
    assert histogram.absmax == 2.0


def test_percentile_is_numpys_to_a_bin():
    values = np.random.default_rng(1).laplace(size=100_000)
    histogram = histogram_of(*np.split(values, 10))
    expected = np.quantile(np.abs(values), 0.999)
    assert percentile_threshold(histogram, 99.9) == pytest.approx(expected, abs=2 * histogram.width)
    assert percentile_threshold(histogram, 100) == pytest.approx(np.abs(values).max(), rel=1e-6)


def test_entropy_clips_an_outlier_and_is_not_minmax():
    values = np.append(np.random.default_rng(3).normal(size=200_000), 100.0)
    histogram = histogram_of(values)
    assert Calibrator("minmax").thresholds([histogram])[0] == 100.0
    assert 3.0 < entropy_threshold(histogram) < 20.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_thresholds_lie_within_what_was_seen(seed, scale):
    histogram = histogram_of(np.random.default_rng(seed).standard_t(2, 5000) * scale)
    for threshold in (entropy_threshold(histogram), percentile_threshold(histogram, 99.9)):
        assert 0 < threshold <= histogram.absmax


def test_minmax_scales_are_numpys():
    model = networks.chain(depth=2)
    network = load_network(model)
    stacked = networks.samples(model)["x"]
    ranges = calibrate(network, networks.feeds(stacked), "minmax")
    assert ranges.scales["x"] == np.float32(np.abs(stacked).max()) / np.float32(127)
    assert set(ranges.scales) == set(network.activations)


def test_cache_bits_round_trip():
    values = {"data": 1 / 127, "(Unnamed Layer* 4) [Shuffle]_output": 3.1e-7, "a:b": 2}
    scales = {name: np.float32(value) for name, value in values.items()}
    text = format_cache(scales)
    assert text.splitlines()[0] == "TRT-100300-EntropyCalibration2"
    assert text.splitlines()[1] == "data: 3c010204"  # 1/127 = 0x3c010204 in IEEE 754
    assert parse_cache(text, "it").scales == scales


@given(st.floats(width=32, min_value=2.0**-120, max_value=2.0**20))
def test_any_scale_survives_the_cache_to_the_bit(value):
    parsed = parse_cache(f"TRT-8600-MinMaxCalibration\nt: {struct.pack('>f', value).hex()}\n", "it")
    assert struct.pack(">f", parsed.scales["t"]) == struct.pack(">f", value)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("prefix", ["", "0x"])
def test_a_cache_of_another_writer_is_read_in_either_byte_order(order, prefix):
    scales = {f"t{k}": np.float32(value) for k, value in enumerate([1 / 127, 0.0213, 3.7, 0.5, 0.0, 12.25])}
    lines = [f"{name}: {prefix}{struct.pack(order + 'f', scale).hex()}" for name, scale in scales.items()]
    cache = parse_cache("\n".join(["TRT-8601-MinMaxCalibration", *lines]), "it")
    assert cache.scales == scales
    assert cache.little_endian is (order == "<")
    assert cache.header == "TRT-8601-MinMaxCalibration"


@pytest.mark.slow
def test_cache_ranges_are_used_to_the_bit(lenet, tmp_path):
    names = load_network(lenet / "lenet.onnx").activations
    bits = {name: f"3c{place:02x}89{place:02x}" for place, name in enumerate(names, 16)}
    cache = tmp_path / "deployed.cache"
    cache.write_text("TRT-8601-EntropyCalibration2\n" + "".join(f"{n}: {b}\n" for n, b in bits.items()))
    report = run(
        lenet / "lenet.onnx", cache, lenet / "digits.npz", samples=1, engine="onnxruntime", explain="none",
        output=tmp_path / "run", trt_version="8.6.1",
    )  # fmt: skip
    assert report.ranges.origin == "cache deployed.cache"
    assert (tmp_path / "run/recipe/calibration.cache").read_text() == cache.read_text()
    model = onnx.load(tmp_path / "run/recipe/network.qdq.onnx")
    scale = next(t for t in model.graph.initializer if t.name == "data__int8_scale")
    assert numpy_helper.to_array(scale).astype(">f4").tobytes().hex() == bits["data"]


@pytest.mark.parametrize(
    "text", ["", "hello\n", "TRT-8600-EntropyCalibration2\n", "TRT-8600-X\nname 3c008912\n", "TRT-8600-X\nname: xyz\n"]
)
def test_broken_caches_are_named(text, tmp_path):
    path = tmp_path / "broken.cache"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"broken\.cache"):
        read_cache(path, ("data",))


def test_cache_of_another_network(tmp_path):
    path = tmp_path / "other.cache"
    path.write_text("TRT-8600-EntropyCalibration2\nother: 3c008912\n")
    with pytest.raises(BadInput, match="another network"):
        read_cache(path, ("data", "prob"))


def test_unusable_scales_are_named(tmp_path):
    path = tmp_path / "odd.cache"
    lines = {"zero": "0", "denormal": "00000001", "nan": "7fc00000", "mask": "7b000000", "good": "3c008912"}
    path.write_text("TRT-8600-X\n" + "".join(f"{n}: {b}\n" for n, b in lines.items()))
    ranges = read_cache(path, tuple(lines))
    assert list(ranges.scales) == ["good"]
    assert set(ranges.unusable) == {"zero", "denormal", "nan", "mask"}


def test_tensors_take_the_scales_of_another_calibrator_and_leave_the_others():
    model = networks.chain()
    network = load_network(model)
    samples = networks.feeds(networks.samples(model, 6)["x"])
    ways = (("entropy",), ("minmax",), ("percentile", 99.0))
    entropy, minmax, most = (calibrate(network, samples, *how) for how in ways)
    seen = magnitudes(network, samples)
    assert seen.ranges(Calibrator("percentile", 99.0)) == most
    first, second = network.rounded_activations[1:3]
    anew = with_scales_of(entropy, {first: minmax, second: most})
    assert anew.scales[first] == minmax.scales[first] != entropy.scales[first]
    assert anew.scales[second] == most.scales[second] != entropy.scales[second]
    others = set(entropy.scales) - {first, second}
    assert {name: anew.scales[name] for name in others} == {name: entropy.scales[name] for name in others}
    told = [part.rsplit("1 tensor by ")[-1] for part in anew.origin.split(", ")]
    assert told == ["entropy", "minmax", "percentile 99"]
    assert with_scales_of(entropy, {}).digest() == entropy.digest() != anew.digest()


@pytest.mark.parametrize(("version", "number"), [
    ("8.5.2", 8502), ("8.6.1", 8601), ("10.3", 100300), ("10.3.0.26", 100300), ("10.13.3", 101303),
])  # fmt: skip
def test_a_cache_says_the_version_that_is_to_read_it(version, number):
    """NV_TENSORRT_VERSION of NvInferRuntimeBase.h: thousands up to 8, ten thousands from 10 on."""
    header = f"TRT-{number}-EntropyCalibration2"
    assert parse_version(version).header == version_of_engine(version).header == header


@pytest.mark.parametrize("version", ["ten", "10", "", "12.0.0", "4.0", "10.3rc1", "rtx one"])
def test_a_version_that_there_is_not_is_refused(version):
    with pytest.raises(BadInput):
        parse_version(version)


@pytest.mark.slow
def test_calibrate_writes_the_version_asked(command, lenet, tmp_path):
    how = ("calibrate", lenet / "lenet.onnx", "--calibration", lenet / "calibration.npz", "-o", tmp_path / "own.cache")
    code, out, _ = command(*how, "--trt-version", "10.7.0")
    assert code == 0
    assert "TensorRT 10.7.0" in out
    assert (tmp_path / "own.cache").read_text().splitlines()[0] == "TRT-100700-EntropyCalibration2"
    code, _, err = command(*how, "--trt-version", "11")
    assert code == 2
    assert "TensorRT 11.0.0" in err


def mean_squared_error(values, threshold):
    """Of rounding to INT8 and clipping, on the values themselves."""
    scale = np.float32(threshold) / np.float32(127)
    rounded = np.clip(np.rint(values / scale), -128, 127) * scale
    return float(np.mean(np.square(values - rounded, dtype=np.float64)))


DRAWN = {
    "normal": lambda random: random.normal(size=20_000),
    "laplace": lambda random: random.laplace(size=20_000),
    "relu": lambda random: np.maximum(random.normal(size=20_000), 0.0),
    "sparse": lambda random: random.exponential(size=20_000) * (random.random(20_000) < 0.1),
    "outliers": lambda random: np.append(random.normal(size=20_000), [30.0, -25.0]),
    "heavy tails": lambda random: random.standard_t(2, size=20_000),
    "a far outlier": lambda random: np.append(random.normal(size=20_000), 1e4),
    "few": lambda random: random.laplace(size=500),
}


@pytest.mark.parametrize("name", DRAWN)
def test_mse_has_the_least_error_that_a_search_on_the_values_finds(random, name):
    values = DRAWN[name](random).astype(np.float32)
    histogram = histogram_of(values[: values.size // 3], values[values.size // 3 :])
    (threshold,) = mse_thresholds([histogram])
    largest = float(np.abs(values).max())
    least = min(mean_squared_error(values, largest * part / 500) for part in range(1, 501))
    assert mean_squared_error(values, threshold) <= 1.02 * least


def test_mse_clips_where_minmax_does_not_and_is_apart_for_each_tensor(random):
    heavy, even = np.append(random.normal(size=100_000), 14.0), random.uniform(size=50_000)
    histograms = [histogram_of(heavy), histogram_of(even), AbsHistogram(), histogram_of(np.zeros(5))]
    clipped, whole, *nothing = mse_thresholds(histograms)
    assert clipped < 0.8 * histograms[0].absmax
    assert whole > 0.99 * histograms[1].absmax
    assert nothing == [0.0, 0.0]
    assert mse_thresholds(histograms[1:2]) == [whole]


@pytest.mark.parametrize(("reach", "usable"), [(-1e9, False), (-1e9 + 60.0, False), (-3e38, False), (-1e8, True)])
def test_a_tensor_with_the_constant_of_a_mask_has_no_range(reach, usable):
    """-1e9 / 127 in float32, times 127, is 999,999,969."""
    ranges = Magnitudes({"mask": histogram_of([0.0, reach])}).ranges(Calibrator("minmax"))
    assert ("mask" in ranges.scales) == usable


def test_every_calibrator_has_ranges_of_the_same_tensors(random):
    """The far value of ``mask`` and the tiny ones of ``faint`` are seen by min-max, and clipped by percentiles."""
    tiny = float(np.finfo(np.float32).tiny)
    seen = Magnitudes(
        {
            "usual": histogram_of(random.normal(size=20_000)),
            "mask": histogram_of(np.append(random.normal(0, 1e7, size=20_000), -2e9)),
            "faint": histogram_of(np.append(random.uniform(0, 20 * tiny, size=200_000), 150 * tiny)),
            "denormal": histogram_of([50 * tiny]),
            "zero": histogram_of(np.zeros(9)),
            "broken": histogram_of([1.0, np.nan]),
        }
    )
    found = candidates(seen)
    assert [ranges.origin for ranges in found] == [str(calibrator) for calibrator in CANDIDATES]
    for ranges in found:
        assert set(ranges.scales) == {"usual", "faint"}
        assert set(ranges.unusable) == {"mask", "denormal", "zero", "broken"}
        assert all(scale >= np.finfo(np.float32).tiny for scale in ranges.scales.values())
    thresholds = seen.thresholds(Calibrator("percentile", 99.9))
    assert thresholds["mask"] < 1e9  # the rule decides, not the calibrator
    assert thresholds["faint"] / 127 < tiny
