"""ONNX Runtime's quantization tools: the whole network in INT8 but one layer, each layer in turn."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from peer import OP_TYPES, THREADS, Clock, Feed, Preparation, ordered, read_job, report, similarity

METHOD = (
    "quantize_static with nodes_to_exclude for one layer at a time, Q/DQ on inputs only, symmetric INT8, weights per "
    "channel, entropy calibration done once through calibration_cache_path, INT8 kernels off; the layer is worst "
    "whose exclusion brings the final outputs closest to FP32 by cosine"
)


class Reader(CalibrationDataReader):
    """ONNX Runtime's view of the samples."""

    def __init__(self, feeds: list[Feed]) -> None:
        self._feeds: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


def run(network: Path, feeds: list[Feed]) -> list[list[np.ndarray]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(str(network), options, providers=["CPUExecutionProvider"])
    return [session.run(None, feed) for feed in feeds]


def quantize(network: Path, feeds: list[Feed], cache: Path, target: Path, excluded: list[str]) -> None:
    """Writes the network in INT8, ``excluded`` left out. The first call calibrates and fills the cache."""
    quantize_static(
        network,
        target,
        Reader(feeds),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=list(OP_TYPES),
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=excluded,
        calibrate_method=CalibrationMethod.Entropy,
        calibration_cache_path=cache,
        extra_options={
            "ActivationSymmetric": True,
            "OpTypesToExcludeOutputQuantization": list(OP_TYPES),
            "DedicatedQDQPair": True,
        },
    )


def main(job: Preparation) -> None:
    logging.disable(logging.WARNING)  # "please consider pre-processing", twice a layer
    feeds, evaluated = job.feeds(), job.feeds()[: job.evaluate]
    layers = [node.name for node in onnx.load(job.network).graph.node if node.op_type in OP_TYPES][: job.limit]
    reference = run(job.network, evaluated)
    scores: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        cache, target = Path(folder) / "ranges.json", Path(folder) / "int8.onnx"
        with Clock() as calibration:
            quantize(job.network, feeds, cache, target, [])
        with Clock() as clock:
            for layer in layers:
                quantize(job.network, feeds, cache, target, [layer])
                scores[layer] = similarity(reference, run(target, evaluated))
    worst = ordered(scores, worst_is_low=False)
    report(job, "onnxruntime", "onnxruntime", METHOD, worst, clock.seconds, calibration.seconds)


if __name__ == "__main__":
    main(read_job())
