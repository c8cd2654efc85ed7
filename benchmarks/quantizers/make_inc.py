"""Intel Neural Compressor's post-training quantization, QDQ format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from maker import make_all
from neural_compressor import PostTrainingQuantConfig, quantization


class Samples:
    batch_size = 1

    def __init__(self, samples: list[dict[str, np.ndarray]]) -> None:
        self._samples = samples

    def __iter__(self):
        return ((sample["x"], None) for sample in self._samples)


def make(source: Path, out: Path, samples: list[dict[str, np.ndarray]]) -> None:
    config = PostTrainingQuantConfig(quant_format="QDQ", calibration_sampling_size=[len(samples)])
    model = onnx.load(str(source))
    del model.graph.value_info[:]  # it transposes Gemm's weights, and then meets their shapes of before
    made = quantization.fit(model, config, calib_dataloader=Samples(samples))
    if made is None:
        raise RuntimeError("it made no network")
    made.save(str(out))


if __name__ == "__main__":
    make_all("inc", {"default": make})
