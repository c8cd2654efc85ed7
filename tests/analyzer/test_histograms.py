"""Counts by channel and growing histograms beside NumPy's."""

import numpy as np
import pytest

from trt_bisect.analyzer.histograms import CHANNEL_BINS, MOST_ROWS, GrowingHistogram, channel_map


@pytest.mark.parametrize(("shape", "axis"), [((6, 3, 3, 3), 0), ((5, 7), 1), ((MOST_ROWS + 44, 4), 0)])
def test_each_digit_is_the_number_of_bits_of_numpys_count(random, shape, axis):
    values = random.normal(size=shape).astype(np.float32)
    found = channel_map(values, axis)
    channels = np.moveaxis(values, axis, 0).reshape(shape[axis], -1).astype(np.float64)
    assert (found.low, found.high) == (channels.min(), channels.max())
    assert found.step == (1 if shape[axis] <= MOST_ROWS else 2)
    for row, first in zip(found.rows, range(0, len(channels), found.step), strict=True):
        counts = np.histogram(channels[first : first + found.step], CHANNEL_BINS, (found.low, found.high))[0]
        assert [int(digit, 36) for digit in row] == [len(f"{count:b}") if count else 0 for count in counts]


@pytest.mark.parametrize(("values", "axis"), [(np.ones(4), 0), (np.full((3, 2), np.nan), 0), (np.ones((1, 4)), 0)])
def test_without_channels_or_values_there_is_no_map(values, axis):
    assert channel_map(values, axis) is None


@pytest.mark.parametrize("scale", [1e-20, 1.0, 3e7])
def test_both_runs_have_the_same_bins(random, scale):
    """Also if the first sample is all zeros, and if one run has a hundred times the range of the other."""
    samples = [(scale * random.normal(size=50), 100 * scale * random.normal(size=50)) for _ in range(3)]
    samples.insert(0, (np.zeros(50), np.zeros(50)))
    histogram = GrowingHistogram(2)
    for sample in samples:
        histogram.add(np.stack(sample))
    found = histogram.together()
    assert 16 < len(found.fp32) == len(found.int8) <= 64
    for run, counts in enumerate((found.fp32, found.int8)):
        values = np.concatenate([sample[run] for sample in samples])
        assert list(counts) == np.histogram(values, len(counts), (found.low, found.high))[0].tolist()


def test_one_value_and_none():
    histogram = GrowingHistogram(1)
    assert histogram.together() is None
    histogram.add(np.zeros((1, 5)))
    found = histogram.together()
    assert (found.low, found.high, found.fp32, found.int8) == (-0.5, 0.5, (5,), ())
