"""The drift of data from the calibration data, on distributions whose distance is known."""

from __future__ import annotations

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from trt_bisect.data.datasets import open_dataset
from trt_bisect.data.feeds import TensorSpec
from trt_bisect.data.statistics import Sketch, drift
from trt_bisect.report.given import DATA

SPECS = (TensorSpec("x", np.dtype(np.float32), (None, None)),)
HOW = {"engine": "onnxruntime", "explain": "none", "calibrator": "minmax", "curve": "culprits", "effort": "quick"}


def sketch(samples) -> Sketch:
    found = Sketch()
    list(found.watching(open_dataset({"x": np.asarray(samples, np.float32)[:, np.newaxis]}, SPECS)))
    return found


def test_two_uniform_distributions_half_apart():
    """Of 0 to 1 and 0.5 to 1.5 half of the values lie outside, and the distribution functions differ by a half."""
    random = np.random.default_rng(0)
    found = drift(sketch(random.uniform(0, 1, (60, 1000))), sketch(random.uniform(0.5, 1.5, (40, 1000))))["x"]
    assert found.outside == pytest.approx(0.5, abs=0.02)
    assert found.distance == pytest.approx(0.5, abs=0.03)
    assert found.chance == pytest.approx(1 / 2001)
    assert (found.least, found.most) == pytest.approx((0.0, 1.0), abs=1e-3)


def test_the_distance_is_that_of_the_empirical_distributions():
    """Few values, so that all are kept: against the definition, at every value."""
    random = np.random.default_rng(1)
    before, now = random.normal(0, 1, (20, 50)), random.normal(0.3, 2, (10, 50))
    points = np.sort([*before.ravel(), *now.ravel()])
    by_definition = max(abs(np.mean(before <= point) - np.mean(now <= point)) for point in points)
    found = drift(sketch(before), sketch(now))["x"].distance
    assert by_definition - 1 / 32 <= found <= by_definition + 1e-6  # at 64 quantiles of the values


@pytest.mark.slow
def test_samples_of_one_kind_are_seldom_far_apart_by_chance_though_their_values_depend_on_each_other():
    """Each sample has a brightness of its own: by its values alone, 256 a sample, any two such sets would differ."""
    random = np.random.default_rng(2)
    chances = []
    for _ in range(100):
        samples = random.normal(0, 1, (40, 1)) + random.normal(0, 0.1, (40, 300))
        chances.append(drift(sketch(samples[:30]), sketch(samples[30:]))["x"].chance)
    assert np.mean(np.array(chances) <= 0.05) <= 0.12  # 5 of 100 expected; 3 deviations more are 11.5
    assert np.mean(chances) == pytest.approx(0.5, abs=0.1)


def test_one_sample_is_too_few_to_be_far_apart_beyond_chance():
    random = np.random.default_rng(3)
    found = drift(sketch(random.uniform(0, 1, (50, 100))), sketch(random.uniform(0.9, 1.0, (1, 100))))["x"]
    assert found.distance > 0.8
    assert found.chance == pytest.approx(1 / 51, abs=0.01)


def test_a_sketch_has_samples_spread_over_all_and_the_reach_of_each():
    samples = np.zeros((1500, 4), np.float32)
    samples[:, 0] = np.arange(1500)
    found = sketch(samples)
    kept = [int(one[-1]) for one in found.values["x"]]
    assert kept == list(range(0, 1500, 4))
    assert found.reach["x"] == (0.0, 1499.0)


def test_data_that_are_read_in_part_have_no_sketch_and_pass_unchanged():
    found, data = Sketch(), open_dataset({"x": np.arange(40, dtype=np.float32).reshape(20, 1, 2)}, SPECS)
    watched = found.watching(data)
    assert len(list(watched.first(7))) == 7
    assert not found.values
    assert watched.digests == data.digests
    assert len(found.values["x"]) == 20
    assert drift(Sketch(), found) == drift(found, Sketch()) == {}


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    model = networks.chain(depth=2)
    return networks.save(model, tmp_path_factory.mktemp("chain")), networks.samples(model, 40)


def drifted(chain, change):
    path, data = chain
    inputs = {"x": change(data["x"][30:])}
    return trt_bisect.run(path, {"x": data["x"][:30]}, inputs=inputs, threshold=0.9, **HOW)


def test_inputs_like_the_calibration_data_are_told_in_figures_alone(chain):
    report = drifted(chain, lambda samples: samples)
    found = report.inputs.drift["x"]
    assert found.outside < 0.01
    assert found.distance < 0.3
    assert not [line for line in report.lines if line.kind == DATA]


@pytest.mark.parametrize("change", [lambda samples: 1.5 + samples, lambda samples: 4 * samples], ids=["moved", "wider"])
def test_inputs_that_drifted_are_a_warning_on_the_data_and_a_doubt(chain, change):
    report = drifted(chain, change)
    found = report.inputs.drift["x"]
    (line,) = (line for line in report.lines if line.kind == DATA)
    assert "'x' has drifted" in line.text
    assert f"{found.distance:.2f} apart" in line.text
    assert report.inputs.warnings
    assert report.exit_code == 1


@pytest.mark.parametrize("factor", [100.0, 0.02])
def test_other_units_are_told_once(chain, factor):
    (line,) = (line for line in drifted(chain, lambda samples: factor * samples).lines if line.kind == DATA)
    assert "the scaling differs" in line.text


@pytest.mark.slow
def test_validation_data_that_drifted_are_a_warning_of_their_own(chain):
    """The judged inputs are like the calibration data; four of ten validation samples lie outside of them."""
    path, data = chain
    moved = data["x"][30:] + np.where(np.arange(10) < 4, 50.0, 0.0).reshape(10, 1, 1, 1).astype(np.float32)
    given = {"calibration": {"x": data["x"][:30]}, "inputs": {"x": data["x"][28:30]}, "threshold": 0.5, **HOW}
    reports = [trt_bisect.run(path, validation={"x": unseen}, **given) for unseen in (moved, data["x"][30:])]
    assert [report.exit_code for report in reports] == [1, 0]
    (line,) = (line.text for line in reports[0].lines if line.kind == DATA)
    assert "'x' has drifted" in line
    assert reports[0].inputs.drift_of_validation["x"].outside == pytest.approx(0.4, abs=0.01)
    assert reports[1].inputs.drift_of_validation["x"].outside < 0.01
