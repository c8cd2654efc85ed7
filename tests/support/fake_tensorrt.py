"""Objects with TensorRT's interface: a network as the parser of 8.6 makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace

import numpy as np

from tests.support.networks import Sketch, save
from trt_bisect.builder.tensorrt_weak import set_ranges, walk_steps
from trt_bisect.model.network import load_network


class DataType(Enum):
    FLOAT, HALF, INT8, INT32, BOOL = range(5)


Kind = Enum(
    "Kind", "CONVOLUTION ACTIVATION POOLING ELEMENTWISE SHUFFLE MATRIX_MULTIPLY CONSTANT SHAPE CAST TOPK SOFTMAX"
)


@dataclass(eq=False)
class Tensor:
    name: str
    dtype: DataType = DataType.FLOAT
    is_shape_tensor: bool = False
    dynamic_range: tuple | None = None


@dataclass(eq=False)
class FakeLayer:
    name: str
    type: Kind
    inputs: list
    outputs: list
    metadata: str = ""
    weights: object = None
    op: str = ""
    precision: DataType | None = None
    output_types: dict = field(default_factory=dict)

    @property
    def num_inputs(self):
        return len(self.inputs)

    @property
    def num_outputs(self):
        return len(self.outputs)

    def get_input(self, i):
        return self.inputs[i]

    def get_output(self, i):
        return self.outputs[i]

    def set_output_type(self, i, dtype):
        self.output_types[i] = dtype


class Definition:
    """The part of ``INetworkDefinition`` that the walk uses."""

    def __init__(self, inputs, outputs):
        self.tensors = {name: Tensor(name) for name in inputs}
        self.inputs, self.output_names, self.layers = list(inputs), outputs, []

    def add(self, name, kind, inputs, *outputs, dtypes=(), shape=False, **more):
        made = []
        for i, output in enumerate(outputs):
            dtype = dtypes[i] if i < len(dtypes) else DataType.FLOAT
            made.append(self.tensors.setdefault(output, Tensor(output, dtype, shape)))
        read = [None if n is None else self.tensors[n] for n in inputs]
        self.layers.append(FakeLayer(name, Kind[kind], read, made, **more))

    num_layers = property(lambda self: len(self.layers))
    num_inputs = property(lambda self: len(self.inputs))
    num_outputs = property(lambda self: len(self.output_names))

    def get_layer(self, i):
        return self.layers[i]

    def get_input(self, i):
        return self.tensors[self.inputs[i]]

    def get_output(self, i):
        return self.tensors[self.output_names[i]]

    def asked(self):
        """Returns by layer name the requested precision and output types; layers without a request are left out."""
        return {
            layer.name: (layer.precision and layer.precision.name, {i: t.name for i, t in layer.output_types.items()})
            for layer in self.layers
            if layer.precision or layer.output_types
        }


def misread(weights):
    """Returns weights as the modules before TensorRT 10.16 give them with NumPy 2: flat, of stride 0."""
    flat = np.ascontiguousarray(weights).reshape(-1)
    return np.lib.stride_tricks.as_strided(flat, flat.shape, (0,))


TRT = SimpleNamespace(__version__="8.6.0", DataType=DataType, IConstantLayer=FakeLayer, IElementWiseLayer=FakeLayer)
TRT.ElementWiseOperation = SimpleNamespace(PROD="PROD")


FLOAT = ("FLOAT", {0: "FLOAT"})
SHAPES = {"x": ((1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))}
"""The least, usual and largest shapes of the network's input."""


def before_gemm():
    """Conv, Relu, MaxPool, Conv, Add across the Conv, Flatten: the sketch, and what a Gemm reads."""
    sketch = Sketch(7)
    relu = sketch.node("Relu", [sketch.conv("x", "conv1", 3, 4)], "relu1")
    pooled = sketch.node("MaxPool", [relu], "pool1", kernel_shape=[2, 2], strides=[2, 2])
    added = sketch.node("Add", [sketch.conv(pooled, "conv2", 4, 4), pooled], "add")
    weight = sketch.constant("fc.weight", sketch.random.normal(0, 0.3, (64, 5)))
    bias = sketch.constant("fc.bias", sketch.random.normal(0, 0.3, 5))
    return sketch, [sketch.node("Flatten", [added], "flatten"), weight, bias]


def make_network(folder):
    """conv1 0, relu1 1, pool1 2, conv2 3, add 4, flatten 5, fc 6, softmax 7; relu1, flatten and softmax follow."""
    sketch, reads = before_gemm()
    sketch.node("Softmax", [sketch.node("Gemm", reads, "fc")], "softmax", axis=-1)
    model = sketch.model({"x": ["n", 3, 8, 8]}, {"softmax_out": ["n", 5]})
    return load_network(save(model, folder))


def parsed():
    """The network as TensorRT 8.6's parser leaves it: shuffles without a name, a Gemm as three layers."""
    definition = Definition(["x"], ["softmax_out"])
    definition.add("conv1", "CONVOLUTION", ["x", None], "conv1_out")
    definition.add("relu1", "ACTIVATION", ["conv1_out"], "relu1_out")
    definition.add("pool1", "POOLING", ["relu1_out"], "pool1_out")
    definition.add("conv2", "CONVOLUTION", ["pool1_out"], "conv2_out")
    definition.add("add", "ELEMENTWISE", ["conv2_out", "pool1_out"], "add_out")
    definition.add("(Unnamed Layer* 5) [Shape]", "SHAPE", ["add_out"], "s", dtypes=[DataType.INT32], shape=True)
    definition.add("flatten", "SHUFFLE", ["add_out", "s"], "flatten_out")
    definition.add("fc.weight", "CONSTANT", [], "w", weights=np.array([[0.5, -2.0]], np.float32))
    definition.add("fc", "MATRIX_MULTIPLY", ["flatten_out", "w"], "product")
    definition.add("fc.bias", "CONSTANT", [], "b", weights=np.array([0.25], np.float32))
    definition.add("(Unnamed Layer* 10) [Shuffle]", "SHUFFLE", ["b"], "b_shuffled")
    definition.add("fc_10", "ELEMENTWISE", ["product", "b_shuffled"], "fc_out")
    definition.add("softmax", "SOFTMAX", ["fc_out"], "softmax_out")
    return definition


def with_ranges(network):
    """The network as the parser leaves it with a range for each activation, and the scales of these."""
    definition = parsed()
    scales = {name: np.float32(0.01 * (i + 1)) for i, name in enumerate(network.activations)}
    set_ranges(TRT, definition, walk_steps(definition, network.layers), network, scales)
    return definition, scales
