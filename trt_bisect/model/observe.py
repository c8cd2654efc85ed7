"""The tensors inside the FP32 network, seen while it runs over samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx

from trt_bisect.data import Feeds
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
    try:
        session = make_session(Written(_with_outputs(network.skeleton, inside), dict(network.weights)))
    except TrialFailed as error:
        raise BadInput(
            f"ONNX Runtime cannot run '{network.source}': {error.message}", "Check the network with ONNX Runtime alone."
        ) from error
    for position, feeds in enumerate(samples):
        try:
            values = session.run(inside, feeds)
        except Exception as error:
            raise BadInput(
                f"ONNX Runtime cannot run '{network.source}' on sample {position}: {first_line(error)}",
                "Check the sample's shapes and values.",
            ) from error
        found = {name: value for name, value in zip(inside, values, strict=True) if isinstance(value, np.ndarray)}
        yield {**found, **{name: feeds[name] for name in names if name in feeds}}


def with_observed_shapes(network: Network, feeds: Feeds) -> Network:
    """``network`` with the layers' shapes as they are on one sample.

    Raises:
        BadInput: ONNX Runtime refuses the network or the sample.
    """
    firsts = [layer.outputs[0] for layer in network.layers if layer.outputs]
    found = next(observe(network, firsts, [feeds]))
    return network.with_shapes({name: array.shape for name, array in found.items()})


def _with_outputs(skeleton: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    known = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return model
