"""The TensorBoard logs of ``profile``: the FP32 run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trt_bisect.analyzer.origins import INPUT, activation_origins
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import PlanWriter
from trt_bisect.report.markdown import bullets
from trt_bisect.report.tensorboard.board import Board
from trt_bisect.report.tensorboard.graph import graph_of
from trt_bisect.report.tensorboard.histograms import LoudChannels, TensorHistograms
from trt_bisect.report.tensorboard.tags import FP32, layer_tags, output_tags, run_name
from trt_bisect.report.tensorboard.weights import WeightHistograms, weights_of
from trt_bisect.report.tensorboard.writer import LogRun


class ProfileLogs:
    """Collects histograms of the profiled layers' outputs, and writes them with those of the weights."""

    def __init__(self, board: Board, network: Network, writer: PlanWriter, layers: Sequence[Layer]) -> None:
        self._board, self._network, self._channels = board, network, LoudChannels(board.channels)
        tags = layer_tags(layer.name for layer in network.layers)
        chosen = {layer.name: tags[layer.name] for layer in layers}
        read = {name for layer in layers for name in layer.inputs}
        origins = {
            name: origin
            for name, origin in activation_origins(network, writer, ()).items()
            if origin.layer in chosen or (origin.kind == INPUT and name in read)
        }
        self._weights = weights_of(network, writer, chosen)
        self._outputs = TensorHistograms(FP32, origins, output_tags(origins.values(), chosen), self._channels)

    def add(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Adds a sample's tensors."""
        self._outputs.add(tensors)

    def write(self, notes: Sequence[str]) -> None:
        """Writes the run; raises BadInput if the folder cannot be written."""
        self._board.clear()
        with LogRun(self._board.folder / run_name(0)) as run:
            run.graph(graph_of(self._network))
            self._outputs.write(run)
            WeightHistograms(self._network, self._weights, self._channels).write(run)
            run.texts(notes=bullets(notes), not_finite=bullets(self._outputs.not_finite()))
