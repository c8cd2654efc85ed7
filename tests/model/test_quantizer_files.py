"""Files of quantizers are read as ONNX Runtime runs them.

The files are from ``benchmarks.quantizers --keep`` at commit 7fb68255.
"""

from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType

from tests.support import networks
from tests.support.editions import edition
from tests.support.quantized import quantized_by_onnxruntime
from tests.support.quantizer_files import EQUAL, EQUAL_IN_FP16, compare
from trt_bisect.model.quantizer import Quantizer

pytestmark = pytest.mark.slow

FILES = Path(__file__).parents[1] / "files" / "quantized"
SAMPLES = networks.feeds(networks.normal(3, 3, 3, 16, 16))
KINDS = sorted(path.stem for path in FILES.glob("*.onnx") if path.stem != "fp32")
A_FEW_FLIPS = 0.02
"""Of the output's norm: a rounding on its edge may fall the other way in another order of summation."""
S8, U8 = QuantType.QInt8, QuantType.QUInt8
TENSORRT = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False, "AddQDQPairToWeight": True}


@pytest.mark.parametrize("kind", KINDS)
def test_what_another_tool_writes_is_what_is_measured(kind):
    found = compare(FILES / "fp32.onnx", FILES / f"{kind}.onnx", SAMPLES)
    assert not found.refused
    assert found.pairs >= 3
    assert found.fp16 == ("FP16" in kind)
    assert found.verdict in ("equal", "noise")
    assert found.int8 < A_FEW_FLIPS
    assert found.fp32 <= (EQUAL_IN_FP16 if found.fp16 else EQUAL)


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
    found = compare(path, quantized, samples)
    assert found.verdict in ("equal", "noise"), found
    assert found.int8 < A_FEW_FLIPS
    assert found.truth == "original"


def test_a_misread_weight_is_refused(monkeypatch):
    """Stored integers read 2 % too large: the first layer that has any is named."""
    right = Quantizer.dequantized
    monkeypatch.setattr(Quantizer, "dequantized", lambda self, levels: right(self, levels) * np.float32(1.02))
    found = compare(FILES / "fp32.onnx", FILES / "nncf-mixed.onnx", SAMPLES)
    assert found.verdict == "refused"
    first = next(node for node in onnx.load(FILES / "nncf-mixed.onnx").graph.node if node.op_type == "Conv")
    assert f"layer '{first.name}' makes '{first.output[0]}'" in found.refused
