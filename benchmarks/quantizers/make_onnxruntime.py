"""ONNX Runtime's static quantizer, QDQ format."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from maker import make_all
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

S8, U8 = QuantType.QInt8, QuantType.QUInt8
FOR_TENSORRT = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False, "AddQDQPairToWeight": True}


class Reader(CalibrationDataReader):
    def __init__(self, samples: list[dict[str, np.ndarray]]) -> None:
        self._feeds = iter(samples)

    def get_next(self):
        return next(self._feeds, None)


def make(source: Path, out: Path, samples: list[dict[str, np.ndarray]], **options) -> None:
    quantize_static(str(source), str(out), Reader(samples), quant_format=QuantFormat.QDQ, **options)


def variant(activation: QuantType, weight: QuantType, per_channel: bool, **extra):
    types = {"activation_type": activation, "weight_type": weight}
    return partial(make, per_channel=per_channel, extra_options=extra, **types)


if __name__ == "__main__":
    make_all(
        "onnxruntime",
        {
            "S8S8": variant(S8, S8, False),
            "S8S8-channel": variant(S8, S8, True),
            "S8S8-symmetric": variant(S8, S8, False, ActivationSymmetric=True),
            "U8S8": variant(U8, S8, False),
            "U8S8-channel": variant(U8, S8, True),
            "U8U8": variant(U8, U8, False),
            "U8U8-channel": variant(U8, U8, True),
            "TensorRT": variant(S8, S8, True, **FOR_TENSORRT),
        },
    )
