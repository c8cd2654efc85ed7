"""Trouble with FP16 as published, rebuilt small: the layers to blame are found by name, with nothing innocent."""

import numpy as np
import onnx
import pytest

from tests.support.fp16_networks import NETWORKS, encoder, faint, restorer, written
from tests.support.quantized import plain_tensors
from trt_bisect.commands.run.run import run

OPTIONS = {"engine": "onnxruntime", "history": "none", "explain": "none"}
CULPRITS = {
    encoder: {"ln1_pow", "ln1_var"},
    restorer: {"norm_pow", "norm_var", "norm_add", "norm_sqrt"},
    faint: {"tinier", "larger"},
}


def lost_in_fp16(network, data):
    """The layers that make or read a tensor that FP16 makes infinite, or all zero, of the FP32 values on the inputs."""
    model = onnx.load(network)
    names = [node.output[0] for node in model.graph.node if node.op_type != "Split"]
    lost = set()
    for x in np.load(data)["x"]:
        for name, values in plain_tensors(model, names, [{"x": x}]).items():
            with np.errstate(over="ignore"):
                half = values.astype(np.float16)
            if np.isinf(half).any() or not half.any():
                lost.add(name)
    return {node.name for node in model.graph.node if lost & {*node.input, *node.output}}


@pytest.mark.parametrize("draw", NETWORKS, ids=lambda draw: draw.__name__)
def test_the_layers_to_blame_are_found(draw, tmp_path):
    network, data = written(draw, tmp_path)
    assert lost_in_fp16(network, data) == CULPRITS[draw]
    report = run(network, inputs=str(data), low="fp16", **OPTIONS)
    assert set(report.culprits) == CULPRITS[draw]
    assert report.similarity.recipe > 0.9999 > (report.similarity.int8 or 0.0)
    assert report.overflows[0].layer in CULPRITS[draw]
