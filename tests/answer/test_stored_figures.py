"""Figures that a run folder keeps from a run by another metric, or by other outputs: they are not taken for its own."""

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.editions import edition

DATA = {"x": networks.normal(3, 6, 16)}


def distance(reference, output):
    return -float(np.abs(reference - output).max())


@pytest.fixture(scope="module")
def two_headed(tmp_path_factory):
    """Two chains from one input to two outputs, with a planted culprit in each: ``left2`` and ``right2``."""
    sketch = networks.Sketch(6)
    outputs = {}
    for side in ("left", "right"):
        x = sketch.dense("x", f"{side}1", 16, 16)
        for number in (2, 3):
            x = sketch.dense(sketch.node("Relu", [x], f"{side}_relu{number}"), f"{side}{number}", 16, 16)
        outputs[x] = ["n", 16]
    model = sketch.model({"x": ["n", 16]}, outputs)
    networks.planted(model, ("left1", "left2"), ("right1", "right2"))
    return networks.save(model, tmp_path_factory.mktemp("two_headed"))


CASES = [
    ({"metric": distance, "threshold": -0.05}, {}, {"left2", "right2"}),
    ({"outputs": ["left3_bias_out"]}, {"outputs": ["right3_bias_out"]}, {"right2"}),
    ({"metric": "max_abs", "threshold": 0.05}, {}, {"left2", "right2"}),
    ({"outputs": ["left3_bias_out"]}, {}, {"left2", "right2"}),
]


@pytest.mark.parametrize(("before", "after", "culprits"), edition(CASES[:2], CASES))
def test_a_used_folder_gives_the_same_as_a_fresh_one(two_headed, tmp_path, before, after, culprits):
    given = {"calibration": DATA, "inputs": DATA, "calibrator": "minmax"}
    after = {"threshold": 0.99, **after}
    trt_bisect.run(two_headed, output=tmp_path / "used", explain="none", effort="quick", **given, **before)
    folders = tmp_path / "used", tmp_path / "fresh"
    more = {"effort": "quick", "front": True, "explain": "none"}
    found = [trt_bisect.run(two_headed, output=folder, **more, **given, **after) for folder in folders]
    assert len({(one.recipe, one.answer.cost, str(one.figures), str(one.front)) for one in found}) == 1
    used, fresh = found
    assert used.layers == fresh.layers
    assert used.similarity == fresh.similarity
    assert set(used.culprits) == culprits
