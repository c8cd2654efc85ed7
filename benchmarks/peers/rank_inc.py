"""Intel Neural Compressor's mse_v2: the INT8 network with one operation back in FP32 at a time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import onnx
from neural_compressor import PostTrainingQuantConfig, quantization
from neural_compressor.adaptor.onnxrt import ONNXRUNTIMEAdaptor
from neural_compressor.config import TuningCriterion
from peer import OP_TYPES, Clock, Feed, Preparation, ordered, read_job, report

METHOD = (
    "the mse_v2 strategy's operation sensitivity, first round: the network calibrated (min-max) and quantized anew "
    "with one operation back in FP32, Q/DQ on inputs only, its default INT8 (activations unsigned, weights per "
    "channel) and INT8 kernels; worst is the operation whose return to FP32 leaves the least squared error in the "
    "final outputs; the accuracy goal is set out of reach, so that the strategy always ranks"
)


class Ranked(Exception):
    """Raised when the first ranking is known: it ends the run before the tuning."""


class Loader:
    """A data loader as Neural Compressor expects it."""

    batch_size = 1

    def __init__(self, feeds: list[Feed]) -> None:
        self._feeds = feeds

    def __iter__(self) -> Iterator[tuple[Feed, int]]:
        return ((feed, 0) for feed in self._feeds)

    def __len__(self) -> int:
        return len(self._feeds)


class Ranking:
    """Stands before the adaptor's ranking of operations: times it, keeps its scores and ends the run."""

    def __init__(self, limit: int | None) -> None:
        self.scores: dict[str, float] = {}
        self.clock = Clock()
        inner = ONNXRUNTIMEAdaptor._get_mse_order

        def rank(adaptor: Any, model: Any, config: Any, replacements: Any, operations: list[Any], *rest: Any) -> None:
            with self.clock:
                scores = inner(adaptor, model, config, replacements, operations[:limit], *rest)
            self.scores = {name: float(score) for (name, _), score in scores.items()}
            raise Ranked

        ONNXRUNTIMEAdaptor._get_mse_order = rank


def main(job: Preparation) -> None:
    ranking, feeds = Ranking(job.limit), job.feeds()
    metrics = iter([1.0])  # FP32's, asked for first
    config = PostTrainingQuantConfig(
        quant_format="QDQ",
        # As the defaults have it, the tensor that FP32's operation reads stays rounded by the one that writes it.
        recipes={"optypes_to_exclude_output_quant": list(OP_TYPES), "dedicated_qdq_pair": True},
        quant_level=1,  # the strategy at once, without the quick tries before it
        calibration_sampling_size=[len(feeds)],
        tuning_criterion=TuningCriterion(strategy="mse_v2", strategy_kwargs={"confidence_batches": job.evaluate}),
    )
    with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(Ranked):
        quantization.fit(
            onnx.load(job.network), config, calib_dataloader=Loader(feeds), eval_func=lambda _: next(metrics, 0.0)
        )
    if not ranking.scores:
        sys.exit("mse_v2 ended before it ranked any operation")
    worst = ordered(ranking.scores, worst_is_low=True)
    report(job, "inc", "neural-compressor", METHOD, worst, ranking.clock.seconds, None)


if __name__ == "__main__":
    main(read_job())
