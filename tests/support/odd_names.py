"""A network whose layers and tensors have names that break text which is taken apart, or not quoted."""

from __future__ import annotations

from tests.support import networks

NAMES = ("a, b", "it's", "x: y;", "<b>")
"""Convolutions, in order. In INT8 each is a culprit: the one before it makes a channel that starves the others."""
INPUT, OUTPUT = "in, put", "<out>: it's;"


def odd_network(width: int = 8, size: int = 16):
    """A stem, then the convolutions ``NAMES`` with a Relu before each, pooling and a Gemm."""
    sketch = networks.Sketch(1)
    x = sketch.conv(INPUT, "stem", 3, width)
    for name in NAMES:
        x = sketch.conv(sketch.node("Relu", [x], f"relu of {name}"), name, width, width)
    x = sketch.node("Flatten", [sketch.node("GlobalAveragePool", [x], "pool")], "flatten")
    weight = sketch.constant("fc.weight", sketch.random.normal(0, 0.3, (width, 10)))
    sketch.node("Gemm", [x, weight], "fc", out=OUTPUT)
    model = sketch.model({INPUT: ["n", 3, size, size]}, {OUTPUT: ["n", 10]})
    for channel, (maker, reader) in enumerate(zip(("stem", *NAMES[:-1]), NAMES, strict=True)):
        networks.plant_between(model, maker, reader, channel=channel)
    return model


def sharing_network():
    """The same, but that the second of ``NAMES`` reads the weight of the first."""
    model = odd_network()
    (node,) = [node for node in model.graph.node if node.name == NAMES[1]]
    node.input[1] = f"{NAMES[0]}.weight"
    constants = [tensor for tensor in model.graph.initializer if tensor.name != f"{NAMES[1]}.weight"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    return model
