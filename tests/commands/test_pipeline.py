"""``run_pipeline``: several networks, loops, functions that fail; against the function run in plain ONNX Runtime."""

import json
import re

import numpy as np
import onnx
import pytest

import trt_bisect
from benchmarks.builds.standin import Difference, StandIn
from tests.conftest import SAMPLES
from tests.support.by_hand import cosine
from tests.support.networks import Sketch, chain, planted
from tests.support.quantized import plain_session
from trt_bisect.errors import BadInput, NothingMeasured
from trt_bisect.report.screen.run import latency_lines

QUICK = {"engine": "onnxruntime", "calibrator": "entropy", "effort": "quick", "explain": "none", "as_is": True}


def reader(**how):
    """A network with the planted culprit ``conv2``."""
    return planted(chain(depth=3), ("conv1", "conv2"), **how)


def pictures(count, seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=(1, 3, 16, 16)).astype(np.float32) for _ in range(count)]


def detected(nets, picture):
    """Reads a picture twice, as bright as the detector says."""
    found = nets["detector"]({"x": picture})["y"]
    read = [nets["reader"]({"x": picture * (1.5 + np.tanh(found[0, k]))})["y"] for k in range(2)]
    return {"read": np.concatenate(read), "found": found}


class Plain:
    """The recipe's file of a network in ONNX Runtime, without INT8 kernels."""

    def __init__(self, file):
        self.session = plain_session(file)

    def __call__(self, feeds):
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, feeds), strict=True))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A detector without fault, and a reader with a planted culprit; 5 samples."""
    folder = tmp_path_factory.mktemp("pipeline")
    files = {"detector": folder / "det.onnx", "reader": folder / "rec.onnx"}
    onnx.save(chain(depth=3), files["detector"])
    onnx.save(reader(), files["reader"])
    report = trt_bisect.run_pipeline(detected, networks=files, inputs=pictures(5), output=folder / "run", **QUICK)
    return report, files, folder / "run"


def test_the_planted_layer_and_no_layer_of_the_other_network_is_the_culprit(run):
    report, files, _ = run
    assert report.culprits == ("reader/conv2",)
    detector, reader = report.networks
    assert (detector.name, detector.file, detector.meets, detector.culprits) == (
        "detector",
        str(files["detector"]),
        True,
        (),
    )
    assert (reader.meets, reader.culprits, reader.high) == (False, ("reader/conv2",), 1)
    assert (detector.calls, reader.calls) == (1.0, 2.0)
    assert trt_bisect.load(run[2]).networks == report.networks
    page = (run[2] / "report.html").read_text()
    cards = re.findall(r'<div class="card (\w+)"><h3>(\w+)</h3>', page)
    assert cards == [("good", "detector"), ("bad", "reader")]


def test_figures_are_those_of_the_function_on_the_recipe_s_files(run):
    report, files, folder = run
    nets = {name: Plain(folder / "recipe" / name / "network.qdq.onnx") for name in files}
    floats = {name: Plain(file) for name, file in files.items()}
    worst = 1.0
    for picture in pictures(5):
        fp32, recipe = detected(floats, picture), detected(nets, picture)
        rows = [cosine(a, b) for a, b in zip(fp32["read"], recipe["read"], strict=True)]
        worst = min(worst, cosine(fp32["found"], recipe["found"]), cosine(fp32["read"], recipe["read"]), *rows)
    assert report.similarity.recipe == pytest.approx(worst, abs=1e-4)
    plan = json.loads((folder / "recipe" / "reader" / "plan.json").read_text())
    assert plan["layers"]["conv2"] != "int8"
    assert plan["model"] == str(files["reader"])
    whole = json.loads((folder / "recipe" / "plan.json").read_text())["layers"]
    assert {name for name, precision in whole.items() if precision != "int8"} == {"reader/conv2"}


def test_the_same_call_goes_on_from_its_journal(run):
    report, files, folder = run
    again = trt_bisect.run_pipeline(detected, networks=files, inputs=pictures(5), output=folder, **QUICK)
    assert again.culprits == report.culprits
    assert again.plans == report.plans
    assert again.inferences == report.inferences


def test_a_pipeline_of_one_call_equals_run(tmp_path):
    network = reader()
    samples = pictures(4)
    alone = trt_bisect.run(network, calibration=[{"x": x} for x in samples], output=tmp_path / "run", **QUICK)
    one = trt_bisect.run_pipeline(
        lambda nets, x: nets["net"]({"x": x}),
        networks={"net": network},
        inputs=samples,
        output=tmp_path / "one",
        **QUICK,
    )
    assert one.culprits == tuple(f"net/{name}" for name in alone.culprits) == ("net/conv2",)
    assert (one.similarity, one.by_input) == (alone.similarity, alone.by_input)
    assert one.answer.cost == alone.answer.cost
    scales = json.loads((tmp_path / "run" / "recipe" / "plan.json").read_text())["scales"]
    assert json.loads((tmp_path / "one" / "recipe" / "net" / "plan.json").read_text())["scales"] == scales


def test_the_sample_says_which_network_is_safe():
    with np.load(SAMPLES / "lenet" / "digits.npz") as digits:
        samples = {"data": digits["data"][::8]}
    files = {"first": SAMPLES / "lenet" / "lenet.onnx", "second": SAMPLES / "lenet" / "lenet_planted.onnx"}
    code = SAMPLES / "pipeline" / "cascade.py"
    how = {**QUICK, "calibrator": "minmax"}
    report = trt_bisect.run_pipeline(f"{code}:read", networks=files, inputs=samples, **how)
    assert [row.passes for row in report.networks] == ["yes", "no"]
    assert report.culprits == ("second/ip2",)
    assert report.networks[1].calls < 1.0


def step_network(factor):
    """A state of 24 values that two layers rotate; the second rounds one large channel with all others."""
    sketch = Sketch(5)
    turn = np.linalg.qr(sketch.random.normal(size=(24, 24)))[0]
    h = sketch.node("MatMul", ["h", sketch.constant("a.weight", turn)], "a")
    scales = np.ones(24)
    scales[3] = factor
    h = sketch.node("Mul", [h, sketch.constant("large", scales)], "grow")
    h = sketch.node("MatMul", [h, sketch.constant("b.weight", (np.linalg.qr(turn + 1.0)[0].T / scales).T)], "b")
    sketch.node(
        "Add", [h, sketch.node("Mul", ["x", sketch.constant("some", np.float32(0.1))], "shrink")], "add", out="next"
    )
    return sketch.model({"h": [1, 24], "x": [1, 24]}, {"next": [1, 24]})


def looped(steps):
    def function(nets, sample):
        state = nets["encoder"]({"x": sample})["y"]
        state = np.pad(state, ((0, 0), (0, 14))).astype(np.float32)
        drive = state.copy()
        for _ in range(steps):
            state = nets["step"]({"h": state, "x": drive})["next"]
        return state

    return function


def test_a_loss_that_only_shows_after_eight_steps_is_found():
    networks = {"encoder": chain(depth=2), "step": step_network(24.0)}
    once = trt_bisect.run_pipeline(looped(1), networks=networks, inputs=pictures(6), **QUICK)
    assert once.passed
    eight = trt_bisect.run_pipeline(looped(8), networks=networks, inputs=pictures(6), **QUICK)
    assert not eight.passed
    assert eight.recipe.meets
    assert eight.culprits == ("step/b",)
    assert [row.meets for row in eight.networks] == [True, False]
    assert eight.networks[1].calls == 8.0


@pytest.mark.parametrize("endless", [False, True])
def test_a_function_that_fails_in_int8_is_a_miss_with_the_message(endless):
    wanted = {}

    def function(nets, sample):
        number, picture = sample
        read = nets["reader"]({"x": picture})["y"]
        wanted.setdefault(number, read)
        while cosine(read, wanted[number]) < 0.99:
            if not endless:
                raise ValueError("nothing read")
            read = nets["reader"]({"x": picture})["y"]
        return read

    networks = {"reader": reader()}
    report = trt_bisect.run_pipeline(function, networks=networks, inputs=list(enumerate(pictures(3))), **QUICK)
    assert (report.culprits, report.recipe.meets) == (("reader/conv2",), True)
    assert report.similarity.int8 is None
    (note,) = (note.text for note in report.notes if "function fails" in note.text)
    assert ("more than 100 times" in note) if endless else ("ValueError" in note and "nothing read" in note)


def test_rows_that_are_lost_are_misses():
    """A number of rows that depends on the network: a channel that INT8 drowns decides it."""

    def function(nets, picture):
        scores = np.ravel(nets["reader"]({"x": picture})["y"])
        rest = scores[np.abs(scores) > 0.2]
        return {"rows": np.ones((len(rest), 4), np.float32)}

    networks = {"reader": reader(factor=1e6)}
    report = trt_bisect.run_pipeline(function, networks=networks, inputs=pictures(8), **QUICK)
    assert not report.passed
    assert report.outputs.int8["rows"]["rows_lost"] > 0


@pytest.mark.parametrize("refuses", [(), ("conv0",)])
def test_engines_decide_and_each_network_has_its_own(refuses, tmp_path):
    """The time of a sample is that of all calls: 2 ms an engine of the base, of which the reader is called twice."""
    networks = {"detector": chain(depth=2), "reader": reader()}
    with StandIn(Difference(refuses=refuses, tells=True)).installed():
        how = {**QUICK, "engine": "tensorrt", "output": tmp_path / "run"}
        report = trt_bisect.run_pipeline(detected, networks=networks, inputs=pictures(4), **how)
    assert (report.engine, report.arithmetic, report.recipe.meets) == ("tensorrt", "measured", True)
    assert report.milliseconds("fp32") == pytest.approx(6.0)
    assert {timed.p99_ms for timed in report.latency.values()} == {None}
    assert "p99" not in latency_lines(report)[0]
    assert report.culprits == ("reader/conv2",)
    assert [row.meets for row in report.networks] == [True, False]
    refused = [row.name for row in report.layers if "no INT8 kernel" in row.why_not]
    assert refused == [f"{name}/{layer}" for name in networks for layer in refuses]
    command = (tmp_path / "run" / "recipe" / "README.md").read_text()
    assert "trtexec --onnx=reader/network.qdq.onnx" in command


def test_the_user_s_accuracy_decides():
    """The accuracy is the share of pictures, others than the samples, with FP32's class."""
    network = reader()
    plain, others = Plain(network.SerializeToString()), pictures(12, seed=6)
    classes = [plain({"x": picture})["y"].argmax() for picture in others]

    def accuracy(infer):
        return float(np.mean([infer(picture)["y"].argmax() == k for picture, k in zip(others, classes, strict=True)]))

    how = {**QUICK, "accuracy": accuracy, "drop": 0.0}
    report = trt_bisect.run_pipeline(
        lambda nets, x: nets["net"]({"x": x}), networks={"net": network}, inputs=pictures(4), **how
    )
    assert (report.accuracy.fp32, report.accuracy.recipe) == (1.0, 1.0)
    assert report.accuracy.int8 < 1.0
    assert "net/conv2" in report.recipe.high


def test_other_samples_test_the_recipe(tmp_path):
    """Held-out samples from a folder, named after their files."""
    for name, few in (("given", pictures(4)), ("other", pictures(3, seed=1))):
        (tmp_path / name).mkdir()
        for number, picture in enumerate(few):
            np.save(tmp_path / name / f"{number}.npy", picture)
    network = reader()
    report = trt_bisect.run_pipeline(
        lambda nets, x: nets["net"]({"x": x}),
        networks={"net": network},
        inputs=tmp_path / "given",
        validation=tmp_path / "other",
        **QUICK,
    )
    assert (report.answer.given.inputs, report.answer.held_out.inputs, report.answer.held_out.holds) == (4, 3, 3)
    assert report.answer.held_out.worst_input.startswith(str(tmp_path / "other"))


def test_given_data_and_caches_win_over_what_a_network_is_fed(tmp_path):
    """Data ten times as large as what the detector is fed; a cache of other scales for the reader, without one."""
    networks, samples = {"detector": chain(depth=2), "reader": chain(depth=2)}, pictures(3)
    scales = {"x": 0.5, "relu1_out": 0.25, "flatten_out": 2.0}
    lines = [f"{tensor}: {np.float32(scale).view(np.uint32):08x}" for tensor, scale in scales.items()]
    (tmp_path / "reader.cache").write_text("\n".join(["TRT-8501-EntropyCalibration2", *lines]) + "\n")
    np.savez(tmp_path / "large.npz", x=10 * np.concatenate(samples))
    how = {**QUICK, "calibrator": "minmax", "output": tmp_path / "run"}
    how["calibration"] = {"detector": tmp_path / "large.npz", "reader": str(tmp_path / "reader.cache")}
    report = trt_bisect.run_pipeline(detected, networks=networks, inputs=samples, **how)
    detector, reader = (
        json.loads((tmp_path / "run" / "recipe" / name / "plan.json").read_text())["scales"] for name in networks
    )
    assert detector["x"] == pytest.approx(10 * np.abs(samples).max() / 127, rel=1e-6)
    assert {tensor: reader[tensor] for tensor in scales} == scales
    unscaled = [layer.name for layer in report.layers if "'conv1_out' has no usable range" in layer.why_not]
    assert unscaled == ["reader/pool"]
    assert any("reader: " in note.text and "reader.cache" in note.text for note in report.notes)


def test_the_pass_in_fp32_counts_within_the_time_limit(monkeypatch):
    """Each sample takes a minute of a clock that only the function moves."""
    now, called = [0.0], []

    def function(nets, picture):
        now[0] += 60.0
        called.append(0)
        return nets["net"]({"x": picture})

    for module in ("commands.run.run", "commands.run.pipeline", "support.progress"):
        monkeypatch.setattr(f"trt_bisect.{module}.perf_counter", lambda: now[0])
    how = {**QUICK, "networks": {"net": chain(depth=2)}, "inputs": pictures(4)}
    for limit, calls in (("90s", 2), ("230s", 4)):
        called.clear()
        with pytest.raises(NothingMeasured, match=limit):
            trt_bisect.run_pipeline(function, time_limit=limit, **how)
        assert len(called) == calls, "the second limit ends during the last call of the pass"


def fails(nets, sample):
    del nets
    raise KeyError(f"no {sample}")


@pytest.mark.parametrize(
    ("function", "given", "words"),
    [
        (fails, {"inputs": [7]}, ("sample 0", "KeyError", "no 7")),
        (lambda nets, _: nets["net"]({"y": np.zeros(1)}), {"inputs": [7]}, ("'net'", "lacks 'x'")),
        (lambda *_: object(), {"inputs": [7]}, ("'output'", "object")),
        (fails, {"inputs": []}, ("no samples",)),
        (fails, {"inputs": None}, ("no samples",)),
        (fails, {"inputs": [7], "networks": {}}, ("no networks",)),
        (fails, {"inputs": [7], "calibration": {"other": "x.npz"}}, ("'other'",)),
        (fails, {"inputs": [7], "networks": {"a/b": "x.onnx"}}, ("networks cannot be",)),
        ("nowhere:function", {"inputs": [7]}, ("nowhere:function",)),
    ],
)
def test_bad_input_is_named(function, given, words):
    with pytest.raises(BadInput) as refused:
        trt_bisect.run_pipeline(function, **{"networks": {"net": chain(depth=2)}, **QUICK, **given})
    for word in words:
        assert word in refused.value.problem
    assert "BadInput" not in refused.value.problem, "what is wrong is said, not where our code says it"
