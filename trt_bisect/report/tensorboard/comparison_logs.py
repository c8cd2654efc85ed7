"""The TensorBoard logs of ``compare``: tensors and weights of both runs, and the similarity of each tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from trt_bisect.analyzer.origins import RESULT, Origin, Tensors
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import PlanWriter
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.comparison import Comparison
from trt_bisect.report.markdown import bullets, table
from trt_bisect.report.tensorboard.board import Board
from trt_bisect.report.tensorboard.graph import graph_of
from trt_bisect.report.tensorboard.histograms import LoudChannels, TensorHistograms
from trt_bisect.report.tensorboard.tags import FP32, INT8, layer_tags, output_tags, run_name
from trt_bisect.report.tensorboard.weights import WeightHistograms, weights_of
from trt_bisect.report.tensorboard.writer import LogRun


class ComparisonLogs:
    """Collects histograms of the compared tensors, and writes the logs at the end."""

    def __init__(self, board: Board, origins: Mapping[str, Origin], network: Network | None) -> None:
        self._board, self._network = board, network
        names = [layer.name for layer in network.layers] if network else []
        self._layers = layer_tags([*names, *(name for name, origin in origins.items() if not origin.layer)])
        self._channels, tags = LoudChannels(board.channels), output_tags(origins.values(), self._layers)
        self._fp32 = TensorHistograms(FP32, origins, tags, self._channels)
        self._int8 = TensorHistograms(INT8, origins, tags, self._channels)

    def watched(self, samples: Iterable[tuple[Tensors, Tensors]]) -> Iterator[tuple[Tensors, Tensors]]:
        """Yields the same samples and counts their tensors; it keeps none of them."""
        for reference, output in samples:
            self._fp32.add(reference)
            self._int8.add(output)
            yield reference, output
            del reference, output

    def write(self, found: Comparison, writer: PlanWriter | None, plan: PrecisionPlan | None) -> None:
        """Writes the FP32 run and the INT8 run.

        Args:
            found: the comparison.
            writer: the writer of the network's plans; None where its scales are not known: then there are no weights.
            plan: the compared plan.

        Raises:
            BadInput: the folder cannot be written.
        """
        network, weights = self._network, None
        if network is not None and writer is not None:
            weights = WeightHistograms(network, weights_of(network, writer, self._layers), self._channels)
        self._board.clear()
        with LogRun(self._board.folder / run_name(0)) as run:
            self._fp32.write(run)
            if network is not None:
                run.graph(graph_of(network))
            if weights is not None:
                weights.write(run)
            run.texts(not_finite=bullets(self._fp32.not_finite()))
        with LogRun(self._board.folder / run_name(1, "cosine", _worst_result(found))) as run:
            self._int8.write(run)
            if network is not None:
                run.graph(graph_of(network, plan))
            if weights is not None and plan is not None:
                weights.write(run, plan.lowered)
            _write_figures(run, found)
            run.texts(
                advice=_advice(found),
                notes=bullets(found.notes),
                not_finite=bullets(self._int8.not_finite()),
            )


def _worst_result(found: Comparison) -> float | None:
    """Returns the least cosine of the network's outputs; None if none is known."""
    results = [row.figures.cosine for row in found.tensors if row.origin.kind == RESULT]
    return min((value for value in results if not math.isnan(value)), default=None)


def _write_figures(run: LogRun, found: Comparison) -> None:
    """Writes cosine and SQNR of each tensor; the step is the index of its layer."""
    for row in found.tensors:
        if row.origin.index is not None and row.origin.tensor:
            for name in ("cosine", "sqnr"):
                value = getattr(row.figures, name)
                if math.isfinite(value):
                    run.scalar(f"tensor {name}", value, row.origin.index)


def _advice(found: Comparison) -> str:
    rows = [(", ".join(each.layers), each.reason, each.tensor, each.words) for each in found.advice]
    return table(["layer", "reason", "tensor", "evidence"], rows) if rows else ""
