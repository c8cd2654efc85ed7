"""Entropy on values of few levels: it clips none of them away, and elsewhere chooses what the published loop does."""

import numpy as np
import pytest

from tests.support import networks
from tests.support.editions import edition
from tests.support.quantized import round_trip
from trt_bisect import calibrate, load_network
from trt_bisect.calibration.histogram import BINS, AbsHistogram, Calibrator, entropy_threshold


def best_bins(counts: np.ndarray, levels: int = 128) -> float:
    """Returns the best number of bins, less a half."""
    counts = counts.astype(float).copy()
    counts[0] = counts[1]
    best, best_divergence = len(counts), np.inf
    for size in range(levels, len(counts) + 1):
        p = counts[:size].copy()
        p[-1] += counts[size:].sum()
        starts = np.arange(levels) * size // levels
        widths = np.diff(starts, append=size)
        occupied = np.add.reduceat((p > 0).astype(float), starts)
        means = np.add.reduceat(counts[:size], starts) / np.maximum(occupied, 1.0)
        q = np.where(p > 0, np.repeat(means, widths), 0.0)
        kept = p > 0
        p, q = p[kept] / p.sum(), np.maximum(q[kept], 1e-4)
        divergence = float(np.sum(p * np.log(p / (q / q.sum()))))
        if divergence < best_divergence:
            best, best_divergence = size, divergence
    return best - 0.5


COUNT = 50_000


def histogram_of(values):
    histogram = AbsHistogram()
    histogram.add(np.asarray(values, np.float32))
    return histogram


def levels(random, count):
    return random.integers(0, count, COUNT) / (count - 1)


FEW = {
    "mask": lambda random: levels(random, 2),
    "mask of few ones": lambda random: np.where(random.random(COUNT) < 0.02, 1.0, 0.0),
    "mask without zeros": lambda random: np.ones(COUNT),
    "negative": lambda random: -levels(random, 2),
    "4 grey levels": lambda random: levels(random, 4),
    "16 grey levels": lambda random: levels(random, 16),
    "64 grey levels": lambda random: levels(random, 64),
    "ReLU": lambda random: np.maximum(np.rint(2 * random.normal(size=COUNT)), 0),
    "ReLU, mostly zero": lambda random: np.maximum(np.rint(random.normal(-1, 1, COUNT)), 0),
}


@pytest.mark.parametrize("kind", FEW)
def test_each_of_few_levels_is_kept(random, kind):
    values = FEW[kind](random)
    assert entropy_threshold(histogram_of(values)) == pytest.approx(np.abs(values).max(), rel=1 / 2048)


@pytest.mark.parametrize("least", [0.065, 0.1, 0.3, 0.9])
def test_values_far_from_zero_are_not_clipped_to_their_least(random, least):
    values = random.uniform(least, 1.0, COUNT)
    assert np.mean(values > entropy_threshold(histogram_of(values))) < 0.01


@pytest.mark.parametrize("below", [0, 5, 50])
def test_a_spike_does_not_hide_what_lies_above_it(random, below):
    """Half of the values are equal, a few lie below them: KL is close to 0 if the range ends at the spike."""
    values = np.concatenate([np.full(below, 0.1), np.full(COUNT, 0.5), random.uniform(0.5, 1.0, COUNT)])
    assert np.mean(values > entropy_threshold(histogram_of(values))) < 0.05


ORDINARY = {
    "heavy tails": lambda random: random.standard_t(random.uniform(1.5, 6), COUNT),
    "gamma": lambda random: random.gamma(random.uniform(0.1, 5), size=COUNT),
    "lognormal": lambda random: random.lognormal(0, random.uniform(0.3, 3), COUNT),
    "ReLU": lambda random: np.maximum(random.normal(random.uniform(-2, 1), 1, COUNT), 0),
    "Sigmoid": lambda random: 1 / (1 + np.exp(random.normal(5, random.uniform(0.5, 4), COUNT))),
    "256 grey levels": lambda random: np.rint(255 * random.beta(2, 3, COUNT)) / 255,
}


@pytest.mark.parametrize("kind", ORDINARY)
def test_elsewhere_the_threshold_is_the_published_one(random, kind):
    for size in edition((140, 300), (140, 300, 600)):
        values = np.abs(ORDINARY[kind](random)).astype(np.float32)
        histogram = AbsHistogram(width=float(values.max()) / size, counts=np.zeros(BINS, np.int64))
        histogram.add(values)
        counts = histogram.used()
        bins = best_bins(counts)
        expected = bins * histogram.width if bins < counts.size - 0.5 else histogram.absmax
        assert Calibrator("entropy").thresholds([histogram]) == pytest.approx([expected], rel=1e-6)


def test_a_network_keeps_posterised_images_and_the_relu_of_them(random):
    """Input and ReLU have eight levels; at the chosen scales ONNX Runtime's Q/DQ gives each level back."""
    sketch = networks.Sketch()
    relu = sketch.node("Relu", ["x"], "relu")
    conv = sketch.node("Conv", [relu, sketch.constant("w", random.normal(size=(1, 1, 3, 3)))], "conv")
    model = sketch.model({"x": [1, 1, 32, 32]}, {conv: [1, 1, 30, 30]})
    images = (random.integers(-7, 8, (16, 1, 1, 32, 32)) / 7).astype(np.float32)
    network = load_network(model)
    scales = calibrate(network, [{"x": image} for image in images], "entropy").scales
    for name in ("x", relu):
        there = np.unique(images)
        assert round_trip(there, scales[name], np.int8(0)) == pytest.approx(there, abs=0.5 * float(scales[name]) + 1e-6)
