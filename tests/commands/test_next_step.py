"""The step to go on with: the data first, then free ranges, then a recipe, then the engine. Each step is taken here."""

import math
import shlex
from dataclasses import replace

import numpy as np
import pytest

import trt_bisect
from tests.model.test_unknown_ops import saved, with_unknown
from tests.support import networks
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.calibration.cache import parse_version
from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.precision import Precision
from trt_bisect.recipe.commands import Setting
from trt_bisect.recipe.trtexec import Build
from trt_bisect.report.advice import CALIBRATOR
from trt_bisect.report.explanation import Explanation, Tried
from trt_bisect.report.next_step import BUILD, CHEAPER, DOUBT, OTHER_LAYERS, SEARCH, WHOLE, next_step
from trt_bisect.report.parts import FAILS, PASSES, WITH_DOUBTS
from trt_bisect.report.summary import DATA, FP16_INSTEAD
from trt_bisect.support.text import percent

HOW = {"engine": "onnxruntime", "explain": "none", "precision": "fp32"}


@pytest.fixture
def chain(tmp_path):
    return networks.save(networks.chain(3), tmp_path), networks.samples(networks.chain(3), 4)


def test_bad_data_are_repaired_before_anything_is_built(chain, random):
    """A constant input passes at 100 %: the engine must not be built of it. On real data it is."""
    network, data = chain
    zeros = {"x": np.zeros_like(data["x"])}
    report = trt_bisect.run(network, zeros, **HOW)
    assert (report.verdict, report.next.kind) == (WITH_DOUBTS, DATA)
    assert trt_bisect.run(network, zeros, **HOW, accept=True).next.kind == BUILD
    good = trt_bisect.run(network, {"x": random.normal(size=(4, 3, 16, 16)).astype(np.float32)}, **HOW)
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
    assert trt_bisect.run(tmp_path / "network.onnx", data, **how).next.kind == BUILD


def test_no_search_is_named_where_every_recipe_must_keep_more_than_half(tmp_path):
    """FP16 overflows in ``conv2``. ``conv1`` alone in INT8 misses, and takes most of the speedup: no plan at half
    passes, and FP16 with few layers in FP32 is worth a look.
    """
    model = networks.planted(networks.chain(4), ("conv0", "conv1"))
    for name in ("conv2.weight", "conv2.bias"):
        networks.scale_constant(model, name, lambda values: 1e6 * values)
    networks.scale_constant(model, "conv3.weight", lambda values: 1e-6 * values)
    report = trt_bisect.run(networks.save(model, tmp_path), networks.samples(model, 4), output=tmp_path / "run", **HOW)
    fp16 = next(choice for choice in report.choices if choice.plan == "fp16")
    assert fp16.meets is False
    assert 0.5 < report.answer.cost < 1.0
    assert report.recipe.high == ("conv1",)
    assert (report.next.kind, "--low fp16" in report.next.command) == (SEARCH, True)
    assert not any("--budget" in line.text for line in report.lines)
    within = trt_bisect.run(tmp_path / "network.onnx", networks.samples(model, 4), budget=0.5, **HOW)
    assert not within.recipe.meets


def test_free_ranges_come_before_a_recipe(command, tmp_path, monkeypatch):
    """Ranges that clip a tenth of all values cost three layers; the command that is named next costs none."""
    monkeypatch.chdir(tmp_path)
    model = networks.chain()
    networks.save(model, tmp_path)
    np.savez("data.npz", **networks.samples(model, 4))
    options = ["--calibration", "data.npz", "--engine", "onnxruntime", "--threshold", "0.999", "--history", "none"]
    how = [*options, "--calibrator", "percentile=90", "-o", "run"]
    code, out, _ = command("run", "network.onnx", *how, "--explain", "none")
    report = trt_bisect.Report.load(tmp_path / "run")
    assert (code, report.verdict, report.next.kind) == (1, FAILS, CHEAPER)
    assert report.recipe.high
    assert report.next.command in out
    words = shlex.split(report.next.command)
    assert command(*words[1:])[0] == 0
    chosen = trt_bisect.Report.load(tmp_path / words[words.index("--output") + 1])
    assert (chosen.verdict, chosen.next.kind, chosen.recipe.high) == (PASSES, BUILD, ())


def test_free_ranges_are_named_only_if_they_hold_on_the_held_out_inputs_too(tmp_path, monkeypatch):
    """The ranges that come first, and then all of them, are made to miss on the held-out inputs."""
    model = networks.chain()
    path, data = networks.save(model, tmp_path), networks.samples(model, 6)
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


def test_layers_that_cost_too_much_in_fp32_are_tried_in_fp16_before_all_is_fp16(command, lenet, tmp_path, monkeypatch):
    """``ip1`` and ``ip2`` have 405,000 of 2,296,680 multiply-adds. Each costs 3 in FP32, and 1 in FP16."""
    monkeypatch.chdir(tmp_path)
    how = ["--calibration", lenet / "unsure.npz", "--engine", "onnxruntime", "--threshold", "0.9999"]
    how += ["--history", "none", "--explain", "none", "--as-is", "--precision", "fp32", "-o", "run"]
    command("run", lenet / "lenet_planted.onnx", *how)
    report = trt_bisect.Report.load(tmp_path / "run")
    fp16 = next(choice for choice in report.choices if choice.plan == "fp16")
    assert {"ip1", "ip2"} <= {*report.recipe.high}
    assert (fp16.meets, report.answer.cost > 0.5, report.answer.in_fp16.meets) == (True, True, True)
    assert FP16_INSTEAD not in {line.kind for line in report.lines}
    assert (report.next.kind, "keeps 82.21%" in report.next.what) == (CHEAPER, True)
    words = shlex.split(report.next.command)
    command(*words[1:])
    mixed = trt_bisect.Report.load(tmp_path / words[words.index("--output") + 1])
    assert mixed.recipe.meets
    assert mixed.answer.cost == pytest.approx(report.answer.cost / 3, abs=0.01)
    assert mixed.next.kind == "recipe"


def test_a_remedy_that_is_hardly_cheaper_is_not_named_and_another_one_as_it_was_measured(lenet):
    """Costs that differ by less than 3 % count as equal. The layers were measured in FP16; the run had them in FP32."""
    how = {"threshold": 0.9999, "as_is": True, **HOW}
    report = trt_bisect.run(lenet / "lenet_planted.onnx", lenet / "unsure.npz", **how)
    setting = Setting("a.onnx", "a.npz", True, None, False, Precision.FP32, "run", Build(parse_version("10.3")))
    layers = {"high": 2, "layers": ("ip1", "ip2"), "precision": "fp16"}
    tried = Tried((), CALIBRATOR, "minmax", 0.99995, 5e-5, True, Calibrator("minmax"), confirmed=True, **layers)
    for cheaper, named in ((0.02, False), (0.1, True)):
        measured = replace(tried, cost=report.answer.cost - cheaper)
        told = report.changed(explanation=Explanation(1, {}, (), (), (), (measured,)))
        step = next_step(told, setting, accept=False)
        assert ("minmax" in step.what) == named
    assert f"with 2 layers in high precision (keeps {percent(1 - measured.cost)} of INT8's speedup" in step.what
    assert "--precision fp16" in step.command
    assert step.command.endswith("--calibrator minmax --output run-minmax --high ip1 --high ip2")
    several = report.changed(explanation=Explanation(1, {}, (), (), (), (replace(measured, precision=""),)))
    assert "minmax" not in next_step(several, setting, accept=False).what


def test_a_doubted_pass_is_looked_at_and_can_be_accepted(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = networks.planted(networks.detector(), ("class1", "class2"))
    networks.save(model, tmp_path)
    np.savez("data.npz", **networks.samples(model, 4))
    how = ["--calibration", "data.npz", "--engine", "onnxruntime", "--calibrator", "minmax", "--history", "none"]
    how += ["--explain", "none", "-o", "run"]
    code, _, _ = command("run", "network.onnx", *how, "--metric", "mse", "--threshold", "1000")
    report = trt_bisect.Report.load(tmp_path / "run")
    assert (code, report.verdict, report.next.kind) == (1, WITH_DOUBTS, DOUBT)
    assert command(*shlex.split(report.next.command)[1:])[0] == 0
    assert trt_bisect.Report.load(tmp_path / "run").next.kind == BUILD
    assert "--accept" in report.next.command
    assert command("run", "network.onnx", *how, "--accept")[0] == 1, "a failure is not accepted"


def attention_with_masks():
    """Two attentions whose mask is (1 - m) times the least float32, as Hugging Face has it: NaN in FP16."""
    sketch, least = networks.Sketch(7), np.float32(np.finfo(np.float32).min)
    x = sketch.dense("x", "embed", 16, 32)
    for k in range(2):
        q, key, v = (sketch.dense(x, f"{name}{k}", 32, 32) for name in ("q", "k", "v"))
        scores = sketch.node("MatMul", [q, sketch.node("Transpose", [key], f"t{k}", perm=[0, 2, 1])], f"qk{k}")
        out = sketch.node("Sub", [sketch.constant(f"one{k}", np.float32(1)), "mask"], f"out{k}")
        bias = sketch.node("Mul", [out, sketch.constant(f"least{k}", least)], f"bias{k}")
        scores = sketch.node("Add", [scores, bias], f"masked{k}")
        x = sketch.node(
            "Add", [x, sketch.node("MatMul", [sketch.node("Softmax", [scores], f"p{k}"), v], f"v{k}_")], f"r{k}"
        )
    return sketch.model({"x": [1, 12, 16], "mask": [1, 1, 12]}, {sketch.dense(x, "logits", 32, 20): [1, 12, 20]})


def test_the_layers_that_the_base_cannot_hold_are_named_and_pass_in_fp32(command, tmp_path, monkeypatch):
    """The plan that NumPy's FP16 says: 0 times the least float32 is NaN there, and nothing after it can mend that."""
    monkeypatch.chdir(tmp_path)
    networks.save(attention_with_masks(), tmp_path)
    random = np.random.default_rng(0)
    mask = (np.arange(12) < random.integers(4, 13, (24, 1))).astype(np.float32)[:, None, None]
    np.savez("data.npz", x=random.normal(size=(24, 1, 12, 16)).astype(np.float32), mask=mask)
    with np.errstate(all="ignore"):
        assert np.isnan(np.float16(0) * np.float32(np.finfo(np.float32).min).astype(np.float16))
    how = ["--calibration", "data.npz", "--engine", "onnxruntime", "--threshold", "0.8", "--history", "none"]
    assert command("run", "network.onnx", *how, "--base", "fp16", "--explain", "none", "-o", "run")[0] == 1
    report = trt_bisect.Report.load(tmp_path / "run")
    assert (report.recipe.meets, report.base_high) == (False, ("bias0", "bias1"))
    words = shlex.split(report.next.command)
    assert words[-6:] == ["--precision", "fp32", "--high", "bias0", "--high", "bias1"]
    assert command(*words[1:])[0] == 0


def test_where_all_layers_are_fixed_no_search_is_named(chain):
    network, data = chain
    report = trt_bisect.run(network, data, scoped="conv2", threshold=0.99999999, calibrator="percentile=90", **HOW)
    assert (report.verdict, report.next.kind, report.next.command) == (FAILS, OTHER_LAYERS, "")


def test_of_a_part_that_fails_the_same_command_is_not_named_again(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(with_unknown(), tmp_path)
    np.savez("data.npz", x=np.random.default_rng(1).normal(size=(8, 3, 8, 8)).astype(np.float32))
    how = "--calibration data.npz --engine onnxruntime --explain none --history none".split()
    for threshold, verdict in (("0.9", WITH_DOUBTS), ("0.9999999", FAILS)):
        name = next(tmp_path.glob("*.onnx")).name
        command("run", name, *how, "--threshold", threshold, "--calibrator", "minmax", "-o", "run")
        report = trt_bisect.Report.load(tmp_path / "run")
        assert (report.verdict, report.next.kind) == (verdict, WHOLE)
        assert ("--accept" in report.next.command) == (verdict == WITH_DOUBTS)
        assert report.next.command != report.command


def test_a_recipe_of_another_calibrator_is_named_with_its_layers(command, tmp_path, monkeypatch):
    """Ranges that clip a tenth need every layer high, others two: with these two high their full INT8 passes."""
    monkeypatch.chdir(tmp_path)
    model = networks.chain(4)
    networks.save(model, tmp_path)
    np.savez("data.npz", **networks.samples(model, 4))
    how = ["--calibration", "data.npz", "--engine", "onnxruntime", "--threshold", "0.99998", "--history", "none"]
    how += ["--calibrator", "percentile=90", "--explain", "remedies", "--precision", "fp32", "--as-is", "--margin", "0"]
    assert command("run", "network.onnx", *how, "-o", "run")[0] == 1
    report = trt_bisect.Report.load(tmp_path / "run")
    words = shlex.split(report.next.command)
    assert (report.next.kind, command(*words[1:])[0]) == (CHEAPER, 0)
    chosen = trt_bisect.Report.load(tmp_path / words[words.index("--output") + 1])
    named = {words[place + 1] for place, word in enumerate(words) if word == "--high"}
    assert {row.name for row in chosen.layers if row.fixed} == named
    assert 0 < len(named) < len(report.recipe.high)


@pytest.mark.parametrize("calibrator", ["percentile=90", "percentile=99"])
def test_a_changed_network_is_named_only_if_the_run_on_it_passes(command, tmp_path, monkeypatch, calibrator):
    """Equalisation mends the planted range; ranges that clip a tenth leave a doubt, those that clip less do not."""
    monkeypatch.chdir(tmp_path)
    model = networks.planted(networks.chain(), ("conv3", "conv4"))
    networks.save(model, tmp_path)
    np.savez("data.npz", **networks.samples(model, 10))
    how = ["--calibration", "data.npz", "--engine", "onnxruntime", "--threshold", "0.98", "--history", "none"]
    how += ["--calibrator", calibrator, "--precision", "fp32", "--as-is"]
    command("run", "network.onnx", *how, "--explain", "remedies", "-o", "run")
    report = trt_bisect.Report.load(tmp_path / "run")
    code = command("run", "run/remedies/equalised.onnx", *how, "--explain", "none", "-o", "moved")[0]
    assert (code == 0) == (report.next.kind == CHEAPER) == (calibrator == "percentile=99")
