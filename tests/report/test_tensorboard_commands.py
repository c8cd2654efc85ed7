"""The logs of ``compare``, ``profile``, runs with a front and runs in trouble for TensorBoard."""

import errno
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tensorboard.summary.writer.record_writer import RecordWriter

import trt_bisect
from tests.support import networks
from tests.support.compared import assert_memory_stays
from tests.support.editions import edition
from tests.support.event_files import assert_is_histogram_of, read, run_named, text
from tests.support.quantized import plain_tensors
from trt_bisect.builder.base import Latency
from trt_bisect.commands.run import run as api
from trt_bisect.commands.run.build_report import report_of

HOW = {"engine": "onnxruntime", "explain": "none", "effort": "quick"}


@pytest.fixture(scope="module")
def pairs(lenet, tmp_path_factory):
    """LeNet in full INT8, as a run writes it with the scales of minmax."""
    folder = tmp_path_factory.mktemp("pairs")
    data = (lenet / "calibration.npz", lenet / "digits.npz")
    asked = {"calibrator": "minmax", "threshold": 0.9, "samples": 1, "output": folder, **HOW}
    assert not trt_bisect.run(lenet / "lenet.onnx", *data, **asked).recipe.high
    return folder / "recipe/network.qdq.onnx"


def test_compare_writes_both_runs(tmp_path):
    model = networks.residual()
    networks.plant_between(model, "block2.conv1", "block2.conv2")
    path, feeds = networks.save(model, tmp_path), networks.samples(model)
    found = trt_bisect.compare(path, feeds, tensorboard=tmp_path / "logs")
    runs = read(tmp_path / "logs")
    score = next(row.figures.cosine for row in found.tensors if row.origin.tensor == "y")
    assert set(runs) == {"baseline", f"tune_1_cosine_{score:#.6g}"}
    tune = run_named(runs, "tune_1")
    for name in ("cosine", "sqnr"):
        rows = {row.origin.index: np.float32(getattr(row.figures, name)) for row in found.tensors}
        rows.pop(None, None)
        assert {event.step: event.value for event in tune.Scalars(f"tensor {name}")} == rows
    assert "starved range" in text(tune, "advice")
    inner = plain_tensors(model, ["stem_out", "block1.add_out"], [{"x": sample[None]} for sample in feeds["x"]])
    for name, values in inner.items():
        tag = name.replace("_out", "/output/fp32")
        found_values = run_named(runs, "baseline").Histograms(tag)[0].histogram_value
        assert found_values.num == values.size
        assert found_values.sum_squares == pytest.approx(np.sum(values**2), rel=1e-4)


def test_two_saved_runs_without_a_network(tmp_path):
    random = np.random.default_rng(3)
    for name in ("fp32", "int8"):
        np.savez(tmp_path / f"{name}.npz", **{"a": random.normal(size=(1, 4)), "b|c": random.normal(size=(2, 3))})
    saved = {name: tmp_path / f"{name}.npz" for name in ("fp32", "int8")}
    trt_bisect.compare(**saved, tensorboard=tmp_path / "logs")
    runs = read(tmp_path / "logs")
    assert set(runs) == {"baseline", "tune_1"}, "which tensors are final is not known"
    for kind, run in zip(("fp32", "int8"), runs.values(), strict=True):
        assert set(run.Tags()["histograms"]) == {f"a/output/{kind}", f"b|c/output/{kind}"}
        with np.load(saved[kind]) as archive:
            assert_is_histogram_of(run.Histograms(f"a/output/{kind}")[0], archive["a"])


def test_profile_writes_the_layers_that_were_asked_for(lenet, tmp_path):
    """Of each of the first samples too, where that is asked for."""
    how = {"inputs": lenet / "calibration.npz", "prefix": "conv", "tensorboard": tmp_path / "logs"}
    trt_bisect.profile(lenet / "lenet.onnx", **how, tensorboard_detail={"samples": 3})
    runs = read(tmp_path / "logs")
    assert list(runs) == ["baseline"]
    of_layers = {f"conv{k}/{what}/fp32" for k in (1, 2) for what in ("output", "weights", "bias", "input")}
    tags = set(runs["baseline"].Tags()["histograms"])
    samples = {f"{tag}/samples" for tag in of_layers if "weights" not in tag and "bias" not in tag}
    assert tags == {"data/input/fp32", "data/input/fp32/samples"} | of_layers | samples
    with np.load(lenet / "calibration.npz") as archive:
        data = archive["data"]
    assert_is_histogram_of(runs["baseline"].Histograms("data/input/fp32")[0], data)
    events = runs["baseline"].Histograms("data/input/fp32/samples")
    assert [event.step for event in events] == [0, 1, 2]
    for event, sample in zip(events, data, strict=False):
        assert_is_histogram_of(event, sample)


def test_profile_of_a_file_with_pairs_writes_the_rounded_side_of_each(pairs, lenet, tmp_path):
    """The recipe of full INT8, and the histograms that NumPy counts after the file's own scales."""
    network = trt_bisect.load_network(lenet / "lenet.onnx")
    ranges = trt_bisect.calibrate(network, trt_bisect.open_dataset(lenet / "calibration.npz", network.inputs), "minmax")
    with np.load(lenet / "calibration.npz") as archive:
        data = archive["data"][:5]
    trt_bisect.profile(pairs, inputs={"data": data}, tensorboard=tmp_path / "logs")
    runs = read(tmp_path / "logs")
    assert set(runs) == {"baseline", "tune_1"}
    tags = set(runs["tune_1"].Tags()["histograms"])
    assert {f"{name}/{what}/int8" for name in ("conv1", "conv2", "ip1", "ip2") for what in ("weights", "input")} <= tags
    assert {"data/input/int8_rounded", "relu1/output/int8_rounded"} <= tags
    assert not [tag for tag in tags if tag.endswith("/output/int8")]
    scale = ranges.scales["data"]
    rounded = np.clip(np.rint(data / scale), -128, 127).astype(np.float32) * scale
    for tag in ("data/input/int8_rounded", "conv1/input/int8"):
        assert_is_histogram_of(runs["tune_1"].Histograms(tag)[0], rounded)
    assert_is_histogram_of(runs["baseline"].Histograms("conv1/input/fp32")[0], data)


def test_a_run_on_a_data_set_logs_as_many_samples_as_are_asked_for_and_the_layers_named(lenet, tmp_path):
    """The worst input first, then the data set's others; `only` leaves the layers alone that it does not name."""
    with np.load(lenet / "digits.npz") as archive:
        data = archive["data"][:4]
    detail = {"samples": 3, "plans": 0, "only": "op:Gemm"}
    trt_bisect.run(
        lenet / "lenet_planted.onnx", lenet / "calibration.npz", dataset={"data": data}, tensorboard=tmp_path / "logs",
        tensorboard_detail=detail, output=tmp_path / "run", **HOW,
    )  # fmt: skip
    with np.load(tmp_path / "run/inputs.npz") as archive:
        (worst,) = archive["data"]
    others = [sample for sample in data if not np.array_equal(sample[None], worst)]
    assert len(others) == 3
    runs = read(tmp_path / "logs")
    for run, kind in (("baseline", "fp32"), ("tune_1", "int8")):
        events = run_named(runs, run).Histograms(f"data/input/{kind}/samples")
        assert [event.step for event in events] == [0, 1, 2]
        for event, sample in zip(events, [worst, *others], strict=False):
            assert_is_histogram_of(event, sample)
        tags = run_named(runs, run).Tags()["histograms"]
        assert {tag.split("/")[0] for tag in tags} == {"data", "ip1", "ip2"}
        assert {f"ip1/weights/{kind}", f"ip2/output/{kind}/samples"} <= {*tags}


def test_two_networks_have_the_weights_of_both(pairs, lenet, tmp_path, command):
    """Those of the second are rounded to the file's scales, one for each channel."""
    path = lenet / "lenet.onnx"
    line = ["compare", path, pairs, "--input", lenet / "digits.npz", "--tensorboard", tmp_path / "logs"]
    detail = ["--tensorboard-detail", "only=op:Conv", "--tensorboard-detail", "only=ip1,channels=2"]
    assert command(*line, *detail)[0] == 0
    baseline, tune = (run_named(read(tmp_path / "logs"), name) for name in ("baseline", "tune_1"))
    assert {tag.split("/")[0] for tag in tune.Tags()["histograms"]} == {"data", "conv1", "conv2", "ip1"}
    network = trt_bisect.load_network(path)
    for name in ("conv1", "conv2", "ip1"):
        weight = network.constant(f"{name}.weight")
        assert_is_histogram_of(baseline.Histograms(f"{name}/weights/fp32")[0], weight)
        scale = np.abs(weight).max(axis=tuple(range(1, weight.ndim)), keepdims=True) / np.float32(127)
        assert_is_histogram_of(tune.Histograms(f"{name}/weights/int8")[0], np.rint(weight / scale) * scale)
        assert len(tune.Histograms(f"{name}/weights/int8/channels")) == 2
    code, _, err = command(*line, "--tensorboard-detail", "only=op:Convs")
    assert (code, "op:Conv" in err) == (2, True)
    saved = ["--fp32", lenet / "digits.npz", "--int8", lenet / "digits.npz"]
    code, _, err = command("compare", *saved, "--tensorboard", tmp_path / "logs", "--tensorboard-detail", "only=conv1")
    assert (code, "only" in err) == (2, True)


def test_values_that_are_not_finite_are_counted_apart(tmp_path):
    sketch = networks.Sketch(6)
    logs = sketch.node("Log", [sketch.conv("x", "conv", 3, 4)], "log")
    sketch.node("Abs", [logs], "last", out="y")
    model = sketch.model({"x": ["n", 3, 6, 6]}, {"y": ["n", 4, 6, 6]})
    path, feeds = networks.save(model, tmp_path), networks.samples(model, 2)
    trt_bisect.profile(path, inputs=feeds, tensorboard=tmp_path / "logs")
    baseline = run_named(read(tmp_path / "logs"), "baseline")
    values = plain_tensors(model, ["log_out"], [{"x": sample[None]} for sample in feeds["x"]])["log_out"]
    bad = np.count_nonzero(~np.isfinite(values))
    assert 0 < bad < values.size
    assert baseline.Histograms("log/output/fp32")[0].histogram_value.num == values.size - bad
    assert f"log/output/fp32: {bad} values" in text(baseline, "not_finite")


def test_a_second_writing_replaces_the_first_and_leaves_other_files(lenet, tmp_path):
    logs = tmp_path / "logs"
    others = logs / "tune_7_acc_0.5"
    others.mkdir(parents=True)
    (others / "events.out.tfevents.1.somebody").write_bytes(b"")
    (logs / "curve.txt").write_text("mine")
    given = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    trt_bisect.run(*given, calibrator="minmax", tensorboard=logs, **HOW)
    first = set(read(logs))
    assert {"curve", others.name} < first
    trt_bisect.profile(given[0], tensorboard=logs)
    assert set(read(logs)) == {"baseline", others.name}
    assert len(list((logs / "baseline").iterdir())) == 1
    assert (logs / "curve.txt").read_text() == "mine"


def test_a_failed_layer_leaves_a_gap_an_engine_and_latencies_are_told_and_a_similarity_is_never_called_an_accuracy(
    lenet, tmp_path, monkeypatch
):
    times = {plan: Latency(ms, ms, ms, 9) for plan, ms in (("fp32", 4.0), ("int8", 2.0), ("recipe", 2.5))}

    def on_an_engine(*given, **named):
        report = report_of(*given, **named)
        rows = (replace(row, similarity=None, loss=np.inf) if row.index == 3 else row for row in report.layers)
        return report.changed(layers=tuple(rows), arithmetic="measured", engine="tensorrt", latency=times)

    monkeypatch.setattr(api.reporting, "report_of", on_an_engine)
    given = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    report = trt_bisect.run(*given, metric="sqnr", tensorboard=tmp_path, **HOW)
    runs = read(tmp_path)
    assert {"baseline", "curve", "plans", f"tune_1_sqnr_{report.similarity.int8:#.6g}"} <= runs.keys()
    assert not [name for name in runs if "_acc_" in name]
    curve = runs["curve"]
    assert set(curve.Tags()["scalars"]) == {"similarity", "loss", "loss of the layer"}
    for tag in curve.Tags()["scalars"]:
        assert [event.step for event in curve.Scalars(tag)] == [0, 1, 2, 4, 5, 6, 7, 8]
    assert "measured on tensorrt; " in text(curve, "notes")
    found = {}
    for name, run in runs.items():
        for event in run.Scalars("latency in ms") if "latency in ms" in run.Tags()["scalars"] else ():
            found[name.split("_")[0], int(run.Scalars("layers in low precision")[0].value)] = event.value
    quantizable, high = sum(row.quantizable for row in report.layers), len(report.recipe.high)
    assert found == {("baseline", 0): 4.0, ("tune", quantizable): 2.0, ("tune", quantizable - high): 2.5}


@pytest.mark.slow
@pytest.mark.parametrize("command", edition([trt_bisect.compare], [trt_bisect.compare, trt_bisect.profile]))
def test_memory_does_not_grow_with_the_samples(command, tmp_path, monkeypatch):
    model = networks.chain(depth=2, width=4, size=64)
    network = trt_bisect.load_network(networks.save(model, tmp_path))
    ranges = trt_bisect.calibrate(network, trt_bisect.open_dataset(networks.samples(model), network.inputs))

    def job(count):
        def samples():
            for seed in range(count):
                yield {"x": networks.normal(seed, 1, 3, 64, 64)}

        logs = {"tensorboard": tmp_path / f"{count}", "tensorboard_detail": {"channels": 1, "samples": 2}}
        command(network, ranges, samples, **logs)

    assert_memory_stays(monkeypatch, job, 1_500_000)  # of eight samples 2.5 MB, of both runs of compare twice as much
    for count in (2, 10):
        run = run_named(read(tmp_path / f"{count}"), "baseline")
        assert run.Histograms("conv0/output/fp32")[0].histogram_value.num == count * 4 * 64 * 64


def test_neither_tensorflow_nor_pytorch_is_loaded(lenet, tmp_path):
    code = f"""
import sys
sys.modules["tensorflow"] = sys.modules["torch"] = None
import trt_bisect
assert "tensorboard" not in sys.modules
trt_bisect.profile({str(lenet / "lenet.onnx")!r}, tensorboard={str(tmp_path / "logs")!r})
assert "tensorboard" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list(read(tmp_path / "logs"))


def test_without_the_package_nothing_is_begun(command, lenet, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in ("run", "compare", "profile"):
        data = ["--calibration", lenet / "none.npz"]
        code, _, err = command(name, lenet / "lenet.onnx", *data, "--tensorboard", tmp_path / "logs")
        assert code == 2
        assert "pip install 'tensorboard>=2.18'" in err, "and not that the data is missing"
        assert len(err[err.index("trt-bisect:") :].strip().splitlines()) == 2
    assert not (tmp_path / "logs").exists()


def test_a_full_disk_is_said_in_two_lines(command, lenet, tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(28, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RecordWriter, "write", full)
    code, _, err = command(
        "run", lenet / "lenet.onnx", "--calibration", lenet / "calibration.npz", "-o", tmp_path / "run",
        "--tensorboard", tmp_path / "logs", "--explain", "none", "--effort", "quick",
    )  # fmt: skip
    assert code == 2
    assert os.strerror(errno.ENOSPC) in err
    assert "Traceback" not in err
    assert (tmp_path / "run/report.json").is_file(), "what was measured is kept"


@pytest.fixture(scope="module", params=["labelled", "fronted"])
def with_a_front(request, recorded):
    """The report of a run with a front, the name of its figure, and its log folder."""
    folder = recorded(request.param)
    report = trt_bisect.Report.load(folder / "runs" / request.param)
    return report, "accuracy" if report.accuracy else "similarity", folder / "logs"


def test_each_plan_of_the_front_is_a_run_of_its_own(with_a_front):
    """Its figure is that which decides, and in the run's name: the labels' accuracy, or the metric."""
    report, figure, logs = with_a_front
    runs = read(logs)
    quantizable = sum(row.quantizable for row in report.layers)
    tunes = {name: run for name, run in runs.items() if name.startswith("tune_")}
    shown = {name: run for name, run in tunes.items() if "of the front" in text(run, "plan")}
    assert len(shown) == len(report.front) >= 3
    low = {int(run.Scalars("layers in low precision")[0].value): (name, run) for name, run in shown.items()}
    for point in report.front:
        name, run = low[quantizable - len(point.high)]
        assert run.Scalars(figure)[0].value == np.float32(point.figure)
        assert name.endswith(f"_{'acc' if figure == 'accuracy' else 'cosine'}_{point.figure:#.6g}")
        named = text(run, "plan")
        assert all(each in named for each in point.names)
        assert ("Not in INT8" in named) == bool(point.high)
    assert ("accuracy" in runs["plans"].Tags()["scalars"]) == (figure == "accuracy")
