"""AIMET's simulation, exported as Q/DQ."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import aimet_onnx
import numpy as np
import onnx
from aimet_onnx import QuantizationSimModel
from maker import make_all


def make(source: Path, out: Path, samples: list[dict[str, np.ndarray]], **options) -> None:
    sim = QuantizationSimModel(
        onnx.load(str(source)), param_type=aimet_onnx.int8, activation_type=aimet_onnx.int8, **options
    )
    sim.compute_encodings(samples)
    onnx.save(sim.to_onnx_qdq(), str(out))


if __name__ == "__main__":
    make_all("aimet", {"default": make, "htp": partial(make, config_file="htp_v73")})
