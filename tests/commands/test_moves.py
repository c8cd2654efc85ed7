"""Equalised networks and corrected biases as measured remedies: judged by the user's FP32, written where they help."""

import json

import pytest

import trt_bisect
from tests.support import networks
from tests.support.by_hand import cosine
from tests.support.quantized import plain_session
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.cache import read_cache
from trt_bisect.model.network import tensors_in_low
from trt_bisect.precision import int8_set
from trt_bisect.report.advice import BIAS_CORRECTION, EQUALISATION, ROUNDING, SMOOTHING
from trt_bisect.support.text import EXPLANATION


def planted():
    return networks.planted(networks.chain(5), ("conv2", "conv3"))


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """A run on a chain with one loud channel, its folder, and its moves by their words."""
    folder = tmp_path_factory.mktemp("moves")
    feeds = networks.samples(planted())
    report = trt_bisect.run(
        networks.save(planted(), folder), feeds, feeds, engine="onnxruntime", calibrator="minmax", effort="quick",
        output=folder / "run", explain="remedies", trt_version="10.3.0",
    )  # fmt: skip
    kinds = (EQUALISATION, BIAS_CORRECTION, SMOOTHING, ROUNDING)
    moves = [each for each in report.explanation.tried if each.remedy in kinds]
    return report, folder, {each.network or each.what: each for each in moves}


def test_equalisation_is_measured_to_restore_a_starved_network(tried):
    report, folder, moves = tried
    found = moves["remedies/equalised.onnx"]
    assert found.culprits == ()
    assert found.high == 0
    assert report.similarity.int8 < 0.95
    assert found.meets
    assert found.similarity > 0.999
    assert found.remedy == EQUALISATION
    written = {path.name for path in (folder / "run/remedies").iterdir()}
    assert {"equalised.onnx", "equalised.cache"} <= written
    assert {name for name in written if name.endswith(".onnx")} == {
        name.removeprefix("remedies/") for name in moves if name.endswith(".onnx")
    }


def test_the_figures_are_those_of_the_files_against_the_users_fp32(tried):
    """The files written, in full INT8 with their caches; the reference is the user's file in ONNX Runtime."""
    _, folder, moves = tried
    own = trt_bisect.load_network(folder / "network.onnx")
    judged = list(trt_bisect.open_dataset(networks.samples(planted()), own.inputs))
    session = plain_session(folder / "network.onnx")
    fp32 = [session.run(None, sample)[0] for sample in judged]
    files = [each for each in moves.values() if each.network and not each.high]
    assert any(each.remedy == BIAS_CORRECTION for each in files)
    for each in files:
        network = trt_bisect.load_network(folder / "run" / each.network)
        scales = read_cache(folder / "run" / each.cache, ()).scales
        plan = int8_set(len(network.layers), network.quantizable)
        with OnnxRuntimeBuilder(network, scales, BuildOptions()).build(plan) as engine:
            int8 = [engine.infer(sample)["y"] for sample in judged]
        assert each.similarity == pytest.approx(min(map(cosine, fp32, int8)), abs=1e-6)


def test_the_advice_gives_the_file_to_each_tool(tried):
    report, folder, _ = tried
    (advice,) = report.advice
    remedy = next(each for each in advice.remedies if each.remedy == EQUALISATION)
    assert remedy.tried.meets
    own, *tools = remedy.commands
    assert own.text.startswith(f"trt-bisect run {folder}/run/remedies/equalised.onnx ")
    assert [command.tool for command in tools] == ["ModelOpt", "Polygraphy", "trtexec"]
    for command in tools:
        assert f"{folder}/run/remedies/equalised.onnx" in command.text
        assert f"{folder}/run/remedies/equalised.cache" in command.text
    record = json.loads((folder / "run/explanation.json").read_text())
    assert "remedies/equalised.onnx" in {each["network"] for each in record["tried"]}


def test_a_network_that_cannot_be_equalised_says_so(tmp_path):
    sketch = networks.Sketch(2)
    x = sketch.node("Sigmoid", [sketch.conv("x", "a", 3, 6)], "sigmoid")
    x = sketch.conv(x, "b", 6, 6)
    sketch.nodes[-1].output[0] = "y"
    model = sketch.model([1, 3, 8, 8], [1, 6, 8, 8])
    feeds = {"x": networks.normal(0, 4, 1, 3, 8, 8)}
    how = {"engine": "onnxruntime", "threshold": 0.999999, "explain": "remedies"}
    report = trt_bisect.run(networks.save(model, tmp_path), feeds, feeds, **how)
    assert any(note.kind == EXPLANATION and note.text.startswith("equalisation ") for note in report.notes)
    tried = [each.what for each in report.explanation.tried if each.remedy in (EQUALISATION, BIAS_CORRECTION)]
    assert tried == ["bias correction"]


def test_a_changed_network_has_the_ranges_of_the_calibrator_that_the_run_chose(tmp_path):
    """A run without ``--calibrator`` chose one, and measured the moves with entropy."""
    model = networks.planted(networks.chain(5), ("conv2", "conv3"))
    feeds = networks.samples(model, 24)
    report = trt_bisect.run(
        networks.save(model, tmp_path), feeds, engine="onnxruntime", explain="remedies", trt_version="10.3.0",
        output=tmp_path / "run", validation=0.0,
    )  # fmt: skip
    method, _, percentile = report.ranges.origin.partition(" ")
    assert method == "percentile", "not entropy"
    folder = tmp_path / "run" / "remedies"
    (file,) = folder.glob("smoothed.onnx")
    network = trt_bisect.load_network(file)
    scales = read_cache(file.with_suffix(".cache"), network.rounded_activations).scales
    kept = {name: scales[name] for name in tensors_in_low(network)}
    samples = list(trt_bisect.open_dataset(feeds, network.inputs))
    chosen, usual = (trt_bisect.calibrate(network, samples, *how).scales for how in ((method, float(percentile)), ()))
    assert {name: chosen[name] for name in kept} == kept
    assert {name: usual[name] for name in kept} != kept
