"""NNCF's post-training quantization of ONNX networks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import nncf
import numpy as np
import onnx
from maker import make_all


def make(source: Path, out: Path, samples: list[dict[str, np.ndarray]], **options) -> None:
    onnx.save(nncf.quantize(onnx.load(str(source)), nncf.Dataset(samples), subset_size=len(samples), **options), out)


if __name__ == "__main__":
    mixed, whole = nncf.QuantizationPreset.MIXED, nncf.ModelType.TRANSFORMER
    make_all(
        "nncf",
        {
            "performance": partial(make, preset=nncf.QuantizationPreset.PERFORMANCE),
            "mixed": partial(make, preset=mixed),
            "transformer": partial(make, preset=mixed, model_type=whole),
        },
    )
