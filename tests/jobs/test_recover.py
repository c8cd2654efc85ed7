"""``recover``: the least set that is planted, or found by trying every plan; accuracy, costs, moves and exports."""

from __future__ import annotations

import json
from functools import partial
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import trt_bisect
from tests.support import networks
from tests.support.networks import Sketch, plant_between
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.inspector import named_in
from trt_bisect.builder.timing import LayerTime, latency_of
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.speed import layer_times
from trt_bisect.jobs.recover.build_report import _moves
from trt_bisect.model.cost import shares, times_by_macs
from trt_bisect.model.network import load_network
from trt_bisect.model.session import NO_QDQ_FUSION
from trt_bisect.model.shapes import facts_for
from trt_bisect.model.together import units
from trt_bisect.precision import Precision
from trt_bisect.results.recovery import Move, Recovery

SAMPLES = Path(__file__).parents[2] / "samples"

CASES = {
    "chain-1": (networks.chain, [("conv2", "conv3")]),
    "chain-3": (networks.chain, [("conv0", "conv1"), ("conv2", "conv3"), ("conv5", "conv6")]),
    "residual-2": (networks.residual, [(f"block{b}.conv1", f"block{b}.conv2") for b in (0, 3)]),
    "residual-4": (networks.residual, [(f"block{b}.conv1", f"block{b}.conv2") for b in range(4)]),
    "residual-6": (
        partial(networks.residual, blocks=6),
        [(f"block{b}.conv1", f"block{b}.conv2") for b in range(6)],
    ),
    "depthwise-3": (networks.depthwise, [(f"block{b}.depthwise", f"block{b}.project") for b in (0, 1, 3)]),
    "transformer-5": (
        partial(networks.transformer, blocks=5),
        [(f"block{b}.up", f"block{b}.down") for b in range(5)],
    ),
}
WISHES = {"calibrator": "minmax", "engine": "onnxruntime", "metric": "sqnr", "threshold": 20.0, "remedies": False}


def planted(case, tmp_path):
    make, pairs = CASES[case]
    model = make()
    for maker, reader in pairs:
        plant_between(model, maker, reader)
    return networks.save(model, tmp_path), networks.samples(model), {reader for _, reader in pairs}


@pytest.mark.parametrize("case", CASES)
def test_the_planted_layers_are_left_high_and_no_other(case, tmp_path):
    path, data, bad = planted(case, tmp_path)
    found = trt_bisect.recover(path, data, plans=50, **WISHES)
    assert {row.layer for row in found.high} == bad
    assert found.meets
    assert found.minimal
    assert found.measured["int8"] < 20.0 <= found.measured["recipe"]
    assert all(row.back < 20.0 for row in found.high)


def test_two_results_that_are_bad_alike_need_a_layer_each(tmp_path):
    """The worse result decides, so that leaving one culprit high gains nothing."""
    sketch = Sketch(7)
    trunk = sketch.node("Relu", [sketch.conv("x", "stem", 3, 8)], "stem_relu")
    for side in ("left", "right"):
        inner = sketch.node("Relu", [sketch.conv(trunk, f"{side}1", 8, 8)], f"{side}_relu")
        last = sketch.conv(inner, f"{side}2", 8, 4)
        sketch.nodes.append(onnx.helper.make_node("Identity", [last], [side], name=f"{side}_result"))
    model = sketch.model({"x": ["n", 3, 16, 16]}, {side: ["n", 4, 16, 16] for side in ("left", "right")})
    for side in ("left", "right"):
        plant_between(model, f"{side}1", f"{side}2")
    found = trt_bisect.recover(networks.save(model, tmp_path), networks.samples(model), **WISHES)
    assert {row.layer for row in found.high} == {"left2", "right2"}


def test_a_layer_that_looks_bad_but_does_not_matter_stays_in_int8(tmp_path):
    """A starved convolution whose result is all but taken out again before it is added."""
    sketch = Sketch(8)
    x = sketch.node("Relu", [sketch.conv("x", "stem", 3, 8)], "stem_relu")
    inner = sketch.node("Relu", [sketch.conv(x, "side1", 8, 8)], "side_relu")
    faint = sketch.node("Mul", [sketch.conv(inner, "side2", 8, 8), sketch.constant("faint", 1e-4)], "fade")
    bad = sketch.node("Relu", [sketch.conv(x, "main1", 8, 8)], "main_relu")
    last = sketch.node("Add", [sketch.conv(bad, "main2", 8, 8), faint], "sum")
    sketch.nodes.append(onnx.helper.make_node("Identity", [last], ["y"], name="result"))
    model = sketch.model({"x": ["n", 3, 16, 16]}, {"y": ["n", 8, 16, 16]})
    plant_between(model, "side1", "side2")
    plant_between(model, "main1", "main2")
    path, data = networks.save(model, tmp_path), networks.samples(model)
    inside = {row.origin.layer: row.figures.sqnr for row in trt_bisect.compare(path, data, calibrator="minmax").tensors}
    assert inside["side2"] < 10.0
    assert {row.layer for row in trt_bisect.recover(path, data, **WISHES).high} == {"main2"}


SMALL = {
    "chain": (partial(networks.chain, depth=6), [("conv1", "conv2"), ("conv3", "conv4")]),
    "residual": (partial(networks.residual, blocks=2), [("block0.conv1", "block0.conv2")]),
    "depthwise": (partial(networks.depthwise, blocks=1), [("block0.depthwise", "block0.project")]),
}


def engines_of(network, data):
    """Ranges, one input, and the SQNR on it of an engine with some layers high."""
    feeds = {"x": data["x"][:1]}
    ranges = trt_bisect.calibrate(network, [{"x": sample[None]} for sample in data["x"]], "minmax")
    builder = trt_bisect.make_builder("onnxruntime", "strong", network, ranges.scales, BuildOptions())
    with builder.reference() as engine:
        reference = engine.infer(feeds)["y"]

    def sqnr(high):
        with builder.build(trt_bisect.all_but(len(network.layers), high)) as engine:
            return trt_bisect.similarity(reference, engine.infer(feeds)["y"], "sqnr")

    return ranges, feeds, sqnr


@pytest.mark.parametrize("factor", [40.0, 1.0])
@pytest.mark.parametrize("case", SMALL)
def test_no_plan_of_all_that_there_are_is_cheaper(case, factor, tmp_path):
    """Every plan of a network of 7 to 9 layers as an engine of its own; the threshold lies where some layers have to
    stay high. A layer that multiplies nothing may be high as well: the recipe holds in other settings of the engine
    too, and such a layer costs 1e-5."""
    make, pairs = SMALL[case]
    model = make()
    for maker, reader in pairs:
        plant_between(model, maker, reader, factor=factor)
    network = load_network(networks.save(model, tmp_path))
    ranges, feeds, sqnr = engines_of(network, networks.samples(model))
    threshold = sqnr(()) + 8.0
    found = trt_bisect.recover(
        network, ranges, feeds, engine="onnxruntime", metric="sqnr", threshold=threshold, remedies=False
    )
    costs = {k: by[Precision.FP32] for k, by in shares(times_by_macs(network, facts_for(network, feeds))).items()}
    sets = [high for n in range(len(costs) + 1) for high in combinations(costs, n)]
    cheapest = min(sum(costs[k] for k in high) for high in sets if sqnr(high) >= threshold)
    assert found.meets
    assert found.cost == pytest.approx(cheapest, abs=1e-4)


def test_the_front_goes_from_int8_to_high_and_gets_better(tmp_path):
    path, data, _ = planted("chain-3", tmp_path)
    found = trt_bisect.recover(path, data, output=tmp_path / "run", **WISHES)
    unbeaten = [
        point
        for point in found.front
        if not any(other.cost <= point.cost and other.loss < point.loss for other in found.front)
    ]
    assert [point.cost for point in unbeaten] == sorted({point.cost for point in unbeaten})
    named = {name: point for point in found.front for name in point.names}
    assert named["all INT8"].cost == 0.0
    assert named["all high"].cost == pytest.approx(1.0, abs=1e-9)
    assert set(named["recipe"].high) == {row.layer for row in found.high}
    assert "knee" in named
    told = {"int8": "all INT8", "recipe": "recipe", "high": "all high"}
    assert {plan: named[name].figure for plan, name in told.items()} == pytest.approx(found.measured)
    assert found.text(named["all INT8"].figure) in found.summary, "the summary tells another figure than the front"
    lines = (tmp_path / "run/front.csv").read_text().splitlines()
    assert lines[0] == "cost,sqnr,loss,names,layers,high"
    assert len(lines) == 1 + len(found.front)
    again = json.loads((tmp_path / "run/recovery.json").read_text())
    assert again == found.to_json()


def test_a_scale_is_told_as_another_one_only_if_it_is():
    before = Ranges({"same": np.float32(1.0), "moved": np.float32(2.0)}, {}, "entropy")
    minmax = Ranges({"same": np.float32(1.0), "moved": np.float32(3.0)}, {}, "minmax")
    answer = SimpleNamespace(experiment=SimpleNamespace(ranges=minmax), tried=[SimpleNamespace(ranges=minmax)])
    found = SimpleNamespace(chosen=SimpleNamespace(ranges=before), answer=answer)
    assert _moves(found) == (Move("moved", "minmax", 2.0, 3.0),)


def test_it_goes_on_from_what_was_measured(tmp_path):
    path, data, _ = planted("chain-3", tmp_path)
    first = trt_bisect.recover(path, data, output=tmp_path / "run", **WISHES)
    lines = (tmp_path / "run/journal.jsonl").read_text().count("\n")
    second = trt_bisect.recover(path, data, output=tmp_path / "run", **WISHES)
    assert (tmp_path / "run/journal.jsonl").read_text().count("\n") == lines
    assert second.high == first.high
    assert second.front == first.front


def test_the_most_accurate_plan_within_a_budget(tmp_path):
    """Of two culprits only one can be paid for: the one that gains more, each measured on an engine of its own."""
    model = networks.chain(6)
    plant_between(model, "conv1", "conv2")
    plant_between(model, "conv3", "conv4", factor=200.0)
    network = load_network(networks.save(model, tmp_path))
    ranges, feeds, sqnr = engines_of(network, networks.samples(model))
    figures = {name: sqnr({network.layer_named(name).index}) for name in ("conv2", "conv4")}
    whole = trt_bisect.recover(network, ranges, feeds, **WISHES)
    assert {row.layer for row in whole.high} == set(figures)
    most = max(row.cost for row in whole.high)
    found = trt_bisect.recover(network, ranges, feeds, budget=most, **WISHES)
    assert found.cost == pytest.approx(most)
    assert not found.meets
    assert [row.layer for row in found.high] == [max(figures, key=figures.get)]
    assert found.measured["recipe"] == pytest.approx(max(figures.values()))


def test_recipes_of_three_precisions(tmp_path):
    """A range that FP16 cannot hold has to be FP32; the other culprit can be FP16."""
    model = networks.chain(8)
    plant_between(model, "conv0", "conv1")
    plant_between(model, "conv4", "conv5", factor=3e6)
    path, data = networks.save(model, tmp_path), networks.samples(model)
    found = trt_bisect.recover(path, data, precision="mixed", output=tmp_path / "run", **WISHES)
    assert {row.layer: row.precision for row in found.high} == {"conv1": "fp16", "conv5": "fp32"}
    flags = (tmp_path / "run/recipe/trtexec.flags").read_text()
    (precisions,) = [line.partition("=")[2] for line in flags.splitlines() if line.startswith("--layerPrecisions=")]
    assert {"conv1:fp16", "conv5:fp32"} <= set(precisions.split(","))
    assert not [entry for entry in precisions.split(",") if entry.startswith(("conv0:", "conv4:"))]
    assert "--fp16" in flags
    alone = trt_bisect.recover(path, data, precision="fp32", **WISHES)
    assert found.cost < alone.cost


def test_the_exported_network_gives_the_similarity_and_builds_in_tensorrt_rtx(tmp_path):
    path, data, _ = planted("residual-2", tmp_path)
    found = trt_bisect.recover(path, data, output=tmp_path / "run", **WISHES)
    exported = tmp_path / "run/recipe/network.qdq.onnx"
    onnx.checker.check_model(str(exported), full_check=True)
    figures = figures_on(tmp_path / "run/recipe", path, data["x"])
    assert min(figures) == pytest.approx(found.measured["recipe"], abs=0.05)
    assert (found.answer.given.inputs, found.answer.given.holds) == (len(figures), sum(f >= 20.0 for f in figures))
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(network, logger).parse(exported.read_bytes())
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape("x", *[(1, 3, 16, 16)] * 3)
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config).nbytes > 0


def counted(lenet, name):
    """The share of digits that ONNX Runtime alone gets right."""
    session = ort.InferenceSession(str(lenet / name), providers=["CPUExecutionProvider"])
    digits, labels = np.load(lenet / "digits.npz")["data"], np.load(lenet / "labels.npy")
    right = [
        session.run(None, {"data": digit[None]})[0].argmax() == label
        for digit, label in zip(digits, labels, strict=True)
    ]
    return float(np.mean(right))


def test_an_accuracy_is_reached_with_the_planted_layer_high(lenet):
    found = trt_bisect.recover(
        lenet / "lenet_planted.onnx",
        lenet / "calibration.npz",
        dataset=lenet / "digits.npz",
        labels=lenet / "labels.npy",
        drop="1%",
        engine="onnxruntime",
        calibrator="entropy",
    )
    assert found.target["reference"] == pytest.approx(counted(lenet, "lenet_planted.onnx"))
    assert found.target["least"] == pytest.approx(0.99 * found.target["reference"])
    assert [row.layer for row in found.high] == ["ip2"]
    assert found.measured["int8"] < 0.5
    assert found.measured["recipe"] >= found.target["least"]


def test_ranges_that_reach_the_accuracy_are_the_recipe(lenet, tmp_path):
    """Another calibrator gives full INT8 the accuracy that entropy loses; counted again on the exported network."""
    trt_bisect.recover(
        lenet / "lenet_planted.onnx",
        SAMPLES / "lenet/calibration.npz",
        dataset=lenet / "digits.npz",
        labels=lenet / "labels.npy",
        drop="1%",
        engine="onnxruntime",
        output=tmp_path,
    )
    found = json.loads((tmp_path / "recovery.json").read_text())
    assert found["high"] == []
    assert found["measured"]["recipe"] >= found["target"]["least"]
    (chosen,) = [row["calibrator"] for row in found["answer"]["calibrators"] if row["chosen"]]
    assert chosen != "entropy"
    session = ort.InferenceSession(tmp_path / "recipe/network.qdq.onnx", providers=["CPUExecutionProvider"])
    digits, labels = np.load(lenet / "digits.npz")["data"], np.load(lenet / "labels.npy")
    right = [session.run(None, {"data": d[None]})[0].argmax() == t for d, t in zip(digits, labels, strict=True)]
    assert np.mean(right) == pytest.approx(found["measured"]["recipe"], abs=2.5 / len(labels))


def test_an_accuracy_function_of_the_user(lenet):
    digits, labels = np.load(lenet / "digits.npz")["data"], np.load(lenet / "labels.npy")

    def accuracy(infer):
        return np.mean([infer({"data": d[None]})["prob"].argmax() == t for d, t in zip(digits, labels, strict=True)])

    wishes = {"engine": "onnxruntime", "calibrator": "entropy", "target": 0.9}
    found = trt_bisect.recover(lenet / "lenet_planted.onnx", lenet / "calibration.npz", accuracy=accuracy, **wishes)
    assert [row.layer for row in found.high] == ["ip2"]
    with pytest.raises(BadInput, match="FP32 itself"):
        trt_bisect.recover(
            lenet / "lenet_planted.onnx", lenet / "calibration.npz", accuracy=accuracy, **{**wishes, "target": 1.1}
        )
    with pytest.raises(BadInput, match="fails: KeyError"):
        trt_bisect.recover(
            lenet / "lenet_planted.onnx",
            lenet / "calibration.npz",
            accuracy=lambda infer: infer({"data": digits[:1]})["x"],
            **wishes,
        )


@pytest.mark.parametrize("dead", [0.0, 1e-39])
def test_a_recipe_with_dead_channels_passes_the_check(tmp_path, dead):
    model = networks.chain(4)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "conv1.weight")
    values = onnx.numpy_helper.to_array(weight).copy()
    values[[1, 4]] = dead
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    path, data = networks.save(model, tmp_path), networks.samples(model, 6)
    trt_bisect.recover(path, data, engine="onnxruntime", remedies=False, output=tmp_path / "run")
    file = tmp_path / "run/recipe/network.qdq.onnx"
    assert trt_bisect.check(file).findings == ()
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    written = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(file).graph.initializer}
    scale = next(array for name, array in written.items() if "conv1.weight" in name and array.shape == (8,))
    assert scale[1] == scale[4] == np.delete(scale, [1, 4]).max()
    others = np.abs(np.delete(values, [1, 4], axis=0)).max(axis=(1, 2, 3)) / 127
    np.testing.assert_allclose(np.delete(scale, [1, 4]), others, rtol=1e-6)
    assert np.isfinite(session.run(None, {"x": data["x"][:1]})[0]).all()


def test_times_from_a_file_decide_what_is_cheap(tmp_path, command):
    """conv2 and conv3 are bad; the file has conv3 as no faster in INT8."""
    path, data, _ = planted("chain-1", tmp_path)
    np.savez(tmp_path / "data.npz", **data)
    names = [layer.name for layer in load_network(path).layers if layer.quantizable]
    rows = [f"{name},1.0,{1.0 if name == 'conv3' else 3.0}" for name in names]
    (tmp_path / "times.csv").write_text("\n".join(["layer,int8,fp32", *rows]) + "\n")
    arguments = ["recover", path, "--calibration", tmp_path / "data.npz", "--engine", "onnxruntime", "--metric", "sqnr"]
    arguments += ["--calibrator", "minmax", "--no-remedies", "-o", tmp_path / "run", "--cost", tmp_path / "times.csv"]
    code, out, _ = command(*arguments)
    assert code == 0
    assert "conv3" in out
    assert json.loads((tmp_path / "run/recovery.json").read_text())["cost"] == pytest.approx(1e-6)
    (tmp_path / "times.csv").write_text("layer,int8,fp32\nconv0,1.0,2.0\n")
    code, _, err = command(*arguments)
    assert code == 2
    assert "has no row for layer 'conv1'" in err


def test_times_of_layers_by_hand(tmp_path):
    """Two layers in one kernel share its 4 ms, of which the relu takes none; a change of format belongs to none."""
    network = load_network(networks.save(networks.chain(2), tmp_path))
    parts = (
        LayerTime("conv0 + relu1 || conv1", named_in("conv0 + relu1 || conv1"), 4.0),
        LayerTime("Reformatting CopyNode for Input Tensor 0 to pool + fc", (), 9.0),
        LayerTime("fc", ("fc",), 1.5),
    )
    found = layer_times(latency_of([1.0], parts), network)
    assert {network.layers[k].name: ms for k, ms in found.items()} == {
        "conv0": 2.0,
        "conv1": 2.0,
        "pool": 0.0,
        "fc": 1.5,
    }


def test_shares_by_hand():
    times = {
        0: {Precision.INT8: 1.0, Precision.FP16: 2.0, Precision.FP32: 4.0},
        1: {Precision.INT8: 1.0, Precision.FP16: 1.0, Precision.FP32: 2.0},
        2: {Precision.INT8: 3.0, Precision.FP16: 3.0, Precision.FP32: 2.0},
    }
    found = shares(times)
    assert found[0] == {Precision.FP16: 0.25, Precision.FP32: 0.75}
    assert found[1] == {Precision.FP16: 1e-6, Precision.FP32: 0.25}
    assert found[2] == {Precision.FP16: 1e-6, Precision.FP32: 1e-6}


def test_layers_that_tensorrt_fuses_move_together(tmp_path):
    network = load_network(networks.save(networks.residual(2), tmp_path))
    groups = [{network.layers[k].name for k in unit} for unit in units(network, "fused")]
    assert {"block0.conv2", "block0.add"} in groups
    assert {"block0.conv1"} in groups
    network = load_network(networks.save(networks.transformer(1), tmp_path))
    groups = [{network.layers[k].name for k in unit} for unit in units(network, "fused")]
    assert {"block0.q", "block0.k", "block0.v"} in groups
    assert sorted(k for unit in units(network, "fused") for k in unit) == sorted(network.quantizable)


def test_what_moves_together_is_left_high_together(tmp_path):
    path, data, _ = planted("residual-2", tmp_path)
    found = trt_bisect.recover(path, data, together="fused", **WISHES)
    assert {row.layer for row in found.high} == {"block0.conv2", "block0.add", "block3.conv2", "block3.add"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--budget", "half"], "no share"),
        (["--budget", "150%"], "no share"),
        (["--precision", "int4"], "no precision 'int4'"),
        (["--labels", "none.npy"], "no data set"),
        (["--target", "0.9"], "nothing to measure it with"),
        (["--cost", "none.csv"], "cannot be read"),
        (["--plans", "0"], "--plans cannot be 0"),
        (["--accuracy", "nowhere:nothing"], "cannot be loaded"),
    ],
)
def test_bad_use_is_said_in_a_line(arguments, says, lenet, tmp_path, command):
    code, _, err = command(
        "recover", lenet / "lenet.onnx", "--calibration", lenet / "calibration.npz", "-o", tmp_path, *arguments
    )
    assert code == 2
    assert says in err
    assert "Traceback" not in err


def test_a_target_that_nothing_meets_is_exit_code_1(tmp_path, command):
    """In FP16 the planted range overflows in every plan."""
    model = networks.chain(4)
    plant_between(model, "conv1", "conv2", factor=3e6)
    path = networks.save(model, tmp_path)
    np.savez(tmp_path / "data.npz", **networks.samples(model))
    code, out, _ = command(
        "recover", path, "--calibration", tmp_path / "data.npz", "--precision", "fp16", "-o", tmp_path / "run",
        "--engine", "onnxruntime", "--calibrator", "minmax",
    )  # fmt: skip
    assert code == 1
    assert "misses the target" in out


def figures_on(recipe, path, samples):
    """The SQNR of an exported network on each sample, in ONNX Runtime alone."""
    options, files = ort.SessionOptions(), (path, recipe / "network.qdq.onnx")
    options.add_session_config_entry(*NO_QDQ_FUSION)
    exact, ours = (ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"]) for file in files)
    figures = []
    for sample in samples:
        wanted, found = (session.run(None, {"x": sample[None]})[0] for session in (exact, ours))
        figures.append(10 * np.log10((wanted**2).sum() / ((found - wanted) ** 2).sum()))
    return figures


def test_the_recipe_holds_on_all_inputs_given_and_says_so_of_unseen_ones(tmp_path):
    model = networks.chain(6)
    plant_between(model, "conv1", "conv2")
    plant_between(model, "conv3", "conv4")
    path, data, unseen = networks.save(model, tmp_path), networks.samples(model, 12), networks.samples(model, 5, 7)
    wishes = {"engine": "onnxruntime", "metric": "sqnr", "threshold": 25.0, "output": tmp_path / "run"}
    found = trt_bisect.recover(path, data, validation=unseen, plans=10, **wishes)
    given, elsewhere = (figures_on(tmp_path / "run/recipe", path, one["x"]) for one in (data, unseen))
    assert found.meets
    assert min(given) >= 25.0
    assert found.answer.given.inputs == found.answer.given.holds == 12
    assert found.answer.given.worst == pytest.approx(min(given), abs=0.05)
    assert (found.answer.unseen.inputs, found.answer.unseen.holds) == (5, sum(figure >= 25.0 for figure in elsewhere))
    assert found.answer.unseen.worst == pytest.approx(min(elsewhere), abs=0.05)
    assert "12 of 12 inputs given" in found.summary
    assert len(found.answer.calibrators) > 1
    assert Recovery.from_json(json.loads((tmp_path / "run/recovery.json").read_text())).answer == found.answer


def test_a_calibrator_that_suffices_is_the_recipe_and_one_that_is_named_is_kept(tmp_path):
    """Calibration by a percentile of 60 clips most values away; with another calibrator nothing has to be high."""
    model = networks.chain(6)
    path, data = networks.save(model, tmp_path), networks.samples(model, 12)
    wishes = {"engine": "onnxruntime", "threshold": 0.98, "plans": 20}
    named = trt_bisect.recover(path, data, calibrator="percentile", percentile=60.0, **wishes)
    free = trt_bisect.recover(path, data, **wishes)
    assert named.high
    assert free.high == ()
    assert named.measured["int8"] < 0.98 <= free.measured["int8"]


def test_the_most_accurate_plan_within_a_budget_is_judged_on_all_inputs(tmp_path):
    """One convolution can be paid for: no other one alone is better on the worst of the inputs."""
    model = networks.chain(5)
    for pair, factor in ((("conv0", "conv1"), 60.0), (("conv2", "conv3"), 90.0)):
        plant_between(model, *pair, factor=factor)
    network = load_network(networks.save(model, tmp_path))
    samples = networks.samples(model, 9)["x"]
    ranges = trt_bisect.calibrate(network, [{"x": sample[None]} for sample in samples], "minmax")
    builder = trt_bisect.make_builder("onnxruntime", "strong", network, ranges.scales, BuildOptions())
    costs = {
        k: by[Precision.FP32]
        for k, by in shares(times_by_macs(network, facts_for(network, {"x": samples[:1]}))).items()
    }
    most = max(costs.values())

    def worst(high):
        with builder.reference() as exact, builder.build(trt_bisect.all_but(len(network.layers), high)) as engine:
            pairs = [(exact.infer({"x": x[None]})["y"], engine.infer({"x": x[None]})["y"]) for x in samples]
        return min(trt_bisect.similarity(one, other, "sqnr") for one, other in pairs)

    found = trt_bisect.recover(network, ranges, {"x": samples}, budget=most, plans=40, **WISHES)
    payable = [high for n in range(3) for high in combinations(costs, n) if sum(costs[k] for k in high) <= most]
    assert found.cost <= most + 1e-9
    assert found.measured["recipe"] >= max(map(worst, payable)) - 0.2
