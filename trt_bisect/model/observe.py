"""Reads tensors inside the FP32 network while it runs over samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx

from trt_bisect.data.datasets import Feeds
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import Written
from trt_bisect.model.session import make_session


def observe(network: Network, names: Sequence[str], samples: Iterable[Feeds]) -> Iterator[dict[str, np.ndarray]]:
    """Runs the FP32 network over samples and yields its tensors ``names``, which may include inputs, for each sample.

    Sequences and optional values are left out.

    Raises:
        BadInput: ONNX Runtime refuses the network or a sample.
    """
    inside = [name for name in names if name in network.producers]
    observer = Observer(Written(network.skeleton, dict(network.weights)), inside, network.source)
    for position, feeds in enumerate(samples):
        yield {**observer.run(feeds, position), **{name: feeds[name] for name in names if name in feeds}}


class Observer:
    """A session of a written graph that returns tensors inside it.

    Args:
        written: the graph.
        names: the tensors; nodes of the graph must make them.
        source: the network's file, for messages.

    Raises:
        BadInput: ONNX Runtime refuses the graph.
    """

    def __init__(self, written: Written, names: Sequence[str], source: str) -> None:
        self._names, self._source = list(names), source
        try:
            self._session = make_session(Written(with_outputs(written.model, self._names), written.weights))
        except TrialFailed as error:
            raise BadInput(
                f"ONNX Runtime cannot run '{source}': {error.message}",
                "Check the network with ONNX Runtime itself.",
            ) from error

    def run(self, feeds: Feeds, position: int) -> dict[str, np.ndarray]:
        """Returns the tensors by name for sample number ``position``. Sequences and optional values are left out.

        Raises:
            BadInput: ONNX Runtime refuses the sample.
        """
        if not self._names:
            return {}
        try:
            values = self._session.run(self._names, feeds)
        except Exception as error:
            raise BadInput(
                f"ONNX Runtime cannot run '{self._source}' on sample {position}: {first_line(error)}",
                "Check the sample's shapes and values.",
            ) from error
        return {name: value for name, value in zip(self._names, values, strict=True) if isinstance(value, np.ndarray)}


def with_outputs(skeleton: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Returns a copy of ``skeleton`` with the tensors ``names`` as outputs, too."""
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    known = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return model
