"""A detector whose scores INT8 destroys beside boxes six hundred times as large."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.editions import edition
from tests.support.quantized import plain_run
from tests.support.records import kinds, texts
from trt_bisect.report.given import DOUBTED
from trt_bisect.report.parts import PASSES, WITH_DOUBTS
from trt_bisect.support.text import OUTPUTS

SCORES, BOXES = "y[:, 4:10]", "y[:, 0:4]"
WHOLE = {"metric": "mse", "threshold": 1e3}
"""An absolute metric judges an output whole."""
HOW = {"calibrator": "minmax", "engine": "onnxruntime", "explain": "none", "effort": "quick"}


@pytest.fixture(scope="module")
def data():
    return networks.samples(networks.detector(), 4)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A head whose second class convolution reads a channel 3000 times as loud as the others."""
    model = networks.planted(networks.detector(), ("class1", "class2"))
    return networks.save(model, tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def judged(planted, data, tmp_path_factory):
    """The report of a run on it with the option ``outputs``, and its folder, which is not to be changed."""
    folder = tmp_path_factory.mktemp("judged") / "run"
    return trt_bisect.run(planted, data, inputs=data, outputs=["y"], output=folder, **HOW), folder


@pytest.mark.parametrize("strategy", edition(["auto", "bisect"], ["auto", "bisect", "exhaustive"]))
def test_the_layer_that_destroys_the_scores_is_named(strategy, planted, data, judged):
    if strategy == "auto":
        report, _ = judged
    else:
        report = trt_bisect.run(planted, data, inputs=data, strategy=strategy, **HOW)
    assert (report.exit_code, report.culprits) == (1, ("class2",))
    assert report.similarity.int8 < 0.9
    assert report.similarity.recipe >= 0.99
    assert set(report.outputs.int8) == {"y", SCORES, BOXES}
    assert report.outputs.int8[BOXES]["cosine"] > 0.999
    [note] = [note.text for note in report.notes if note.kind == OUTPUTS and "[:, 0:4]" in note.text]
    largest = np.abs(plain_run(planted, data)[0]).max(axis=(0, 2))
    assert f"[:, 0:4] up to {largest[:4].max():.3g}, [:, 4:10] up to {largest[4:].max():.3g}" in note


def test_the_healthy_head_passes_without_a_doubt(tmp_path, data):
    report = trt_bisect.run(networks.save(networks.detector(), tmp_path), data, inputs=data, **HOW)
    assert report.exit_code == 0
    assert report.similarity.int8 > 0.999
    assert DOUBTED not in kinds(report.lines)


def test_judged_whole_it_passes_and_is_doubted(planted, data, tmp_path):
    options = {"inputs": data, "output": tmp_path / "run", **WHOLE, **HOW}
    report = trt_bisect.run(planted, data, **options)
    assert report.outputs.int8["y"]["cosine"] > 0.999
    assert (report.exit_code, report.verdict) == (1, WITH_DOUBTS)
    assert report.lines[0].kind == DOUBTED
    assert SCORES in report.lines[0].text

    accepted = trt_bisect.run(planted, data, accept=True, **options)
    assert (accepted.exit_code, accepted.verdict) == (0, PASSES)
    assert texts(accepted.answer.doubts) == texts(report.answer.doubts)


def test_a_sigmoid_clipped_at_a_quarter(tmp_path, data):
    """The published detector's fault: a range of 0.256 for scores up to 0.97."""
    model = networks.save(networks.detector(), tmp_path)
    ranges = trt_bisect.calibrate(trt_bisect.load_network(model), networks.feeds(data["x"]), "minmax")
    scales = {**ranges.scales, "score_rows_out": np.float32(0.256 / 127)}
    assert set(scales) == set(ranges.scales)
    clipped = replace(ranges, scales=scales)
    report = trt_bisect.run(model, clipped, inputs=data, **HOW)
    assert (report.exit_code, report.culprits) == (1, ("join",))
    whole = trt_bisect.run(model, clipped, inputs=data, **WHOLE, **HOW)
    assert whole.exit_code == 1
    reference = plain_run(model, data)[0]
    assert f"clipped at {100 * 0.256 / reference[:, 4:].max():.2f}%" in whole.summary
    assert whole.outputs.int8["y"]["cosine"] > 0.999


def test_another_metric_judges_the_same_trials(planted, data, judged, tmp_path):
    """Figures of absolute metrics are those of the whole output: no group hides another's."""
    one, folder = judged
    shutil.copytree(folder, tmp_path / "run")
    for metric, threshold, output in (("mse", 1e3, "y"), ("sqnr", 20, SCORES)):
        how = {**HOW, "metric": metric, "threshold": threshold, "outputs": ["y"]}
        again = trt_bisect.run(planted, data, inputs=data, output=tmp_path / "run", **how)
        assert again.fingerprint == one.fingerprint
        assert again.exit_code == 1
        assert (again.culprits == ()) == (metric == "mse")
        assert again.layers[-1].output == output


def test_the_worst_input_is_found_by_its_groups(planted, data, judged):
    found = trt_bisect.worst(planted, data, data, calibrator="minmax", engine="onnxruntime", keep=1)
    assert found.values == pytest.approx(judged[0].by_input.int8.values, abs=1e-6)
    assert max(found.values) < 0.9
