"""TensorBoard's logs, read with its own event accumulator."""

from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray


def read(folder):
    """The runs of a log folder by name."""
    everything = {"histograms": 0, "scalars": 0, "tensors": 0}
    runs = sorted(path for path in Path(folder).iterdir() if path.is_dir())
    return {path.name: EventAccumulator(str(path), size_guidance=everything).Reload() for path in runs}


def run_named(runs, beginning):
    return next(run for name, run in runs.items() if name.startswith(beginning))


def text(run, tag):
    return make_ndarray(run.Tensors(tag)[0].tensor_proto).item().decode()


def assert_is_histogram_of(event, values):
    """NumPy counts the same values between the same edges."""
    found, values = event.histogram_value, np.asarray(values, np.float64).reshape(-1)
    edges = [found.min, *found.bucket_limit]
    assert (found.min, found.max, found.num) == (values.min(), values.max(), values.size)
    assert found.bucket == list(np.histogram(values, edges)[0])
    assert found.sum == pytest.approx(values.sum(), rel=1e-6, abs=1e-3)
    assert found.sum_squares == pytest.approx(np.sum(values**2), rel=1e-6)
    assert len(found.bucket) <= 64
