"""Files of quantizers are read as ONNX Runtime runs them.

The files are from ``benchmarks.quantizers --keep`` at commit 7fb68255.
"""

import re
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantType

from tests.support import networks
from tests.support.editions import edition
from tests.support.quantized import plain_session, quantized_by_onnxruntime
from trt_bisect import BadInput, load_network
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.model.quantizer import Quantizer
from trt_bisect.model.reading import compare_with_file, relative_difference, without_pairs
from trt_bisect.precision import int8_set

pytestmark = pytest.mark.slow

FILES = Path(__file__).parents[1] / "files" / "quantized"
SAMPLES = networks.feeds(networks.normal(3, 3, 3, 16, 16))
KINDS = sorted(path.stem for path in FILES.glob("*.onnx") if path.stem != "fp32")
A_FEW_FLIPS = 0.02
"""Of the output's norm: a rounding on its edge may fall the other way in another order of summation."""
FLOAT, FLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
S8, U8 = QuantType.QInt8, QuantType.QUInt8
TENSORRT = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False, "AddQDQPairToWeight": True}


def compare(original, quantized, samples, equal=1e-4):
    """Asserts that what trt-bisect measures of a quantized file is what ONNX Runtime makes of it.

    Full INT8 with the file's pairs is the file, and FP32 the original network with the weights rounded as in the file:
    |difference| / |output| over the samples, in norms, is at most ``equal``. If each layer is equal and the output is
    not, trt-bisect says that this is float noise.

    Returns:
        The network, and true if FP32 was compared with the original, not with the file without its pairs, as for tools
        that change the weights otherwise than by rounding.
    """
    network, file = load_network(quantized), onnx.load(quantized)
    outputs = [spec.name for spec in network.outputs]
    notes = [note for sample in samples for note in compare_with_file(network, sample, outputs)]
    rounded = with_rounded_weights(onnx.load(original), network)
    floats = rounded or without_pairs(file, {layer.name for layer in network.layers})
    own = OnnxRuntimeBuilder(network.as_in_file(), {}, BuildOptions())
    off = apart(own.build(int8_set(len(network.layers), network.quantizable)), file, samples)
    assert off < A_FEW_FLIPS
    assert off <= equal or notes
    assert apart(own.reference(), floats, samples) <= equal
    return network, rounded is not None


def apart(engine, model, samples):
    """The largest distance of an engine's outputs from a file's, relative to the norm."""
    session = plain_session(model, optimised=False)
    names = [output.name for output in session.get_outputs()]
    distances = []
    for sample in samples:
        made = engine.infer(sample)
        for name, theirs in zip(names, session.run(names, sample), strict=True):
            distances.append(relative_difference(theirs, made[name]))
    return max(distances)


def with_rounded_weights(original, network):
    """The FP32 network with each weight and bias replaced by what the quantizer made of it.

    That is the network's constant of the same shape, or transposed, that is within a tenth of it: where a weight was
    read wrongly there is none. None is returned where a weight has no such constant, or several that differ.
    """
    stored = [tensor for tensor in network.skeleton.graph.initializer if tensor.data_type in (FLOAT, FLOAT16)]
    constants = [network.constant(tensor.name).astype(np.float32) for tensor in stored]
    constants += [values.T for values in constants if values.ndim == 2]
    for tensor in original.graph.initializer:
        if tensor.data_type != FLOAT or not tensor.dims:
            continue
        values = numpy_helper.to_array(tensor)
        alike = [found for found in constants if found.shape == values.shape]
        near = [found for found in alike if relative_difference(values, found) < 0.1]
        if not near or any(not np.array_equal(near[0], found) for found in near):
            return None
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(near[0]), tensor.name))
    return original


@pytest.mark.parametrize("kind", KINDS)
def test_what_another_tool_writes_is_what_is_measured(kind):
    equal = 3e-3 if "FP16" in kind else 1e-4  # a file in FP16 rounds every tensor to 11 bits
    network, _ = compare(FILES / "fp32.onnx", FILES / f"{kind}.onnx", SAMPLES, equal)
    assert network.has_pairs
    assert len(network.quantizable) >= 3


KINDS_OF_NETWORKS = {
    "chain": networks.chain,
    "residual": partial(networks.residual, edition(2, 4)),
    "depthwise": partial(networks.depthwise, edition(2, 4)),
    "transformer": partial(networks.transformer, 1),
}
WAYS = {
    "S8S8": (S8, S8, False, {}),
    "S8S8-symmetric": (S8, S8, True, {"ActivationSymmetric": True}),
    "U8S8": (U8, S8, False, {}),
    "U8S8-channel": (U8, S8, True, {}),
    "U8U8": (U8, U8, False, {}),
    "U8U8-channel": (U8, U8, True, {}),
    "TensorRT": (S8, S8, True, TENSORRT),
}
FEW = list(zip(("residual", "transformer") * 3 + ("depthwise",), WAYS, strict=True))
"""Each way, on convolutions with sums and on matrix products by turns."""


@pytest.mark.parametrize(("kind", "way"), edition(FEW, list(product(KINDS_OF_NETWORKS, WAYS))))
def test_what_onnxruntime_writes_is_what_is_measured(kind, way, tmp_path):
    model, (activation, weight, per_channel, extra) = KINDS_OF_NETWORKS[kind](), WAYS[way]
    path, quantized = networks.save(model, tmp_path), tmp_path / "quantized.onnx"
    samples = networks.feeds(networks.samples(model, 4)["x"])
    options = {"activation_type": activation, "weight_type": weight, "extra_options": extra}
    quantized_by_onnxruntime(path, quantized, samples, per_channel=per_channel, **options)
    _, is_original = compare(path, quantized, samples)
    assert is_original


def test_a_misread_weight_is_refused(monkeypatch):
    """Stored integers read 2 % too large: the first layer that has any is named."""
    right = Quantizer.dequantized
    monkeypatch.setattr(Quantizer, "dequantized", lambda self, levels: right(self, levels) * np.float32(1.02))
    path = FILES / "nncf-mixed.onnx"
    first = next(node for node in onnx.load(path).graph.node if node.op_type == "Conv")
    with pytest.raises(BadInput, match=re.escape(f"layer '{first.name}' makes '{first.output[0]}'")):
        compare(FILES / "fp32.onnx", path, SAMPLES)
