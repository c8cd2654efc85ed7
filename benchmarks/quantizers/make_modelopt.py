"""NVIDIA Model Optimizer: its ONNX quantizer, with FP32 and with FP16 around the INT8."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from maker import make_all
from modelopt.onnx.quantization import quantize


def make(source: Path, out: Path, samples: list[dict[str, np.ndarray]], high: str, **options) -> None:
    quantize(
        str(source),
        quantize_mode="int8",
        calibration_data={"x": np.concatenate([sample["x"] for sample in samples])},
        calibration_eps=["cpu"],
        output_path=str(out),
        high_precision_dtype=high,
        **options,
    )


if __name__ == "__main__":
    make_all(
        "modelopt",
        {
            "FP32": partial(make, high="fp32", calibration_method="max"),
            "FP16": partial(make, high="fp16", calibration_method="max"),
            "FP16-opset-21": partial(make, high="fp16", calibration_method="max", opset=21),
            "FP16-INT8-weights": partial(make, high="fp16", calibration_method="max", dq_only=True),
            "entropy": partial(make, high="fp32", calibration_method="entropy"),
        },
    )
