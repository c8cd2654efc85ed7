"""Brevitas: layers and graphs quantized after training, exported as QCDQ (Q, Clip, DQ)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from brevitas.export import export_onnx_qcdq
from brevitas.graph.calibrate import calibration_mode
from brevitas.graph.quantize import layerwise_quantize, preprocess_for_quantize, quantize
from maker import make_all
from nets import network


def make(source: Path, out: Path, samples: list[dict[str, np.ndarray]], whole_graph: bool) -> None:
    first = torch.from_numpy(samples[0]["x"])
    model = network(source.stem)
    with torch.no_grad():
        if whole_graph:
            model = quantize(preprocess_for_quantize(model, trace_model=True, equalize_iters=0))
        else:
            model = layerwise_quantize(model, name_blacklist=["lstm"])  # whose cell it cannot export
        with calibration_mode(model):
            for sample in samples:
                model(torch.from_numpy(sample["x"]))
        model.eval()
        model(first)
        export_onnx_qcdq(
            model,
            args=first,
            export_path=str(out),
            opset_version=17,
            input_names=["x"],
            output_names=["y"],
            dynamo=False,
        )


if __name__ == "__main__":
    make_all("brevitas", {"layers": partial(make, whole_graph=False), "graph": partial(make, whole_graph=True)})
