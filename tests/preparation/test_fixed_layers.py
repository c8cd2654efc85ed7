"""Layers whose precision the user fixes, by name, pattern or plan: no search changes it."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import trt_bisect
from tests.support import networks
from tests.support.editions import edition
from tests.support.quantized import plain_run
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.trial import TrialKey
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.asked_network import matching, read_plan, refuse_emulated_only
from trt_bisect.report.given import EXPERIMENT, FIXED

FIRST, SECOND = "conv1", "conv3"
LAYERS = ["conv0", "relu1", "conv1", "relu2", "conv2", "relu3", "conv3", "pool", "flatten", "fc"]
OPTIONS = {"calibrator": "minmax", "engine": "onnxruntime", "metric": "sqnr", "threshold": 20.0, "explain": "none"}
OPTIONS |= {"precision": "fp32", "effort": "quick"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A chain of four convolutions and a Gemm with culprits conv1 and conv3, and its samples."""
    model = networks.planted(networks.chain(4), ("conv0", FIRST), ("conv2", SECOND))
    return networks.given(model, tmp_path_factory.mktemp("planted"), 4)


@pytest.fixture(scope="module")
def run(planted):
    """Runs the planted network; options win over ``OPTIONS``."""

    def call(**options):
        return trt_bisect.run(planted[0], **({"calibration": planted[1]} | OPTIONS | options))

    return call


def precisions(folder, layer):
    """The precisions that a layer had in all trials in a journal, that of the network in FP16 left out."""
    written = (folder / "journal.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in written if "all in fp16" not in line]
    keys = {TrialKey.from_text(line["trial"]["plan"]).plan for line in lines if "trial" in line}
    assert len(keys) > 2
    return {str(PrecisionPlan.from_key(key).precisions[LAYERS.index(layer)]) for key in keys}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("conv2", ["conv2"]),
        ("conv*", ["conv0", "conv1", "conv2", "conv3"]),
        ("conv[02]", ["conv0", "conv2"]),
        ("re:^conv[^1]|c$", ["conv0", "conv2", "conv3", "fc"]),
        ("op:gemm", ["fc"]),
        ("?elu2", ["relu2"]),
    ],
)
def test_layers_by_pattern(planted, pattern, names):
    network = trt_bisect.load_network(planted[0])
    assert [layer.name for layer in network.layers] == LAYERS
    assert [layer.name for layer in matching(network, pattern)] == names


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"high": ["conv9"]}, "no layer 'conv9'"),
        ({"high": "op:Cnov"}, "operator 'Cnov'"),
        ({"high": ["re:(conv"]}, "regular expression"),
        ({"high": ["*"]}, "no layer is in INT8"),
        ({"keep_low": ["op:Relu"]}, "Relu follows"),
        ({"high": ["conv1"], "keep_low": ["conv*"]}, "'conv1' is in both"),
        ({"scoped": "10"}, "number 10"),
        ({"scoped": "conv9"}, "no layer 'conv9'"),
        ({"high": ["recipe:nowhere"]}, "'nowhere'"),
        ({"plan": {"layers": {"conv1": "int4"}}}, "int8, fp8, bf16, fp16, fp32"),
        ({"plan": {"layers": {"conv1": {"weight": "int8"}}}}, "of activation and weight"),
        ({"plan": {"layers": {"conv1": {"bias": "fp32"}}}}, "of activation and weight"),
        ({"plan": {"layers": {"conv1": {}}}}, "of activation and weight"),
        ({"high": ["top:none"]}, "no number of layers"),
        ({"precision": "int16"}, "single layers"),
        ({"precision": "int16", "high": ["conv1"], "low": "fp8"}, "network in INT8"),
        ({"high": ["sensitivity:nowhere:2"]}, "nowhere"),
        ({"high": ["sensitivity:nowhere"]}, "no number of layers"),
        ({"plan": {"scales": {"y": 0.5}}}, "activation 'y'"),
        ({"plan": {"scales": {"x": 0.0}}}, "above 0"),
        ({"plan": {"layer": {}}}, "no key 'layer'"),
        ({"plan": {"high": "fp16", "layers": {"conv1": "fp16"}}}, 'Add base="fp16"'),
    ],
)
def test_what_cannot_be_fixed_is_refused_before_anything_runs(run, options, said):
    with pytest.raises(BadInput) as refused:
        run(**options)
    assert said in str(refused.value)


@pytest.mark.parametrize("strategy", edition(["auto", "exhaustive"], ["auto", "exhaustive", "bisect"]))
def test_a_layer_fixed_high_is_never_lowered(run, strategy, tmp_path):
    report = run(strategy=strategy, high=[FIRST], output=tmp_path)
    assert report.culprits == (SECOND,)
    assert report.recipe.high == (SECOND,)
    assert report.similarity.int8 < 20.0 <= report.similarity.recipe
    assert precisions(tmp_path, FIRST) == {"fp32"}
    rows = {row.name: row for row in report.layers}
    assert (rows[FIRST].fixed, rows[FIRST].outcome, rows[FIRST].recipe) == ("fp32", "follows", "fp32")
    plan = json.loads((tmp_path / "recipe" / "plan.json").read_text())["layers"]
    assert {name for name, precision in plan.items() if precision == "fp32"} == {FIRST, SECOND}


@pytest.mark.parametrize("strategy", edition(["bisect"], ["auto", "bisect"]))
def test_a_layer_fixed_in_int8_is_never_high(run, strategy, tmp_path):
    report = run(strategy=strategy, keep_low=[SECOND], output=tmp_path)
    assert precisions(tmp_path, SECOND) == {"int8"}
    assert not report.recipe.meets
    assert report.exit_code == 1
    assert SECOND not in report.culprits
    assert [line.layers for line in report.lines if line.kind == FIXED] == [(SECOND,)]


def test_the_most_sensitive_layers_are_those_that_lose_most_alone(planted, run, tmp_path):
    model, samples = planted
    common = {key: value for key, value in OPTIONS.items() if key not in ("threshold", "explain", "effort")}
    alone = trt_bisect.sensitivity(model, samples, **common, output=tmp_path)
    losses = {op.op_name: op.loss for op in alone.ops if op.sensitive_type == "both"}
    wanted = sorted(losses, key=losses.get)[-2:]
    assert set(wanted) == {FIRST, SECOND}
    for high, place in (("top:2", tmp_path), (f"sensitivity:{tmp_path}:2", tmp_path / "other")):
        report = run(high=[high], output=place)
        assert {row.name for row in report.layers if row.fixed} == set(wanted)
        named = [note.text for note in report.notes if f"{tmp_path}/sensitivity.json" in note.text]
        assert len(named) == 1
        assert all(f"'{name}'" in named[0] for name in wanted)
    report = run(high=["top:2"], output=tmp_path / "new")
    assert {row.name for row in report.layers if row.fixed} == set(wanted), "it is measured first"
    assert (tmp_path / "new/sensitivity.json").is_file()
    kept = trt_bisect.compare(model, samples, calibrator="minmax", high=["top:2"])
    high = {row.origin.layer for row in kept.weights if not row.scale}
    assert high == set(wanted)
    with pytest.raises(BadInput, match="for INT8, not for FP16"):
        trt_bisect.run(model, samples, engine="onnxruntime", low="fp16", high=[f"sensitivity:{tmp_path}:2"])


def test_a_plan_can_name_one_side_of_a_layer_alone():
    for sides in ({"weight": "fp32"}, {"activation": "int8", "weight": "fp32"}):
        assert read_plan({"layers": {"conv1": sides}}).layers == {"conv1": Precision.INT8_ACTIVATION}


def test_a_layer_with_activations_in_16_bits(planted, run, tmp_path):
    """Beside the experiment of all activations on one layer, whose arithmetic ``test_granularity`` has by hand."""
    model, samples = planted
    one, whole = (
        trt_bisect.compare(model, samples, calibrator="minmax", only=[FIRST], **given)
        for given in ({"plan": {"layers": {FIRST: "int16"}}}, {"low": "int16"})
    )
    assert [row.figures for row in one.tensors] == [row.figures for row in whole.tensors]
    tables = [[(row.quantized_dtype, row.scale) for row in (*each.tensors, *each.weights)] for each in (one, whole)]
    assert tables[0] == tables[1]
    assert {"int8", "int16"} < {dtype for dtype, _ in tables[0]}
    network = trt_bisect.load_network(model)
    report = run(plan={"layers": {FIRST: "int16"}}, output=tmp_path)
    assert [line.layers for line in report.lines if line.kind == EXPERIMENT] == [(FIRST,)]
    assert {row.name: row.recipe for row in report.layers}[FIRST] == "int16"
    assert report.next is None, "there is nothing that TensorRT could build"
    assert json.loads((tmp_path / "recipe/plan.json").read_text())["layers"][FIRST] == "int16"
    with pytest.raises(BadInput, match="no 16-bit activations"):
        refuse_emulated_only(network.fixing({network.layer_named(FIRST).index: Precision.INT16}), "tensorrt")


def test_the_most_sensitive_layers_in_16_bits_by_one_command(run):
    wide = run(high=["top:1"], precision="int16")
    (most,) = (row.name for row in wide.layers if row.fixed)
    by_plan = run(plan={"layers": {most: "int16"}})
    free = run()
    assert {row.name: row.recipe for row in wide.layers}[most] == "int16"
    plans = [{row.plan: row.similarity for row in report.choices} for report in (wide, by_plan, free)]
    assert plans[0] == plans[1]
    assert plans[0]["fp16"] == plans[2]["fp16"], "FP16 has no layer in INT16"
    mixed = run(high=["top:1"], precision="mixed")
    assert [row.name for row in mixed.layers if row.fixed] == [most]


def test_scoped_measures_one_plan(planted, run, tmp_path):
    """Layer 4 is conv2: its plan is the point of the exhaustive curve, where conv1 is a culprit and stays high."""
    one = {"x": planted[1]["x"][:1]}
    given = {"calibration": one, "inputs": one}
    curve = run(strategy="exhaustive", output=tmp_path, **given)
    point = {row.name: row.similarity for row in curve.layers}["conv2"]
    expected = dict.fromkeys(("conv1", "conv3", "pool", "fc"), "fp32") | {"conv0": "int8", "conv2": "int8"}
    report = run(scoped="4", high=["conv1"], output=tmp_path / "scoped", **given)
    assert report.similarity.int8 == pytest.approx(point, abs=1e-4)
    assert json.loads((tmp_path / "scoped" / "recipe" / "plan.json").read_text())["layers"] == expected


def test_a_constant_is_a_row_with_the_boundary_before_it(tmp_path):
    """Beside ONNX Runtime on the user's file, its input and the first weight rounded by NumPy."""
    sketch = networks.Sketch(3)
    gain = sketch.random.uniform(0.5, 2.0, (1, 8, 1, 1)).astype(np.float32)
    sketch.nodes.append(onnx.helper.make_node("Constant", [], ["gain"], "c", value=numpy_helper.from_array(gain)))
    scaled = sketch.node("Mul", [sketch.conv("x", "conv0", 3, 8), "gain"], "mul")
    sketch.pooled_classes(sketch.conv(sketch.node("Relu", [scaled], "relu"), "conv1", 8, 8), 8)
    model = sketch.model(["n", 3, 8, 8], ["n", 10])
    path, x = networks.save(model, tmp_path), networks.samples(model, 1)["x"]
    rounded = onnx.load(path)
    (tensor,) = (each for each in rounded.graph.initializer if each.name == "conv0.weight")
    weight = numpy_helper.to_array(tensor)
    step, steps = np.abs(x).max() / np.float32(127), np.abs(weight).max((1, 2, 3), keepdims=True) / np.float32(127)
    tensor.CopyFrom(numpy_helper.from_array(np.rint(weight / steps) * steps, tensor.name))
    (y,), (y_int8,) = plain_run(model, {"x": x}), plain_run(rounded, {"x": np.rint(x / step) * step})
    cosine = np.vdot(y, y_int8) / np.linalg.norm(y) / np.linalg.norm(y_int8)
    given = {**OPTIONS, "metric": "cosine", "threshold": 0.9}
    report = trt_bisect.run(path, {"x": x}, **given, output=tmp_path / "curve")
    names = ["conv0", "gain", "mul", "relu", "conv1", "pool", "flatten", "fc.weight", "fc"]
    assert [row.name for row in report.rows] == names
    row, _ = report.constants
    assert (row.op_type, row.shape, row.index, row.outcome, row.loss) == ("Constant", (1, 8, 1, 1), 1, "follows", 0.0)
    assert row.similarity == pytest.approx(cosine, abs=1e-6)
    assert trt_bisect.Report.load(tmp_path / "curve").constants == report.constants
    scoped = trt_bisect.run(path, {"x": x}, **given, scoped="gain", output=tmp_path / "scoped")
    assert scoped.similarity.int8 == pytest.approx(cosine, abs=1e-6)
    assert {row.name: row.fixed for row in scoped.layers if row.quantizable}["conv1"] == "fp32"


def test_what_is_fixed_high_takes_up_the_trials_of_the_run_before(planted, run, tmp_path):
    """The precision of a layer is in each plan, so that the fingerprint stays the same."""
    given = {"inputs": {"x": planted[1]["x"][:2]}, "strategy": "exhaustive"}
    first = run(**given, output=tmp_path)
    assert first.culprits == (FIRST, SECOND)
    second = run(**given, output=tmp_path, high=[f"recipe:{tmp_path}"])
    assert second.fingerprint == first.fingerprint
    assert second.exit_code == 0
    assert second.similarity.int8 == first.similarity.recipe
    again = run(**given, plan=tmp_path)
    assert (again.exit_code, again.similarity.int8) == (0, first.similarity.recipe)
    assert {row.fixed for row in again.layers if row.quantizable} == {"int8", "fp32"}


def test_a_plan_that_rounds_a_weight_alone(planted, run, tmp_path):
    """Beside ONNX Runtime on the user's file with that weight rounded by NumPy: per output channel, half to even."""
    model, samples = planted
    one = {name: values[:1] for name, values in samples.items()}
    plan = tmp_path / "plan.toml"
    plan.write_text("[layers]\n'*' = 'fp32'\nconv2 = { activation = 'fp32', weight = 'int8' }\n", encoding="utf-8")
    report = run(inputs=one, metric="max_abs", threshold=1.0, plan=plan)
    changed = onnx.load(model)
    for tensor in changed.graph.initializer:
        if tensor.name == "conv2.weight":
            weight = numpy_helper.to_array(tensor)
            scale = np.abs(weight).max(axis=(1, 2, 3), keepdims=True) / np.float32(127)
            rounded = np.clip(np.rint(weight / scale), -127, 127) * scale
            tensor.CopyFrom(numpy_helper.from_array(rounded.astype(np.float32), tensor.name))
    feeds = [{"x": samples["x"][k : k + 1]} for k in range(4)]
    outputs = [[plain_run(each, feed)[0] for feed in feeds] for each in (model, changed)]
    apart = max(float(np.abs(a - b).max()) for a, b in zip(*outputs, strict=True))
    assert apart > 0
    assert report.similarity.int8 == pytest.approx(apart, rel=1e-3)
    assert [line.layers for line in report.lines if line.kind == EXPERIMENT] == [("conv2",)]
    assert "'conv2' in INT8 (weight alone)" in next(line.text for line in report.lines if line.kind == FIXED)
    assert report.next is None, "no engine is asked for one side"
    compared = trt_bisect.compare(model, samples, plan=tmp_path / "plan.toml")
    assert [row.origin.layer for row in compared.weights if row.quantized_dtype] == ["conv2"]
    assert not any(row.quantized_dtype for row in compared.tensors)


def test_a_scale_that_the_user_gives_stays_with_every_calibrator(run, tmp_path):
    report = run(calibrator="auto", plan={"scales": {"x": 0.25}}, output=tmp_path)
    assert len(report.answer.calibrators) > 1
    written = onnx.load(tmp_path / "recipe" / "network.qdq.onnx")
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in written.graph.initializer}
    pairs = [node for node in written.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "x"]
    assert [float(constants[pair.input[1]]) for pair in pairs] == [0.25]
    assert report.fingerprint != run(calibrator="auto").fingerprint


def test_sensitivity_compare_profile_and_worst_obey(planted):
    model, samples = planted
    found = trt_bisect.sensitivity(model, samples, engine="onnxruntime", high=["conv[01]"])
    assert {op.op_name for op in found.ops} == {"conv2", "conv3", "pool", "fc"}
    compared = trt_bisect.compare(model, samples, high=["op:Conv"])
    in_int8 = {row.origin.layer for row in compared.tensors if row.origin.int8_op_type.startswith("QDQ-")}
    assert in_int8 == {"pool", "fc"}
    profiled = trt_bisect.profile(model, samples, high=["conv1"])
    assert {row.layer for row in profiled.tensors if row.role == "weight" and row.scale is None} == {"conv1"}
    every = trt_bisect.worst(model, samples, samples, engine="onnxruntime")
    high = trt_bisect.worst(model, samples, samples, engine="onnxruntime", high=[FIRST, SECOND])
    assert high.high == (FIRST, SECOND)
    assert max(high.losses) < min(every.losses)


def test_fixed_layers_count_towards_a_budget(run):
    cost = run(precision="fp16").answer.cost
    within = run(precision="fp16", high=[FIRST], budget=cost + 1e-9)
    assert (within.recipe.high, within.recipe.meets) == ((SECOND,), True)
    assert within.answer.cost == pytest.approx(cost)
    with pytest.raises(BadInput, match=r"budget is 1%"):
        run(high=["conv0"], budget=0.01)


def test_the_plan_of_a_run_is_read(tmp_path):
    record = {"model": "m", "high": "fp16", "layers": {"a": "int8", "b": "fp16"}}
    (tmp_path / "plan.json").write_text(json.dumps(record))
    plan = read_plan(tmp_path)
    assert (plan.left_high, str(plan.high)) == (["b"], "fp16")


def test_a_recipe_taken_up_again_has_its_own_scales(planted, tmp_path):
    """Its figure is the recipe's, to the bit, although another calibrator and other data would give other scales."""
    model, samples = planted
    given = {"inputs": samples, "engine": "onnxruntime", "metric": "sqnr", "threshold": 20.0, "explain": "none"}
    first = trt_bisect.run(model, samples, **given, calibrator="minmax", output=tmp_path / "first")
    assert first.recipe.high
    doubled = {"x": 2 * samples["x"]}
    trt_bisect.run(model, doubled, plan=tmp_path / "first", **given, calibrator="entropy", output=tmp_path / "b")
    saved = [json.loads((tmp_path / name / "recipe" / "plan.json").read_text())["scales"] for name in ("first", "b")]
    assert saved[0] == saved[1]
    assert len(saved[0]) > 3
    own = trt_bisect.run(model, samples, plan=tmp_path / "first", **given, calibrator="entropy")
    assert own.similarity.int8 == first.similarity.recipe
