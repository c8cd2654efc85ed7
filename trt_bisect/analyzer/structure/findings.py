"""The kinds of findings of the structure check: severity, reason and remedy of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from trt_bisect.support.table import NAME, Column

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
HALF_QUANTIZED = "half quantized"


@dataclass(frozen=True)
class FindingKind:
    """A kind of finding.

    Attributes:
        severity: ``error`` (TensorRT refuses it, or gives another result), ``warning`` (accuracy or speed is lost), or
            ``note``.
        loses_accuracy: the kind can lose accuracy in INT8.
        breaks_values: the kind surely does: no arithmetic can use its scale.
    """

    severity: str
    why: str
    remedy: str
    loses_accuracy: bool = False
    breaks_values: bool = False


@dataclass(frozen=True)
class Finding:
    """A finding in a network.

    Attributes:
        severity: ``error``, ``warning`` or ``note``.
        kind: such as ``opset too old``.
        layers: the names that TensorRT gives the layers; empty for the whole network.
        what: the finding in words.
        why: the effect of the finding.
        remedy: the advice to the user.
    """

    severity: Annotated[str, Column("Severity", rank=0)]
    kind: Annotated[str, Column("Kind", rank=0)]
    layers: Annotated[
        tuple[str, ...],
        Column("Layer", "Empty for the network as a whole", NAME, rank=0, empty="the network", key="layer"),
    ]
    what: Annotated[str, Column("What", rank=1)]
    why: Annotated[str, Column("Why it matters")]
    remedy: Annotated[str, Column("Remedy", rank=2)]


def found(kind: str, layers: str | Iterable[str], what: str) -> Finding:
    """Returns a finding of this ``kind`` with the text ``what``; without ``layers``, on the whole network."""
    names = tuple(filter(None, (layers,) if isinstance(layers, str) else dict.fromkeys(layers)))
    return Finding(KINDS[kind].severity, kind, names, what, KINDS[kind].why, KINDS[kind].remedy)


SHARED_WEIGHT, SHARED_LAYER = "shared weight", "shared layer"
CALLED_AGAIN, NEVER_CALLED = "module called again", "module never called"
KINDS: dict[str, FindingKind] = {
    "opset too old": FindingKind(
        ERROR,
        "TensorRT 10.15 parses opset 9 to 24.",
        "Export again with opset 13 or later, or convert the file with onnx.version_converter.",
    ),
    "opset too new": FindingKind(
        WARNING,
        "TensorRT 10.0 reads up to opset 20, 10.15 up to 24, TensorRT-RTX 1.7 up to 27; it may refuse later operators.",
        "Export with an opset that the deployed TensorRT lists.",
    ),
    "operator refused": FindingKind(
        ERROR,
        "TensorRT's parser has no importer for this operator: TensorRT cannot build the network.",
        "Replace the operator with supported ones, cut it out of the network, or write a plugin with its name.",
    ),
    "integer operator": FindingKind(
        ERROR,
        "TensorRT reads quantization from QuantizeLinear and DequantizeLinear only, and refuses integer operators.",
        "Quantize the FP32 network in Q/DQ format (QuantFormat.QDQ in ONNX Runtime, or ModelOpt).",
    ),
    "operator restricted": FindingKind(
        ERROR,
        "TensorRT's parser takes this operator, but refuses this form: TensorRT cannot build the network.",
        "Change the named attribute, input or output, or do this computation outside of the network.",
    ),
    "type restricted": FindingKind(
        ERROR,
        "TensorRT's parser takes this operator, but not for this type: TensorRT cannot build the network.",
        "Cast the tensor first, to float or INT32: a Cast of the network's input takes UINT8.",
    ),
    "operator ignored": FindingKind(
        ERROR,
        "TensorRT's parser takes this operator, ignores the attribute, and computes something else.",
        "Export without the attribute, or do this computation outside of the network.",
    ),
    "operator of ONNX Runtime": FindingKind(
        ERROR,
        "Only ONNX Runtime has this operator: its optimiser or a converter wrote it, and TensorRT cannot build it.",
        "Use the file from before ONNX Runtime optimised it, or save it with graph_optimization_level ORT_DISABLE_ALL; "
        "compute operators of ai.onnx.ml outside of the network.",
    ),
    "refused by the parser": FindingKind(
        ERROR,
        "TensorRT cannot build the network.",
        "Change the node as the message says, or do this computation outside of the network.",
    ),
    "plugin needed": FindingKind(
        ERROR,
        "ONNX has no such operator: TensorRT looks for a plugin with its name, and fails without this plugin.",
        "Register the plugin before the network is parsed, or replace the node.",
    ),
    "plugin of TensorRT": FindingKind(
        NOTE,
        "TensorRT includes a plugin with this name; ONNX Runtime does not know it.",
        "Load TensorRT's plugin library; measure with an NVIDIA engine, or cut the network before it.",
    ),
    "not in TensorRT-RTX": FindingKind(
        NOTE,
        "TensorRT builds this operator from its own plugin library, which TensorRT-RTX does not have.",
        "Load TensorRT's plugin library; for TensorRT-RTX replace the operator.",
    ),
    "type refused": FindingKind(
        ERROR, "TensorRT has no tensors of this type.", "Convert the tensor before the network."
    ),
    "LayerNormalization in parts": FindingKind(
        WARNING,
        "In FP16 its square overflows above 255, and TensorRT keeps only the single operator in FP32 inside.",
        "Export with opset 17 or later, or fuse it: 'trt-bisect run --fuse-norms' writes recipe/network.onnx so.",
        loses_accuracy=True,
    ),
    "float64": FindingKind(
        WARNING, "TensorRT casts the tensor to FP32 and clamps values that do not fit.", "Export in float32."
    ),
    SHARED_WEIGHT: FindingKind(
        WARNING,
        "Changing the weight for one layer (rounding, QAT, equalisation) changes every layer that reads it.",
        "If this weight is to be changed for one of the layers, export a copy for each layer; otherwise do nothing.",
    ),
    SHARED_LAYER: FindingKind(
        WARNING,
        "One module is applied several times: it has one set of weights, and QAT gives it one range, although the "
        "activations differ.",
        "Make a module for each use before QAT; with calibration each use has its own range.",
    ),
    CALLED_AGAIN: FindingKind(
        NOTE,
        "QAT gives a module one range for all of its calls, although the activations differ.",
        "Make a module for each call before QAT; with calibration each call has its own range.",
    ),
    NEVER_CALLED: FindingKind(
        NOTE,
        "No call calibrates the module, and QAT trains none of its ranges.",
        "Delete the module if it is not meant to be there, or call it.",
    ),
    "norm cannot fold": FindingKind(
        WARNING,
        "Another branch reads the output before the BatchNormalization, so that it cannot be folded into the weights: "
        "the BatchNormalization runs as a layer of its own, in float.",
        "Let the other branch read the output after the BatchNormalization, or fold a copy of the layer.",
    ),
    "activation cannot fuse": FindingKind(
        WARNING,
        "Another branch reads the output before the activation, so that TensorRT writes it to memory and runs the "
        "activation as a layer of its own.",
        "Let the other branch read the output after the activation if the network allows it.",
    ),
    "activation before the sum": FindingKind(
        WARNING,
        "TensorRT fuses convolution, sum and activation in this order; with an activation before the sum, the sum can "
        "be a layer of its own.",
        "Put the activation after the sum in the next training; a change of the file cannot help.",
    ),
    "transpose between": FindingKind(
        WARNING,
        "A Transpose between two layers that would be fused makes two layers and a copy of the tensor.",
        "Move the Transpose behind the activation or the sum (their result does not depend on the order of the axes).",
    ),
    "transposes cancel": FindingKind(
        NOTE,
        "The two Transpose nodes cancel each other; without fusion they make two copies of the tensor.",
        "Simplify the file.",
    ),
    "asymmetric": FindingKind(
        ERROR,
        "TensorRT quantizes symmetrically: its parser refuses a zero point other than 0.",
        "Quantize again with symmetric ranges (ActivationSymmetric and WeightSymmetric in ONNX Runtime).",
        loses_accuracy=True,
    ),
    "unsigned": FindingKind(
        WARNING,
        "TensorRT reads an unsigned pair as INT8, and clips values above 127 steps, half of the range.",
        "Quantize again to INT8 (QuantType.QInt8 in ONNX Runtime).",
        loses_accuracy=True,
    ),
    "unsigned weight": FindingKind(
        ERROR,
        "TensorRT's parser refuses to dequantize a stored UINT8 tensor.",
        "Quantize again to INT8 (QuantType.QInt8 in ONNX Runtime).",
        loses_accuracy=True,
    ),
    "per-channel activation": FindingKind(
        ERROR,
        "TensorRT quantizes activations with one scale for a tensor; scales for each channel are for weights only.",
        "Quantize activations per tensor; equalise the channels if one is much larger than the others.",
        loses_accuracy=True,
    ),
    "per-channel axis": FindingKind(
        WARNING,
        "TensorRT's INT8 kernels take one scale for each output channel; with another axis the layer runs in float.",
        "Quantize the weight along its output channels.",
        loses_accuracy=True,
    ),
    "residual without pair": FindingKind(
        WARNING,
        "With one side in INT8 only, the sum runs in float: it is not fused with an INT8 convolution, and that side is "
        "converted back and forth.",
        "Put a Q/DQ pair on the skip connection too (the side that comes from a convolution needs none), unless a "
        "recipe keeps the sum in high precision.",
    ),
    "residual with extra pair": FindingKind(
        WARNING,
        "The side that comes from a convolution has a pair: TensorRT then does not fuse the sum with the convolution, "
        "and rounds the convolution's output before the sum needlessly.",
        "Remove that pair; the fusion needs only the pair on the skip connection.",
    ),
    "integer bias": FindingKind(
        ERROR,
        "TensorRT's parser refuses to dequantize INT32, the type in which ONNX Runtime's quantizer stores biases.",
        "Leave biases in float (QuantizeBias=False in ONNX Runtime).",
    ),
    "pair on a bias": FindingKind(
        WARNING,
        "TensorRT adds biases unrounded; a bias of eight bits adds an error to every output.",
        "Leave biases in float.",
        loses_accuracy=True,
    ),
    "double pair": FindingKind(
        WARNING,
        "The tensor is rounded twice: this adds a needless error, and TensorRT must requantize in between.",
        "Keep one of the two pairs.",
        loses_accuracy=True,
    ),
    "output rounded": FindingKind(
        WARNING,
        "An output of the network is not in high precision: its rounding makes no layer faster.",
        "Remove the pair between the layer and the output, or exclude the output where the network is quantized.",
        loses_accuracy=True,
    ),
    "pair before the activation": FindingKind(
        WARNING,
        "The pair stands between a layer and its activation: the two are not fused, and the pair spends levels on "
        "values that the activation cuts off or makes small.",
        "Put the pair behind the activation.",
        loses_accuracy=True,
    ),
    "pair before the normalization": FindingKind(
        WARNING,
        "The pair stands between a layer and its BatchNormalization, which can then not be folded into the weights: it "
        "runs in float, and the layer's output is rounded before it.",
        "Fold the BatchNormalization before quantizing, or put the pair behind it and its activation.",
        loses_accuracy=True,
    ),
    "unlike pairs": FindingKind(
        WARNING,
        "Each pair has a scale of its own: the smaller one may clip the tensor, the larger one rounds more coarsely, "
        "and TensorRT writes it twice. 'trt-bisect compare' shows the clipped share of the worse one.",
        "Give all layers that read the tensor one pair.",
        loses_accuracy=True,
    ),
    "concat of unlike scales": FindingKind(
        NOTE,
        "TensorRT joins INT8 tensors without a kernel only if they have one scale; with several it requantizes inputs.",
        "If the profiler shows such kernels, give all inputs of the Concat the largest scale, and measure again.",
    ),
    "scale not positive": FindingKind(
        ERROR,
        "TensorRT's parser refuses scales that are 0, negative or NaN.",
        "Calibrate again; a tensor of zeros needs any positive scale, or no pair.",
        loses_accuracy=True,
        breaks_values=True,
    ),
    "scale infinite": FindingKind(
        ERROR,
        "All values are rounded to 0, and dequantizing gives NaN.",
        "Calibrate again without samples or constants that overflow, such as an attention mask of -inf or of the least "
        "float, or leave the layer in float.",
        loses_accuracy=True,
        breaks_values=True,
    ),
    "scale denormal": FindingKind(
        ERROR,
        "GPUs treat a denormal scale as 0 and then divide by 0.",
        "Calibrate again; a tensor of zeros needs any normal scale, or no pair.",
        loses_accuracy=True,
        breaks_values=True,
    ),
    "scale out of line": FindingKind(
        WARNING,
        "The levels of this tensor or channel are a thousand times coarser or finer than those around it. Often the "
        "cause is one outlier in calibration, a mask, or a dead channel.",
        "Check the values; calibrate with entropy or a percentile, equalise the channels, or keep the layer in float.",
        loses_accuracy=True,
    ),
    HALF_QUANTIZED: FindingKind(
        WARNING,
        "TensorRT runs a layer in INT8 only if both operands are quantized: here one operand is rounded needlessly.",
        "Quantize both operands, or neither.",
        loses_accuracy=True,
    ),
    "never quantized": FindingKind(
        NOTE,
        "The layer runs in float, as if it had been excluded.",
        "If this is not intended, check the quantizer's list of operators and exclusions.",
    ),
    "engine not built": FindingKind(
        ERROR,
        "The engine refuses the file, so its kernels are unknown.",
        "The message names the node; change the node, or remove its layer from the network.",
    ),
    "rounded in float": FindingKind(
        WARNING,
        "The kernel reads floats, rounds them and computes in float: the layer loses the accuracy of INT8 and gains no "
        "speed.",
        "Keep the layer in float: its kernel computes in float either way.",
    ),
    "kernel for a pair": FindingKind(
        NOTE,
        "The engine runs a kernel that only rounds, or only multiplies by a scale. For the first layer of a network "
        "this is unavoidable.",
        "Keep the layer in float if the profiler shows that the kernel costs more than INT8 saves.",
    ),
    "fusion broken": FindingKind(
        WARNING,
        "The engine without pairs computes these layers in one kernel. Between the parts a tensor is written and read.",
        "Give all of these layers pairs, or none.",
    ),
    "not float32": FindingKind(
        NOTE,
        "Without Q/DQ pairs, trt-bisect quantizes only layers that read float32: no plan changes this layer.",
        "Export in float32, or with pairs; 'run --base fp16' then has the other layers in FP16.",
    ),
}
