"""The recipe through the tools themselves: what did they leave out, and how good is what they make.

python -m benchmarks.dialects [NETWORK ...]

It needs an environment of its own: ``pip install -e . nvidia-modelopt[onnx]==0.47.0 torch torchvision timm``.

A trip counts if the quantizers that the tool leaves out are those of the recipe, its network passes, and its figure is
at most 0.02 points below that of the recipe.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import numpy as np
import onnx
import torch
from modelopt.onnx.quantization import quantize
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trt_bisect
from benchmarks.dialects.planted import NETWORKS, Planted, planted
from trt_bisect.model.modules import WEIGHTED

_LEAST, _SAMPLES = 2e-4, 16
HOW: dict[str, Any] = {
    "engine": "onnxruntime",
    "explain": "none",
    "history": "none",
    "calibrator": "minmax",
    "as_is": True,
}


def rounded(path: Path) -> set[str]:
    """Returns the nodes with a weight that read it through a DequantizeLinear."""
    graph = onnx.load(path).graph
    made = {tensor: node.op_type for node in graph.node for tensor in node.output}
    weighted = [node for node in graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    return {node.name for node in weighted if made.get(node.input[1]) in ("DequantizeLinear", "Transpose")}


def judged(path: Path, floats: Path, data: np.ndarray) -> float:
    """Returns the figure of an INT8 file on the worst input, against the float network."""
    name = onnx.load(floats, load_external_data=False).graph.input[0].name
    report = trt_bisect.run(path, inputs={name: data}, reference=floats, effort="quick", **HOW)
    return report.similarity.int8 or 0.0


def by_onnx(folder: Path, data: np.ndarray) -> tuple[set[str], Path]:
    """Returns the nodes that ModelOpt's ONNX quantizer leaves out with the recipe's list alone, and its file."""
    recipe = folder / "recipe"
    floats = recipe / "network.onnx"
    excluded = json.loads((recipe / "modelopt_nodes_to_exclude.json").read_text())
    name = onnx.load(floats, load_external_data=False).graph.input[0].name
    found = []
    for output, options in (("all", {}), ("recipe", excluded)):
        path = folder / f"modelopt_{output}.onnx"
        quantize(
            str(floats),
            quantize_mode="int8",
            calibration_data={name: data},
            calibration_method="max",
            calibration_eps=["cpu"],
            high_precision_dtype="fp32",
            output_path=str(path),
            **options,
        )
        found.append(rounded(path))
    return found[0] - found[1], path


def by_torch(module: nn.Module, config: Mapping[str, Any], data: torch.Tensor) -> tuple[set[str], float]:
    """Returns the modules with a weight whose quantizers ``mtq.quantize`` leaves off, and the figure of its network."""

    def calibrate(quantized: nn.Module) -> None:
        for sample in data:
            quantized(sample[None])

    with torch.no_grad():
        quantized = mtq.quantize(copy.deepcopy(module), config, calibrate)
        off = set()
        for name, each in quantized.named_modules():
            if hasattr(each, "weight_quantizer"):
                on = each.weight_quantizer.is_enabled and each.input_quantizer.is_enabled
                off |= set() if on else {name}
        figures = []
        for sample in data:
            pair = quantized(sample[None]).flatten(), module(sample[None]).flatten()
            figures.append(float(torch.cosine_similarity(*pair, dim=0)))
    return off, min(figures)


def trips(network: Planted, folder: Path) -> Iterator[tuple[str, bool, str]]:
    """Yields of each trip of a network the tool, true if it counts, and what was found."""
    module = planted(network)
    data = torch.randn(_SAMPLES, *network.shape, generator=torch.Generator().manual_seed(1))
    report = trt_bisect.run(module, DataLoader(TensorDataset(data), batch_size=4), output=folder, **HOW)
    rows = [row for row in report.layers if row.quantizable and row.recipe != "int8"]
    high = {row.name: row.module.partition(" ")[0] for row in rows}
    own = report.similarity.recipe or 0.0
    found = set(network.culprits) <= set(high.values())
    yield "trt-bisect", found, f"{report.similarity.int8:.4f} to {own:.6f} with {sorted(high.values())} high"
    left_out, path = by_onnx(folder, data.numpy())
    figure = judged(path, folder / "recipe" / "network.onnx", data.numpy())
    weighted = {row.name for row in rows if row.op_type in WEIGHTED and row.name == high[row.name]}
    yield (
        "ModelOpt on ONNX",
        left_out == weighted and figure >= max(report.threshold, own - _LEAST),
        f"{figure:.6f}, left out {sorted(left_out)}",
    )
    for form, as_dictionary in (("list", False), ("dictionary", True)):
        off, figure = by_torch(module, report.quant_cfg(as_dictionary=as_dictionary), data)
        yield (
            f"ModelOpt on PyTorch, {form}",
            off == {high[name] for name in weighted} and figure >= max(report.threshold, own - _LEAST),
            f"{figure:.6f}, off {sorted(off)}",
        )


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    right = total = 0
    for network in NETWORKS:
        if names and network.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            results = list(trips(network, Path(folder)))
        for tool, counts, text in results:
            print(f"{network.name:15} {tool:31} {'right' if counts else 'WRONG':6} {text}", flush=True)
        total += 1
        right += all(counts for _, counts, _ in results)
    print(f"{right} of {total} networks right")
    return 0 if right == total else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
