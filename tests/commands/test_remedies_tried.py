"""Remedies that a run measures: ranges of other calibrators, FP16, and how they are grouped by cause."""

import json

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.advised import run, starved
from tests.support.by_hand import cosine
from tests.support.flawed_pairs import pairs
from tests.support.quantized import plain_session
from tests.support.records import texts
from trt_bisect.analyzer.blame import Evidence
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.cache import parse_version, read_cache
from trt_bisect.calibration.collect import calibrate
from trt_bisect.precision import Precision, int8_set
from trt_bisect.recipe.commands import Setting
from trt_bisect.recipe.trtexec import Build
from trt_bisect.report.advice import BIAS_CORRECTION, EQUALISATION, NO_SINGLE_CAUSE, QAT, advice_on, cause_of
from trt_bisect.report.explanation import Tried
from trt_bisect.support.text import EXPLANATION

CLIPPED = {"calibrator": "percentile=90", "threshold": 0.999, "explain": "remedies", "margin": 0.0}


@pytest.fixture(scope="module")
def clipped(tmp_path_factory):
    """A run with ranges that clip a tenth of all values, its remedies tried, and its folder."""
    folder = tmp_path_factory.mktemp("clipped")
    return run(networks.chain(5), folder, 4, **CLIPPED), folder


def test_min_max_after_clipping_is_tried_and_meets(clipped):
    report, folder = clipped
    whole = {each.what: each for each in report.explanation.tried if each.calibrator and not each.culprits}
    assert set(whole) == {"minmax", "entropy", "percentile 99.9", "percentile 99.99", "percentile 99.999", "mse"}
    assert whole["minmax"].meets
    for advice in report.advice:
        assert advice.remedies[0].tried.meets
        assert advice.remedies[0].tried.culprits == ()
    record = json.loads((folder / "run/explanation.json").read_text())
    assert record["advice"][0]["remedies"][0]["tried"]["meets"] is True
    assert len(record["tried"]) == len(report.explanation.tried)


def test_what_was_tried_is_what_a_run_with_it_measures(clipped, tmp_path):
    report, _ = clipped
    tried = {each.what: each.similarity for each in report.explanation.tried}
    other = run(networks.chain(5), tmp_path, 4, calibrator="percentile=99.9", explain="none")
    assert tried["percentile 99.9"] == pytest.approx(other.similarity.int8, abs=1e-9)


def test_fp16_is_measured_in_the_recipe_on_all_inputs(tmp_path):
    report = run(starved(), tmp_path, 4, explain="remedies")
    (tried,) = [each for each in report.explanation.tried if each.remedy == "FP16"]
    assert tried.culprits == report.culprits
    assert tried.high == len(report.culprits)
    network = trt_bisect.load_network(tmp_path / "network.onnx")
    samples = list(trt_bisect.open_dataset(networks.samples(starved(), 4), network.inputs))
    scales = calibrate(network, samples, "minmax").scales
    places = [network.layer_named(name).index for name in report.culprits]
    plan = int8_set(len(network.layers), network.quantizable).keeping(places, Precision.FP16)
    with OnnxRuntimeBuilder(network, scales, BuildOptions()).build(plan) as engine:
        outputs = [engine.infer(sample)["y"] for sample in samples]
    session = plain_session(tmp_path / "network.onnx")
    worst = min(cosine(y, session.run(None, sample)[0]) for y, sample in zip(outputs, samples, strict=True))
    assert tried.similarity == pytest.approx(worst, abs=1e-6)


def test_tries_are_journaled_under_keys_of_their_own_and_not_done_twice(clipped):
    report, folder = clipped
    before = (folder / "run/journal.jsonl").read_bytes()
    again = run(networks.chain(5), folder, 4, **CLIPPED)
    assert (folder / "run/journal.jsonl").read_bytes() == before
    assert again.explanation.tried == report.explanation.tried
    runs = {json.loads(line)["run"] for line in before.splitlines()}
    assert sum(each.remedy in (EQUALISATION, BIAS_CORRECTION) for each in report.explanation.tried) == 3
    assert len(runs) >= 4, "each moved network has a fingerprint of its own"


def test_without_data_only_high_precision_is_tried(tmp_path):
    network = trt_bisect.load_network(networks.save(networks.chain(5), tmp_path))
    feeds = trt_bisect.open_dataset(networks.samples(networks.chain(5), 4), network.inputs)
    scales = dict(calibrate(network, feeds, "minmax").scales)
    scales["relu4_out"] = np.float32(scales["relu4_out"] / 8)
    (tmp_path / "clipping.cache").write_text(trt_bisect.format_cache(scales))
    report = run(
        networks.chain(5), tmp_path, calibration=tmp_path / "clipping.cache", metric="sqnr", explain="remedies"
    )
    assert report.culprits == ("conv4",)
    assert any(note.kind == EXPLANATION and "cache clipping.cache" in note.text for note in report.notes)
    assert {each.remedy for each in report.explanation.tried} == {"FP16", "FP32"}
    assert report.advice[0].reasons[0] == "saturation"


def test_ranges_of_the_culprits_own_tensors_are_measured_in_the_recipe_on_all_inputs(clipped):
    """By hand: min-max for what the culprits read, all layers in INT8 but none of them high, on every input."""
    report, folder = clipped
    own = [each for each in report.explanation.tried if each.culprits and each.calibrator]
    assert {each.calibrator.method for each in own} == {"minmax", "entropy", "percentile", "mse"}
    network = trt_bisect.load_network(folder / "network.onnx")
    samples = list(trt_bisect.open_dataset(networks.samples(networks.chain(5), 4), network.inputs))
    ranges, minmax = calibrate(network, samples, "percentile", 90.0), calibrate(network, samples, "minmax")
    with OnnxRuntimeBuilder(network, {}, BuildOptions()).reference() as engine:
        fp32 = [engine.infer(sample)["y"] for sample in samples]
    for each in (each for each in own if each.calibrator.method == "minmax"):
        layers = [network.layer_named(name) for name in each.culprits]
        tensors = [r.tensor for layer in layers for r in layer.roundings if not r.is_weight]
        scales = {**ranges.scales, **{name: minmax.scales[name] for name in tensors}}
        rest = [network.layer_named(name).index for name in report.recipe.high if name not in each.culprits]
        plan = int8_set(len(network.layers), network.quantizable).keeping(rest)
        with OnnxRuntimeBuilder(network, scales, BuildOptions()).build(plan) as engine:
            worst = min(cosine(engine.infer(sample)["y"], exact) for sample, exact in zip(samples, fp32, strict=True))
        assert each.similarity == pytest.approx(worst, abs=1e-5)
        assert each.high == len(rest)
        assert bool(each.cache) == each.meets
        if each.cache:
            written, names = read_cache(folder / "run" / each.cache, ()).scales, network.rounded_activations
            assert [written[name] for name in names] == [scales[name] for name in names]


def test_culprits_are_grouped_by_cause_with_the_figures(clipped):
    report, folder = clipped
    causes = report.explanation.causes
    assert sorted(name for cause in causes for name in cause.culprits) == sorted(report.culprits)
    for cause in causes:
        meets = [each.meets for each in cause.measured]
        assert meets == sorted(meets, reverse=True), "those that meet come first"
        assert not {each.remedy for each in cause.measured} & {each.remedy for each in cause.remedies}
    (clips,) = [cause for cause in causes if cause.cause == "saturation"]
    rounded = {each.tensor for row in report.layers if row.name in clips.culprits for each in row.rounds}
    made = [tensor for layer in report.explanation.layers.values() for tensor in layer.outputs]
    shares = [tensor.clipped for tensor in made if tensor.tensor in rounded]
    assert clips.words.startswith("percentile 90 clips ")
    assert f"{100 * max(shares):.2f}%" in clips.words
    record = json.loads((folder / "run/explanation.json").read_text())
    assert [cause["culprits"] for cause in record["causes"]] == [list(cause.culprits) for cause in causes]


def test_a_recipe_in_two_precisions_leaves_neither_of_them_unmeasured(tmp_path):
    """The recipe has conv2 and conv5 in FP16 and conv3 in FP32; conv2 and conv3 have the same cause."""
    network = trt_bisect.load_network(networks.save(networks.chain(5), tmp_path))
    names = "conv2", "conv3"
    evidence = [Evidence(network.layer_named(name), (), (), None, 0.1, 0.01, "INT8") for name in names]
    own = {"what": "this run's recipe", "similarity": 0.999, "loss": 0.001, "meets": True, "own": True}
    tried = [Tried(("conv2", "conv5"), "FP16", **own), Tried(("conv3",), "FP32", **own)]
    setting = Setting("network.onnx", "data.npz", True, None, False, Precision.FP32, "", Build(parse_version("10.3")))
    advice = {each.layer.name: advice_on(each, setting, tried, None, ()) for each in evidence}
    cause = cause_of(NO_SINGLE_CAUSE, evidence, advice, tried, "minmax")
    assert {"FP16", "FP32"} <= {remedy.remedy for each in advice.values() for remedy in each.remedies}
    assert [remedy.remedy for remedy in cause.remedies if remedy.remedy != "another calibrator"] == [QAT]
    for name, of_recipe, other in (("conv2", "FP16", "FP32"), ("conv3", "FP32", "FP16")):
        commands = {remedy.remedy: remedy.commands for remedy in advice[name].remedies}
        assert "recipe/network.qdq.onnx" in commands[of_recipe][0].text
        assert f"--precision {other.lower()}" in commands[other][0].text
    in_fp32 = {each.layer.name: advice_on(each, setting, tried[1:], None, ()) for each in evidence[1:]}
    for others in ((), ("FP16",)):
        cause = cause_of(NO_SINGLE_CAUSE, evidence[1:], in_fp32, tried[1:], "minmax", others)
        assert ("FP16" in {remedy.remedy for remedy in cause.remedies}) == (not others)


def test_a_networks_own_pairs_cannot_be_calibrated(tmp_path):
    report = run(pairs(loud=300.0), tmp_path, calibration=None, explain="remedies")
    note = "other calibrators and moves of weights and biases were not tried: the scales are those of the network's own"
    assert f"{note} Q/DQ pairs" in texts(report.notes)
    assert {each.remedy for each in report.explanation.tried} == {"FP16", "FP32"}
