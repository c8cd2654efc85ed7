"""``--drop``: the cheapest plan that keeps the user's accuracy, which ONNX Runtime alone counts again."""

from __future__ import annotations

import json
import re
import shlex
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import trt_bisect
from tests.support import networks
from tests.support.editions import edition
from tests.support.goal_cases import named_points
from tests.support.progress_doubles import Steps
from tests.support.quantized import plain_session
from trt_bisect.analyzer.doubts import BY_CLASS
from trt_bisect.commands.run.live import StoppedRun
from trt_bisect.errors import BadInput, NothingMeasured
from trt_bisect.model.network import load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import make_session
from trt_bisect.options.concerns import RunOptions
from trt_bisect.precision import all_but
from trt_bisect.report.answer import Goal
from trt_bisect.report.next_step import SEARCH
from trt_bisect.report.parts import FAILS, PASSES, UNMEASURED, ByPlan
from trt_bisect.report.summary import ACCURACY, BASE, CULPRITS, HELD_OUT, accuracy_line
from trt_bisect.support import progress

SAMPLES = Path(__file__).parents[2] / "samples"
STOPPED = {"calibrator": "minmax", "drop": "1%", "history": "none"}
SHARES, WAYS = (0.3, 0.6, 0.8, 0.95), ("interrupted", "time limit")
STOPPED_NETWORKS = ("lenet_planted", "lenet")
FEW_STOPS = [("lenet_planted", 0.8, "time limit"), ("lenet_planted", 0.95, "interrupted")]
BASED = {"engine": "onnxruntime", "calibrator": "minmax", "base": "fp16", "precision": "fp32", "explain": "none"}
BASED["effort"] = "quick"


def share_right(session, lenet):
    """The share of digits that a session of ONNX Runtime gets right."""
    digits, labels = np.load(lenet / "digits.npz")["data"], np.load(lenet / "labels.npy")
    right = [
        session.run(None, {"data": digit[None]})[0].argmax() == label
        for digit, label in zip(digits, labels, strict=True)
    ]
    return float(np.mean(right))


def labelled(lenet):
    given = {"dataset": lenet / "digits.npz", "labels": lenet / "labels.npy"}
    return {**given, "engine": "onnxruntime", "explain": "none", "effort": "quick"}


def calibration():
    """Half of LeNet's calibration data."""
    return {"data": np.load(SAMPLES / "lenet" / "calibration.npz")["data"][100:]}


@pytest.fixture(scope="module")
def reached(lenet, tmp_path_factory):
    """A run with a drop of 1 %, which ranges reach, and its folder; not to be changed."""
    folder = tmp_path_factory.mktemp("reached")
    path = lenet / "lenet_planted.onnx"
    return trt_bisect.run(path, calibration(), drop="1%", output=folder, **labelled(lenet)), folder


@pytest.fixture(scope="module")
def lowered(lenet, tmp_path_factory):
    """A run in which every layer stays in INT8, and its folder; not to be changed."""
    folder, how = tmp_path_factory.mktemp("lowered"), {"drop": 0.9, "calibrator": "minmax", "keep_low": ["*"]}
    return trt_bisect.run(lenet / "lenet_planted.onnx", calibration(), output=folder, **how, **labelled(lenet)), folder


@pytest.mark.parametrize("given", ["reached", "lowered"])
def test_the_bound_counts_held_out_inputs_of_another_class(lenet, request, given):
    """No input misses an accuracy: the float file and the recipe's are run on every fifth digit, number 4 first."""
    report, out = request.getfixturevalue(given)
    held_out = calibration()["data"][4::5]
    fp32, recipe = (
        [session.run(None, {"data": digit[None]})[0].argmax() for digit in held_out]
        for session in map(plain_session, (lenet / "lenet_planted.onnx", out / "recipe" / "network.qdq.onnx"))
    )
    changed = int(np.sum(np.not_equal(fp32, recipe)))
    assert (report.bound.inputs, report.bound.missed, report.bound.by) == (len(held_out), changed, BY_CLASS)
    assert changed == 1 if given == "reached" else changed > 10
    exported = share_right(plain_session(out / "recipe" / "network.qdq.onnx"), lenet)
    assert report.accuracy.int8 == pytest.approx(exported, abs=1e-9)
    lines = [line.text for line in report.lines if line.kind == HELD_OUT]
    assert len(lines) == report.recipe.meets
    assert all("got another class than in FP32, so with 95% confidence" in text for text in lines)


@pytest.fixture(scope="module")
def by_entropy(lenet, tmp_path_factory):
    """A run with a drop of 1 % and its front by one calibrator, and its folder; not to be changed."""
    folder, how = tmp_path_factory.mktemp("entropy"), {**labelled(lenet), "calibrator": "entropy", "drop": "1%"}
    how["explain"] = "tensors"
    path, data = lenet / "lenet_planted.onnx", lenet / "calibration.npz"
    return trt_bisect.run(path, data, front=True, output=folder, **how), folder


def test_an_accuracy_is_reached_with_the_planted_layer_high(lenet, by_entropy):
    path, (report, folder) = lenet / "lenet_planted.onnx", by_entropy
    assert report.goal == Goal(drop="1%")
    assert report.accuracy.fp32 == pytest.approx(share_right(plain_session(path), lenet))
    assert report.accuracy.least == report.least == pytest.approx(0.99 * report.accuracy.fp32)
    assert (report.recipe.high, report.recipe.meets, report.verdict) == (("ip2",), True, FAILS)
    assert report.figures == ByPlan(report.accuracy.int8, report.accuracy.recipe)
    assert report.accuracy.int8 < 0.5
    assert report.accuracy.recipe >= report.accuracy.least
    exported = share_right(plain_session(folder / "recipe/network.qdq.onnx"), lenet)
    assert report.accuracy.recipe == pytest.approx(exported, abs=1e-9)
    told = {name: point.figure for name, point in named_points(report).items()}
    assert told["all INT8"] == report.accuracy.int8
    assert told["recipe"] == report.accuracy.recipe
    assert told["all high"] == pytest.approx(report.accuracy.fp32)
    assert (folder / "front.csv").read_text().startswith("cost,accuracy,")
    assert report.answer.given is None, "no input is judged by itself"
    assert [line for line in report.lines if line.kind == ACCURACY] == [accuracy_line(report.accuracy)]
    own, *others = report.explanation.tried
    assert (own.own, own.similarity) == (True, report.accuracy.recipe)
    assert [remedy.meets for remedy in others] == [remedy.similarity >= report.least for remedy in others]


def test_ranges_that_reach_the_accuracy_are_the_recipe(lenet, reached):
    """Another calibrator gives full INT8 the accuracy that entropy loses; counted again on the exported network."""
    report, folder = reached
    assert report.recipe.high == ()
    assert (report.verdict, report.exit_code) == (PASSES, 0)
    assert report.accuracy.int8 == report.accuracy.recipe >= report.accuracy.least
    (chosen,) = [row.calibrator for row in report.answer.calibrators if row.chosen]
    assert chosen != "entropy"
    said = re.search(r'its session option `(\S+)` to `"(\d)"`', (folder / "recipe/README.md").read_text())
    options = ort.SessionOptions()
    options.add_session_config_entry(*said.groups())
    session = ort.InferenceSession(folder / "recipe/network.qdq.onnx", options, providers=["CPUExecutionProvider"])
    count = len(np.load(lenet / "labels.npy"))
    assert share_right(session, lenet) == pytest.approx(report.accuracy.recipe, abs=2.5 / count)


def test_a_culprit_of_an_accuracy_is_told_with_the_accuracy_without_it(lenet, tmp_path):
    """Two planted layers; each culprit is put back alone in a network that is written with the others in FP32."""
    model = networks.planted(onnx.load(lenet / "lenet_planted.onnx"), ("conv1", "conv2"), factor=300.0)
    path = networks.save(model, tmp_path)
    how = {"calibrator": "minmax", "precision": "fp32", "drop": "5%", **labelled(lenet)}
    report = trt_bisect.run(path, lenet / "calibration.npz", output=tmp_path / "run", **how)
    assert set(report.culprits) == set(report.recipe.high) >= {"conv2", "ip2"}
    network, plan = load_network(path), json.loads((tmp_path / "run/recipe/plan.json").read_text())
    writer = PlanWriter(network, plan["scales"], GraphTarget.TENSORRT)
    for row in report.layers:
        if not row.culprit:
            assert row.put_back is None
            continue
        high = [network.layer_named(name).index for name in report.culprits if name != row.name]
        alone = share_right(make_session(writer.write(all_but(len(network.layers), high))), lenet)
        assert row.put_back == pytest.approx(alone, abs=1e-9)
        assert row.put_back < report.accuracy.least
        assert report.text(row.put_back) in next(line.text for line in report.lines if line.kind == CULPRITS)


def test_without_a_drop_an_accuracy_is_told_and_does_not_decide(lenet):
    """Two of three labels are wrong: the similarity decides."""
    labels = np.load(lenet / "labels.npy")
    wrong = np.where(np.arange(len(labels)) % 3 > 0, (labels + 1) % 10, labels)
    how = {**labelled(lenet), "labels": wrong, "calibrator": "minmax"}
    report = trt_bisect.run(lenet / "lenet.onnx", lenet / "calibration.npz", **how)
    assert (report.goal, report.figure, report.least) == (Goal(), "cosine", report.threshold)
    assert report.accuracy.fp32 < 0.5
    assert report.accuracy.least is None
    assert report.figures == report.similarity
    assert report.verdict == PASSES


def test_the_most_accurate_plan_by_labels_within_a_budget(lenet, by_entropy):
    """With the planted layer high the accuracy is that of FP32; in FP16 it costs a third."""
    path, data = lenet / "lenet_planted.onnx", lenet / "calibration.npz"
    how = {"calibrator": "entropy", "drop": "1%", **labelled(lenet)}
    cheapest, _ = by_entropy
    assert cheapest.culprits == ("ip2",)
    enough = trt_bisect.run(path, data, budget=cheapest.answer.cost + 1e-9, **how)
    assert "ip2" in enough.recipe.high
    assert enough.recipe.meets
    assert enough.accuracy.recipe >= cheapest.accuracy.recipe
    half = trt_bisect.run(path, data, budget=0.9 * cheapest.answer.cost, **how)
    assert half.recipe.meets
    assert next(row.recipe for row in half.layers if row.name == "ip2") == "fp16"
    spare = trt_bisect.run(path, data, budget=0.3 * cheapest.answer.cost, **how)
    assert "ip2" not in spare.recipe.high
    assert not spare.recipe.meets
    assert spare.accuracy.recipe < spare.accuracy.least


def test_an_accuracy_function_of_the_user(lenet):
    digits, labels = np.load(lenet / "digits.npz")["data"], np.load(lenet / "labels.npy")

    def accuracy(infer):
        return np.mean([infer({"data": d[None]})["prob"].argmax() == t for d, t in zip(digits, labels, strict=True)])

    path, data = lenet / "lenet_planted.onnx", lenet / "calibration.npz"
    drop = share_right(plain_session(path), lenet) - 0.9
    how = {"engine": "onnxruntime", "calibrator": "entropy", "drop": drop, "explain": "none"}
    report = trt_bisect.run(path, data, accuracy=accuracy, **how)
    assert report.recipe.high == ("ip2",)
    assert report.least == pytest.approx(0.9)
    with pytest.raises(BadInput, match="fails: KeyError"):
        trt_bisect.run(path, data, accuracy=lambda infer: infer({"data": digits[:1]})["x"], **how)


@pytest.fixture(scope="module")
def whole(request, lenet):
    """A network, its run with a drop that nobody stopped, the steps that this took, and those up to the accuracy."""
    path, shown = lenet / f"{request.param}.onnx", Steps()
    report = trt_bisect.run(path, lenet / "calibration.npz", progress=shown, **STOPPED, **labelled(lenet))
    return path, report, shown.count, shown.began["Measuring the accuracy"]


@pytest.mark.parametrize(
    ("whole", "share", "way"), edition(FEW_STOPS, list(product(STOPPED_NETWORKS, SHARES, WAYS))), indirect=["whole"]
)
def test_a_stopped_run_judges_by_the_accuracy_or_not_at_all(lenet, whole, tmp_path, monkeypatch, way, share):
    """Its recipe, too, keeps the accuracy by ONNX Runtime alone; the same command comes to the end."""
    path, finished, steps, undecided = whole
    at = int(share * steps)
    asked = {"output": tmp_path / "run", **STOPPED, **labelled(lenet)}
    try:
        with monkeypatch.context() as clock:
            if way == "interrupted":
                asked["progress"] = Steps(at)
            else:
                times = iter(range(1 << 20))
                clock.setattr(progress, "perf_counter", lambda: next(times))
                asked["time_limit"] = at
            found = trt_bisect.run(path, lenet / "calibration.npz", **asked)
    except (StoppedRun, NothingMeasured):
        found = trt_bisect.Report.load(tmp_path / "run")
    assert found.stopped == way
    assert found.verdict in (finished.verdict, UNMEASURED)
    if found.verdict == UNMEASURED:
        assert at <= undecided
    else:
        assert found.least == finished.least
        assert found.accuracy.int8 == finished.accuracy.int8
        assert found.recipe.meets or way == "interrupted"
    if found.recipe.meets:
        exported = share_right(plain_session(tmp_path / "run/recipe/network.qdq.onnx"), lenet)
        assert found.accuracy.recipe == pytest.approx(exported, abs=1e-9)
        assert exported >= found.least
    again = {"output": tmp_path / "run", **STOPPED, **labelled(lenet)}
    ended = trt_bisect.run(path, lenet / "calibration.npz", **again)
    assert (ended.stopped, ended.recipe, ended.accuracy) == ("", finished.recipe, finished.accuracy)


@pytest.mark.parametrize("budget", [None, 0.1])
def test_an_accuracy_that_is_just_the_lowest_acceptable_one_passes(lenet, budget):
    """0.8 - 0.1 is more than 0.7 in floating point."""
    assert 0.8 - 0.1 > 0.7
    figures = [0.8]

    def accuracy(infer):
        return figures.pop() if figures else 0.7

    how = {"accuracy": accuracy, "drop": 0.1, "engine": "onnxruntime", "calibrator": "minmax", "explain": "none"}
    how["effort"] = "quick"
    report = trt_bisect.run(lenet / "lenet.onnx", lenet / "calibration.npz", budget=budget, **how)
    assert (report.accuracy.fp32, report.accuracy.int8) == (0.8, 0.7)
    assert report.verdict == PASSES


def test_what_no_plan_in_fp16_reaches_leads_to_fp32(command, lenet, tmp_path, monkeypatch):
    """In FP16 a planted range overflows in every plan, and all digits become one; the command named next is run."""
    monkeypatch.chdir(tmp_path)
    model = networks.planted(onnx.load(lenet / "lenet.onnx"), ("conv1", "conv2"), factor=3e7)
    path = networks.save(model, tmp_path)
    how = ["--calibration", lenet / "calibration.npz", "--dataset", lenet / "digits.npz", "--engine", "onnxruntime"]
    how += ["--labels", lenet / "labels.npy", "--drop", "1%", "--precision", "fp16", "--calibrator", "minmax"]
    how += ["--as-is"]
    code, _, _ = command("run", path, *how, "--explain", "none", "--effort", "quick", "--history", "none", "-o", "run")
    first = trt_bisect.Report.load("run")
    assert (code, first.recipe.meets, first.next.kind) == (1, False, SEARCH)
    words = shlex.split(first.next.command)
    assert words[words.index("--precision") + 1] == "fp32"
    assert command(*words[1:])[0] == 1, "full INT8 still fails"
    second = trt_bisect.Report.load(words[words.index("--output") + 1])
    assert second.recipe.meets
    assert second.accuracy.recipe >= 0.99 * second.accuracy.fp32


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


def lines(report):
    return [line.text for line in report.lines if line.kind == BASE]


def test_a_base_that_misses_the_accuracy_alone_is_told(overflowing):
    loud, small, data = overflowing

    def share_of_close(infer):
        """The share of FP32's values within 1 %; ``infer`` is called with FP32 first."""
        found = np.concatenate([next(iter(infer(each).values())) for each in data])
        wanted.setdefault("fp32", found)
        return float(np.isclose(found, wanted["fp32"], rtol=0.01).mean())

    wanted = {}
    given = {"dataset": data, "accuracy": share_of_close, "drop": 0.1, **BASED}
    missed = trt_bisect.run(loud, data, **given)
    (line,) = lines(missed)
    assert " 0%" in line
    assert missed.accuracy.base == 0.0
    kept = trt_bisect.run(small, data, **given)
    assert lines(kept) == []
    assert kept.accuracy.base >= 0.9
    assert not lines(trt_bisect.run(loud, data, high=["*_mul"], **given)), "the loud layers are in FP32"


@pytest.mark.parametrize(("given", "share"), [("mlperf99", 0.99), ("mlperf99.9", 0.999), ("1%", 0.99), ("0.1%", 0.999)])
def test_the_bounds_of_mlperf_are_shares_of_the_accuracy_of_fp32(given, share):
    options = RunOptions(accuracy=len, drop=given)
    assert options.least_accuracy(0.5) == pytest.approx(share * 0.5, rel=1e-12)
    with pytest.raises(BadInput):
        RunOptions(accuracy=len, drop="mlperf98")


@pytest.mark.parametrize(("fp32", "drop", "least"), [(-2.0, "1%", -2.02), (-2.0, 0.5, -2.5), (40.0, "10%", 36.0)])
def test_a_share_of_any_accuracy_is_taken_towards_worse(fp32, drop, least):
    """So FP32 itself meets the target, also by a negative error."""
    assert RunOptions(accuracy=len, drop=drop).least_accuracy(fp32) == pytest.approx(least, rel=1e-12)
