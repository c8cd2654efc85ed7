"""The tensors inside the FP32 network, seen while it runs over samples."""

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
    """The tensors ``names`` of the FP32 network, inputs among them, a sample at a time. What is no tensor is left out.

    Raises:
        BadInput: ONNX Runtime refuses the network or a sample.
    """
    inside = [name for name in names if name in network.producers]
    observer = Observer(Written(network.skeleton, dict(network.weights)), inside, network.source)
    for position, feeds in enumerate(samples):
        yield {**observer.see(feeds, position), **{name: feeds[name] for name in names if name in feeds}}


class Observer:
    """A written graph with tensors inside it as outputs, in one session; raises BadInput where that cannot be made.

    Args:
        written: the graph.
        names: the tensors; they must be made in it.
        source: the network's file, for messages.
    """

    def __init__(self, written: Written, names: Sequence[str], source: str) -> None:
        self._names, self._source = list(names), source
        try:
            self._session = make_session(Written(_with_outputs(written.model, self._names), written.weights))
        except TrialFailed as error:
            raise BadInput(
                f"ONNX Runtime cannot run '{source}': {error.message}", "Check the network with ONNX Runtime alone."
            ) from error

    def see(self, feeds: Feeds, position: int) -> dict[str, np.ndarray]:
        """The tensors on sample number ``position``. What is no tensor is left out.

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


def _with_outputs(skeleton: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    known = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return model
