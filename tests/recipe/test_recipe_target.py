"""The recipe's commands repeat what was measured, in the words of the TensorRT that they are for."""

import argparse
import json
import re
import shlex
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from polygraphy.tools.convert import Convert

import trt_bisect
from tests.support import networks
from tests.support.trtexec_rules import by_rules, read
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.tensorrt_weak import weak_plan
from trt_bisect.calibration.cache import parse_version
from trt_bisect.model.network import load_network
from trt_bisect.options.kinds import read_shapes
from trt_bisect.precision import Precision, int8_set
from trt_bisect.recipe.files import recipe_commands, recipe_files
from trt_bisect.recipe.trtexec import Build, missing
from trt_bisect.report.page import page_data, recipe_texts

INPUTS = {"x": (None, 8, None), "bias": (8,)}
SHAPES = {"x": ((1, 8, 10), (1, 8, 20), (4, 8, 30)), "bias": ((8,), (8,), (8,))}
SET = BuildOptions(workspace_bytes=3 << 30, optimization_level=5, tactic_sources=("JIT_CONVOLUTIONS",), dla=1)
OLD = ("8.5.3", "8.6.1")
WEAK = (*OLD, "10.0.1", "10.3.0", "10.7.0", "10.13.3", "10.16.0")
STRONG_ALONE = ("11.0.0", "11.4.0", "11.4.1", "rtx", "rtx 1.7.1")
FILES = {"network.qdq.onnx", "network.onnx", "plan.json", "README.md", "modelopt_nodes_to_exclude.json"}
WEAK_FILES = {"trtexec.flags", "polygraphy_postprocess.py", "calibration.cache"}
WEAK_FILES |= {"tao_deploy.yaml", "deepstream_nvinfer.txt", "layer_arg.txt"}


def topk():
    """A MatMul, its largest values and their places, with inputs of which one is dynamic."""
    sketch = networks.Sketch(4)
    x = sketch.node("MatMul", [sketch.constant("w", sketch.random.normal(0, 0.3, (6, 8))), "x"], "fc")
    x = sketch.node("MatMul", [sketch.constant("v", sketch.random.normal(0, 0.3, (5, 6))), x], "fc2")
    k = sketch.constant("k", np.array([3]), np.int64)
    sketch.nodes.append(onnx.helper.make_node("TopK", [x, k], ["values", "places"], name="top"))
    sketch.node("Sub", ["bias", sketch.constant("ones", np.ones(8))], "shift")
    model = sketch.model({"x": ["n", 8, "m"], "bias": [8]}, {"values": ["n", 5, 3], "shift_out": [8]})
    model.graph.output.append(onnx.helper.make_tensor_value_info("places", onnx.TensorProto.INT64, ["n", 5, 3]))
    return model


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The network, its scales, and the plan with the second MatMul high."""
    network = load_network(networks.save(topk(), tmp_path_factory.mktemp("topk")))
    assert {spec.name: spec.shape for spec in network.inputs} == INPUTS
    keep = [k for k in network.quantizable if network.layers[k].name != "fc2"]
    return network, {name: np.float32(0.02) for name in network.activations}, int8_set(len(network.layers), keep)


def recipe(measured, version, options=SET):
    network, scales, plan = measured
    build = Build(parse_version(version), shapes=SHAPES, dynamic=("x",), options=options)
    weak = weak_plan(SimpleNamespace(typing="strong"), network, plan)
    return recipe_files(network, scales, plan, Precision.FP32, weak, build)


def release(version):
    """The release of trtexec's sources for a version; TensorRT-RTX's tool is made of those of 11 and before."""
    return "11.1" if version.startswith(("11", "rtx")) else ".".join(version.split(".")[:2])


def strong_words(files):
    (words,) = [shlex.split(text) for name, text in recipe_commands("", files.build, files.network_name).items()][:1]
    return words


@pytest.mark.slow
def test_the_shapes_cover_every_sample_given_also_those_held_out(tmp_path):
    """Every fifth sample of the calibration data is held out; the longest stands there, or in other data alone."""
    random = np.random.default_rng(0)
    path = networks.save(topk(), tmp_path)

    def samples(*lengths):
        return [{"x": random.normal(size=(1, 8, n)).astype("f"), "bias": np.ones(8, "f")} for n in lengths]

    def profile(calibration, **more):
        shared = {"explain": "none", "history": "none", "engine": "onnxruntime", "outputs": ["values"]}
        folder = tmp_path / str(len(calibration))
        trt_bisect.run(path, calibration=calibration, output=folder, **shared, **more)
        return Build.from_json(json.loads((folder / "recipe" / "plan.json").read_text())["build"]).shapes["x"]

    least, _, most = profile(samples(*[5 + k % 5 for k in range(25)]))
    assert (least, most) == ((1, 8, 5), (1, 8, 9))
    least, usual, most = profile(samples(5, 12), inputs=samples(6, 7), validation=samples(3, 9))
    assert (least, most) == ((1, 8, 3), (1, 8, 12))
    assert usual[2] in (6, 7)


@pytest.mark.parametrize("version", [*WEAK, *STRONG_ALONE])
def test_the_target_decides_which_files_there_are(measured, version, tmp_path):
    (tmp_path / "calibration.cache").write_text("of an earlier recipe")
    recipe(measured, version).write(tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == FILES | (WEAK_FILES if version in WEAK else set())
    readme = (tmp_path / "README.md").read_text()
    commands = [line for line in readme.splitlines() if line.startswith(("trtexec", "tensorrt_rtx", "grep", "polyg"))]
    assert len(commands) == (3 if version in WEAK else 1)
    assert ("Weak typing" in readme) == (version in WEAK)
    told = json.loads((tmp_path / "plan.json").read_text())["build"]
    assert told["target"] == version
    assert Build.from_json(told) == recipe(measured, version).build


@pytest.mark.parametrize("version", [*WEAK, *STRONG_ALONE])
def test_the_command_has_what_the_engine_was_measured_with(measured, version):
    """``read`` stops at an option, or a value, that trtexec of the release does not take."""
    files = recipe(measured, version)
    tool, *words = strong_words(files)
    assert tool == ("tensorrt_rtx" if version.startswith("rtx") else "trtexec")
    options, profile = read(words, release(version), INPUTS)
    assert options.pop("--onnx") == ["network.qdq.onnx"]
    assert profile == {"x": SHAPES["x"]}
    assert options.pop("--memPoolSize") == [3 * 2**30]
    assert options.pop("--tacticSources") == [{"JIT_CONVOLUTIONS"}]
    assert options.pop("--noTF32") == [""]
    unsaid = missing(files.build)
    level, dla = version != "8.5.3", version == "11.4.1"
    assert options.pop("--builderOptimizationLevel", None) == (["5"] if level else None)
    assert any("optimisation level 5" in clause for clause in unsaid) == (not level)
    found = (options.pop("--useDLACore", None), options.pop("--allowGPUFallback", None))
    assert found == ((["1"], [""]) if dla else (None, None))
    assert any("DLA core 1" in clause for clause in unsaid) == (not dla)
    for clause in unsaid:
        assert clause in files.texts["README.md"]
    typed = {"--int8"} if version in OLD else set() if version.startswith("rtx") else {"--stronglyTyped"}
    assert options.keys() - {"--minShapes", "--optShapes", "--maxShapes"} == typed


@pytest.mark.parametrize("version", WEAK)
def test_the_flags_have_what_the_engine_was_measured_with(measured, version):
    files = recipe(measured, version)
    words = shlex.split(files.texts["trtexec.flags"])
    options, profile = read(words, release(version), INPUTS)
    assert profile == {"x": SHAPES["x"]}
    assert options["--optShapesCalib"] == ["x:1x8x20,bias:8"]
    assert options["--calib"] == ["calibration.cache"]
    has_dla = version in (*OLD, "10.0.1", "10.3.0", "10.7.0")
    assert (options.get("--useDLACore"), "--allowGPUFallback" in options) == (["1"] if has_dla else None, has_dla)
    strong, _ = read(strong_words(files)[1:], release(version), INPUTS)
    same = strong.keys() - {"--onnx", "--int8", "--stronglyTyped"}
    assert {name: options[name] for name in same} == {name: strong[name] for name in same}
    precisions, types = by_rules(words)
    assert precisions == {name: ["fp32"] for name in ("fc2", "top", "shift")}
    assert types["top"] == ["fp32", "int32"], "TensorRT's TopK makes INT32, whatever ONNX calls it"


@pytest.mark.parametrize("version", WEAK)
def test_polygraphy_reads_what_the_engine_was_measured_with(measured, version):
    """Polygraphy 0.53's own parser."""
    files = recipe(measured, version)
    command = recipe_commands("run/recipe", files.build, files.network_name)["polygraphy_postprocess.py"]
    assert recipe_commands("", files.build, files.network_name)["polygraphy_postprocess.py"] in files.texts["README.md"]
    tool, parser = Convert(), argparse.ArgumentParser()
    tool.setup_parser(parser.add_subparsers())
    args = parser.parse_args(shlex.split(command)[1:])
    for group in tool.arg_groups.values():
        group.parse(args)
    (config,) = [group for group in tool.arg_groups.values() if hasattr(group, "profile_dicts")]
    (profile,) = config.profile_dicts
    assert {name: tuple(map(tuple, shapes)) for name, shapes in profile.items()} == {"x": SHAPES["x"]}
    assert [int(size) for size in config.memory_pool_limits.values()] == [3 * 2**30]
    assert [str(source) for source in config.tactic_sources] == ["trt.TacticSource.JIT_CONVOLUTIONS"]
    assert config.builder_optimization_level == (None if version == "8.5.3" else 5)
    assert (config.int8, config.use_dla, config.allow_gpu_fallback) == (True, True, True)
    assert config.calibration_cache == "run/recipe/calibration.cache"


def test_types_that_a_version_does_not_know_are_refused(tmp_path):
    """BF16 came with TensorRT 9: trtexec of 8.6 stops with "Invalid DataType bf16"."""
    network = load_network(networks.save(topk(), tmp_path), base=Precision.BF16)
    plan = network.plan({0}, Precision.FP32)
    scales = {name: np.float32(0.02) for name in network.activations}
    old, new = (recipe((network, scales, plan), version) for version in ("8.6.1", "10.3.0"))
    read(shlex.split(new.texts["trtexec.flags"]), "10.3", INPUTS)
    assert "--refused" in old.texts["trtexec.flags"]
    assert any("BF16" in clause for clause in missing(old.build))


def test_what_a_tool_cannot_be_told_is_named(measured):
    """TensorRT-RTX has no plugins, TensorRT 11 no cuDNN; trtexec splits shapes at commas."""
    options = BuildOptions(tactic_sources=("CUDNN",), plugins=("/opt/lib a.so",))

    def lacks(version, options):
        return recipe(measured, version, options).texts["README.md"].partition("lacks")[2]

    for version in ("8.5.3", "8.6.1", "11.4.0"):
        found, _ = read(strong_words(recipe(measured, version, options))[1:], release(version), INPUTS)
        assert found["--plugins" if version == "8.5.3" else "--staticPlugins"] == ["/opt/lib a.so"]
        assert ("CUDNN" in lacks(version, options)) == (version == "11.4.0")
    assert "/opt/lib a.so" in lacks("rtx", options)
    assert "/opt/ops.so" in lacks("11.4.0", BuildOptions(operators=("/opt/ops.so",)))
    assert re.search(r"'k'.* 3 to 5", lacks("10.3.0", BuildOptions(sizes={"k": ((3,), (3,), (5,))})))
    odd = Build(parse_version("rtx"), shapes={"a,b": ((1,), (2,), (3,))}, dynamic=("a,b",))
    assert any("a,b" in clause for clause in missing(odd))
    assert "Shapes" not in " ".join(recipe_commands("", odd, "n.onnx").values())


@pytest.mark.parametrize("spoiled", [None, 3, [], {}, {"target": "12.0"}, {"target": "10.3.0", "precisions": 1}])
def test_a_spoiled_plan_gives_no_command(spoiled):
    assert Build.from_json(spoiled) is None
    assert Build.from_json({"target": "10.3.0", "precisions": [], "weak": True, "shapes": {"x": [[1]]}}) is None


@pytest.mark.slow
def test_a_run_tells_the_shapes_of_all_its_data(tmp_path, monkeypatch):
    """The inputs are of three widths; the NEXT command, the README and the page have all of them."""
    monkeypatch.chdir(tmp_path)
    model = topk()
    path = networks.save(model, tmp_path)
    random = np.random.default_rng(1)
    data = [
        {"x": random.standard_normal((1, 8, width)).astype(np.float32), "bias": np.ones(8, np.float32)}
        for width in (20, 10, 30, 10)
    ]
    given = {"engine": "onnxruntime", "explain": "none", "validation": 0, "output": "my run", "history": "none"}
    given["accept"] = True
    report = trt_bisect.run(path, data, **given)
    tool, *words = shlex.split(report.next.command)
    options, profile = read(words, "11.1", INPUTS)
    assert (tool, options["--onnx"]) == ("trtexec", ["my run/recipe/network.qdq.onnx"])
    (least, usual, most) = profile["x"]
    assert (least, most) == ((1, 8, 10), (1, 8, 30))
    assert usual in {(1, 8, width) for width in (10, 20, 30)}
    page = page_data(report, recipe=recipe_texts(tmp_path / "my run/recipe"), folder="my run")
    assert page.commands == {"network.qdq.onnx": report.next.command}
    readme = (tmp_path / "my run/recipe/README.md").read_text().replace("'", "")
    assert report.next.command.replace("my run/recipe/", "").replace("'", "") in readme
    weak = trt_bisect.run(path, data, trt_version="8.6.1", **given)
    page = page_data(weak, recipe=recipe_texts(tmp_path / "my run/recipe"), folder="my run")
    assert page.commands.keys() == {"network.qdq.onnx", "trtexec.flags", "polygraphy_postprocess.py"}
    flags = shlex.split((tmp_path / "my run/recipe/trtexec.flags").read_text())
    assert read(flags, "8.6", INPUTS)[1]["x"] == profile["x"]


def test_a_real_builder_takes_the_shapes_of_the_command(measured, tmp_path):
    """TensorRT-RTX on the recipe's network: without a profile it refuses, with the command's it builds."""
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    files = recipe(measured, "rtx")
    files.write(tmp_path)
    _, profile = read(strong_words(files)[1:], "11.1", INPUTS)
    builder = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(network, builder.logger).parse_from_file(str(tmp_path / "network.qdq.onnx"))
    assert builder.build_serialized_network(network, builder.create_builder_config()) is None
    config, shapes = builder.create_builder_config(), builder.create_optimization_profile()
    for name, three in profile.items():
        shapes.set_shape(name, *three)
    config.add_optimization_profile(shapes)
    assert builder.build_serialized_network(network, config) is not None


@pytest.mark.slow
def test_a_real_engine_is_asked_with_the_readmes_command(measured, tmp_path, monkeypatch):
    """Of two MatMuls one has pairs: its kernel reads INT8 (TensorRT-RTX's own log)."""
    pytest.importorskip("tensorrt_rtx_bindings")
    files = recipe(measured, "11.4.0")
    files.write(tmp_path)
    [line] = [line for line in files.texts["README.md"].splitlines() if line.startswith("trt-bisect check ")]
    _, _, network, *options = shlex.split(line)
    assert options == ["--engine", "tensorrt-rtx", "--shape", "x:1x8x20"]
    monkeypatch.chdir(tmp_path)
    found = trt_bisect.check(network, engine="tensorrt-rtx", shapes=read_shapes(options[3:]))
    assert found.engine.low == ("fc",)
