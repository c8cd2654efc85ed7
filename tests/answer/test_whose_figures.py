"""Figures of a report are those of its ranges, on all inputs: a network of four layers, computed by NumPy too."""

import itertools
import json

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.editions import edition
from trt_bisect.calibration.collect import candidates, magnitudes
from trt_bisect.model.network import load_network
from trt_bisect.report.summary import CULPRITS

WIDTHS = 8, 24, 24, 24, 6


def rounded(values, scale):
    return (np.clip(np.rint(values / scale), -128, 127) * scale).astype(np.float32)


class Dense:
    """MatMul and Relu, four times; channels of a layer are of unlike size, so that calibrators differ."""

    def __init__(self, seed, folder):
        drawn = np.random.default_rng(seed)
        self.weights = [
            (drawn.normal(size=(a, b)) / np.sqrt(a) * np.exp(drawn.normal(0, 0.8, size=b))).astype("f")
            for a, b in itertools.pairwise(WIDTHS)
        ]
        sizes = np.exp(drawn.normal(0, 0.6, size=(16, 8)))
        self.inputs = (drawn.normal(size=(16, 8)) * sizes).astype("f")
        sketch, x = networks.Sketch(0), "x"
        for k, weight in enumerate(self.weights):
            sketch.node("MatMul", [x, sketch.constant(f"w{k}", weight)], f"fc{k}", out=f"m{k}")
            x = f"m{k}" if k == 3 else sketch.node("Relu", [f"m{k}"], f"relu{k}", out=f"t{k + 1}")
        self.path = networks.save(sketch.model({"x": ["n", 8]}, {"m3": ["n", 6]}), folder)

    def outputs(self, scales, low):
        x = self.inputs
        for k, weight in enumerate(self.weights):
            read = "x" if k == 0 else f"t{k}"
            if f"fc{k}" in low:
                x = rounded(x, np.float32(scales[read]))
                weight = rounded(weight, (np.abs(weight).max(0) / np.float32(127)).astype("f"))
            x = x @ weight
            x = x if k == 3 else np.maximum(x, 0)
        return x.astype(float)

    def losses(self, scales, low):
        """1 - cosine on each input, with some layers in INT8."""
        a, b = self.outputs(scales, ()), self.outputs(scales, low)
        return 1 - (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


@pytest.mark.parametrize(
    ("seed", "threshold"), edition([(17, 0.9982), (3, 0.9995)], [(17, 0.9982), (3, 0.9995), (5, 0.9995)])
)
def test_each_figure_is_that_of_the_ranges_in_the_report_and_of_the_worst_of_all_inputs(seed, threshold, tmp_path):
    """With seed 17 the layers were measured alone with another calibrator than the one chosen at the end."""
    dense, run = Dense(seed, tmp_path), tmp_path / "run"
    how = {"engine": "onnxruntime", "history": "none", "explain": "none", "as_is": True, "precision": "fp32"}
    report = trt_bisect.run(dense.path, {"x": dense.inputs}, threshold=threshold, output=run, **how)
    scales = json.loads((run / "recipe" / "plan.json").read_text())["scales"]
    names = {f"fc{k}" for k in range(4)}
    full = dense.losses(scales, names)
    assert report.similarity.int8 == pytest.approx(1 - full.max(), abs=1e-6)
    worst, high = int(full.argmax()), set(report.recipe.high)
    assert high
    for row in (row for row in report.layers if row.name in names):
        if row.alone is not None:
            without = dense.losses(scales, names - {row.name})
            assert row.alone == pytest.approx((full - without)[worst], abs=1e-6)
        if row.put_back is not None:
            back = dense.losses(scales, names - high | {row.name})
            assert row.put_back == pytest.approx(1 - back.max(), abs=1e-6)
            assert row.put_back_on == report.answer.given.inputs == 16
    back = {row.name: row.put_back for row in report.layers if row.culprit}
    assert list(report.answer.ranked) == sorted(back, key=back.__getitem__)
    (line,) = [line.text for line in report.lines if line.kind == CULPRITS]
    assert all(report.text(value) in line for value in back.values())


@pytest.mark.parametrize("seed", edition([12], [0, 4, 6, 8, 12]))
def test_where_full_int8_misses_with_all_calibrators_quick_takes_that_with_which_it_loses_least(seed, tmp_path):
    """On the worst input of entropy alone another one loses less: of seed 12 percentile 99.9, 55 % on all inputs."""
    dense = Dense(seed, tmp_path)
    dense.inputs = np.random.default_rng(seed).standard_t(4, size=(60, 8)).astype("f")
    seen, losses = magnitudes(load_network(dense.path), [{"x": dense.inputs}]), {}
    for ranges in candidates(seen):
        losses[ranges.origin] = dense.losses(ranges.scales, {f"fc{k}" for k in range(4)}).max()
    how = {"engine": "onnxruntime", "history": "none", "explain": "none", "curve": "culprits", "validation": 0}
    threshold = 1 - min(losses.values()) / 2
    report = trt_bisect.run(
        dense.path, {"x": dense.inputs}, threshold=threshold, effort="quick", as_is=True, precision="fp32", **how
    )
    assert report.ranges.origin == min(losses, key=losses.__getitem__)
    for row in report.answer.calibrators:
        assert 1 - row.similarity <= losses[row.calibrator] + 1e-6
