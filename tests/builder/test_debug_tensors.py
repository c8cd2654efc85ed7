"""The tensors that an engine shows, by the names of the graph, in the formats that the inspector describes."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper

from trt_bisect.builder.debug_tensors import on_graph

NODES = [
    helper.make_node("Conv", ["x__int8", "w"], ["conv_out"], name="conv"),
    helper.make_node("Relu", ["conv_out"], ["relu_out"], name="relu"),
    helper.make_node("QuantizeLinear", ["relu_out", "s", "z"], ["relu_out__int8_q"], name="relu_out__int8_Q"),
    helper.make_node("DequantizeLinear", ["relu_out__int8_q", "s", "z"], ["relu_out__int8"], name="relu_out__int8_D"),
    helper.make_node("Split", ["relu_out__int8"], ["a", "b"], name="split"),
    helper.make_node("Add", ["a", "b"], ["y"], name="add"),
]
GRAPH = helper.make_graph(NODES, "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])


def layer(*nodes, outputs, form="Row major linear FP32"):
    metadata = "\x1f".join(f"[ONNX Layer: {node}]" for node in nodes)
    made = [{"Name": name, "Format/Datatype": form} for name in outputs]
    return {"Name": " + ".join(nodes), "Outputs": made, "Metadata": metadata}


def shown(values, *layers):
    return dict(on_graph(values, json.dumps({"Layers": list(layers)}), GRAPH))


def test_names_of_the_graph_stay_and_internal_ones_are_those_of_what_leaves_the_fused_nodes():
    one = np.ones(1, np.float32)
    found = shown(
        {"__myl_1": one, "conv_out": 2 * one, "Reformatted": 3 * one, "both": 4 * one},
        layer("conv", "relu", "relu_out__int8_Q", outputs=["__myl_1"]),
        layer("split", outputs=["both", "other"]),
    )
    expected = {"relu_out__int8_q": 1.0, "conv_out": 2.0, "Reformatted": 3.0, "both": 4.0}
    assert {name: float(values[0]) for name, values in found.items()} == expected


def test_an_inspector_that_tells_names_only_or_nothing():
    one = np.ones(1, np.float32)
    assert dict(on_graph({"t": one}, json.dumps({"Layers": ["conv + relu"]}), GRAPH)).keys() == {"t"}
    assert dict(on_graph({"t": one}, "no JSON", GRAPH)).keys() == {"t"}


@pytest.mark.parametrize(
    ("form", "together"),
    [
        ("Two wide channel vectorized row major FP16 format", 2),
        ("Four wide channel vectorized row major Int8 format", 4),
        ("Thirty-two wide channel vectorized row major Int8 format", 32),
        ("kCHW16", 16),
        ("Channel major FP16 format where channel % 8 == 0", 32),
        ("Channel major FP32 format", 32),
        ("kHWC8", 32),
    ],
)
def test_a_format_is_read_as_it_is_stored(form, together):
    """The address of an element, as TensorFormat documents it for each format."""
    channels, height, width = 32, 2, 3
    values = np.arange(channels * height * width, dtype=np.float32).reshape(1, channels, height, width)
    memory = np.empty(values.size, np.float32)
    for c, h, w in np.ndindex(channels, height, width):
        at = (c // together) * height * width * together + (h * width + w) * together + c % together
        memory[at] = values[0, c, h, w]
    given = memory.reshape(values.shape)
    found = shown({"conv_out": given}, layer("conv", outputs=["conv_out"], form=form))
    np.testing.assert_array_equal(found["conv_out"], given)
    np.testing.assert_array_equal(found["conv_out as stored"], values)


def test_a_tensor_that_is_padded_in_memory_is_left_out():
    values = np.zeros((1, 3, 2, 2), np.float32)
    padded = "Thirty-two wide channel vectorized row major Int8 format"
    for form in (padded, "Channel major FP16 format where channel % 8 == 0"):
        assert shown({"conv_out": values}, layer("conv", outputs=["conv_out"], form=form)) == {}
    assert shown({"conv_out": values}, layer("conv", outputs=["conv_out"])).keys() == {"conv_out"}
