"""Streaming statistics against NumPy and the metrics on the whole arrays, however the values come in."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from trt_bisect.analyzer import metrics
from trt_bisect.analyzer.compare_output import similarity
from trt_bisect.analyzer.tensors import (
    ChannelPeaks,
    PairStatistics,
    RoundingStatistics,
    TensorStatistics,
    as_block,
    row_length,
)
from trt_bisect.data.statistics import Moments
from trt_bisect.model.quantizer import Quantizer, symmetric
from trt_bisect.support.memory import largest_magnitude, parts

FLOATS = st.floats(-1e6, 1e6, width=32)


@given(st.lists(hnp.arrays(np.float32, (1, 7), elements=FLOATS), min_size=1, max_size=6))
def test_moments_are_those_of_all_values_together(blocks):
    moments = Moments()
    for block in blocks:
        moments.add(block.astype(np.float64))
    everything, spread = np.concatenate(blocks).astype(np.float64), moments.spread()
    assert (spread.count, spread.min, spread.max) == (everything.size, everything.min(), everything.max())
    span = float(np.ptp(everything)) or 1.0
    assert spread.mean == pytest.approx(everything.mean(), abs=1e-9 * max(span, abs(everything.mean())))
    assert spread.variance == pytest.approx(everything.var(), rel=1e-9, abs=1e-6 * span**2)
    assert spread.std == pytest.approx(everything.std(), rel=1e-6, abs=1e-3 * span)


def test_a_far_mean_does_not_cancel_the_variance(random):
    values = 1e8 + random.normal(0, 1, (50, 1, 100))
    moments = Moments()
    for block in values:
        moments.add(block)
    assert moments.spread().variance == pytest.approx(values.var(), rel=1e-6)


def test_values_that_are_not_finite_are_counted_and_left_out():
    values = np.array([[1.0, np.nan, 3.0, np.inf, -np.inf]])
    moments = Moments()
    moments.add(values)
    moments.add(np.array([[np.nan]]))
    spread = moments.spread()
    assert (spread.count, spread.nonfinite, spread.mean, spread.variance) == (2, 4, 2.0, 1.0)
    assert np.isnan(Moments().spread().mean)


@given(
    hnp.arrays(np.float64, (4, 3, 6), elements=st.floats(-100, 100, width=32)),
    hnp.arrays(np.float64, (4, 3, 6), elements=st.floats(-10, 10, width=32)),
)
def test_figures_are_the_metrics_on_all_samples_together(reference, noise):
    output = reference + noise
    pair = PairStatistics()
    for r, o in zip(reference, output, strict=True):
        pair.add(as_block(r), as_block(o), row=row_length(r.shape))
    figures, rows, error = pair.figures(), (reference.reshape(-1, 6), output.reshape(-1, 6)), np.abs(reference - output)
    assert figures.cosine == pytest.approx(similarity(reference, output), abs=1e-9)
    assert figures.sqnr == pytest.approx(similarity(reference, output, "sqnr"), abs=1e-6)
    assert figures.mse == pytest.approx(np.mean(error**2), rel=1e-9)
    assert figures.l1 == pytest.approx(np.mean(error), rel=1e-9)
    assert figures.max_abs == error.max()
    magnitudes = np.abs(reference)
    least = np.maximum(1e-6 * magnitudes.max(axis=(1, 2), keepdims=True), np.finfo(np.float32).tiny)
    assert figures.max_rel == pytest.approx((error / np.maximum(magnitudes, least)).max(), rel=1e-9)
    by_row = [kl_by_hand(r, o) for r, o in zip(*rows, strict=True)]
    assert figures.kl == pytest.approx(np.mean(by_row), rel=1e-9, abs=1e-12)


def kl_by_hand(reference, output):
    """The reference alone says whether both rows are probabilities, or both go through a softmax."""
    if reference.min() >= 0 and abs(reference.sum() - 1) <= 0.01:
        p, q = reference / reference.sum(), output.clip(0) / max(output.clip(0).sum(), 1e-300)
    else:
        p, q = (np.exp(row - row.max()) / np.exp(row - row.max()).sum() for row in (reference, output))
    return sum(a * (np.log(a) - np.log(max(b, 1e-12))) for a, b in zip(p, q, strict=True) if a > 0)


def test_equal_tensors_and_single_values():
    pair = PairStatistics()
    pair.add(np.zeros((1, 4)), np.zeros((1, 4)), row=4)
    figures = pair.figures()
    assert (figures.cosine, figures.sqnr, figures.mse) == (1.0, metrics.EXACT_SQNR, 0.0)
    single = PairStatistics()
    single.add(np.array([[2.0]]), np.array([[1.5]]), row=1)
    assert single.figures().cosine == similarity([2.0], [1.5]) == 0.75
    assert np.isnan(PairStatistics().figures().cosine)


def test_places_where_one_run_is_not_finite_are_left_out():
    reference, output = np.array([[1.0, 2.0, np.inf, 4.0]]), np.array([[1.0, np.nan, 3.0, 5.0]])
    pair = PairStatistics()
    pair.add(reference, output, row=2)
    assert pair.figures().mse == 0.5
    assert pair.output.spread().nonfinite == 1


def test_groups_are_kept_apart(random):
    reference, output = random.normal(0, 1, (3, 20)), random.normal(0, 1, (3, 20))
    together = PairStatistics(3)
    together.add(reference, output, row=20)
    for group in range(3):
        alone = PairStatistics()
        alone.add(reference[group : group + 1], output[group : group + 1], row=20)
        assert together.figures(group) == alone.figures()
        assert together.reference.spread(group) == alone.reference.spread()


def test_rounding_against_numpy(random):
    values, scale = random.normal(0, 1, (6, 4, 25)).astype(np.float32), np.float32(0.01)
    rounding = RoundingStatistics((symmetric(scale),))
    for block in values:
        rounding.add(block)
    levels = np.rint(values / scale)
    rounded = (np.clip(levels, -128, 127) * scale).astype(np.float64)
    noise = (rounded - values) ** 2
    outside = (levels < -128) | (levels > 127)
    found = rounding.figures()
    assert found.sqnr == pytest.approx(10 * np.log10(np.sum(values.astype(np.float64) ** 2) / noise.sum()), abs=1e-6)
    assert found.clipped == outside.mean()
    assert found.clipped_noise == pytest.approx(noise[outside].sum() / noise.sum())
    assert found.near_zero == np.mean(np.abs(levels) <= 2)
    assert found.to_zero == np.mean(levels == 0)
    assert found.levels == 255
    counts = np.sort(np.unique(np.clip(levels, -128, 127), return_counts=True)[1])[::-1]
    assert found.levels_90 == 1 + np.flatnonzero(np.cumsum(counts) >= 0.9 * values.size)[0]


def test_rounding_with_a_zero_point_counts_steps_from_zero():
    quantizer = Quantizer(np.float32(1.0).reshape(()), np.array(128, np.uint8))
    rounding = RoundingStatistics((quantizer,))
    rounding.add(np.array([0.0, 0.4, 2.2, -3.0, 200.0, np.nan], np.float32))
    found = rounding.figures()
    assert (found.levels, found.to_zero, found.near_zero, found.clipped) == (256, 0.25, 0.5, 1 / 6)


def test_the_loudest_channel(random):
    values = random.normal(0, 1, (8, 2, 5, 3, 3))
    values[4, 1, 3, 2, 2] = -500.0
    peaks = ChannelPeaks(1)
    for sample in values:
        peaks.add(sample)
    largest = np.abs(values).max(axis=(0, 1, 3, 4))
    loudest = peaks.loudest()
    assert (loudest.channel, loudest.peak) == (3, 500.0)
    assert loudest.times == pytest.approx(500.0 / np.median(np.delete(largest, 3)))
    peaks.add(np.ones((1, 6, 3, 3)))
    assert peaks.loudest() is None


def test_a_tensor_in_parts_is_the_tensor_as_a_whole(random):
    reference, output = random.normal(0, 1, (2, 700, 1000))
    in_parts, whole = PairStatistics(), PairStatistics()
    whole.add(as_block(reference), as_block(output), row=1000)
    slices = list(parts(reference.size, 1000))
    assert len(slices) > 1
    for part in slices:
        runs = (as_block(run.reshape(-1)[part]) for run in (reference, output))
        in_parts.add(*runs, row=1000, largest=largest_magnitude(reference))
    assert vars(in_parts.figures()) == pytest.approx(vars(whole.figures()), rel=1e-9)


def test_rows_for_kl():
    assert [row_length(shape) for shape in [(2, 3, 4), (2, 8, 1, 1), (1, 1), ()]] == [4, 8, 1, 1]


@pytest.mark.parametrize("values", [np.arange(-3, 5).reshape(2, 4), np.array([True, False, True]), np.zeros(0, int)])
def test_integers_have_moments_and_a_histogram(values):
    statistics = TensorStatistics()
    statistics.add(values)
    figures = statistics.figures()
    assert figures["spread"].count == values.size
    if not values.size:
        assert figures["histogram"] is None
        return
    assert (figures["spread"].min, figures["spread"].max) == (values.min(), values.max())
    assert sum(figures["histogram"].fp32) == values.size
    assert (figures["histogram"].int8, figures["rounded"], figures["rounding"]) == ((), None, None)


def test_a_second_quantizer_clips_what_the_first_one_keeps():
    """Scales 0.05 and 0.01: the first reaches 6.35, the second 1.27; -1.28 is the second's least level."""
    rounding = RoundingStatistics((symmetric(np.float32(0.05)), symmetric(np.float32(0.01))))
    rounding.add(np.array([[0.5, 1.0, 2.0, -3.0, 9.0]], np.float32))
    figures = rounding.figures()
    assert figures.clipped == 3 / 5
    errors, values = np.array([0, 0, 0.73, 1.72, 7.73]), np.array([0.5, 1, 2, 3, 9])
    assert figures.sqnr == pytest.approx(10 * np.log10((values**2).sum() / (errors**2).sum()), abs=1e-4)


def test_a_scale_that_is_no_number_gives_no_figure():
    rounding = RoundingStatistics((symmetric(np.float32(np.nan)),))
    rounding.add(np.array([[0.5, -1.0]], np.float32))
    assert np.isnan(rounding.figures().sqnr)
