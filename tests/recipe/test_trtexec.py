"""The recipe under weak typing: trtexec and TensorRT read in its files what the builder sets, layer by layer."""

import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.support import networks
from tests.support.fake_tensorrt import TRT, DataType, Definition, make_network, parsed, with_ranges
from tests.support.flawed_pairs import pairs
from tests.support.norm_in_parts import WIDTH, in_parts
from tests.support.quantized import plain_run
from tests.support.records import texts
from tests.support.trtexec_rules import SHORT, STAND_IN, by_rules, documented, in_short, obeyed
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.tensorrt_weak import (
    Constraint,
    WeakPlan,
    constrain,
    constraints,
    scales_set,
    walk_steps,
    weak_plan,
)
from trt_bisect.calibration.cache import parse_version
from trt_bisect.model.network import load_network
from trt_bisect.precision import Precision, all_but, int8_set, prefix
from trt_bisect.recipe.files import polygraphy_script
from trt_bisect.recipe.trtexec import REFUSED, Build, flags_file, flags_of, refusals

V86 = parse_version("8.6.1")
INT8 = Build(V86, frozenset({Precision.INT8}), weak=True)


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """An environment with a trtexec that prints its arguments, and fails at an option that trtexec does not know."""
    folder = tmp_path_factory.mktemp("tools")
    (folder / "trtexec").write_text(STAND_IN)
    (folder / "trtexec").chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def told(definition, network, plan, force_int8=False):
    results = [definition.get_output(i).name for i in range(definition.num_outputs)]
    found = constraints(results, walk_steps(definition, network.layers), network, plan, force_int8)
    names = tuple(definition.get_layer(i).name for i in range(definition.num_layers))
    return WeakPlan(tuple(each for _, each in found), names, "TensorRT 8.6.1")


def through_the_shell(weak, folder, tools, plan):
    build = Build(V86, frozenset(plan.precisions), weak=True)
    flags = flags_of(weak, build)
    assert not refusals(weak, build, flags)
    (folder / "trtexec.flags").write_text(flags_file(flags, []))
    done = documented(folder, tools)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, "one trtexec"
    return json.loads(done.stdout)


PLANS = {
    "full INT8": (int8_set(8, range(8)), False),
    "forced": (int8_set(8, range(8)), True),
    "prefix": (prefix(8, 3), False),
    "Gemm high": (all_but(8, {6}), False),
    "sum high in FP16": (all_but(8, {4}, Precision.FP16), False),
    "all high": (int8_set(8, ()), False),
    "all high in FP16": (int8_set(8, (), Precision.FP16), False),
}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return make_network(tmp_path_factory.mktemp("trtexec"))


@pytest.mark.parametrize("name", PLANS)
def test_trtexec_reads_in_the_flags_what_the_builder_sets(name, network, tools, tmp_path):
    """On the network as TensorRT 8.6 parses it, unnamed shuffles and a bias in a layer of its own among its layers."""
    plan, force = PLANS[name]
    definition = parsed()
    weak = told(definition, network, plan, force)
    argv = through_the_shell(weak, tmp_path, tools, plan)
    constrain(TRT, definition, walk_steps(definition, network.layers), network, plan, force)
    assert obeyed(argv, parsed()) == in_short(definition.asked()) != {}
    assert ("--int8" in argv) == ("--calib=calibration.cache" in argv) == bool(plan.int8)
    assert ("--fp16" in argv) == bool(plan.fp16)
    assert "--noTF32" in argv, "the builder clears BuilderFlag.TF32"


@pytest.mark.parametrize("name", PLANS)
def test_the_polygraphy_script_sets_what_the_builder_sets(name, network, monkeypatch):
    plan, force = PLANS[name]
    by_builder, by_script = parsed(), parsed()
    weak = told(parsed(), network, plan, force)
    constrain(TRT, by_builder, walk_steps(by_builder, network.layers), network, plan, force)
    monkeypatch.setitem(
        sys.modules, "tensorrt", SimpleNamespace(float32=DataType.FLOAT, float16=DataType.HALF, int8=DataType.INT8)
    )
    scope = {}
    exec(polygraphy_script(weak, ["conv1"]), scope)
    by_script.tensors["softmax_out"].dtype = DataType.HALF
    scope["postprocess"](by_script)
    assert by_script.asked() == by_builder.asked() != {}
    assert by_script.get_output(0).dtype is DataType.FLOAT
    del by_script.layers[-1]
    with pytest.raises(RuntimeError, match="softmax"):
        scope["postprocess"](by_script)


class Recorder:
    """A TensorRT layer that remembers what it is told, where this TensorRT has no weak typing."""

    def __init__(self, layer):
        self.layer, self.precision, self.types = layer, None, {}

    def __getattr__(self, name):
        return getattr(self.layer, name)

    def set_output_type(self, slot, kind):
        self.types[slot] = kind


NORM = {"mean": "/ln/mean", "sub": "/ln/sub", "pow": "/ln/pow", "var": "/ln/var", "add": "/ln/eps",
        "sqrt": "/ln/sqrt", "div": "/ln/div", "by_scale": "/ln/mul", "by_bias": "/ln/add"}  # fmt: skip


def decomposed_norm():
    """A MatMul, a LayerNorm in its nine nodes, and a MatMul behind it; names have slashes, colons and spaces."""
    model = in_parts(opset=17)
    for node in model.graph.node:
        node.name = {"first": "fc: first", "last": "/fc:0", **NORM}[node.name]
    model.graph.node.append(onnx.helper.make_node("Softmax", ["y"], ["softmax_out"], "softmax", axis=-1))
    model.graph.output[0].name = "softmax_out"
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    return model


@pytest.mark.parametrize("high", ["/fc:0", "fc: first", ""])
def test_the_flags_of_a_network_that_tensorrt_parsed(high, tools, tmp_path):
    """TensorRT-RTX parses it: each layer of the LayerNorm before the high MatMul is told what the builder sets."""
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    from trt_bisect.builder.tensorrt_build import RTX
    from trt_bisect.builder.tensorrt_engine import TensorRTStrongBuilder

    network = load_network(networks.save(decomposed_norm(), tmp_path))
    plan = int8_set(len(network.layers), [k for k in network.quantizable if network.layers[k].name != high])
    scales = {name: np.float32(0.05) for name in network.activations}
    shapes = {"x": tuple((n, 4, WIDTH) for n in (1, 2, 4))}
    builder = TensorRTStrongBuilder(network, scales, BuildOptions(), shapes, engine=RTX)
    definition = builder.network_definition(int8_set(len(network.layers), ()))
    real = definition.network
    layers = [Recorder(real.get_layer(i)) for i in range(real.num_layers)]
    seen = SimpleNamespace(
        num_layers=real.num_layers,
        get_layer=lambda i: layers[i],
        num_outputs=real.num_outputs,
        get_output=lambda i: SimpleNamespace(name="softmax_out", dtype=trt.DataType.FLOAT, is_shape_tensor=False),
    )
    argv = through_the_shell(told(seen, network, plan), tmp_path, tools, plan)
    constrain(trt, seen, walk_steps(seen, network.layers), network, plan)
    asked = {layer.name: layer for layer in layers if layer.precision or layer.types}
    types = {name: {slot: SHORT[kind.name] for slot, kind in layer.types.items()} for name, layer in asked.items()}
    set_by_builder = {name: (one.precision and SHORT[one.precision.name], types[name]) for name, one in asked.items()}
    assert obeyed(argv, seen) == set_by_builder
    pinned = {name for name, (precision, _) in set_by_builder.items() if precision == "fp32"}
    norm = {*NORM.values()}
    assert norm & pinned == (norm if high else set()), "free between two INT8 layers alone"
    assert not high or high in pinned
    nodes = weak_plan(builder, network, plan)
    of_nodes = {each.layer: each for each in nodes.constraints}
    assert not nodes.parser
    assert {name for name, each in of_nodes.items() if each.precision} == pinned & {one.name for one in network.layers}


def test_nodes_of_shapes_and_integers_are_told_nothing(tmp_path):
    """A float computed of a shape is a shape tensor in TensorRT; constraining it, or an index, breaks the build."""
    sketch = networks.Sketch(3)
    sketch.conv("x", "conv", 3, 8)
    shape = sketch.node("Shape", ["conv_out"], "shape")
    as_float = sketch.node("Cast", [shape], "cast", to=onnx.TensorProto.FLOAT)
    half = sketch.node("Mul", [as_float, sketch.constant("scales", np.array([1, 1, 0.5, 0.5]))], "half")
    sizes = sketch.node("Cast", [half], "sizes", to=onnx.TensorProto.INT64)
    sketch.node("ConstantOfShape", [sizes], "zeros")
    sketch.node("ArgMax", ["conv_out"], "argmax", axis=1, keepdims=1)
    model = sketch.model({"x": ["n", 3, 8, 8]}, {"conv_out": ["n", 8, 8, 8]})
    more = {"argmax_out": (onnx.TensorProto.INT64, "n188"), "zeros_out": (onnx.TensorProto.FLOAT, "abcd")}
    for name, (kind, letters) in more.items():
        sizes = [int(letter) if letter.isdigit() else letter for letter in letters]
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, sizes))
    network = load_network(networks.save(model, tmp_path))
    builder = SimpleNamespace(typing="strong")
    weak = weak_plan(builder, network, int8_set(len(network.layers), ()))
    assert {each.layer for each in weak.constraints} == {"conv"}


SAYABLE = ["plain", "a b", "/layer 1/conv.0", "a::b:", ":c", 'say "x"', "$(rm) `x` \\n", "a=b+c",
           "(Unnamed Layer* 10) [Shuffle]", "é 层", "#c", "-x"]  # fmt: skip


UNSAYABLE = ["it's", "''", "a,b", "two\nlines", "conv*"]


def plan_of(*names, others=()):
    told = tuple(Constraint(name, Precision.FP32, (Precision.FP16,)) for name in names)
    return WeakPlan(told, (*names, *others))


@pytest.mark.parametrize("name", SAYABLE)
def test_a_name_reaches_trtexec_whole(name, tools, tmp_path):
    weak = plan_of(name, "other", others=("conv1", "free"))
    argv = through_the_shell(weak, tmp_path, tools, int8_set(1, {0}))
    assert by_rules(argv) == [{name: ["fp32"], "other": ["fp32"]}, {name: ["fp16"], "other": ["fp16"]}]


@pytest.mark.parametrize("name", UNSAYABLE)
def test_flags_that_would_lose_a_layer_make_trtexec_fail(name, tools, tmp_path):
    """The documented command fails, says the layer and no other, and nothing of the plan is built."""
    weak = plan_of("other", name, others=("conv1",))
    flags = flags_of(weak, INT8)
    refused = refusals(weak, INT8, flags)
    assert len(refused) == 1
    (tmp_path / "trtexec.flags").write_text(flags_file(flags, refused))
    done = documented(tmp_path, tools)
    assert done.returncode != 0
    words = json.loads(done.stdout)
    assert [word.split("=")[0] for word in words] == ["--onnx", REFUSED]
    assert name.replace("\n", "?") in done.stderr, "the whole name"
    assert "'other'" not in done.stderr


def test_what_else_trtexec_cannot_be_told_is_refused():
    half = WeakPlan((Constraint("split", None, (Precision.FP32, None)),), ("split",))
    twice = WeakPlan((Constraint("same", Precision.FP32, (Precision.FP32,)),), ("same", "same"))
    names = [f"{'long' * 20}{i}" for i in range(1200)]
    for weak, word in ((half, "split"), (twice, "same"), (plan_of(*names), "1200 layers")):
        (why,) = refusals(weak, INT8, flags_of(weak, INT8))
        assert word in why


def test_integers_beside_floats_keep_their_type():
    """trtexec spreads a single type over all outputs: of a TopK that would be its indices too."""
    definition = Definition(["x"], ["values", "places"])
    definition.add("top", "TOPK", ["x"], "values", "places", dtypes=[DataType.FLOAT, DataType.INT32])
    weak = WeakPlan((Constraint("top", Precision.FP32, (Precision.FP32, "INT32")),), ("top",))
    argv = flags_of(weak, INT8)
    assert by_rules(argv)[1] == {"top": ["fp32", "int32"]}
    assert obeyed(argv, definition) == {"top": ("fp32", {0: "fp32"})}


@pytest.fixture(scope="module")
def norm_run(tmp_path_factory):
    """A run on the decomposed LayerNorm whose MatMul is the culprit."""
    folder = tmp_path_factory.mktemp("norm")
    model = decomposed_norm()
    loud = np.where(np.arange(WIDTH) == 5, np.float32(3000), np.float32(1))
    networks.scale_constant(model, "scale", lambda values: values * loud)
    networks.scale_constant(model, "bias", lambda values: values * loud)
    networks.scale_constant(model, "b", lambda values: values / loud[:, None])
    path = networks.save(model, folder)
    how = {"engine": "onnxruntime", "trt_version": "10.3.0", "explain": "none", "output": folder / "run"}
    report = trt_bisect.run(path, networks.samples(model), **how)
    assert "/fc:0" in report.culprits
    return folder / "run/recipe", report, model


@pytest.mark.slow
def test_a_recipe_pins_the_layers_around_a_culprit(norm_run, tools):
    folder, _, _ = norm_run
    done = documented(folder, tools)
    assert done.returncode == 0
    precisions, types = by_rules(json.loads(done.stdout))
    assert precisions.keys() == {*NORM.values(), "/fc:0", "softmax"}
    assert types.keys() == precisions.keys() | {"fc: first"}, "the INT8 MatMul puts out floats"


def test_the_recipes_network_is_the_measured_one(norm_run):
    """ONNX Runtime runs it as it runs the user's file, and it has the layers that the flags name."""
    folder, report, model = norm_run
    feeds = {"x": networks.samples(model)["x"][:1]}
    ours, theirs = (plain_run(path, feeds)[0] for path in (folder / "network.onnx", report.model))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    named = {node.name for node in onnx.load(folder / "network.onnx").graph.node}
    assert named == {row.name for row in report.layers}


def test_a_refused_layer_is_said_and_the_other_recipes_stand(tools, tmp_path):
    model = decomposed_norm()
    (node,) = [node for node in model.graph.node if node.name == "softmax"]
    node.name = "soft'max"
    path = networks.save(model, tmp_path)
    given = {"engine": "onnxruntime", "explain": "none", "trt_version": "8.6.1", "output": tmp_path / "r"}
    report = trt_bisect.run(path, networks.samples(model), **given)
    assert [note for note in texts(report.notes) if "soft'max" in note and "trtexec" in note]
    recipe = tmp_path / "r/recipe"
    assert documented(recipe, tools).returncode != 0
    onnx.checker.check_model(str(recipe / "network.qdq.onnx"))
    assert '"soft\'max"' in (recipe / "polygraphy_postprocess.py").read_text()


def test_a_network_with_pairs_has_no_flags_no_script_and_no_cache(tmp_path):
    for name in ("trtexec.flags", "calibration.cache", "network.onnx"):
        (tmp_path / "run/recipe").mkdir(parents=True, exist_ok=True)
        (tmp_path / "run/recipe" / name).write_text("of an earlier run")
    model = pairs(loud=300.0)
    path, feeds = networks.given(model, tmp_path)
    report = trt_bisect.run(path, None, feeds, engine="onnxruntime", output=tmp_path / "run")
    written = {file.name for file in (tmp_path / "run/recipe").iterdir()}
    texts = {"plan.json", "modelopt_nodes_to_exclude.json", "README.md"}
    assert written == {*texts, "network.qdq.onnx", "annotated.onnx", "network.fp16.onnx", "given"}, (
        "FP16 is the plan to ship"
    )
    texts = "".join((tmp_path / "run/recipe" / name).read_text() for name in texts)
    assert "calibration.cache" not in texts
    assert "--calib" not in texts
    commands = [each.text for advice in report.advice for remedy in advice.remedies for each in remedy.commands]
    assert commands
    assert not [text for text in commands if "run/recipe/calibration.cache" in text or "trtexec.flags" in text]


def test_the_weak_builder_exports_its_ranges_too(network):
    """A tensor that TensorRT's parser made, such as a Gemm's product before its bias, stands in no other cache."""
    definition, scales = with_ranges(network)
    found = scales_set(definition)
    assert found["product"] == pytest.approx(float(scales["fc_out"]))
    assert found["w"] == pytest.approx(2.0 / 127)
    del scales["x"]
    assert {name: found[name] for name in scales} == pytest.approx({k: float(scale) for k, scale in scales.items()})
