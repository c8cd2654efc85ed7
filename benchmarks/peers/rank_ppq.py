"""PPQ's layer-wise analysis: one operation in INT8 at a time, on TensorRT's platform.

It knows no limit on the layers; one costs two forward passes a sample.
"""

from __future__ import annotations

import contextlib
import sys

with contextlib.redirect_stdout(sys.stderr):  # PPQ greets on import
    import ppq
    from ppq.api import quantize_onnx_model

import torch
from peer import THREADS, Clock, Preparation, ordered, read_job, report

METHOD = (
    "layerwise_error_analyse: the FP32 network with one computing operation in INT8 at a time, platform TRT_INT8 with "
    "its own calibration; worst is the operation whose final outputs have the largest noise to signal ratio"
)


def main(job: Preparation) -> None:
    torch.set_num_threads(THREADS)
    feeds = [{name: torch.from_numpy(values) for name, values in feed.items()} for feed in job.feeds()]
    with contextlib.redirect_stdout(sys.stderr):
        with Clock() as calibration:
            graph = quantize_onnx_model(
                str(job.network),
                calib_dataloader=feeds,
                calib_steps=len(feeds),
                input_shape=None,
                inputs=feeds[0],
                platform=ppq.TargetPlatform.TRT_INT8,
                device="cpu",
            )
        with Clock() as clock:
            scores = ppq.layerwise_error_analyse(
                graph, dataloader=feeds[: job.evaluate], running_device="cpu", method="snr", steps=job.evaluate
            )
    worst = ordered(scores, worst_is_low=False)
    report(job, "ppq", "ppq", METHOD, worst, clock.seconds, calibration.seconds)


if __name__ == "__main__":
    main(read_job())
