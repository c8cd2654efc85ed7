"""The recipe's list in FP8 and FP16, run through NVIDIA Model Optimizer's quantizer and its AutoCast.

They run where ModelOpt is installed (``pip install nvidia-modelopt[onnx]``): in this Python, or in the one that
``TRT_BISECT_MODELOPT`` names, as it needs another version of ONNX.
"""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.fp16_networks import encoder, written
from trt_bisect.model.network import load_network
from trt_bisect.model.quantizer import FP8, FP16

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
