"""The commands that remedies suggest: each tool parses its own, and they repeat the run's options."""

import argparse
import json
import shlex
from dataclasses import replace

import numpy as np
from polygraphy.tools.convert import Convert

from tests.support import networks
from tests.support.trtexec_rules import read
from trt_bisect.builder.base import BuildOptions
from trt_bisect.calibration.cache import parse_version
from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.cli.app import bound_to
from trt_bisect.precision import Precision
from trt_bisect.recipe import commands as suggested
from trt_bisect.recipe.commands import Setting, calibrating, keeping_high, with_cache, with_moved
from trt_bisect.recipe.trtexec import Build

KINDS = frozenset({Precision.INT8, Precision.FP16, Precision.FP32})
SHAPES = {"x:0": ((1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8)), "mask": ((1, 8), (1, 8), (1, 8))}
OPTIONS = BuildOptions(workspace_bytes=1 << 30, optimization_level=4, tactic_sources=("CUDNN",), plugins=("/a b.so",))
BUILD = Build(parse_version("8.6.1"), KINDS, True, SHAPES, ("x:0",), OPTIONS)
SETTINGS = [
    Setting("a network.onnx", "data.npz", True, Calibrator("entropy"), False, Precision.FP32, "run", BUILD),
    Setting("n.onnx", "x.cache", False, None, False, Precision.FP16, "", BUILD),
    Setting("n.onnx", "", False, None, True, Precision.FP32, "run", replace(BUILD, weak=False)),
]


NAMES = ["ip2", "/layer 1/conv.0", "a:b", "it's; $(rm) [bold]"]


def commands():
    for setting in SETTINGS:
        for calibrator in (Calibrator("minmax"), Calibrator("entropy"), Calibrator("percentile", 99.9)):
            yield from calibrating(setting, calibrator)
        yield from with_cache(setting, "remedies/3-minmax.cache")
        yield from suggested.requantizing(setting)
        if not setting.has_pairs:
            yield suggested.running_moved(setting, "remedies/equalised.onnx")
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
    found = of_tool("trt-bisect")
    for words in found:
        assert words[0] == "trt-bisect"
        function, given = bound_to(words[1:])
        assert function.__name__ == f"{words[1]}_command"
        assert given["model"].suffix == ".onnx"
        options = given["options"]
        assert options.calibration or options.inputs or options.dataset
    assert {words[1] for words in found} == {"run"}
    assert any("--front" in words for words in found)
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
        options, profile = read(words[1:], "8.6", {"x:0": (None, 3, 8, 8), "mask": (1, 8)})
        assert profile == {"x:0": SHAPES["x:0"]}
        assert {"--int8", "--noTF32", "--memPoolSize"} <= options.keys()


def test_nothing_is_suggested_that_the_target_cannot_read():
    """TensorRT 11 has neither calibration caches nor flags of weak typing."""
    build = replace(BUILD, target=parse_version("11.4.0"), weak=False)
    for setting in (replace(one, build=build) for one in SETTINGS):
        calibrated = calibrating(setting, Calibrator("percentile", 99.9))
        moved = with_moved(setting, "remedies/equalised.onnx", "remedies/equalised.cache")
        kept = keeping_high(setting, "ip2", setting.high)
        tools = [command.tool for command in (*calibrated, *moved, *kept)]
        assert "Polygraphy" not in tools
        assert "recipe/calibration.cache" not in " ".join(command.text for command in (*calibrated, *moved, *kept))
        for command in kept:
            if command.tool == "trtexec":
                assert read(shlex.split(command.text)[1:], "11.1", {"x:0": (None, 3, 8, 8), "mask": (1, 8)})


def test_shapes_that_the_user_fixed_are_given_for_his_own_file():
    """His file is dynamic; the recipe's network, and one made from it, are not."""
    shapes = {"x": ((1, 3, 8, 8),) * 3, "mask": ((1, 8),) * 3}
    setting = replace(SETTINGS[0], build=replace(BUILD, shapes=shapes, dynamic=()), fixed={"x": (1, 3, 8, 8)})
    (own,) = [one for one in with_cache(setting, "c.cache") if one.tool == "trtexec"]
    (recipe,) = [one for one in keeping_high(setting, "ip2", setting.high) if "network.qdq" in one.text]
    inputs = {"x": (None, 3, None, None), "mask": (1, 8)}
    assert read(shlex.split(own.text)[1:], "8.6", inputs)[1] == {"x": ((1, 3, 8, 8),) * 3}
    (moved,) = [one for one in with_moved(setting, "moved.onnx", "moved.cache") if one.tool == "trtexec"]
    for command in (recipe, moved):
        read(shlex.split(command.text)[1:], "8.6", {"x": (1, 3, 8, 8), "mask": (1, 8)})


def test_a_recipe_of_two_layers_is_named_whole():
    """Either layer alone in high precision would miss the threshold."""
    setting = replace(SETTINGS[0], kept=("ip1", "ip2"))
    for high in (Precision.FP16, Precision.FP32):
        excluded = [
            words[words.index("--nodes_to_exclude") + 1 :]
            for command in keeping_high(setting, "ip1", high)
            if "--nodes_to_exclude" in (words := shlex.split(command.text))
        ]
        assert [words[:2] for words in excluded] == [["^ip1$", "^ip2$"]]
    many = replace(setting, kept=tuple(map(str, range(100))))
    assert not any("nodes_to_exclude" in command.text for command in keeping_high(many, "1", Precision.FP32))


ASKED = {"--metric": "sqnr", "--threshold": "27.5", "--samples": "2", "--calibrator": "percentile=90"}
ASKED |= {
    "--shape": "x:1x3x16x16",
    "--memory": "64",
    "--trt-version": "8.6.1",
    "--history": "none",
    "--effort": "quick",
}


def test_suggested_commands_repeat_the_runs_options_and_run(command, tmp_path, monkeypatch):
    """Each command of trt-bisect that a real run suggests, given to the real command line, in the user's own folder."""
    monkeypatch.chdir(tmp_path)
    model = networks.planted(networks.chain(depth=3, width=4), ("conv1", "conv2"), factor=50.0)
    networks.save(model, tmp_path)
    np.savez(tmp_path / "some data.npz", **networks.samples(model, 4))
    np.savez(tmp_path / "other.npz", **networks.samples(model, 4, seed=11))
    asked = {**ASKED, "--outputs": model.graph.output[0].name}
    options = [word for option in asked.items() for word in option]
    code, _, error = command(
        "run", "network.onnx", "--calibration", "some data.npz", "--dataset", "other.npz", "-o", "first run",
        "--engine", "onnxruntime", *options,
    )  # fmt: skip
    assert code == 1, error
    first = json.loads((tmp_path / "first run/report.json").read_text())
    record = json.loads((tmp_path / "first run/explanation.json").read_text())
    remedies = [remedy for advice in record["advice"] for remedy in advice["remedies"]]
    own = {
        command["text"]: remedy["remedy"]
        for remedy in remedies
        for command in remedy["commands"]
        if command["tool"] == "trt-bisect"
    }
    assert {text.split()[1] for text in own} == {"run"}
    assert {"another calibrator", "FP16", "FP32"} <= set(own.values())
    for text, remedy in own.items():
        words = shlex.split(text)
        changed = {"another calibrator": {"--calibrator", "--calibration"}, "FP16": {"--precision"}}
        measures_front = "--front" in words
        for option, value in asked.items():
            if option in changed.get(remedy, ()):
                continue
            assert value in words[words.index(option) :], (option, text)
        assert words[words.index("--dataset") + 1] == "other.npz"
        assert command(*words[1:])[0] in (0, 1)
        folder = tmp_path / words[words.index("--output") + 1]
        assert (folder == tmp_path / "first run") == measures_front, "only the front goes on in the run's own folder"
        found = json.loads((folder / "report.json").read_text())
        if measures_front:
            assert found["threshold"] == 27.5
            assert {name for point in found["front"] for name in point["names"]} >= {"all INT8", "recipe", "all high"}
            assert found["recipe"] == first["recipe"]
        else:
            assert (found["precision"] == first["precision"]) == (remedy != "FP16")
