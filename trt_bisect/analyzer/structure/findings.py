"""What a structure check can find: every kind with how bad it is, why it matters, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)


@dataclass(frozen=True)
class Kind:
    """A kind of finding.

    Attributes:
        severity: ``error`` (TensorRT refuses it, or gives another result), ``warning`` (accuracy or speed is lost), or
            ``note``.
        why: why it matters.
        remedy: what to do.
    """

    severity: str
    why: str
    remedy: str


@dataclass(frozen=True)
class Finding:
    """One thing found in a network.

    Attributes:
        severity: see ``Kind``.
        kind: one of ``KINDS``.
        layer: where; the name that TensorRT gives the layer. Empty for the network as a whole.
        what: what is there, in words.
        why: why it matters.
        remedy: what to do.
    """

    severity: str
    kind: str
    layer: str
    what: str
    why: str
    remedy: str


def found(kind: str, layer: str, what: str) -> Finding:
    """A finding of a known kind."""
    known = KINDS[kind]
    return Finding(known.severity, kind, layer, what, known.why, known.remedy)


KINDS: dict[str, Kind] = {
    "opset too old": Kind(
        ERROR,
        "TensorRT 10 parses opset 9 to 24.",
        "Export again with opset 13 or later, or convert the file with onnx.version_converter.",
    ),
    "opset below 11": Kind(
        NOTE, "TensorRT parses it; trt-bisect itself needs opset 11.", "Export again with opset 13 or later."
    ),
    "opset too new": Kind(
        WARNING,
        "TensorRT 10.15 parses up to opset 24, 10.0 up to 20; of a later one it may refuse operators.",
        "Export with an opset that the deployed TensorRT lists.",
    ),
    "operator refused": Kind(
        ERROR,
        "TensorRT's parser has no importer for it: the network cannot be built.",
        "Replace it with operators that TensorRT lists, cut it out of the network, or write a plugin of its name.",
    ),
    "integer operator": Kind(
        ERROR,
        "TensorRT reads quantization from QuantizeLinear and DequantizeLinear only, and refuses integer operators.",
        "Quantize the FP32 network in Q/DQ format (QuantFormat.QDQ in ONNX Runtime, or ModelOpt).",
    ),
    "operator restricted": Kind(
        ERROR,
        "TensorRT's parser takes this operator, but not in this form.",
        "Change the attribute or the output that is named, or compute it after the network.",
    ),
    "plugin needed": Kind(
        ERROR,
        "It is no ONNX operator: TensorRT looks for a plugin of its name, and fails where there is none.",
        "Register the plugin before the network is parsed, or replace the node.",
    ),
    "plugin of TensorRT": Kind(
        NOTE,
        "TensorRT brings a plugin of this name; ONNX Runtime does not know it.",
        "Load TensorRT's plugin library; measure with an NVIDIA engine, or cut the network before it.",
    ),
    "type refused": Kind(
        ERROR,
        "TensorRT has no tensors of this type.",
        "Convert it before the network.",
    ),
    "float64": Kind(
        WARNING,
        "TensorRT casts it down to FP32 and clamps what does not fit.",
        "Export in float32.",
    ),
    "shared weight": Kind(
        WARNING,
        "What is done to the weight for one layer (rounding, QAT, equalisation) is done to all that read it.",
        "Export a copy for each layer where one of them is a culprit; otherwise leave it.",
    ),
    "shared layer": Kind(
        WARNING,
        "One module is applied several times: it has one set of weights, and QAT gives it one range, for activations "
        "that may differ.",
        "Make a module for each place before QAT; with calibration each place has a range of its own.",
    ),
    "norm cannot fold": Kind(
        WARNING,
        "The output before the BatchNormalization is needed as it is, so that its factors cannot go into the weights: "
        "the layer and the BatchNormalization run one after the other, the latter in float.",
        "Read the other branch after the BatchNormalization, or fold a copy of the layer.",
    ),
    "activation cannot fuse": Kind(
        WARNING,
        "The output before the activation is needed as it is, so that TensorRT writes it to memory and runs the "
        "activation as a layer of its own.",
        "Read the other branch after the activation if the network allows it.",
    ),
    "activation before the sum": Kind(
        WARNING,
        "TensorRT fuses convolution, sum and activation in this order; an activation before the sum can keep the sum a "
        "layer of its own.",
        "Put the activation after the sum in the next training; nothing can be done in the file.",
    ),
    "transpose between": Kind(
        WARNING,
        "A Transpose between a layer and what would be fused with it makes two layers and a copy of the tensor.",
        "Move the Transpose behind the activation or the sum (they do not mind the order of the axes).",
    ),
    "transposes cancel": Kind(
        NOTE, "The two do nothing together; before fusion they are two copies of the tensor.", "Simplify the file."
    ),
    "asymmetric": Kind(
        ERROR,
        "TensorRT quantizes symmetrically: its parser refuses a zero point other than 0.",
        "Quantize again with symmetric ranges (ActivationSymmetric and WeightSymmetric in ONNX Runtime).",
    ),
    "unsigned": Kind(
        WARNING,
        "TensorRT takes an unsigned pair as INT8: what lies above 127 steps, half of the range, is clipped.",
        "Quantize again to INT8 (QuantType.QInt8 in ONNX Runtime).",
    ),
    "unsigned weight": Kind(
        ERROR,
        "TensorRT's parser refuses to dequantize a stored UINT8 tensor.",
        "Quantize again to INT8 (QuantType.QInt8 in ONNX Runtime).",
    ),
    "per-channel activation": Kind(
        ERROR,
        "TensorRT quantizes activations with one scale a tensor; scales for each channel are for weights only.",
        "Quantize activations per tensor; equalise the channels where one is much larger than the others.",
    ),
    "per-channel axis": Kind(
        WARNING,
        "TensorRT's INT8 kernels take one scale an output channel; along another axis the layer runs in float.",
        "Quantize the weight along its output channels.",
    ),
    "residual without pair": Kind(
        WARNING,
        "With a pair on one side only, the sum runs in float: it is not fused with the convolution, and the other side "
        "is converted back and forth.",
        "Put a Q/DQ pair on the skip connection too; the side that comes from a convolution needs none.",
    ),
    "residual with extra pair": Kind(
        WARNING,
        "The side that comes from a convolution has a pair: TensorRT then does not fuse the sum with the convolution, "
        "and what the convolution makes is rounded before the sum for nothing.",
        "Take that pair out; the one on the skip connection is what the fusion needs.",
    ),
    "integer bias": Kind(
        ERROR,
        "TensorRT's parser refuses to dequantize INT32, as which ONNX Runtime's quantizer stores biases.",
        "Leave biases in float (QuantizeBias=False in ONNX Runtime).",
    ),
    "pair on a bias": Kind(
        WARNING,
        "TensorRT adds biases unrounded; eight bits for a bias are an error of its own in every output.",
        "Leave biases in float.",
    ),
    "double pair": Kind(
        WARNING,
        "The tensor is rounded twice: an error for nothing, and TensorRT must requantize in between.",
        "Keep one of the two pairs.",
    ),
    "pair before the activation": Kind(
        WARNING,
        "The pair stands between a layer and its activation: the two are not fused, and half of the levels are spent "
        "on values that the activation cuts off.",
        "Put the pair behind the activation.",
    ),
    "scale not positive": Kind(
        ERROR,
        "TensorRT's parser refuses scales that are 0, negative or NaN.",
        "Calibrate again; a tensor of zeros needs any positive scale, or no pair.",
    ),
    "scale infinite": Kind(
        ERROR,
        "Everything is rounded to 0 and comes back as NaN.",
        "Calibrate again without the samples that overflow, or leave the layer in float.",
    ),
    "scale denormal": Kind(
        ERROR,
        "GPUs take a denormal number as 0, and divide by it.",
        "Calibrate again; a tensor of zeros needs any normal scale, or no pair.",
    ),
    "scale out of line": Kind(
        WARNING,
        "The tensor's or channel's levels are a thousand times coarser, or finer, than those around it: often one "
        "outlier in calibration, a mask, or a dead channel.",
        "Look at its values; calibrate with entropy or a percentile, equalise the channels, or leave the layer high.",
    ),
    "half quantized": Kind(
        WARNING,
        "TensorRT runs a layer in INT8 only where both operands are quantized: this one rounds for nothing.",
        "Quantize both operands, or neither.",
    ),
    "never quantized": Kind(
        NOTE,
        "The layer runs in float, as if it had been excluded.",
        "If that is not meant: look at the quantizer's list of operators and exclusions.",
    ),
    "not float32": Kind(
        NOTE,
        "Without Q/DQ pairs trt-bisect quantizes layers that read float32 only; this one stays as it is in every plan.",
        "Export in float32, or with pairs; TensorRT chooses FP16 itself.",
    ),
}
