"""Every activation is counted as it is, in whatever way the counting is made quicker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import get_ident

import numpy as np
import onnxruntime as ort
import pytest

from tests.support import networks
from tests.support.networks import attached
from trt_bisect import load_network
from trt_bisect.calibration.collect import magnitudes
from trt_bisect.calibration.histogram import BINS, METHODS, AbsHistogram, Calibrator
from trt_bisect.errors import BadInput
from trt_bisect.model.file import with_outputs
from trt_bisect.model.network import tensors_in_low


def counted(values: np.ndarray, width: float) -> np.ndarray:
    """The counts of |x| in equal bins, each value by itself; the largest values lie in the last bin."""
    exact = np.result_type(values.dtype, np.float32)  # the inverse of a small width is no float16
    factor = exact.type(1.0 / width)
    counts = np.zeros(BINS, np.int64)
    for value in np.abs(values).astype(exact).ravel():
        counts[min(int(value * factor), BINS - 1)] += 1
    return counts


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [1.0, 1e-3], ids=["usual", "small"])
@pytest.mark.parametrize("sign", [np.asarray, np.abs, np.negative], ids=["both", "positive", "negated"])
def test_a_histogram_counts_each_value_in_its_bin(dtype, size, sign):
    random = np.random.default_rng(3)
    values = size * np.concatenate([random.normal(0, 1, 60_000), np.zeros(9_000), [6.0, -6.0, 6.0]])
    histogram = AbsHistogram()
    histogram.add(sign(values).astype(dtype))
    np.testing.assert_array_equal(histogram.counts, counted(sign(values).astype(dtype), histogram.width))


def test_threads_do_not_disturb_each_other():
    random = np.random.default_rng(4)
    arrays = [random.normal(0, 1 + k, 200_000).astype(np.float32) for k in range(8)]
    alone, together = ([AbsHistogram() for _ in arrays] for _ in range(2))
    for histogram, array in zip(alone, arrays, strict=True):
        histogram.add(array)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(AbsHistogram.add, together, arrays))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.counts, other.counts)


def test_tensors_that_only_move_values_have_histograms_of_their_own():
    """Reshapes and transposes are not counted again; what they hold is what ONNX Runtime makes there."""
    model = networks.transformer()
    network = load_network(model)
    stacked = networks.samples(model, 3)
    samples = [{name: array[k : k + 1] for name, array in stacked.items()} for k in range(3)]
    seen = magnitudes(network, samples, total=3)
    movers = [node for node in network.skeleton.graph.node if node.op_type in ("Reshape", "Transpose")]
    moved = [node.output[0] for node in movers if node.output[0] in network.activations]
    assert set() != set(moved) <= set(seen.histograms) & set(seen.earlier)
    names = [name for name in network.activations if name in network.producers]
    whole = attached(with_outputs(network.skeleton, names), network.weights)
    session = ort.InferenceSession(whole.SerializeToString())
    expected = {name: AbsHistogram() for name in names}
    for feeds in samples:
        for name, value in zip(names, session.run(names, feeds), strict=True):
            expected[name].add(value)
    for name in moved:
        assert seen.histograms[name].values == expected[name].values
        assert seen.histograms[name].absmax == pytest.approx(expected[name].absmax, rel=1e-5)
        assert np.abs(np.cumsum(seen.histograms[name].counts - expected[name].counts)).max() <= 9


def residual():
    model = networks.residual()
    network = load_network(model)
    return network, networks.feeds(networks.samples(model, 5)["x"])


def test_tensors_that_no_plan_rounds_have_their_largest_magnitude_and_others_are_counted_as_ever():
    network, samples = residual()
    low = tensors_in_low(network)
    whole, seen = magnitudes(network, samples), magnitudes(network, samples, counted=low)
    assert set(seen.histograms) == set(whole.histograms) > low
    for name in low:
        np.testing.assert_array_equal(seen.histograms[name].counts, whole.histograms[name].counts)
    before_relu = {node.input[0] for node in network.skeleton.graph.node if node.op_type == "Relu"}
    others = set(whole.histograms) - low - before_relu
    assert others
    for name in others:
        assert seen.histograms[name].counts is None
        thresholds = {seen.thresholds(Calibrator(method))[name] for method in METHODS}
        assert thresholds == {seen.histograms[name].absmax}
        assert seen.histograms[name].absmax == pytest.approx(whole.histograms[name].absmax, rel=1e-5)


def test_the_network_runs_ahead_and_samples_are_still_taken_in_the_callers_thread():
    """A user's function may rely on its thread, as PyTorch's ``no_grad`` does; groups and their order do not matter."""
    network, samples = residual()
    threads, done = set[int](), list[int]()

    def given():
        for feeds in samples:
            threads.add(get_ident())
            yield feeds

    in_groups = magnitudes(network, given(), memory=1 << 15, on_sample=done.append)
    assert threads == {get_ident()}
    assert done == [1, 2, 3, 4, 5]
    for name, expected in magnitudes(network, samples).histograms.items():
        assert in_groups.histograms[name].values == expected.values
        assert in_groups.histograms[name].absmax == pytest.approx(expected.absmax, rel=1e-5)


def test_a_sample_that_the_network_refuses_is_named_although_the_network_runs_ahead():
    network, samples = residual()
    samples[3] = {"x": np.zeros((1, 1, 1), np.float32)}
    done = list[int]()
    with pytest.raises(BadInput, match="sample 3"):
        magnitudes(network, samples, on_sample=done.append)
    assert done == [1, 2, 3]
