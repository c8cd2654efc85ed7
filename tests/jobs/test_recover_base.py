"""``recover`` on a base in FP16 that alone misses the target says so, as ``run`` does."""

from __future__ import annotations

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from trt_bisect.report.summary import BASE

OPTIONS = {"engine": "onnxruntime", "calibrator": "minmax", "base": "fp16", "precision": "fp32", "plans": 4}


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    """A layer that only follows makes values of 1e5 and more, beyond FP16; and the same one with small values."""
    place, random = tmp_path_factory.mktemp("overflow"), np.random.default_rng(0)
    data = [{"x": each} for each in random.normal(0, 1, (3, 4, 8)).astype(np.float32)]
    paths = []
    for name, loud in (("loud", 1e5), ("small", 10.0)):
        sketch = networks.Sketch(1)
        x = sketch.node("Mul", [sketch.dense("x", "fc", 8, 8), sketch.constant("up", np.float32(loud))], "loud_mul")
        x = sketch.node("Mul", [x, sketch.constant("down", np.float32(1 / loud))], "quiet_mul")
        model = sketch.model({"x": [4, 8]}, {sketch.dense(x, "out", 8, 8): [4, 8]})
        paths.append(networks.save(model, place, f"{name}.onnx"))
    return *paths, data


def lines(found):
    return [line.text for line in found.lines if line.kind == BASE]


def test_a_base_that_misses_alone_is_told(overflowing):
    loud, small, data = overflowing
    (line,) = lines(trt_bisect.recover(loud, data, **OPTIONS))
    assert "FP16" in line
    assert not lines(trt_bisect.recover(small, data, **OPTIONS))
    assert not lines(trt_bisect.recover(loud, data, high=["*_mul"], **OPTIONS)), "the loud layers are in FP32"


def test_where_an_accuracy_decides_it_is_the_bases(overflowing):
    loud, small, data = overflowing

    def share_of_finite(infer):
        return float(np.mean([np.isfinite(next(iter(infer(each).values()))).all() for each in data]))

    given = {"dataset": data, "accuracy": share_of_finite, **OPTIONS}
    (line,) = lines(trt_bisect.recover(loud, data, **given))
    assert " 0%" in line
    assert not lines(trt_bisect.recover(small, data, **given))
