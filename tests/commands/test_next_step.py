"""The step to go on with: the data first, then free ranges, then a recipe, then the engine. Each step is taken here."""

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.model.test_unknown_ops import with_unknown
from tests.support import networks
from tests.support.recorded import explained
from tests.support.statements import check_statements
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.calibration.cache import parse_version
from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.precision import Precision
from trt_bisect.recipe.commands import Setting
from trt_bisect.recipe.trtexec import Build
from trt_bisect.report.advice import CALIBRATOR
from trt_bisect.report.choices import FP16_INSTEAD, cheaper_remedies
from trt_bisect.report.explanation import Explanation, Tried
from trt_bisect.report.given import DATA
from trt_bisect.report.next_step import BUILD, CHEAPER, DOUBT, OTHER_LAYERS, SEARCH, WHOLE, next_step
from trt_bisect.report.parts import FAILS, PASSES, WITH_DOUBTS
from trt_bisect.report.words import headline
from trt_bisect.support.text import percent

HOW = {"engine": "onnxruntime", "explain": "none", "precision": "fp32", "effort": "quick"}


@pytest.fixture
def chain(tmp_path):
    return networks.given(networks.chain(3), tmp_path, 4)


@pytest.fixture
def asked(command, tmp_path, monkeypatch):
    """Runs ``trt-bisect`` on a saved network and ``data.npz`` beside it; gives the exit code and the report."""
    monkeypatch.chdir(tmp_path)

    def call(*options, network="network.onnx", output="run"):
        how = ["--calibration", "data.npz", "--engine", "onnxruntime", "--history", "none", "--effort", "quick"]
        code, _, _ = command("run", network, *how, "--output", output, *options)
        return code, trt_bisect.Report.load(output)

    return call


@pytest.fixture
def taken(command):
    """Runs the command of a report's next step; gives its words, the exit code and the new report."""

    def call(report):
        words = shlex.split(report.next.command)
        code, _, _ = command(*words[1:])
        return words, code, trt_bisect.Report.load(words[words.index("--output") + 1])

    return call


def save(model, count=4):
    """Writes a network and samples for it into the working folder."""
    networks.save(model, Path())
    np.savez("data.npz", **networks.samples(model, count))


def test_bad_data_are_repaired_before_anything_is_built(chain, random):
    """A constant input passes at 100 %: the engine must not be built of it. On real data it is."""
    network, data = chain
    zeros = {"x": np.zeros_like(data["x"])}
    report = trt_bisect.run(network, zeros, calibrator="minmax", **HOW)
    assert (report.verdict, report.next.kind) == (WITH_DOUBTS, DATA)
    good = trt_bisect.run(
        network, {"x": random.normal(size=(4, 3, 16, 16)).astype(np.float32)}, calibrator="minmax", **HOW
    )
    assert (good.verdict, good.next.kind, good.next.command) == (PASSES, BUILD, "")


def test_inputs_that_held_out_ones_contradict_are_added_to(tmp_path):
    """Inputs with the same values in order, which add up in a convolution, are clipped by INT8; larger ones are data.

    FP16 holds on the first, so that it is built until there are more.
    """
    model = networks.chain(2)
    data = networks.samples(model, 4)
    how = {"threshold": 0.995, "calibrator": "minmax", **HOW}
    path, smooth = networks.save(model, tmp_path), np.sort(data["x"], axis=None).reshape(data["x"].shape)
    report = trt_bisect.run(path, data, validation={"x": smooth}, **how)
    assert (report.verdict, report.next.kind) == (WITH_DOUBTS, FP16_INSTEAD)
    assert "more inputs" in report.next.what
    report = trt_bisect.run(path, data, validation={"x": 1000 * data["x"][:2]}, **how)
    assert (report.verdict, report.next.kind) == (WITH_DOUBTS, DATA)


def test_no_search_is_named_where_every_recipe_must_keep_more_than_half(tmp_path):
    """FP16 overflows in ``conv2``. ``conv1`` alone in INT8 misses, and takes most of the speedup: no plan at half
    passes, and FP16 with few layers in FP32 is worth a look.
    """
    model = networks.planted(networks.chain(4), ("conv0", "conv1"))
    for name in ("conv2.weight", "conv2.bias"):
        networks.scale_constant(model, name, lambda values: 1e6 * values)
    networks.scale_constant(model, "conv3.weight", lambda values: 1e-6 * values)
    report = trt_bisect.run(*networks.given(model, tmp_path, 4), output=tmp_path / "run", **HOW)
    fp16 = next(choice for choice in report.choices if choice.plan == "fp16")
    assert fp16.meets is False
    assert 0.5 < report.answer.cost < 1.0
    assert report.recipe.high == ("conv1",)
    assert (report.next.kind, "--low fp16" in report.next.command) == (SEARCH, True)
    assert not any("--budget" in line.text for line in report.lines)
    within = trt_bisect.run(tmp_path / "network.onnx", networks.samples(model, 4), budget=0.5, **HOW)
    assert not within.recipe.meets


def test_free_ranges_come_before_a_recipe(asked, taken):
    """Ranges that clip a tenth of all values cost layers; the command that is named next costs none."""
    save(networks.chain(3))
    code, report = asked("--threshold", "0.999", "--calibrator", "percentile=90", "--explain", "none")
    assert (code, report.verdict, report.next.kind) == (1, FAILS, CHEAPER)
    assert report.recipe.high
    _, code, chosen = taken(report)
    assert (code, chosen.verdict, chosen.next.kind, chosen.recipe.high) == (0, PASSES, BUILD, ())


def test_free_ranges_are_named_only_if_they_hold_on_the_held_out_inputs_too(tmp_path, monkeypatch):
    """The ranges that come first, and then all of them, are made to miss on the held-out inputs."""
    model = networks.chain(3)
    path, data = networks.given(model, tmp_path, 6)
    given, held_out = {"x": data["x"][:4]}, {"x": data["x"][4:]}
    how = {"threshold": 0.999, "calibrator": "percentile=90", "explain": "none", "validation": held_out, **HOW}
    first = trt_bisect.run(path, given, **how)
    [advised] = first.answer.free_ranges
    assert (first.next.kind, f"use {advised.calibrator} " in first.next.what) == (CHEAPER, True)
    measured, refused = AnswerPlans.loss_on_held_out, [advised.by]

    def missed(plans, plan, ranges):
        return math.inf if ranges.calibrator in refused else measured(plans, plan, ranges)

    monkeypatch.setattr(AnswerPlans, "loss_on_held_out", missed)
    second = trt_bisect.run(path, given, **how)
    [other] = second.answer.free_ranges
    assert other.by != advised.by
    assert f"use {other.calibrator} " in second.next.what
    refused += [row.by for row in second.answer.calibrators]
    none = trt_bisect.run(path, given, **how)
    assert none.answer.free_ranges == ()
    assert none.next.kind != CHEAPER


def test_layers_that_cost_too_much_in_fp32_are_tried_in_fp16_before_all_is_fp16(asked, taken):
    """``conv2`` and ``fc`` have 147,536 of 350,288 multiply-adds. Each costs 3 in FP32, and 1 in FP16."""
    save(networks.chain(3))
    how = ["--threshold", "0.99999", "--calibrator", "minmax", "--explain", "none", "--as-is", "--precision", "fp32"]
    _, report = asked(*how)
    fp16 = next(choice for choice in report.choices if choice.plan == "fp16")
    assert {*report.recipe.high} - {"pool"} == {"conv2", "fc"}
    assert (fp16.meets, report.answer.cost > 0.5, report.answer.in_fp16.meets) == (True, True, True)
    assert FP16_INSTEAD not in {line.kind for line in report.lines}
    assert (report.next.kind, "keeps 57.88%" in report.next.what) == (CHEAPER, True)
    _, _, mixed = taken(report)
    assert mixed.recipe.meets
    assert mixed.answer.cost == pytest.approx(report.answer.cost / 3, abs=0.01)
    assert mixed.next.kind == "recipe"


def test_a_remedy_that_is_hardly_cheaper_is_not_named_and_another_one_as_it_was_measured(chain):
    """Costs that differ by less than 3 % count as equal. Layers in FP16 around FP32 are left to the search."""
    report = trt_bisect.run(*chain, threshold=0.99999, calibrator="minmax", as_is=True, **HOW)
    setting = Setting("a.onnx", "a.npz", True, None, False, Precision.FP32, "run", Build(parse_version("10.3")))
    layers = {"high": 2, "layers": ("conv2", "fc"), "precision": "fp32"}
    tried = Tried((), CALIBRATOR, "minmax", 0.999995, 5e-6, True, Calibrator("minmax"), confirmed=True, **layers)
    for cheaper, named in ((0.02, False), (0.5, True)):
        measured = replace(tried, cost=report.answer.cost - cheaper)
        told = report.changed(explanation=Explanation(1, {}, (), (), (), (measured,)))
        step = next_step(told, setting, accept=False)
        assert ("minmax" in step.what) == named
    assert f"with 2 layers in high precision (keeps {percent(1 - measured.cost)} of INT8's speedup" in step.what
    assert step.command.endswith("--calibrator minmax --output run-minmax --high conv2 --high fc")
    for precision in ("fp16", ""):
        told = report.changed(explanation=Explanation(1, {}, (), (), (), (replace(measured, precision=precision),)))
        step = next_step(told, setting, accept=False)
        assert step.command.endswith("--calibrator minmax --output run-minmax")


def test_a_doubted_pass_is_looked_at_and_can_be_accepted(asked, taken):
    save(networks.planted(networks.detector(), ("class1", "class2")))
    how = ["--calibrator", "minmax", "--explain", "none"]
    code, report = asked(*how, "--metric", "mse", "--threshold", "1000")
    assert (code, report.verdict, report.next.kind) == (1, WITH_DOUBTS, DOUBT)
    words, code, accepted = taken(report)
    assert ("--accept" in words, code, accepted.next.kind) == (True, 0, BUILD)
    assert asked(*how, "--accept")[0] == 1, "a failure is not accepted"


def attention_with_masks():
    """Two masked scores whose mask is (1 - m) times the least float32, as Hugging Face has it: NaN in FP16."""
    sketch, least, x = networks.Sketch(7), np.float32(np.finfo(np.float32).min), "x"
    for k in range(2):
        out = sketch.node("Sub", [sketch.constant(f"one{k}", np.float32(1)), "mask"], f"out{k}")
        bias = sketch.node("Mul", [out, sketch.constant(f"least{k}", least)], f"bias{k}")
        scores = sketch.node("Add", [sketch.dense(x, f"dense{k}", 12, 12), bias], f"masked{k}")
        x = sketch.node("Softmax", [scores], f"p{k}")
    return sketch.model({"x": [1, 12, 12], "mask": [1, 1, 12]}, {sketch.dense(x, "logits", 12, 20): [1, 12, 20]})


def test_the_layers_that_the_base_cannot_hold_are_named_and_pass_in_fp32(asked, taken):
    """The plan that NumPy's FP16 says: 0 times the least float32 is NaN there, and nothing after it can mend that."""
    networks.save(attention_with_masks(), Path())
    random = np.random.default_rng(0)
    mask = (np.arange(12) < random.integers(4, 13, (8, 1))).astype(np.float32)[:, None, None]
    np.savez("data.npz", x=random.normal(size=(8, 1, 12, 12)).astype(np.float32), mask=mask)
    with np.errstate(all="ignore"):
        assert np.isnan(np.float16(0) * np.float32(np.finfo(np.float32).min).astype(np.float16))
    code, report = asked("--threshold", "0.8", "--base", "fp16", "--explain", "none")
    assert (code, report.recipe.meets, report.base_high) == (1, False, ("bias0", "bias1"))
    words, code, _ = taken(report)
    assert (words[-6:], code) == (["--precision", "fp32", "--high", "bias0", "--high", "bias1"], 0)


def test_where_all_layers_are_fixed_no_search_is_named(chain, tmp_path):
    network, data = chain
    how = {**HOW, "scoped": "conv2", "calibrator": "percentile=90"}
    report = trt_bisect.run(network, data, threshold=0.99999999, output=tmp_path / "run", **how)
    assert (report.verdict, report.next.kind, report.next.command) == (FAILS, OTHER_LAYERS, "")
    check_statements(json.loads((tmp_path / "run/report.json").read_text()))


def test_of_a_part_that_fails_the_same_command_is_not_named_again(asked, tmp_path):
    network = "network.onnx"
    onnx.save(with_unknown(), tmp_path / network)
    np.savez("data.npz", x=networks.normal(1, 8, 3, 8, 8))
    for threshold, verdict in (("0.9", WITH_DOUBTS), ("0.9999999", FAILS)):
        how = ("--threshold", threshold, "--calibrator", "minmax", "--explain", "none")
        _, report = asked(*how, network=network)
        assert (report.verdict, report.next.kind) == (verdict, WHOLE)
        assert ("--accept" in report.next.command) == (verdict == WITH_DOUBTS)
        assert report.next.command != report.command


def test_an_output_that_is_the_same_on_every_input_is_a_matter_of_data(tmp_path):
    """The data vary, and the last weight is 0."""
    model = networks.chain(2)
    (weight,) = (tensor for tensor in model.graph.initializer if tensor.name == "fc.weight")
    weight.raw_data = bytes(len(weight.raw_data))
    report = trt_bisect.run(networks.save(model, tmp_path), networks.samples(model, 4), **HOW)
    assert (report.verdict, report.inputs.warnings, report.next.kind) == (WITH_DOUBTS, (), DATA)


CLIPPED = ("--calibrator", "percentile=90", "--explain", "remedies", "--as-is", "--margin", "0")


def test_a_recipe_of_another_calibrator_is_named_with_its_layers(asked, taken):
    """Ranges that clip a tenth need every layer high, others a pooling: with it high their full INT8 passes."""
    save(networks.chain(8))
    code, report = asked("--threshold", "0.9999", "--precision", "fp32", *CLIPPED)
    assert (code, report.next.kind) == (1, CHEAPER)
    assert not headline(report).startswith("Ship FP16"), "the remedy is faster"
    words, code, chosen = taken(report)
    assert code == 0
    named = {words[place + 1] for place, word in enumerate(words) if word == "--high"}
    assert {row.name for row in chosen.layers if row.fixed} == named
    assert 0 < len(named) < len(report.recipe.high)


def test_a_recipe_of_another_calibrator_in_fp16_is_found_by_the_command(asked, taken):
    """Its layers alone are in FP16: --precision fp16 would have all unquantized layers there too, and misses."""
    save(networks.chain(4))
    _, report = asked("--threshold", "0.99998", "--precision", "mixed", *CLIPPED)
    assert report.next.kind == CHEAPER
    named, *_ = cheaper_remedies(explained(Path("run")))
    _, _, chosen = taken(report)
    assert (named.precision, f"{named.calibrator}") == ("fp16", chosen.ranges.origin)
    assert chosen.recipe.meets
    assert chosen.answer.cost < named.cost + 1e-6 < report.answer.cost - 0.5


def test_a_remedy_that_is_hardly_faster_than_fp16_is_not_named_where_fp16_passes(asked):
    """The same with layers in FP32: two of the four convolutions, each as slow as three in FP16."""
    save(networks.chain(4))
    _, report = asked("--threshold", "0.99998", "--precision", "fp32", *CLIPPED)
    remedies = [tried.cost for tried in explained(Path("run")).explanation.tried if tried.confirmed]
    assert 0.5 < min(remedies) < 1.0 < report.answer.cost
    assert (report.next.kind, report.lines[0].kind) == (FP16_INSTEAD, FP16_INSTEAD)


@pytest.mark.parametrize("calibrator", ["percentile=90", "percentile=99"])
def test_a_changed_network_is_named_only_if_the_run_on_it_passes(asked, calibrator):
    """Equalisation mends the planted range; ranges that clip a tenth leave a doubt, those that clip less do not."""
    save(networks.planted(networks.chain(6), ("conv2", "conv3")), 6)
    how = ["--threshold", "0.98", "--calibrator", calibrator, "--precision", "fp32", "--as-is"]
    _, report = asked(*how, "--explain", "remedies")
    changed = "run/remedies/equalised.onnx"
    code, _ = asked(*how, "--explain", "none", network=changed, output="moved")
    assert (code == 0) == (report.next.kind == CHEAPER) == (calibrator == "percentile=99")
