"""Advice: planted causes named with their reasons and first remedies, remedies tried, commands that the tools parse."""

from __future__ import annotations

import argparse
import io
import json
import shlex

import numpy as np
import onnxruntime as ort
import pytest
from polygraphy.tools.convert import Convert
from rich.console import Console
from typer.main import get_command

import trt_bisect
from tests.support import networks
from tests.support.flawed_pairs import pairs
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.cache import read_cache
from trt_bisect.calibration.calibrator import Calibrator
from trt_bisect.calibration.collect import calibrate
from trt_bisect.cli.app import app
from trt_bisect.precision import Precision, int8_set
from trt_bisect.report.screen.advice import print_advice
from trt_bisect.results.advice import BIAS_CORRECTION, EQUALISATION
from trt_bisect.results.remedy_commands import (
    Setting,
    calibrating,
    keeping_high,
    requantizing,
    running_moved,
    with_cache,
    with_moved,
)


def run(model, folder, **options):
    options = {"engine": "onnxruntime", "calibrator": "minmax", "output": folder / "run", **options}
    feeds = networks.samples(model)
    return trt_bisect.run(networks.save(model, folder), options.pop("calibration", feeds), feeds, **options)


def advice_on(report, culprit):
    return next(each for each in report.advice if each.culprit == culprit)


def named(advice):
    return [remedy.remedy for remedy in advice.remedies]


def offered(advice):
    """The remedies that were not measured to miss the threshold; those that were come last."""
    found = [remedy.remedy for remedy in advice.remedies if remedy.tried is None or remedy.tried.meets]
    assert named(advice)[: len(found)] == found
    return found


def starved():
    model = networks.chain()
    networks.plant_between(model, "conv2", "conv3")
    return model


def dead_channel_with_loud_weights():
    """What conv3 reads as channel 2 is always zero, and its weights for it are 300 times the others."""

    def silent(values):
        values[2] = 0
        return values

    def negative(values):
        values[2] = -1
        return values

    def louder(values):
        values[:, 2] *= 300
        return values

    model = networks.chain()
    networks.scale_constant(model, "conv2.weight", silent)
    networks.scale_constant(model, "conv2.bias", negative)
    networks.scale_constant(model, "conv3.weight", louder)
    return model


def shared_weight():
    """The same, and conv5 reads conv3's weight, too."""
    model = dead_channel_with_loud_weights()
    (node,) = [node for node in model.graph.node if node.name == "conv5"]
    node.input[1] = "conv3.weight"
    constants = [tensor for tensor in model.graph.initializer if tensor.name != "conv5.weight"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    return model


PLANTED = {
    "starved activation": (starved, {}, "conv3", "activation", "starved range", "cross-layer equalisation"),
    "one weight channel": (
        dead_channel_with_loud_weights, {}, "conv3", "weight", "one channel", "cross-layer equalisation"
    ),
    "shared weight": (shared_weight, {}, "conv3", "weight", "one channel", "a weight of its own"),
    "clipped calibration": (
        networks.chain, {"calibrator": "percentile", "percentile": 90.0, "metric": "sqnr"}, None, "activation",
        "saturation", "another calibrator",
    ),
    "asymmetric pair": (
        lambda: pairs(zero=-100, input_scale=0.4), {"calibration": None}, "conv", "activation",
        "asymmetric", "quantize again",
    ),
    "weight rounded per tensor": (
        lambda: pairs(loud=300.0), {"calibration": None}, "conv", "weight", "one channel", "per-channel weights"
    ),
    "result rounded": (
        lambda: pairs(result_scale=1.0), {"calibration": None}, "conv", "activation", "output quantized",
        "leave the result unrounded",
    ),
}  # fmt: skip


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named_with_its_reason_and_first_remedy(cause, tmp_path):
    make, options, culprit, blame, reason, remedy = PLANTED[cause]
    report = run(make(), tmp_path, **options)
    assert report.exit_code == 1
    if culprit is not None:
        assert report.culprits[0] == culprit
    for advice in report.advice if culprit is None else [advice_on(report, culprit)]:
        assert advice.blame == blame
        assert advice.reasons[0] == reason
        assert offered(advice)[0] == remedy
        assert offered(advice)[-3:] == ["FP16", "FP32", "QAT"]
        assert f"the {blame} is to blame" in advice.evidence
    assert report.advice


def test_the_evidence_has_the_figures(tmp_path):
    report = run(starved(), tmp_path)
    (advice,) = report.advice
    alone = report.explanation.layers["conv3"].sensitivity
    assert f"its weight {alone.weight:.3g}, its activation {alone.activation:.3g}" in advice.evidence
    drop = next(row.drop for row in report.layers if row.name == "conv3")
    assert advice.evidence.startswith(f"'conv3' (Conv) loses {drop:.3g}; the threshold allows 0.01.")
    assert advice.evidence.count("it is made by 'relu3' and read in INT8 by 'conv3'") == 1
    assert "channel 1 reaches" in advice.evidence
    assert named(advice) == ["cross-layer equalisation", "FP16", "FP32", "QAT", "another calibrator"]
    assert not advice.remedies[-1].tried.meets


def test_a_shared_weight_is_among_the_reasons(tmp_path):
    advice = advice_on(run(shared_weight(), tmp_path), "conv3")
    assert "shared weight" in advice.reasons
    assert "2 layers read weight 'conv3.weight'" in advice.evidence.lower()


def test_what_even_min_max_clips_wants_other_calibration_data(tmp_path):
    model = networks.chain()
    feeds = networks.samples(model)
    small = {"x": feeds["x"] / 8}
    report = trt_bisect.run(
        networks.save(model, tmp_path), small, feeds, engine="onnxruntime", calibrator="minmax", metric="sqnr"
    )
    assert report.advice
    for advice in report.advice:
        assert advice.reasons[0] == "saturation"
        assert named(advice)[0] == "other calibration data"


def test_more_than_fp16_holds_is_no_case_for_fp16(tmp_path):
    model = networks.chain()
    networks.plant_between(model, "conv2", "conv3", factor=1e6)
    advice = advice_on(run(model, tmp_path), "conv3")
    assert "FP16" not in named(advice)
    assert "more than FP16 can hold" in next(remedy.why for remedy in advice.remedies if remedy.remedy == "FP32")


CLIPPED = {"calibrator": "percentile", "percentile": 90.0, "threshold": 0.999, "try_remedies": True}


@pytest.fixture(scope="module")
def clipped(tmp_path_factory):
    """A run with ranges that clip a tenth of all values, its remedies tried, and its folder."""
    folder = tmp_path_factory.mktemp("clipped")
    return run(networks.chain(), folder, **CLIPPED), folder


def test_min_max_after_clipping_is_tried_and_meets(clipped):
    report, folder = clipped
    whole = {each.what: each for each in report.explanation.tried if each.calibrator and not each.culprits}
    assert set(whole) == {
        f"{name} for the whole network"
        for name in ("minmax", "entropy", "percentile 99.9", "percentile 99.99", "percentile 99.999", "mse")
    }
    assert whole["minmax for the whole network"].meets
    for advice in report.advice:
        assert advice.remedies[0].tried.meets
        assert advice.remedies[0].tried.culprits == ()
    record = json.loads((folder / "run/explanation.json").read_text())
    assert record["advice"][0]["remedies"][0]["tried"]["meets"] is True
    assert len(record["tried"]) == len(report.explanation.tried)


def test_what_was_tried_is_what_a_run_with_it_measures(clipped, tmp_path):
    report, _ = clipped
    tried = {each.what: each.similarity for each in report.explanation.tried}
    for calibrator, percentile, name in (("minmax", 99.0, "minmax"), ("percentile", 99.9, "percentile 99.9")):
        other = run(networks.chain(), tmp_path, calibrator=calibrator, percentile=percentile)
        assert tried[f"{name} for the whole network"] == pytest.approx(other.similarity["int8"], abs=1e-9)
    culprit = report.culprits[0]
    network = trt_bisect.load_network(tmp_path / "network.onnx")
    feeds = trt_bisect.open_dataset(networks.samples(networks.chain()), network.inputs)
    ranges, minmax = calibrate(network, feeds, "percentile", 90.0), calibrate(network, feeds, "minmax")
    (tensor,) = [rounded.tensor for rounded in next(r for r in report.layers if r.name == culprit).rounds
                 if rounded.kind == "activation"]  # fmt: skip
    mixed = trt_bisect.calibration.ranges.Ranges({**ranges.scales, tensor: minmax.scales[tensor]})
    by_hand = run(networks.chain(), tmp_path, calibration=mixed, output=None)
    assert tried[f"minmax for what '{culprit}' reads"] == pytest.approx(by_hand.similarity["int8"], abs=1e-9)


def test_fp16_is_measured_in_the_recipe_on_all_inputs(tmp_path):
    report = run(starved(), tmp_path, try_remedies=True)
    (tried,) = [each for each in report.explanation.tried if each.remedy == "FP16"]
    assert tried.culprits == report.culprits
    assert tried.high == len(report.culprits)
    network = trt_bisect.load_network(tmp_path / "network.onnx")
    samples = list(trt_bisect.open_dataset(networks.samples(starved()), network.inputs))
    scales = calibrate(network, samples, "minmax").scales
    places = [network.layer_named(name).index for name in report.culprits]
    plan = int8_set(len(network.layers), network.quantizable).keeping(places, Precision.FP16)
    with OnnxRuntimeBuilder(network, scales, BuildOptions()).build(plan) as engine:
        outputs = [engine.infer(sample)["y"].ravel().astype(float) for sample in samples]
    session = ort.InferenceSession(str(tmp_path / "network.onnx"), providers=["CPUExecutionProvider"])
    fp32 = [session.run(None, sample)[0].ravel().astype(float) for sample in samples]
    worst = min(x @ y / np.sqrt((x @ x) * (y @ y)) for x, y in zip(outputs, fp32, strict=True))
    assert tried.similarity == pytest.approx(worst, abs=1e-6)


def test_tries_are_journaled_under_keys_of_their_own_and_not_done_twice(clipped):
    report, folder = clipped
    before = (folder / "run/journal.jsonl").read_bytes()
    again = run(networks.chain(), folder, **CLIPPED)
    assert (folder / "run/journal.jsonl").read_bytes() == before
    assert again.explanation.tried == report.explanation.tried
    runs = {json.loads(line)["run"] for line in before.splitlines()}
    assert sum(each.remedy in (EQUALISATION, BIAS_CORRECTION) for each in report.explanation.tried) == 3
    assert len(runs) >= 4, "each moved network has a fingerprint of its own"


def test_without_data_only_high_precision_is_tried(tmp_path):
    network = trt_bisect.load_network(networks.save(networks.chain(), tmp_path))
    feeds = trt_bisect.open_dataset(networks.samples(networks.chain()), network.inputs)
    scales = dict(calibrate(network, feeds, "minmax").scales)
    scales["relu4_out"] = np.float32(scales["relu4_out"] / 8)
    (tmp_path / "clipping.cache").write_text(trt_bisect.format_cache(scales))
    report = run(networks.chain(), tmp_path, calibration=tmp_path / "clipping.cache", metric="sqnr", try_remedies=True)
    assert report.culprits == ("conv4",)
    assert any("bias correction were not tried: the ranges (cache clipping.cache)" in note for note in report.notes)
    assert {each.remedy for each in report.explanation.tried} == {"FP16"}
    assert report.advice[0].reasons[0] == "saturation"


def test_ranges_of_the_culprits_own_tensors_are_measured_in_the_recipe_on_all_inputs(clipped):
    """By hand: min-max for what the culprits read, all layers in INT8 but none of them high, on every input."""
    report, folder = clipped
    own = [each for each in report.explanation.tried if each.culprits and each.calibrator]
    assert {each.calibrator.method for each in own} == {"minmax", "entropy", "percentile", "mse"}
    network = trt_bisect.load_network(folder / "network.onnx")
    samples = list(trt_bisect.open_dataset(networks.samples(networks.chain()), network.inputs))
    ranges, minmax = calibrate(network, samples, "percentile", 90.0), calibrate(network, samples, "minmax")
    with OnnxRuntimeBuilder(network, {}, BuildOptions()).reference() as engine:
        fp32 = [engine.infer(sample)["y"].ravel().astype(float) for sample in samples]
    for each in (each for each in own if each.calibrator.method == "minmax"):
        layers = [network.layer_named(name) for name in each.culprits]
        tensors = [r.tensor for layer in layers for r in layer.roundings if not r.is_weight]
        scales = {**ranges.scales, **{name: minmax.scales[name] for name in tensors}}
        rest = [network.layer_named(name).index for name in report.recipe["high"] if name not in each.culprits]
        plan = int8_set(len(network.layers), network.quantizable).keeping(rest)
        with OnnxRuntimeBuilder(network, scales, BuildOptions()).build(plan) as engine:
            outputs = [engine.infer(sample)["y"].ravel().astype(float) for sample in samples]
        worst = min(x @ y / np.sqrt((x @ x) * (y @ y)) for x, y in zip(outputs, fp32, strict=True))
        assert each.similarity == pytest.approx(worst, abs=1e-5)
        assert each.high == len(rest)
        assert bool(each.cache) == each.meets
        if each.cache:
            assert read_cache(folder / "run" / each.cache, ()).scales == each.ranges.scales


def test_culprits_are_grouped_by_cause_with_the_figures(clipped):
    report, folder = clipped
    causes = report.explanation.causes
    assert sorted(name for cause in causes for name in cause.culprits) == sorted(report.culprits)
    for cause in causes:
        meets = [each.meets for each in cause.measured]
        assert meets == sorted(meets, reverse=True), "those that meet come first"
        assert not {each.remedy for each in cause.measured} & {each.remedy for each in cause.remedies}
    (clips,) = [cause for cause in causes if cause.cause == "saturation"]
    shares = [
        compared.rounding.clipped
        for layer in report.explanation.layers.values()
        for compared in (each.compared for each in layer.outputs)
        if compared.rounding and set(compared.origin.readers) & set(clips.culprits)
    ]
    assert clips.words.startswith("percentile 90 clips ")
    assert f"{100 * max(shares):.2g} % of the activation" in clips.words
    record = json.loads((folder / "run/explanation.json").read_text())
    assert [cause["culprits"] for cause in record["causes"]] == [list(cause.culprits) for cause in causes]


def test_a_networks_own_pairs_cannot_be_calibrated(tmp_path):
    report = run(pairs(loud=300.0), tmp_path, calibration=None, try_remedies=True)
    note = "calibrators, equalisation and bias correction were not tried: the scales are those of the network's own"
    assert f"{note} Q/DQ pairs" in report.notes
    assert {each.remedy for each in report.explanation.tried} == {"FP16"}


SETTINGS = [
    Setting("a network.onnx", "data.npz", True, "entropy", False, Precision.FP32, "run"),
    Setting("n.onnx", "x.cache", False, "cache x.cache", False, Precision.FP16, ""),
    Setting("n.onnx", "", False, "the network's own Q/DQ", True, Precision.FP32, "run"),
]
NAMES = ["ip2", "/layer 1/conv.0", "a:b", "it's; $(rm) [bold]"]


def commands():
    for setting in SETTINGS:
        for calibrator in (Calibrator("minmax"), Calibrator("entropy"), Calibrator("percentile", 99.9)):
            yield from calibrating(setting, calibrator)
        yield from with_cache(setting, "remedies/3-minmax.cache")
        yield from requantizing(setting)
        if not setting.has_pairs:
            yield running_moved(setting, "remedies/equalised.onnx")
            yield from with_moved(setting, "remedies/equalised.onnx", "remedies/equalised.cache")
        for name in NAMES:
            for high in (Precision.FP16, Precision.FP32):
                yield from keeping_high(setting, name, high)


def of_tool(tool):
    return [shlex.split(command.text) for command in commands() if command.tool == tool]


def test_polygraphy_parses_its_commands():
    parser = argparse.ArgumentParser()
    Convert().setup_parser(parser.add_subparsers())
    seen = set()
    for words in of_tool("Polygraphy"):
        assert words[0] == "polygraphy"
        args = parser.parse_args(words[1:])
        assert args.int8
        assert args.calibration_cache.endswith(".cache")
        if args.trt_network_postprocess_script:
            assert args.precision_constraints == "obey"
            seen.add(str(args.trt_network_postprocess_script))
    assert {text for text in seen if "polygraphy_postprocess.py" in text} == seen != set()


def test_trt_bisect_parses_its_own_commands():
    known = get_command(app).commands
    found = of_tool("trt-bisect")
    for words in found:
        assert words[0] == "trt-bisect"
        with known[words[1]].make_context(words[1], words[2:]) as context:
            assert context.params["model"].suffix == ".onnx"
            assert context.params["calibration"] or context.params["inputs"] or context.params["dataset"]
    assert {words[1] for words in found} == {"run", "recover"}
    assert any("fp16" in words for words in found)


def test_modelopts_and_trtexecs_commands_use_their_flags():
    """ModelOpt's: the parser in modelopt/onnx/quantization/__main__.py. trtexec's: its --help."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--onnx_path", required=True)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--calibration_data_path")
    group.add_argument("--calibration_cache_path")
    parser.add_argument("--calibration_method", choices=["max", "entropy"])
    parser.add_argument("--nodes_to_exclude", nargs="+", default=[])
    parser.add_argument("--high_precision_dtype", choices=["fp32", "fp16", "bf16"])
    for words in of_tool("ModelOpt"):
        assert words[:3] == ["python", "-m", "modelopt.onnx.quantization"]
        args = parser.parse_args(words[3:])
        assert "run/recipe" not in args.onnx_path
        assert not (args.onnx_path == "FP32.onnx" and args.calibration_cache_path == "run/recipe/calibration.cache")
    for words in of_tool("trtexec"):
        if words[0] == "(cd":
            assert words[-2:] == ["trtexec", "--onnx=network.onnx)"]
            continue
        flags = {word.split("=")[0] for word in words[1:]}
        assert flags <= {"--onnx", "--int8", "--calib", "--stronglyTyped"}


def test_strangers_names_are_text_on_the_screen(tmp_path):
    model = starved()
    (node,) = [node for node in model.graph.node if node.name == "conv3"]
    node.name = "[bold]conv3[/] $(x)"
    report = run(model, tmp_path, try_remedies=True)
    text = io.StringIO()
    print_advice(report.explanation, report.metric, Console(file=text, width=400))
    printed = text.getvalue()
    assert "'[bold]conv3[/] $(x)' (Conv) loses" in printed
    assert "'[bold]conv3[/] $(x)': the range is too wide" in printed
    assert "cross-layer equalisation for the whole network gives 99.9" in printed
    assert "Measured on all inputs, for the whole network:" in printed
    record = json.loads((tmp_path / "run/explanation.json").read_text())
    texts = [c["text"] for remedy in record["advice"][0]["remedies"] for c in remedy["commands"]]
    assert all("$(x)" not in text or "'" in text for text in texts)


def test_the_command_line(command, lenet, tmp_path):
    code, out, _ = command(
        "run", lenet / "lenet_planted.onnx", "--calibration", lenet / "calibration.npz", "-o", tmp_path / "run",
        "--try-remedies", "--all-layers",
    )  # fmt: skip
    assert code == 1
    assert "the activation is to blame" in " ".join(out.split())
    assert "for the whole network gives" in " ".join(out.split())
    assert "Not measured: " in out
    assert "explanation.json has the commands for every tool." in out
    lines = [line.strip() for line in out.splitlines() if line.startswith("     trt-bisect ")]
    assert lines, "the first remedy of a culprit has its command"
    assert all("--output" in line for line in lines), "a command is not cut nor wrapped"


ASKED = {
    "--metric": "sqnr",
    "--threshold": "27.5",
    "--share": "0.6",
    "--samples": "2",
    "--outputs": "relu5_out",
    "--shape": "x:1x3x16x16",
    "--percentile": "90",
    "--calibrator": "percentile",
    "--memory": "64",
    "--trt-version": "8.6.1",
    "--history": "none",
}
PLAIN_THINGS = ("model", "engine", "metric", "threshold", "share", "precision", "strategy")


def test_suggested_commands_repeat_the_runs_options_and_run(command, tmp_path, monkeypatch):
    """Each command of trt-bisect that a real run suggests, given to the real command line, in the user's own folder."""
    monkeypatch.chdir(tmp_path)
    model = networks.chain(depth=4, width=4)
    networks.plant_between(model, "conv2", "conv3", factor=50.0)
    networks.save(model, tmp_path)
    np.savez(tmp_path / "some data.npz", **networks.samples(model))
    np.savez(tmp_path / "other.npz", **networks.samples(model, seed=11))
    asked = {**ASKED, "--outputs": model.graph.output[0].name}
    options = [word for option in asked.items() for word in option]
    code, _, error = command(
        "run", "network.onnx", "--calibration", "some data.npz", "--dataset", "other.npz", "-o", "first run",
        "--engine", "onnxruntime", *options,
    )  # fmt: skip
    assert code == 1, error
    first = json.loads((tmp_path / "first run/report.json").read_text())
    record = json.loads((tmp_path / "first run/explanation.json").read_text())
    suggested = {
        each["text"]: remedy["remedy"]
        for advice in record["advice"]
        for remedy in advice["remedies"]
        for each in remedy["commands"]
        if each["tool"] == "trt-bisect"
    }
    assert {text.split()[1] for text in suggested} == {"run", "recover"}
    assert {"another calibrator", "FP16", "FP32"} <= set(suggested.values())
    for text, remedy in suggested.items():
        words = shlex.split(text)
        changed = {"another calibrator": {"--calibrator", "--percentile", "--calibration"}, "FP16": {"--precision"}}
        recovers = words[1] == "recover"
        for option, value in asked.items():
            if option in changed.get(remedy, ()) or (recovers and option == "--share"):
                continue
            assert value in words[words.index(option) :], (option, text)
        assert words[words.index("--dataset") + 1] == "other.npz"
        assert command(*words[1:])[0] in (0, 1)
        folder = tmp_path / words[words.index("--output") + 1]
        assert (folder == tmp_path / "first run") == recovers, "only recover goes on in the run's own folder"
        found = json.loads((folder / ("recovery.json" if recovers else "report.json")).read_text())
        if recovers:
            assert found["target"]["least"] == 27.5
            continue
        differs = {key for key in PLAIN_THINGS if found[key] != first[key]}
        assert differs == ({"precision"} if remedy == "FP16" else set())
        assert found["inputs"]["judged"] == 2
        header = (folder / "recipe/calibration.cache").read_text().splitlines()[0]
        assert header == "TRT-8601-EntropyCalibration2"
