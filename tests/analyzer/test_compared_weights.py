"""Weights before and after rounding beside NumPy on the whole arrays, with many parts and with one."""

import tracemalloc

import numpy as np
import pytest

from tests.support.editions import edition
from trt_bisect.analyzer.compared import channel_spreads, compare_weight, compare_weight_pairs, rounded_weight
from trt_bisect.analyzer.origins import WEIGHT, Origin
from trt_bisect.model.quantizer import symmetric
from trt_bisect.support.memory import channel_parts

SHAPES = {
    "one part": ((6, 4), 0),
    "many": ((400, 5, 300), 0),
    "many, last axis": ((700, 900), 1),
    "no axis": ((9, 8), None),
}


def weight_of(random, shape, axis, *, per_channel):
    """A weight with a loud channel and clipped values, and its origin."""
    values = random.normal(size=shape).astype(np.float32)
    if axis is not None:
        np.moveaxis(values, axis, 0)[2] *= 50.0
    scales = np.full(shape[axis], 0.02, np.float32) if per_channel else np.float32(0.02)
    if per_channel:
        scales[2] = 1.0
    quantizer = symmetric(scales, axis if per_channel else None)
    return values, Origin(tensor="w", kind=WEIGHT, index=0, layer="layer", quantizers=(quantizer,), channel_axis=axis)


def rounded_by_hand(values, origin):
    """Divide, round half to even, saturate, multiply."""
    quantizer = origin.quantizers[0]
    scale = quantizer.scale
    if scale.ndim:
        scale = scale.reshape([-1 if axis == origin.channel_axis else 1 for axis in range(values.ndim)])
    levels = np.rint(values / scale)
    return np.clip(levels, -128, 127).astype(np.float32) * scale, (levels < -128) | (levels > 127)


CASES = [(name, False) for name in SHAPES] + [(name, True) for name in SHAPES if SHAPES[name][1] is not None]


@pytest.mark.parametrize(("name", "per_channel"), CASES)
def test_the_figures_are_those_of_the_whole_weight(random, name, per_channel):
    shape, axis = SHAPES[name]
    values, origin = weight_of(random, shape, axis, per_channel=per_channel)
    expected, clipped = rounded_by_hand(values, origin)
    rounded = rounded_weight(values, origin)
    np.testing.assert_array_equal(rounded, expected)
    found = compare_weight(values, rounded, origin)
    r, o = values.astype(np.float64), expected.astype(np.float64)
    error = r - o
    assert found.figures.mse == pytest.approx((error**2).mean(), rel=1e-12)
    assert found.figures.max_abs == np.abs(error).max()
    assert found.figures.sqnr == pytest.approx(10 * np.log10((r**2).sum() / (error**2).sum()), rel=1e-12)
    assert (found.fp32.count, found.fp32.min, found.fp32.max) == (r.size, r.min(), r.max())
    assert (found.fp32.mean, found.fp32.std) == pytest.approx((r.mean(), r.std()), rel=1e-9)
    assert (found.int8.mean, found.int8.std) == pytest.approx((o.mean(), o.std()), rel=1e-9)
    assert found.rounding.clipped == pytest.approx(clipped.mean())
    assert found.rounding.sqnr == pytest.approx(found.figures.sqnr)
    assert found.rounding.to_zero == pytest.approx(((expected == 0) & (values != 0)).sum() / (values != 0).sum())
    assert (found.loud and found.loud.channel) == (None if axis is None else 2)


@pytest.mark.parametrize("name", ["one part", "many", "many, last axis"])
def test_the_figures_of_each_channel_are_its_own(random, name):
    shape, axis = SHAPES[name]
    values, origin = weight_of(random, shape, axis, per_channel=True)
    rounded = rounded_weight(values, origin)
    (whole,), channels = compare_weight_pairs([(origin, values, rounded)])
    assert [each.channel for each in channels] == list(range(shape[axis]))
    assert [each.scale for each in channels] == origin.quantizers[0].scale.tolist()
    assert sum(whole.histogram.fp32) == values.size
    spreads = channel_spreads(values, axis)
    for channel in (0, 2, shape[axis] // 2, shape[axis] - 1):
        r, o = (array.take(channel, axis).astype(np.float64) for array in (values, rounded))
        found = channels[channel]
        assert found.figures.mse == pytest.approx(((r - o) ** 2).mean(), rel=1e-12)
        assert (found.fp32.min, found.fp32.max) == (r.min(), r.max())
        assert spreads[channel].std == pytest.approx(r.std(), rel=1e-12)


@pytest.mark.parametrize(
    ("shape", "axis"), [((400, 5, 300), 0), ((700, 900), 1), ((3, 300_000), 0), ((0, 4), 0), ((), None)]
)
def test_parts_hold_each_value_once(shape, axis):
    seen = np.zeros(shape, np.int64)
    sizes = []
    for part in channel_parts(shape, axis):
        seen[part] += 1
        sizes.append(seen[part].size)
    assert (seen == 1).all()
    channel = seen.size // shape[axis] if seen.size and axis is not None else seen.size
    assert max(sizes, default=0) <= max(1 << 17, channel)


@pytest.mark.slow
@pytest.mark.parametrize("axis", edition([1], [0, 1]))
def test_a_large_weight_is_compared_in_little_memory(random, axis):
    """In float64 it takes twice its bytes, and the figures need several such arrays."""
    values, origin = weight_of(random, (2048, 2048), axis, per_channel=True)
    rounded = rounded_weight(values, origin)
    tracemalloc.start()
    try:
        compare_weight(values, rounded, origin)
        channel_spreads(values, axis)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes
