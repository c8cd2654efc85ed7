"""A stand-in for a fused engine of TensorRT that shows its tensors, with or without a wrong kernel."""

import numpy as np
from onnx import helper

from trt_bisect.model.file import Written, with_outputs
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import UNOPTIMISED, make_session

_POINTWISE = ("Relu", "Sigmoid", "Tanh", "Div")


class ShowingBuilder:
    """Takes the place of ``open_builder``; its engine runs the graph that TensorRT would be given.

    Args:
        seed: draws the wrong kernel, which tensors are fused away, and the memory formats.
        wrong: the number of the engine, from 0, of which a kernel computes something else; None for none.
        kernel: its layer, and the operator that stands for what it computes; drawn by default.
        fuses: some tensors are fused away.

    Attributes:
        layer: the layer whose kernel is wrong.
        options: the build options asked for.
        plans: those built.
    """

    def __init__(self, seed, *, wrong=None, kernel=(), fuses=True):
        self.kernel, self.fuses = kernel, fuses
        self.random, self.wrong, self.layer, self.plans = np.random.default_rng(seed), wrong, "", []

    def __call__(self, engine, typing, network, scales, options, shapes):
        assert (engine, typing) == ("tensorrt", "strong")
        self.network, self.scales, self.options, self.shapes = network, scales, options, shapes
        return self

    def build(self, plan):
        written = PlanWriter(self.network, self.scales, GraphTarget.TENSORRT).write(plan)
        graph = written.model.graph
        made = {name for node in graph.node for name in node.output}
        names = [name for layer in self.network.layers for name in self._shown(layer.outputs[0], graph) if name in made]
        if self.wrong == len(self.plans):
            self._corrupt(graph)
        self.plans.append(plan)
        outputs = {value.name for value in graph.output}
        asked = [*outputs, *(name for name in names if name not in outputs)]
        model = with_outputs(written.model, names)
        session = make_session(Written(model, written.weights), threads=1, level=UNOPTIMISED)
        widths = {name: int(self.random.integers(3)) for name in asked}
        in_memory = self.random.random() < 0.5

        def infer(feeds):
            shown = {}
            for name, values in zip(asked, session.run(asked, feeds), strict=True):
                shown[name] = values
                width = (0, 4, values.shape[1])[widths[name]] if values.ndim == 4 and name not in outputs else 0
                if width and values.shape[1] % width == 0:
                    shown[name] = packed(values, width) if in_memory else values
                    shown[f"{name} as stored"] = values if in_memory else unpacked(values, width)
            return shown

        return _Engine(infer)

    def _shown(self, tensor, graph):
        """The copies of a tensor that the engine keeps: none if its only reader is fused with its maker."""
        readers = [each for each in self.network.layers if tensor in each.inputs]
        if self.fuses and len(readers) == 1 and (readers[0].op_type in _POINTWISE or self.random.random() < 0.2):
            return ()
        in_floats = [node for node in graph.node if tensor in node.input and node.op_type != "QuantizeLinear"]
        levels = f"{tensor}__int8_q"
        rounded = any(levels in node.output for node in graph.node)
        return (levels,) if rounded and not in_floats else (f"{tensor}__typed", tensor, levels)

    def _corrupt(self, graph):
        """Makes the output of one layer's kernel twice itself, its negative, or zero."""
        moves = ("Shape", "Flatten", "Transpose", "Reshape")
        layers = [layer for layer in self.network.layers if layer.op_type not in moves]
        drawn = layers[int(self.random.integers(len(layers)))].name, str(self.random.choice(["Add", "Sub", "Neg"]))
        self.layer, op = self.kernel or drawn
        place, node = next((k, each) for k, each in enumerate(graph.node) if each.name == self.layer)
        right, final = f"{node.output[0]}__right", node.output[0]
        node.output[0] = right
        graph.node.insert(place + 1, helper.make_node(op, [right] * (1 if op == "Neg" else 2), [final], name="wrong"))


def packed(values, width):
    """The memory of a tensor with ``width`` channels together, in an array of the usual shape."""
    batch, channels, height, rest = values.shape
    blocks = values.reshape(batch, channels // width, width, height, rest).transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(blocks).reshape(values.shape)


def unpacked(memory, width):
    """A tensor from such a memory."""
    batch, channels, height, rest = memory.shape
    blocks = memory.reshape(batch, channels // width, height, rest, width).transpose(0, 1, 4, 2, 3)
    return np.ascontiguousarray(blocks).reshape(memory.shape)


class _Engine:
    def __init__(self, infer):
        self.infer = infer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
