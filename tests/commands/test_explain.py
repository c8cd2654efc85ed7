"""``run``'s explanation: figures equal NumPy's, the contract, one journal, nothing lost when it fails."""

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.compared import assert_memory_stays
from tests.support.editions import edition
from tests.support.progress_doubles import Said
from tests.support.records import record_of, texts
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.commands.run import explain as explaining
from trt_bisect.options.concerns import MeasuringOptions
from trt_bisect.precision import Precision
from trt_bisect.report.explanation import Explanation
from trt_bisect.report.model import Report
from trt_bisect.support.codec import read, shortened
from trt_bisect.support.progress import Silent
from trt_bisect.support.text import EXPLANATION


def run(model, folder, count=3, **options):
    """A run on planted data, all of it judged, by min-max unless told otherwise."""
    folder.mkdir(exist_ok=True)
    feeds = networks.samples(model, count)
    options = {"engine": "onnxruntime", "calibrator": "minmax", "precision": "fp32", "effort": "quick", **options}
    return trt_bisect.run(networks.save(model, folder), feeds, feeds, output=folder / "run", **options), feeds


def planted():
    return networks.planted(networks.residual(blocks=1), ("block0.conv1", "block0.conv2"))


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    """The report and the inputs of a run on ``planted()``, and its folder, which is not to be changed."""
    folder = tmp_path_factory.mktemp("explained")
    report, feeds = run(planted(), folder)
    return SimpleNamespace(report=report, feeds=feeds, folder=folder)


@pytest.fixture
def copied(explained, tmp_path):
    """A folder with a copy of that run, to be changed."""
    shutil.copytree(explained.folder, tmp_path, dirs_exist_ok=True)
    return tmp_path


def seven(value):
    return float(f"{value:.7g}")


def test_figures_are_those_of_compare(explained):
    """``compare`` has them from NumPy, with the same engine and ranges; here they stand by layer."""
    network = trt_bisect.load_network(explained.folder / "network.onnx")
    feeds = trt_bisect.open_dataset(explained.feeds, network.inputs)
    ranges = trt_bisect.calibrate(network, feeds, "minmax")
    found = trt_bisect.compare(explained.folder / "network.onnx", ranges, explained.feeds)
    layers = explained.report.explanation.layers
    tensors = [tensor for layer in layers.values() for tensor in (*layer.outputs, *layer.weights)]
    wanted = {row.origin.tensor: row for row in (*found.tensors, *found.weights) if row.origin.kind != "input"}
    assert {tensor.tensor for tensor in tensors} == set(wanted)
    for tensor in tensors:
        row = wanted[tensor.tensor]
        for figure, value in vars(row.figures).items():
            expected = pytest.approx(value, rel=1e-5, abs=1e-12) if math.isfinite(value) else None
            assert getattr(tensor, figure) == expected, (tensor.tensor, figure)
        assert (tensor.fp32.max, tensor.int8.min) == pytest.approx((row.fp32.max, row.int8.min))
        assert tensor.scale == (None if row.scale is None else pytest.approx(float(row.scale)))
    assert layers["block0.conv2"].outputs[0].cosine < 0.999
    channels = layers["block0.conv2"].weights[0].channels
    weight = network.constant("block0.conv2.weight")
    others = tuple(place for place in range(4) if place != channels.axis)
    assert channels.max == pytest.approx(weight.max(axis=others), rel=1e-5)


def test_explain_full_prints_activations_and_weights_by_mse_in_100_columns(copied, command, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(copied)
    np.savez("data.npz", **networks.samples(planted(), 3))
    given = "run network.onnx --calibration data.npz --calibrator minmax --engine onnxruntime --output full --explain"
    code, out, _ = command(*given.split(), "full")
    assert (code, "Weights by MSE" in command(*given.split(), "tensors")[1]) == (1, False)
    lines = out.splitlines()
    first, second = (next(k for k, line in enumerate(lines) if line.startswith(t)) for t in ("Activations", "Weights"))
    assert max(map(len, lines[first:])) <= 100
    assert lines[first + 1].split() == ["Layer", "MSE", *"FP32 min FP32 max INT8 min INT8 max".split()]
    activations = [line.split() for line in lines[first + 2 : second - 1]]
    errors = [float(cells[1]) for cells in activations]
    assert errors == sorted(errors, reverse=True)
    assert {cells[0] for cells in activations} >= {"x", "block0.conv2", "block0.add"}
    place = next(k for k, line in enumerate(lines) if line.startswith("block0.conv2.weight"))
    (_, _, side, *fp32), (other, *_) = (line.split() for line in lines[place : place + 2])
    assert (side, other) == ("FP32", "INT8")
    values = trt_bisect.load_network("network.onnx").constant("block0.conv2.weight").astype(np.float64)
    expected = [values.min(), values.max(), values.mean(), values.std(), values.var()]
    assert [float(cell) for cell in fp32] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def floats_of(value):
    if isinstance(value, dict):
        return [number for inner in value.values() for number in floats_of(inner)]
    if isinstance(value, list):
        return [number for inner in value for number in floats_of(inner)]
    return [value] if isinstance(value, float) else []


def test_the_contract(explained):
    """Its keys are those of the schema, which test_schemas holds closed against it."""
    report, folder = explained.report, explained.folder / "run"
    explanation = json.loads((folder / "explanation.json").read_text())
    layers, row = explanation["layers"], {row.name: row for row in report.layers}
    assert set(layers) == set(row)
    assert sum(layer["share"] for layer in layers.values()) == pytest.approx(1.0, rel=1e-5)
    tensors = [t for layer in layers.values() for t in (*layer["outputs"], *layer["weights"])] + explanation["inputs"]
    assert {tensor["kind"] for tensor in tensors} == {"input", "activation", "weight"}
    assert all(len(tensor["histogram"]["fp32"]) == len(tensor["histogram"]["int8"]) <= 64 for tensor in tensors)
    assert all(math.isfinite(number) for number in floats_of(explanation))
    assert all(number == seven(number) for number in floats_of(explanation))
    assert record_of(read(Explanation, folder / "explanation.json")) == explanation
    assert explanation == record_of(shortened(report.explanation, 7))
    assert [advice["culprit"] for advice in explanation["advice"]] == ["block0.conv2"]
    assert report.advice == report.explanation.advice
    assert "explanation" not in json.loads((folder / "report.json").read_text())


def test_losses_alone_are_those_of_sensitivity(explained, copied):
    report, feeds = explained.report, explained.feeds
    found = trt_bisect.sensitivity(copied / "network.onnx", feeds, feeds, engine="onnxruntime", calibrator="minmax")
    known = {(op.op_name, op.sensitive_type): op.loss for op in found.ops}
    layers = report.explanation.layers
    alone = layers["block0.conv2"].sensitivity
    for way in ("both", "weight", "activation"):
        assert getattr(alone, way) == pytest.approx(known["block0.conv2", way], rel=1e-4)  # rows of other passes
    assert alone.alone is None
    assert [name for name, layer in layers.items() if layer.sensitivity] == ["block0.conv2"]
    full, _ = run(planted(), copied, explain="full")
    gains = {op.op_name: op.alone for op in found.ops if op.sensitive_type == "both"}
    measured = {n: layer.sensitivity for n, layer in full.explanation.layers.items() if layer.sensitivity}
    assert set(measured) == set(gains)
    for name, alone in measured.items():
        assert alone.alone == pytest.approx(gains[name], rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("strategy", edition(["bisect"], ["exhaustive", "bisect"]))
def test_whole_engines_explain_alike(strategy, explained, tmp_path):
    report, _ = run(planted(), tmp_path, strategy=strategy)
    (one,), (other,) = report.advice, explained.report.advice
    assert (one.culprit, one.reasons, one.blame) == (other.culprit, other.reasons, other.blame)


def test_a_report_saved_where_it_was_read_keeps_its_explanation(copied):
    folder = copied / "run"
    explanation = (folder / "explanation.json").read_bytes()
    read = Report.load(folder)
    read.save(folder)
    assert (folder / "explanation.json").read_bytes() == explanation
    replace(read, threshold=0.5).save(folder)
    assert not (folder / "explanation.json").exists()


def test_a_report_counts_the_plans_of_every_calibrator(tmp_path):
    """Those measured before another calibrator was chosen, those of the curve, and those of the explanation."""
    explained, _ = run(planted(), tmp_path, calibrator="auto", explain="tensors")
    assert len(explained.answer.calibrators) > 1
    records = [json.loads(line) for line in (tmp_path / "run/journal.jsonl").read_text().splitlines()]
    trials = [record["trial"] for record in records if "trial" in record]
    own = {(record["run"], record["trial"]["plan"]) for record in records if "trial" in record}
    assert explained.plans == len(own)
    assert explained.builds == sum(trial.get("builds", 0) for trial in trials)


def test_trials_are_in_the_runs_journal_and_are_not_done_twice(explained, copied):
    again, _ = run(planted(), copied)
    for name in ("journal.jsonl", "explanation.json"):
        written = (copied / "run" / name).read_text().replace(str(copied), str(explained.folder))
        assert written == (explained.folder / "run" / name).read_text()
    assert again.plans == explained.report.plans
    without, _ = run(planted(), copied / "none", explain="none")
    assert without.plans == again.plans - 3, "the culprit by weight, activation and both"
    assert without.explanation is None
    assert without.advice == ()
    run(planted(), copied, explain="none")
    for folder in (copied / "none", copied):
        assert not (folder / "run/explanation.json").exists(), "that of another run is taken away"


def test_a_network_that_is_fine_is_explained_without_advice(lenet):
    how = {"engine": "onnxruntime", "explain": "remedies", "calibrator": "minmax"}
    report = trt_bisect.run(lenet / "lenet.onnx", lenet / "calibration.npz", **how)
    assert report.exit_code == 0
    assert report.advice == ()
    assert report.explanation.tried == ()
    assert len(report.explanation.layers) == len(report.layers)


def test_what_goes_wrong_in_explaining_is_a_note(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no luck\nand more")

    monkeypatch.setattr(explaining, "advise", broken)
    report, _ = run(planted(), tmp_path)
    assert report.culprits == ("block0.conv2",)
    assert report.notes[-1].kind == EXPLANATION
    assert report.notes[-1].text.endswith("RuntimeError: no luck")
    assert json.loads((tmp_path / "run/report.json").read_text())["notes"][-1]["text"] == texts(report.notes)[-1]


def test_ctrl_c_in_explaining_leaves_the_verdict_and_the_report_and_goes_on(tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    said = Said()
    with monkeypatch.context() as patched:
        patched.setattr(explaining, "advise", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(planted(), tmp_path, progress=said)
    assert "'block0.conv2'" in said.lines[-1]
    assert json.loads((tmp_path / "run/report.json").read_text())["culprits"] == ["block0.conv2"]
    assert run(planted(), tmp_path)[0].advice[0].culprit == "block0.conv2"


def test_memory_does_not_grow_with_the_inputs(tmp_path, monkeypatch):
    model = networks.chain(depth=2, width=4, size=64)
    network = trt_bisect.load_network(networks.save(model, tmp_path))
    feed = {"x": networks.samples(model, 1)["x"]}
    scales = trt_bisect.calibrate(network, trt_bisect.open_dataset(feed, network.inputs), "minmax").scales

    def job(count):
        feeds = [feed] * count
        ranges, whole = SimpleNamespace(scales=scales), SimpleNamespace(high=Precision.FP32)
        bench = SimpleNamespace(network=network, feeds=feeds, ranges=ranges, whole=whole)
        tensors, _ = explaining._compared(bench, Silent(), 512 << 20)
        assert tensors[0][0].fp32.count == count * 3 * 64 * 64

    assert_memory_stays(monkeypatch, job, 2_000_000, times=3)  # the tensors of eight samples are 3.6 MB


def test_little_memory_gives_the_same_in_parts(explained, tmp_path, monkeypatch):
    """But for float noise: ONNX Runtime fuses what is no output."""
    whole = explained.report
    monkeypatch.setattr(MeasuringOptions, "memory_bytes", 40_000)
    parts, _ = run(planted(), tmp_path)
    both = [report.explanation.layers for report in (parts, whole)]
    assert list(both[0]) == list(both[1])
    for one, other in zip(*(layers.values() for layers in both), strict=True):
        for tensor, same in zip(one.outputs, other.outputs, strict=True):
            assert tensor.tensor == same.tensor
            assert tensor.sqnr == pytest.approx(same.sqnr, abs=0.1)
            assert sum(tensor.histogram.fp32) == sum(same.histogram.fp32)
    assert parts.advice[0].reasons == whole.advice[0].reasons


def test_of_an_nvidia_engine_the_tensors_are_the_emulations(tmp_path, monkeypatch):
    monkeypatch.setattr(OnnxRuntimeBuilder, "arithmetic", "measured")
    report, _ = run(planted(), tmp_path, explain="remedies")
    assert any("emulation" in note.text for note in report.notes if note.kind == EXPLANATION)
    (advice,) = report.advice
    assert advice.blame is None, "an engine rounds a layer as a whole"
    assert advice.reasons[0] == "starved range"
    assert "Alone" not in advice.evidence
    assert report.explanation.layers["block0.conv2"].sensitivity is None
    alone = [each for each in report.explanation.tried if each.culprits and not each.own]
    assert alone
    assert all(each.calibrator for each in alone), "of a single layer, only the scales can be changed"
