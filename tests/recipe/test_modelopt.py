"""The recipe's list, run through NVIDIA Model Optimizer's quantizer and its AutoCast, and their files read back.

They run where ModelOpt is installed (``pip install nvidia-modelopt[onnx]``): in this Python, or in the one that
``TRT_BISECT_MODELOPT`` names, as it needs another version of ONNX.
"""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.support import networks
from tests.support.fp16_networks import encoder, written
from tests.support.quantized import plain_session
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.model.network import load_network
from trt_bisect.model.quantizer import FP8, FP16

CULPRIT = "block1.conv2"
_QUANTIZE = """
import json, sys, numpy
from modelopt.onnx.quantization import quantize
for job in json.load(sys.stdin):
    with numpy.load(job.pop("data")) as arrays:
        quantize(**{"quantize_mode": "int8", **job}, calibration_data=dict(arrays), calibration_method="max",
                 calibration_eps=["cpu"])
"""
_AUTOCAST = """
import json, sys, onnx
from modelopt.onnx.autocast import convert_to_mixed_precision
for job in json.load(sys.stdin):
    result = job.pop("result")
    model = convert_to_mixed_precision(**job, low_precision_type="fp16", keep_io_types=True, providers=["cpu"])
    onnx.save(model, result)
"""


@pytest.fixture(scope="module")
def modelopt():
    """Runs a script with jobs in the Python that has ModelOpt."""
    python = os.environ.get("TRT_BISECT_MODELOPT", "")
    if not python and importlib.util.find_spec("modelopt") is None:
        pytest.skip("ModelOpt is not installed, and TRT_BISECT_MODELOPT names no Python that has it")

    def run(script, jobs):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run(
            [python or sys.executable, "-c", script], input=json.dumps(jobs), text=True, check=True, env=environment
        )

    return run


@pytest.fixture(scope="module")
def quantized(modelopt, tmp_path_factory):
    """The run folder of a network with one culprit, and ModelOpt's files by name: without a list and with the recipe's.

    ModelOpt leaves convolutions of fewer than 16 channels alone anyhow.
    """
    folder = tmp_path_factory.mktemp("modelopt")
    model = networks.residual(width=16)
    networks.plant_between(model, "block1.conv1", CULPRIT)
    path, samples = networks.given(model, folder)
    report = trt_bisect.run(
        path, samples, engine="onnxruntime", calibrator="minmax", metric="sqnr", explain="none", output=folder / "run"
    )
    assert report.culprits == (CULPRIT,)
    np.savez(folder / "data.npz", **samples)
    excluded = json.loads((folder / "run/recipe/modelopt_nodes_to_exclude.json").read_text())
    common = {"onnx_path": str(path), "data": str(folder / "data.npz")}
    kinds = {"all": ("fp32", {}), "recipe": ("fp32", excluded), "recipe fp16": ("fp16", excluded)}
    files = {name: folder / f"{name}.onnx" for name in kinds}
    jobs = [
        {**common, "output_path": str(files[name]), "high_precision_dtype": high, **options}
        for name, (high, options) in kinds.items()
    ]
    modelopt(_QUANTIZE, jobs)
    return path, samples["x"], files


def outputs(path, samples):
    session = plain_session(path)
    return np.concatenate([session.run(None, {"x": x[None]})[0].ravel() for x in samples]).astype(np.float64)


def apart(found, exact):
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


def test_modelopt_leaves_the_nodes_of_the_list_alone(quantized):
    _, _, files = quantized
    rounded = {}
    for name, path in files.items():
        graph = onnx.load(path).graph
        makers = {tensor: node.op_type for node in graph.node for tensor in node.output}
        convolutions = [node for node in graph.node if node.op_type == "Conv"]
        rounded[name] = {node.name for node in convolutions if makers.get(node.input[1]) == "DequantizeLinear"}
    assert rounded["all"] - rounded["recipe"] == {CULPRIT}
    assert rounded["recipe fp16"] == rounded["recipe"]
    assert len(rounded["recipe"]) == 8


def test_with_the_list_modelopts_network_is_good(quantized):
    path, samples, files = quantized
    exact = outputs(path, samples)
    bad, good, half = (apart(outputs(file, samples), exact) for file in files.values())
    assert bad > 10 * good
    assert half < 2 * good


def test_modelopts_files_are_read_back_and_compute_the_same(quantized):
    _, samples, files = quantized
    for name, file in files.items():
        network = load_network(file)
        low = {network.layers[k].name for k in network.quantizable}
        assert (CULPRIT in low) is (name == "all")
        with OnnxRuntimeBuilder(network, {}, BuildOptions()).build(network.free_plan(network.quantizable)) as engine:
            found = np.concatenate([next(iter(engine.infer({"x": x[None]}).values())).ravel() for x in samples])
        assert apart(found.astype(np.float64), outputs(file, samples)) < 0.02, name


def test_modelopt_leaves_the_nodes_of_an_fp8_list_alone(modelopt, tmp_path):
    """In FP8 it takes convolutions of 64 channels, and leaves the Gemm at the end alone anyhow."""
    model = networks.residual(width=64)
    path, samples = networks.given(model, tmp_path)
    wishes = {"engine": "onnxruntime", "calibrator": "minmax", "metric": "sqnr", "threshold": 30.0}
    report = trt_bisect.run(path, samples, low="fp8", explain="none", output=tmp_path / "run", **wishes)
    np.savez(tmp_path / "data.npz", **samples)
    excluded = json.loads((tmp_path / "run/recipe/modelopt_nodes_to_exclude.json").read_text())
    common = {"onnx_path": str(path), "data": str(tmp_path / "data.npz"), "quantize_mode": "fp8"}
    common["high_precision_dtype"] = "fp32"
    files = tmp_path / "all.onnx", tmp_path / "recipe.onnx"
    modelopt(
        _QUANTIZE, [{**common, "output_path": str(files[0])}, {**common, "output_path": str(files[1]), **excluded}]
    )
    every, kept = (load_network(file) for file in files)
    assert every.low is kept.low is FP8
    low = [{network.layers[k].name for k in network.quantizable} for network in (every, kept)]
    convolutions = {name for name in report.culprits if not name.startswith("fc")}
    assert low[0] - low[1] == convolutions != set()


def test_autocast_keeps_the_nodes_of_the_list_in_fp32(modelopt, tmp_path):
    """Its thresholds are set so high that the list alone decides."""
    path, _ = written(encoder, tmp_path)
    kept = [layer.name for layer in load_network(path, low=FP16).layers if layer.op_type == "MatMul"][:2]
    job = {"onnx_path": str(path), "data_max": 1e30, "init_max": 1e30, "result": str(tmp_path / "out.onnx")}
    modelopt(_AUTOCAST, [{**job, "nodes_to_exclude": [f"^{name}$" for name in kept]}])
    network = load_network(tmp_path / "out.onnx", low=FP16)
    in_fp32 = {layer.name for layer in network.layers if not layer.quantizable and layer.op_type == "MatMul"}
    assert in_fp32 == set(kept)
