"""NaN inside a plan that its outputs do not show.

An operator such as Relu or QuantizeLinear may make a number of NaN. Which one depends on the kernel, so a pass holds
for this kernel alone. FP16 makes NaN of values that are finite in FP32: sums overflow, and a small value becomes 0
before it divides or has its logarithm taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import onnx
from onnx import TensorProto, helper

from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.model.file import Written, attribute
from trt_bisect.model.network import Network
from trt_bisect.model.observe import Observer
from trt_bisect.model.qdq import PlanWriter
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.progress import Progress
from trt_bisect.support.text import listed

NAN_HIDDEN = "hidden NaN"
HIDES_NAN = "Later layers make numbers of it in ONNX Runtime; an engine may make others, or none"
_HIDES = frozenset(
    "ArgMax ArgMin Clip Equal GlobalMaxPool Greater GreaterOrEqual HardSigmoid HardSwish Less LessOrEqual Max MaxPool "
    "Min NonMaxSuppression NonZero QuantizeLinear ReduceMax ReduceMin Relu Sign TopK Where".split()
)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def hidden_nan(writer: PlanWriter, plan: PrecisionPlan, inputs: Sequence[Feeds], progress: Progress) -> str:
    """Returns a clause on the first layer that gives NaN in a plan, but not in FP32, on some of ``inputs``, and whose
    readers may hide the NaN; empty without such a layer, or if ONNX Runtime refuses the plan.
    """
    network = writer.network
    maker = {name: layer.name for layer in network.layers for name in layer.outputs}
    try:
        counts = _with_nan(network, writer.write(plan), writer.tag, inputs, progress)
        if counts:
            in_file = Written(network.skeleton, dict(network.weights))
            in_fp32 = _with_nan(network, in_file, writer.tag, inputs, progress)
            counts = {tensor: count for tensor, count in counts.items() if tensor not in in_fp32}
    except BadInput:
        return ""
    layers = list(dict.fromkeys(maker[tensor] for tensor in maker if tensor in counts))
    if not layers:
        return ""
    gives = "gives" if len(layers) == 1 else "give"
    return f"{listed(layers, 1)} {gives} NaN on {max(counts.values())} of {len(inputs)} inputs, and FP32 does not"


def _with_nan(
    network: Network, written: Written, tag: str, inputs: Sequence[Feeds], progress: Progress
) -> dict[str, int]:
    # By tensor of the network that an operator reads which may hide NaN: the number of inputs on which it has NaN.
    # Tensors without NaN are left out.
    model = deepcopy(written.model)
    graph, dtypes = model.graph, network.types.dtypes
    made = {name for node in graph.node for name in node.output}
    counts_of: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for node in graph.node if _hides(node) for name in node.input if name in made):
        tensor = name.partition(tag)[0]
        if tensor in dtypes and dtypes[tensor].kind == "f":
            nan, number, count = (f"{name}{tag}{word}" for word in ("nan", "number", "count"))
            graph.node.append(helper.make_node("IsNaN", [name], [nan]))
            graph.node.append(helper.make_node("Cast", [nan], [number], to=TensorProto.FLOAT))
            graph.node.append(helper.make_node("ReduceSum", [number], [count], keepdims=0))
            counts_of.setdefault(tensor, []).append(count)
    names = [count for counts in counts_of.values() for count in counts]
    observer = Observer(Written(model, written.weights), [names], network.source, in_segments=True)
    inputs_with: dict[str, int] = {}
    progress.stage("Looking for NaN inside the network", len(inputs))
    for position, feeds in enumerate(inputs):
        found = next(observer.run(feeds, position))
        for tensor, counts in counts_of.items():
            if any(found[count] > 0 for count in counts):
                inputs_with[tensor] = inputs_with.get(tensor, 0) + 1
        progress.step("")
    return inputs_with


def _hides(node: onnx.NodeProto) -> bool:
    if node.op_type == "Cast":
        return attribute(node, "to", 0) not in _FLOATS
    return node.op_type in _HIDES
