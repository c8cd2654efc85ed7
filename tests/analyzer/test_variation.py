"""Outputs that no longer depend on the input miss, however near their cosine is to 1."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

import trt_bisect
from tests.support import networks
from trt_bisect.analyzer import variation
from trt_bisect.analyzer.doubts import VARIES_LESS, doubts
from trt_bisect.analyzer.judge import Comparer, make_rule
from trt_bisect.analyzer.metrics import BUILT_IN
from trt_bisect.analyzer.variation import inputs_vary, variation_text, with_variation
from trt_bisect.evaluator.trial import MEASURED, OutputFigures, Trial

COSINE = make_rule(BUILT_IN["cosine"], None)
HOW = {"engine": "onnxruntime", "explain": "none", "calibrator": "minmax", "effort": "quick"}


def share_left(fp32, plan):
    return with_variation(OutputFigures({}), list(fp32), list(plan), unlike=True).values.get("variation_left")


def by_numpy(fp32, plan):
    """The figure D of the study: pooled correlation, or that of the median input if it is lower."""
    sides = (np.asarray(side, np.float64).reshape(len(side), -1) for side in (fp32, plan))
    v, w = (side - side.mean(0) for side in sides)
    pooled = np.vdot(v, w) / np.linalg.norm(v) / np.linalg.norm(w)
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(v, w, strict=True)]
    return min(pooled, np.median(cosines)) if v.shape[1] >= 8 else pooled


@pytest.mark.parametrize("shape", [(1, 3), (1, 9), (1, 4, 9, 7)])
@pytest.mark.parametrize("held", [1 << 21, 100])
def test_the_share_left_is_that_of_numpy(shape, held, monkeypatch):
    monkeypatch.setattr(variation, "_HELD", held)
    random = np.random.default_rng(0)
    fp32 = (random.normal(size=(7, *shape)) + 100 * random.normal(size=shape)).astype(np.float32)
    for noise in (0.3, 1.0, 3.0):
        plan = fp32 + noise * random.normal(size=fp32.shape)
        assert share_left(fp32, plan) == pytest.approx(max(0.0, by_numpy(fp32, plan)) ** 2, abs=1e-9)
    assert share_left(fp32, 5 * fp32 - 70) == pytest.approx(1.0)  # an offset and a factor change nothing


def test_one_loud_input_alone_does_not_decide():
    random = np.random.default_rng(1)
    fp32 = random.normal(size=(33, 1, 40))
    fp32[0] *= 15
    plan = fp32.copy()
    plan[1:] = random.normal(size=(32, 1, 40))
    assert np.corrcoef(fp32.ravel(), plan.ravel())[0, 1] > 0.8
    assert share_left(fp32, plan) < 0.25


def judged(fp32, plan, inputs=None):
    inputs = np.random.default_rng(2).normal(size=(len(fp32), 1, 5)) if inputs is None else inputs
    references, outputs = ([{"y": array} for array in arrays] for arrays in (fp32, plan))
    return Trial("", MEASURED, Comparer(references, inputs=[{"x": array} for array in inputs])(outputs))


def around_a_grid(kept, count=12):
    """Anchors with offsets of 1 %, of which a plan keeps so much; the rest is noise."""
    random = np.random.default_rng(3)
    offsets, noise = random.normal(size=(2, count, 1, 4, 50))
    grid = 100 + 100 * random.random((4, 50))
    return grid + offsets, grid + kept * offsets + np.sqrt(1 - kept**2) * noise


@pytest.mark.parametrize(("kept", "meets", "doubted"), [(0.0, False, False), (0.6, True, True), (0.95, True, False)])
def test_less_than_a_quarter_is_a_miss_and_less_than_half_a_doubt(kept, meets, doubted):
    fp32, plan = around_a_grid(kept)
    trial = judged(fp32, plan)
    assert trial.outputs["y"].values["cosine"] > 0.999
    assert COSINE.meets(trial) is meets
    assert COSINE.only_varies_less(trial) is not meets
    assert [doubt.kind for doubt in doubts(COSINE, trial)] == [VARIES_LESS] * doubted
    text = variation_text("y", trial.outputs["y"].values)
    left = round(100 * max(0.0, by_numpy(fp32, plan)) ** 2)
    assert text == (f"only {left}% of FP32's variation over 12 inputs is left in 'y'" if left < 81 else "")
    if not meets:
        assert COSINE.similarity(trial) == pytest.approx(trial.outputs["y"].values["variation_left"])
        assert COSINE.by_input(trial).misses >= 6


def test_a_cosine_that_the_user_accepts_bounds_the_variation_too():
    fp32, plan = around_a_grid(0.4)
    trial, lenient = judged(fp32, plan), make_rule(BUILT_IN["cosine"], 0.3)
    assert not COSINE.meets(trial)
    assert lenient.meets(trial)


def test_a_lost_column_is_a_doubt():
    fp32, plan = around_a_grid(0.999)
    plan[:, :, 2] = fp32[:, :, 2].mean(0)
    trial = judged(fp32, plan)
    assert trial.outputs["y"].columns == ((1, 2),)
    (doubt,) = doubts(COSINE, trial)
    assert doubt.kind == VARIES_LESS
    assert "place 2 of axis 1" in doubt.text


@pytest.mark.parametrize(("fixed", "columns"), [(1, ((1, 1),)), (2, ())])
def test_one_number_of_a_short_vector_that_no_longer_varies_is_a_doubt(fixed, columns):
    """A position up to 2,400, an angle, and a number that FP32 also gives to all inputs: six inputs, one cosine."""
    random = np.random.default_rng(6)
    fp32 = np.stack([random.uniform(0, 2400, 6), random.uniform(0, 1, 6), np.full(6, 0.1)], axis=-1)[:, None]
    plan = fp32.copy()
    plan[..., fixed] = 0.4
    trial = judged(fp32, plan)
    assert trial.outputs["y"].columns == columns
    kinds = [doubt.kind for doubt in doubts(COSINE, trial)]
    assert kinds == [VARIES_LESS] * len(columns)


def test_what_cannot_be_judged_is_not():
    fp32, lost = around_a_grid(0.0)
    few = judged(fp32[:3], lost[:3])
    assert COSINE.meets(few)
    assert "3 inputs are too few" in few.outputs["y"].note
    alike = 5 + 0.01 * np.random.default_rng(2).normal(size=(12, 1, 5)) + np.arange(5)
    near = judged(fp32, lost, alike)
    assert COSINE.meets(near)
    assert "nearly equal" in near.outputs["y"].note
    scores = np.random.default_rng(4).random((12, 1, 9)) * 0.04
    noise = 100 + 1e-6 * np.random.default_rng(5).normal(size=(12, 1, 9))
    broken = fp32.copy()
    broken[0, 0, 0, 0] = np.nan
    for side in (scores, noise, broken):
        assert share_left(side, side[::-1]) is None
    longer = [*fp32[:-1], fp32[-1][..., :9]]
    assert share_left(longer, longer) is None
    loud = judged(10 * np.random.default_rng(6).normal(size=(3, 1, 9)), np.random.default_rng(7).normal(size=(3, 1, 9)))
    assert not loud.outputs["y"].note  # the metric sees it


@pytest.mark.parametrize("count", [2, 12])
def test_an_output_that_is_the_same_on_nearly_equal_or_few_inputs_is_a_doubt(count):
    fp32, _ = around_a_grid(0.0, count)
    alike = np.arange(5.0) + 0.01 * np.random.default_rng(2).normal(size=(count, 1, 5))
    same = judged(fp32, fp32[:1].repeat(count, axis=0), alike)
    assert COSINE.meets(same)
    (doubt,) = doubts(COSINE, same)
    assert doubt.text == f"Only 0% of FP32's variation over {count} inputs is left in 'y'."
    assert not doubts(COSINE, judged(fp32, fp32, alike))


def test_inputs_vary_where_a_tenth_of_their_variance_is_between_them():
    random = np.random.default_rng(8)
    picture, noise = random.normal(size=(1, 1, 3, 8)), random.normal(size=(6, 1, 3, 8))
    for near, vary in ((0.1, False), (0.2, False), (0.6, True)):
        samples = 1000 + picture + near * noise
        power = ((samples - samples.mean()) ** 2).sum()
        assert bool(((samples - samples.mean(0)) ** 2).sum() / power >= 0.1) is vary
        assert inputs_vary({"x": sample} for sample in samples) is vary
    ids = np.tile(np.arange(20), (6, 1, 1))
    assert not inputs_vary({"ids": sample} for sample in ids)
    assert inputs_vary({"ids": (3 * place + sample) % 20} for place, sample in enumerate(ids))
    assert inputs_vary([{"x": picture[0]}, {"x": picture}])
    assert not inputs_vary([{"x": picture}])


def planted(folder):
    """A head on a grid, after a loud channel that it does not read; no other survives INT8 beside it."""
    sketch = networks.Sketch()
    weights = [sketch.random.normal(0, 0.3, shape) for shape in ((8, 3, 3, 3), (2, 8, 3, 3))]
    weights[0][0] *= 2000
    weights[1][:, 0] = 0
    x = sketch.node("Conv", ["x", sketch.constant("w0", weights[0])], "c0", pads=[1] * 4)
    x = sketch.node("Relu", [x], "r0")
    x = sketch.node("Conv", [x, sketch.constant("w1", weights[1])], "offset", pads=[1] * 4)
    grid = sketch.constant("grid", np.stack(np.mgrid[0:12, 0:12] * 8.0 + 4)[None])
    sketch.node("Add", [x, grid], "centre", out="centre")
    model = sketch.model({"x": [1, 3, 12, 12]}, {"centre": [1, 2, 12, 12]})
    return networks.save(model, folder), networks.samples(model, 16)


@pytest.mark.slow
def test_a_run_names_the_layer_and_finds_a_recipe(tmp_path):
    path, data = planted(tmp_path)
    report = trt_bisect.run(path, data, inputs=data, output=tmp_path / "run", **HOW)
    assert report.exit_code == 1
    assert report.culprits == ("offset",)
    assert "0% of FP32's variation over 16 inputs is left in 'centre'" in report.summary
    first = report.lines[0].text
    assert first.startswith("FAILS: full INT8 misses the threshold: 0% on the worst of 16 inputs")
    assert "FP32's variation of 'centre' over the inputs (at least 25% must be left)" in first
    assert "CULPRIT: 'offset'. If put back in INT8: 0% (at least 25% must be left)." in report.summary
    assert not any(row.meets for row in report.answer.calibrators)
    session = ort.InferenceSession(tmp_path / "run" / "recipe" / "network.qdq.onnx")
    float_session = ort.InferenceSession(path)
    samples = networks.feeds(data["x"])
    recipe, fp32 = (np.stack([net.run(None, s)[0] for s in samples]) for net in (session, float_session))
    assert by_numpy(fp32, recipe) > 0.99
