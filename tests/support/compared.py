"""Tensors of a comparison."""

from __future__ import annotations

import numpy as np
import onnx

from trt_bisect.model.session import make_session


def tensors_of(written, network, feeds):
    """Every tensor of the network in a written plan on every sample, by name, stacked."""
    names = list(network.producers)
    known = {value.name for value in written.model.graph.output}
    written.model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    session = make_session(written)
    runs = [session.run(names, {"x": sample[None]}) for sample in feeds["x"]]
    return {name: np.stack([run[place] for run in runs]) for place, name in enumerate(names)}
