"""NNCF's accuracy control: its ranker takes one group of quantizers out of the INT8 network at a time."""

from __future__ import annotations

import os

os.environ["NNCF_CI"] = "1"  # no telemetry

import contextlib
import sys
from collections.abc import Iterable
from typing import Any

import nncf
import numpy as np
import onnx
import onnxruntime
from nncf.common.factory import build_graph
from nncf.onnx.quantization.backend_parameters import BackendParameters
from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix, QuantizationParameters
from nncf.quantization.algorithms.accuracy_control.algorithm import QuantizationAccuracyRestorer
from nncf.quantization.algorithms.accuracy_control.evaluator import Evaluator
from nncf.quantization.algorithms.accuracy_control.onnx_backend import ONNXAccuracyControlAlgoBackend
from nncf.quantization.algorithms.accuracy_control.ranker import GroupToRank, Ranker
from peer import THREADS, Clock, Feed, Preparation, read_job, report, similarity

METHOD = (
    "the ranker of quantize_with_accuracy_control, ONNX backend: the INT8 network with one group of quantizers "
    "removed at a time, symmetric INT8, overflow fix and INT8 kernels off, its own min-max calibration and fast bias "
    "correction; worst is the group whose removal brings the final outputs closest to FP32 by cosine"
)
Item = tuple[Feed, list[np.ndarray]]


def make_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def validate(model: onnx.ModelProto, items: Iterable[Item]) -> tuple[float, list[float]]:
    """The metric that NNCF asks for: similarity with FP32, mean and one a sample."""
    session = make_session(model)
    values = [similarity([reference], [session.run(None, feed)]) for feed, reference in items]
    return float(np.mean(values)), values


def quantize(model: onnx.ModelProto, feeds: list[Feed]) -> onnx.ModelProto:
    parameters = AdvancedQuantizationParameters(
        overflow_fix=OverflowFix.DISABLE,
        backend_params={BackendParameters.COMPRESS_WEIGHTS: False},  # as accuracy control has it
        activations_quantization_params=QuantizationParameters(mode="symmetric"),
    )
    return nncf.quantize(model, nncf.Dataset(feeds), subset_size=len(feeds), advanced_parameters=parameters)


def rank(model: onnx.ModelProto, quantized: onnx.ModelProto, items: list[Item], limit: int | None) -> list[GroupToRank]:
    """The groups of quantizers, worst first, in the steps that accuracy control takes before its first removal."""
    backend, evaluator, dataset = ONNXAccuracyControlAlgoBackend(), Evaluator(validate), nncf.Dataset(items)
    before = evaluator.collect_metric_results(model, dataset)
    after = evaluator.collect_metric_results(quantized, dataset)
    graph = build_graph(quantized)
    QuantizationAccuracyRestorer._collect_original_biases_and_weights(build_graph(model), graph, model, backend)
    ranker = Ranker(len(items), dataset, backend, evaluator)
    groups = ranker.find_groups_of_quantizers_to_rank(graph)[::-1][:limit]  # NNCF finds them from the end
    values: tuple[Any, Any] = before.values_for_each_item, after.values_for_each_item
    return ranker.rank_groups_of_quantizers(groups, quantized, graph, *values)[::-1]


def main(job: Preparation) -> None:
    model, feeds = onnx.load(job.network), job.feeds()
    session = make_session(model)
    items = [(feed, session.run(None, feed)) for feed in feeds[: job.evaluate]]
    with contextlib.redirect_stdout(sys.stderr):
        with Clock() as calibration:
            quantized = quantize(model, feeds)
        with Clock() as clock:
            groups = rank(model, quantized, items, job.limit)
    worst = ["+".join(node.node_name.split("/")[-1] for node in group.operations) for group in groups]
    report(job, "nncf", "nncf", METHOD, worst, clock.seconds, calibration.seconds)


if __name__ == "__main__":
    main(read_job())
