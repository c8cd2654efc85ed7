"""The recipe in the words of other tools, read back by parsers written from the tools' own.

``test_modelopt_notebook`` gives a file to ModelOpt itself.
"""

from __future__ import annotations

import fnmatch
import json
import re
from dataclasses import replace

import pytest
import yaml
from hypothesis import example, given, strategies

import trt_bisect
from tests.support.module_names import CULPRIT, MODULE, written
from tools import make_tables
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.tensorrt_weak import Constraint, WeakPlan
from trt_bisect.calibration.cache import parse_version
from trt_bisect.errors import BadInput
from trt_bisect.precision import Precision
from trt_bisect.recipe.dialects import DIALECTS, Told, ToldLayer, quant_cfg, texts_of
from trt_bisect.recipe.trtexec import Build

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
LAYERS = (
    ToldLayer("/a/Conv", "Conv", "a (Conv2d)", INT8),
    ToldLayer("/b/ConvTranspose", "ConvTranspose", "b", INT8),
    ToldLayer("/c/Add", "Add", "c (Block)", FP32),
    ToldLayer("/c/d/Gemm", "Gemm", "c.d (Linear)", FP32),
    ToldLayer("/pool/AveragePool", "AveragePool", "pool", INT8),
)


def told(*rules, version="8.6.1", layers=LAYERS, low=INT8, dla=None, properties=None):
    constraints = tuple(Constraint(layer, kind, (kind,)) for layer, kind in rules)
    weak = WeakPlan(constraints, tuple(layer for layer, _ in rules))
    precisions = frozenset(layer.precision for layer in layers)
    build = Build(parse_version(version), precisions, weak=bool(rules), options=BuildOptions(dla=dla))
    names = tuple(layer.name for layer in layers if layer.precision is not low)
    return Told(layers, names, low, weak, build, "network.qdq.onnx", properties or {})


def enabled(config, name):
    """The state of a quantizer as ``set_quantizer_by_cfg`` of ModelOpt finds it: the last entry that matches."""
    found = None
    for entry in config["quant_cfg"]:
        if fnmatch.fnmatch(name, entry["quantizer_name"]):
            found = entry.get("cfg") if entry.get("enable", True) else None
    return found


def test_modelopts_quantizers_are_those_of_the_low_modules():
    config = quant_cfg(LAYERS, INT8)
    states = {name: enabled(config, f"{name}_quantizer") for name in ("a.weight", "b.weight", "c.d.weight", "x.weight")}
    channel, across = {"num_bits": 8, "axis": 0}, {"num_bits": 8, "axis": 1}
    assert states == {"a.weight": channel, "b.weight": across, "c.d.weight": None, "x.weight": None}
    assert enabled(config, "pool.input_quantizer") == {"num_bits": 8, "axis": None}
    assert {entry["quantizer_name"] for entry in config["quant_cfg"] if entry.get("enable") is False} == {
        *("*", "c.d.weight_quantizer", "c.d.input_quantizer")
    }


@pytest.mark.parametrize(
    ("layers", "low", "problem"),
    [((replace(LAYERS[0], module="(Net)"),), INT8, "'/a/Conv'"), (LAYERS, FP16, "FP16")],
)
def test_a_config_that_modelopt_cannot_be_given_is_refused(layers, low, problem):
    with pytest.raises(BadInput, match=problem):
        quant_cfg(layers, low)
    assert "modelopt_quant_cfg.json" not in texts_of(told(layers=layers, low=low))


def test_operators_whose_layers_all_stay_high_are_named_as_such():
    excluded = json.loads(texts_of(told())["modelopt_nodes_to_exclude.json"])
    assert excluded["op_types_to_exclude"] == ["Add", "Gemm"]
    kept = {layer.name for layer in LAYERS if any(re.match(each, layer.name) for each in excluded["nodes_to_exclude"])}
    assert kept == {"/c/Add", "/c/d/Gemm"}


def glib_list(text):
    """The entries of a list in a key file: https://docs.gtk.org/glib/struct.KeyFile.html, "Basic format"."""
    codes = {"s": " ", "n": "\n", "t": "\t", "r": "\r", "\\": "\\", ";": ";"}
    parts = re.findall(r"((?:\\.|[^\\;])*);", text, re.DOTALL)
    return [re.sub(r"\\(.)", lambda match: codes[match[1]], part) for part in parts]


@pytest.mark.slow
@given(strategies.lists(strategies.text(min_size=1), min_size=1, unique=True))
@example(["/head/Conv;1", r"a\b", " first", "a:b"])
def test_deepstream_and_tao_read_the_layers_of_weak_typing(names):
    names = [name for name in names if name.isprintable()] or ["x"]
    rules = [(name, (FP32, FP16)[k % 2]) for k, name in enumerate(names)]
    texts = texts_of(told(*rules))
    specification = yaml.safe_load(texts["tao_deploy.yaml"])["gen_trt_engine"]["tensorrt"]
    assert [
        (each[: each.rfind(":")], each[each.rfind(":") + 1 :]) for each in specification["layers_precision"]
    ] == rules
    assert (specification["data_type"], specification["calibration"]["cal_cache_file"]) == ("int8", "calibration.cache")
    if any(":" in name for name in names):
        assert "deepstream_nvinfer.txt" not in texts
        return
    keys = dict(line.split("=", 1) for line in texts["deepstream_nvinfer.txt"].splitlines()[1:])
    assert [tuple(each.split(":")) for each in glib_list(keys["layer-device-precision"])] == [
        (name, kind, "gpu") for name, kind in rules
    ]
    assert (keys["network-mode"], keys["int8-calib-file"]) == ("1", "calibration.cache")


def test_the_dla_is_told_the_layers_in_fp16():
    rules = [("/a/Conv", FP16), ("/b/Conv", INT8)]
    assert texts_of(told(*rules, dla=0))["layer_arg.txt"] == "/a/Conv:fp16,"
    assert "layer_arg.txt" not in texts_of(told(*rules))
    assert "layer_arg.txt" not in texts_of(told(("a,b", FP16), dla=0))


def test_torch_tensorrt_keeps_the_modules_in_fp32():
    layers = tuple(replace(layer, precision=FP16) if layer.precision is INT8 else layer for layer in LAYERS)
    settings = json.loads(texts_of(told(layers=layers, low=FP16))["torch_tensorrt.json"])
    kept = [
        path
        for path in ("a", "c", "c.d", "c.d2", "cxd", "xc")
        if any(re.match(p, path) for p in settings["autocast_excluded_nodes"])
    ]
    assert kept == ["c", "c.d"]
    assert settings["autocast_low_precision_type"] == "fp16"


@pytest.mark.parametrize(("version", "asked"), [("8.6.1", 8), ("10.3.0", 8), ("11.0.0", None)])
def test_ultralytics_is_given_our_file_and_the_metadata_of_its_export(version, asked):
    text = texts_of(told(version=version, properties={"author": "Ultralytics", "names": "{0: 'a'}"}))[
        "ultralytics_engine.py"
    ]
    assert f"quantize={asked}," in text
    compile(text, "ultralytics_engine.py", "exec")
    assert "ultralytics_engine.py" not in texts_of(told(version=version))


@pytest.mark.slow
def test_a_run_writes_them_and_its_readme_says_how_to_use_each(lenet, tmp_path):
    network, data = written(lenet, tmp_path)
    how = {"engine": "onnxruntime", "history": "none", "explain": "none", "trt_version": "8.6.1"}
    report = trt_bisect.run(network, data, output=tmp_path / "run", **how)
    files = {path.name: path.read_text() for path in (tmp_path / "run" / "recipe").iterdir() if path.suffix != ".onnx"}
    config = json.loads(files["modelopt_quant_cfg.json"])
    assert config == report.quant_cfg()
    assert [entry["quantizer_name"] for entry in config["quant_cfg"]][-1] == f"{MODULE}.input_quantizer"
    assert f'"{CULPRIT}:fp32"' in files["tao_deploy.yaml"]
    assert f"{CULPRIT}:fp32:gpu;" in files["deepstream_nvinfer.txt"]
    rows = [dialect for dialect in DIALECTS if dialect.file in files]
    assert {dialect.tool for dialect in rows} == {"ModelOpt on PyTorch", "ModelOpt on ONNX", "TAO Deploy", "DeepStream"}
    assert all(f"| `{dialect.file}` | {dialect.tool}: " in files["README.md"] for dialect in rows)
    older = report.quant_cfg(as_dictionary=True)["quant_cfg"]
    assert older["*"] == older[f"{MODULE}.weight_quantizer"] == {"enable": False}
    assert older["body.0.weight_quantizer"] == {"num_bits": 8, "axis": 0, "enable": True}


def test_the_page_of_tools_is_up_to_date():
    """python -m tools.make_tables"""
    assert make_tables.TOOLS.read_text(encoding="utf-8") == make_tables.tools_page()
