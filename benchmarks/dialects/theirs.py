"""INT8 files of other tools, each beside the float file that it was made from: is the recipe the tool's file, mended.

python -m benchmarks.dialects.theirs [NETWORK ...]

It needs the environment of ``benchmarks.dialects``, and ``nncf==3.4.0 ultralytics==8.4.190``. A file counts if it and
``recipe/given`` differ in Q/DQ pairs alone, and if ONNX Runtime computes with ``recipe/given`` the figure that the
report tells, which passes. ``no recipe``: the file misses the threshold without any pair, because the tool changed the
network.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import nncf
import numpy as np
import onnx
import torch
from modelopt.onnx.quantization import quantize
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn
from ultralytics.utils.export.engine import modelopt_quantize_onnx
from ultralytics.utils.export.onnx import onnx_int8_quantize

import trt_bisect
from benchmarks.dialects.planted import NETWORKS, Planted, planted
from tests.support.given_files import same_but_for_pairs
from tests.support.quantized import plain_session, quantized_by_onnxruntime
from trt_bisect.report.model import Report

_SAMPLES, _EQUAL = 16, 1e-4
HOW: dict[str, Any] = {"engine": "onnxruntime", "explain": "none", "history": "none", "precision": "fp32"}
Quantize = Callable[[nn.Module, Path, torch.Tensor, Path], None]
"""Writes the INT8 file of a module, its float file and data."""


def _input(path: Path) -> str:
    return onnx.load(path, load_external_data=False).graph.input[0].name


def _with_shapes(path: Path) -> Path:
    """Returns the file of a network with the shapes that ONNX Runtime's quantizer needs."""
    ready = path.with_name("shapes.onnx")
    quant_pre_process(str(path), str(ready), skip_optimization=True, skip_symbolic_shape=True)
    return ready


def by_onnxruntime(_: nn.Module, floats: Path, data: torch.Tensor, path: Path) -> None:
    name = _input(floats)
    samples = [{name: sample[None].numpy()} for sample in data]
    quantized_by_onnxruntime(_with_shapes(floats), path, samples, per_channel=True, weight_type=QuantType.QInt8)


def by_modelopt(_: nn.Module, floats: Path, data: torch.Tensor, path: Path) -> None:
    given = {"calibration_data": {_input(floats): data.numpy()}, "calibration_eps": ["cpu"]}
    quantize(
        str(floats),
        quantize_mode="int8",
        calibration_method="max",
        high_precision_dtype="fp32",
        output_path=str(path),
        **given,
    )


def by_modelopt_on_pytorch(module: nn.Module, _: Path, data: torch.Tensor, path: Path) -> None:
    def calibrate(quantized: nn.Module) -> None:
        for sample in data:
            quantized(sample[None])

    with torch.no_grad():
        quantized = mtq.quantize(copy.deepcopy(module), mtq.INT8_DEFAULT_CFG, calibrate)
        torch.onnx.export(quantized, (data[:1],), str(path), dynamo=False, opset_version=17)


def by_nncf(_: nn.Module, floats: Path, data: torch.Tensor, path: Path) -> None:
    model, name = onnx.load(floats), _input(floats)
    dataset = nncf.Dataset([{name: sample[None].numpy()} for sample in data])
    onnx.save(nncf.quantize(model, dataset, preset=nncf.QuantizationPreset.MIXED), path)


def by_ultralytics(_: nn.Module, floats: Path, data: torch.Tensor, path: Path) -> None:
    batches = [{"img": sample[None]} for sample in data]
    onnx_int8_quantize(_with_shapes(floats), path, batches, lambda batch: batch["img"].numpy(), _input(floats))


def by_ultralytics_for_tensorrt(_: nn.Module, floats: Path, data: torch.Tensor, path: Path) -> None:
    batches = [{"img": 255 * sample[None]} for sample in data]
    Path(modelopt_quantize_onnx(str(floats), 8, batches, (1, *data.shape[1:]))).replace(path)


TOOLS: dict[str, Quantize] = {
    "ONNX Runtime": by_onnxruntime,
    "Ultralytics": by_ultralytics,
    "NNCF": by_nncf,
    "ModelOpt on PyTorch": by_modelopt_on_pytorch,
    "ModelOpt on ONNX": by_modelopt,
    "Ultralytics for TensorRT 11": by_ultralytics_for_tensorrt,
}
"""ModelOpt's ONNX quantizer, which changes that of ONNX Runtime for the whole process, comes last."""


def worst(path: Path, floats: Path, data: torch.Tensor) -> float:
    """Returns the least cosine of the outputs of two files, as ONNX Runtime runs them."""
    sessions = [plain_session(str(file)) for file in (path, floats)]
    cosines = []
    for sample in data.numpy():
        found, exact = (
            session.run(None, {session.get_inputs()[0].name: sample[None]})[0].ravel().astype(np.float64)
            for session in sessions
        )
        cosines.append(float(found @ exact / np.linalg.norm(found) / np.linalg.norm(exact)))
    return min(cosines)


def told(report: Report) -> float:
    """Returns the figure that a report tells of ``recipe/given``."""
    for note in report.notes:
        if "without those of the recipe's high layers" in note.text:
            return float(note.text.split("measures ")[1].lstrip(">").split("%")[0]) / 100
    return report.similarity.recipe or 0.0


def trip(network: Planted, how: Quantize, folder: Path) -> tuple[str, str]:
    """Returns if a tool's file of a network counts, and what was found."""
    module = planted(network)
    data = torch.randn(_SAMPLES, *network.shape, generator=torch.Generator().manual_seed(1))
    floats, path = folder / "float.onnx", folder / "theirs.onnx"
    torch.onnx.export(module, (data[:1],), str(floats), external_data=False, dynamo=True, verbose=False)
    try:
        how(module, floats, data, path)
    except Exception as error:
        return "no file", f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
    samples = {_input(path): data.numpy()}
    report = trt_bisect.run(path, inputs=samples, reference=floats, output=folder / "run", **HOW)
    given = folder / "run/recipe/given/theirs.onnx"
    names = [row.reference or row.title or row.name for row in report.layers if row.culprit]
    text = f"{worst(path, floats, data):.4f}, culprits {names}"
    if not given.exists():
        return ("passes" if report.passed else "no recipe"), text
    missing, figure = same_but_for_pairs(path, given), worst(given, floats, data)
    text += f", {len(missing)} nodes left out: {figure:.6f}, told {told(report):.6f}"
    if not report.recipe.meets:
        return "no recipe", text
    counts = figure >= report.threshold and abs(figure - told(report)) < _EQUAL
    return ("right" if counts else "WRONG"), text


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    verdicts = []
    for tool, how in TOOLS.items():
        for network in NETWORKS:
            if names and network.name not in names:
                continue
            with tempfile.TemporaryDirectory() as folder:
                verdict, text = trip(network, how, Path(folder))
            print(f"{tool:28} {network.name:15} {verdict:9} {text}", flush=True)
            verdicts.append(verdict)
    print(", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)))
    return int("WRONG" in verdicts)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
