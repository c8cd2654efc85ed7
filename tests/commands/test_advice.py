"""Advice: planted causes named with their reasons and first remedies, remedies tried, commands that the tools parse."""

from functools import cache

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.advised import advice_on, named, offered, run, starved
from tests.support.flawed_pairs import pairs


def dead_channel_with_loud_weights():
    """Channel 2 of conv3's input is always zero, and conv3's weights for it are 300 times the others."""
    model = networks.chain(5)
    networks.change_at(model, "conv2.weight", np.s_[2], lambda _: 0)
    networks.change_at(model, "conv2.bias", np.s_[2], lambda _: -1)
    networks.change_at(model, "conv3.weight", np.s_[:, 2], lambda weights: 300 * weights)
    return model


def shared_weight():
    """The same, and conv4 reads conv3's weight, too."""
    model = dead_channel_with_loud_weights()
    (node,) = [node for node in model.graph.node if node.name == "conv4"]
    node.input[1] = "conv3.weight"
    constants = [tensor for tensor in model.graph.initializer if tensor.name != "conv4.weight"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    return model


PLANTED = {
    "starved activation": (starved, {}, "conv3", "activation", "starved range", "cross-layer equalisation"),
    "one weight channel": (
        dead_channel_with_loud_weights, {}, "conv3", "weight", "one channel", "cross-layer equalisation"
    ),
    "shared weight": (shared_weight, {"count": 8}, "conv3", "weight", "one channel", "a weight of its own"),
    "clipped calibration": (
        lambda: networks.chain(3), {"calibrator": "percentile=90", "metric": "sqnr"}, None, "activation",
        "saturation", "another calibrator",
    ),
    "asymmetric pair": (
        lambda: pairs(zero=-100), {"calibration": None, "threshold": 0.9999}, "conv", "activation",
        "asymmetric", "quantize again",
    ),
    "wide asymmetric pair": (
        lambda: pairs(zero=-100, input_scale=2.0), {"calibration": None}, "conv", "activation",
        "starved range", "another calibrator",
    ),
    "wide pair beside an integer bias": (
        lambda: pairs(input_scale=0.7, bias_scale=1e-4), {"calibration": None}, "conv", "activation",
        "starved range", "another calibrator",
    ),
    "infinite scale": (
        lambda: pairs(input_scale=np.inf), {"calibration": None}, "conv", "activation",
        "scale infinite", "quantize again",
    ),
    "weight rounded per tensor": (
        lambda: pairs(loud=300.0), {"calibration": None}, "conv", "weight", "one channel", "per-channel weights"
    ),
    "result rounded": (
        lambda: pairs(result_scale=1.0), {"calibration": None}, "conv", "activation", "output quantized",
        "leave the result unrounded",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def report_of(tmp_path_factory):
    """Returns the report of a run on a planted cause."""

    @cache
    def report(cause):
        make, options, *_ = PLANTED[cause]
        return run(make(), tmp_path_factory.mktemp("planted"), **{"count": 3, **options})

    return report


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named_with_its_reason_and_first_remedy(cause, report_of):
    _, _, culprit, blame, reason, remedy = PLANTED[cause]
    report = report_of(cause)
    assert report.exit_code == 1
    if culprit is not None:
        assert report.culprits[0] == culprit
    for advice in report.advice if culprit is None else [advice_on(report, culprit)]:
        assert advice.blame == blame
        assert advice.reasons[0] == reason
        assert offered(advice)[0] == remedy
        assert offered(advice)[-3:] == ["FP16", "FP32", "QAT"]
    assert report.advice


def test_the_evidence_has_the_figures(report_of):
    report = report_of("starved activation")
    (advice,) = report.advice
    alone = report.explanation.layers["conv3"].sensitivity
    assert f"its weight {alone.weight:.3g}, its activation {alone.activation:.3g}" in advice.evidence
    drop = next(row.loss for row in report.layers if row.name == "conv3")
    assert advice.evidence.startswith(f"'conv3' (Conv) loses {drop:.3g}")
    assert advice.evidence.count("'relu3'") == 1
    assert advice.reasons[:2] == ("starved range", "one channel")
    assert named(advice) == ["cross-layer equalisation", "FP16", "FP32", "QAT", "another calibrator"]
    assert not advice.remedies[-1].tried.meets


def test_a_shared_weight_is_no_cause_as_a_copy_of_it_changes_no_figure(report_of, tmp_path):
    """A weight of its own for each layer rounds to the same values: every loss alone is the same, bit for bit."""
    copied = shared_weight()
    (weight,) = [tensor for tensor in copied.graph.initializer if tensor.name == "conv3.weight"]
    copied.graph.initializer.add().CopyFrom(weight)
    copied.graph.initializer[-1].name = "conv4.weight"
    next(node for node in copied.graph.node if node.name == "conv4").input[1] = "conv4.weight"
    reports = [report_of("shared weight"), run(copied, tmp_path, 8)]
    losses = [advice.evidence.split(":")[0] for report in reports for advice in report.advice]
    assert losses[: len(losses) // 2] == losses[len(losses) // 2 :]
    assert [row.similarity for row in reports[0].layers] == [row.similarity for row in reports[1].layers]
    for advice in reports[0].advice:
        assert "shared weight" not in advice.reasons
    assert "a weight of its own" in offered(advice_on(reports[0], "conv3"))


def test_what_even_min_max_clips_wants_other_calibration_data(tmp_path):
    path, feeds = networks.given(networks.chain(2), tmp_path, 3)
    how = {"engine": "onnxruntime", "calibrator": "minmax", "metric": "sqnr"}
    report = trt_bisect.run(path, {"x": feeds["x"] / 8}, feeds, **how)
    assert report.advice
    for advice in report.advice:
        assert advice.reasons[0] == "saturation"
        assert named(advice)[0] == "other calibration data"


def test_more_than_fp16_holds_is_no_case_for_fp16(tmp_path):
    model = networks.planted(networks.chain(5), ("conv2", "conv3"), factor=1e6)
    advice = advice_on(run(model, tmp_path, 3), "conv3")
    assert "FP16" not in named(advice)
    assert "too large for FP16" in next(remedy.why for remedy in advice.remedies if remedy.remedy == "FP32")
