"""AIMET's per-layer sensitivity: one layer's quantizers on at a time, in one session."""

from __future__ import annotations

import contextlib
import sys

import onnx
import onnxruntime
from aimet_onnx import QuantizationSimModel
from aimet_onnx.analysis import analyze_per_layer_sensitivity
from peer import THREADS, Clock, Preparation, ordered, read_job, report, similarity

METHOD = (
    "analyze_per_layer_sensitivity (QuantAnalyzer): the FP32 network with one layer's quantizers on at a time, its "
    "weights' and its output's, symmetric INT8, weights per channel, its default operators, TF-enhanced (SQNR) "
    "calibration; worst is the layer that leaves the final outputs least like FP32 by cosine"
)


def original_names(sim: QuantizationSimModel, job: Preparation) -> dict[str, str]:
    """AIMET's names of layers to the network's: it joins MatMul and Add into a Gemm of its own."""
    makers = {tensor: node.name for node in onnx.load(job.network).graph.node for tensor in node.output}
    return {
        op.name_op: makers[product.name]
        for op in sim.connected_graph.ordered_ops
        for product in op.outputs
        if product.name in makers
    }


def main(job: Preparation) -> None:
    feeds, evaluated = job.feeds(), job.feeds()[: job.evaluate]
    session = onnxruntime.InferenceSession(str(job.network), providers=["CPUExecutionProvider"])
    reference = [session.run(None, feed) for feed in evaluated]
    tried = 0

    def evaluate(session: onnxruntime.InferenceSession) -> float:
        nonlocal tried
        tried += 1
        if job.limit is not None and tried > job.limit:
            return float("inf")  # AIMET has no limit of its own: the rest costs nothing and is left out
        return similarity(reference, [session.run(None, feed) for feed in evaluated])

    with contextlib.redirect_stdout(sys.stderr):
        with Clock() as calibration:
            sim = QuantizationSimModel(
                onnx.load(job.network),
                quant_scheme="tf_enhanced",
                dummy_input=feeds[0],
                session_options_kwargs={"intra_op_num_threads": THREADS},
            )
            for quantizer in sim.qc_quantize_op_dict.values():
                quantizer.use_symmetric_encodings = True
            sim.compute_encodings(feeds)
        with Clock() as clock:
            scores = analyze_per_layer_sensitivity(sim, evaluate)
    names = original_names(sim, job)
    scores = {names.get(name, name): score for name, score in scores.items() if score != float("inf")}
    worst = ordered(scores, worst_is_low=True)
    report(job, "aimet", "aimet-onnx", METHOD, worst, clock.seconds, calibration.seconds)


if __name__ == "__main__":
    main(read_job())
