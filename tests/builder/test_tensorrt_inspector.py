"""Reading the engine inspector's JSON, on samples in the formats of TensorRT 8, 10 and 11.

``tests/files/inspector`` has reports in the forms that real engines write; ``SOURCES.md`` there names the public
reports that they follow.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trt_bisect.builder.inspector import engine_layers, logged_layers, named_in, onnx_layers_in, precision_of, ran_in
from trt_bisect.model.layers import Layer

INT8 = "Thirty-two wide channel vectorized row major Int8 format"
FP32 = "Row major linear FP32"
FILES = Path(__file__).parents[1] / "files" / "inspector"


def chain(**ops):
    """A network of layers in a row, each reading what the layer before it makes."""
    names = ["x", *ops]
    return [
        Layer(k, name, op, (f"{names[k]}_out",), (f"{name}_out",), None, None)
        for k, (name, op) in enumerate(ops.items())
    ]


NETWORK = chain(conv1="Conv", relu1="Relu", pool1="MaxPool", conv2="Conv", add="Add", fc="Gemm")


def layer(name, kind, inputs, outputs, metadata="", tactic="", key="Format/Datatype"):
    def tensors(formats):
        return [{"Name": f"t{i}", "Location": "Device", "Dimensions": [1], key: f} for i, f in enumerate(formats)]

    described = {"Name": name, "LayerType": kind, "Inputs": tensors(inputs), "Outputs": tensors(outputs)}
    return described | {"TacticName": tactic} | ({"Metadata": metadata} if metadata else {})


def ran(*layers):
    return ran_in(engine_layers(json.dumps({"Layers": list(layers), "Bindings": ["x", "y"]})), NETWORK)


def test_a_fused_layer_of_int8_and_float_inputs_tells_of_the_first_only():
    assert ran(layer("conv2 + add", "CaskConvolution", [INT8, FP32], [FP32])) == {3: "int8"}
    assert ran(layer("conv2 + add", "CaskConvolution", [INT8, INT8], [FP32])) == {3: "int8", 4: "int8"}


def test_int8_work_in_one_part_of_a_layer_counts_for_the_layer():
    bias = layer("fc_3", "kgen", ["Float"], ["Float"], "[ONNX Layer: fc]")
    product = layer("fc", "gemm", ["Int8"], ["Float"], "[ONNX Layer: fc]")
    assert ran(bias, product) == ran(product, bias) == {5: "int8"}


def test_a_float_layer_that_puts_out_int8_ran_in_float():
    assert ran(layer("conv1 + relu1", "CaskConvolution", [FP32], [INT8])) == {0: "fp32", 1: "fp32"}


def test_the_kernel_tells_where_dynamic_shapes_hide_the_formats():
    hidden = "N/A due to dynamic shapes"
    int8 = "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32kcrs"
    half = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc_tilesize128x128x64_tensor16x8x16"
    assert ran(layer("conv1", "CaskConvolution", [hidden], [hidden], tactic=int8)) == {0: "int8"}
    assert ran(layer("conv1", "CaskConvolution", [hidden], [hidden], tactic=half)) == {}


def region(first="conv1", last="fc", kind="Myelin", metadata=""):
    return layer(f"{{ForeignNode[{first}...{last}]}}", kind, [FP32], [FP32], metadata)


def test_a_region_that_names_only_its_ends_holds_what_lies_between():
    """Its inputs are FP32; nothing tells the precision in which its layers ran."""
    assert ran(region()) == dict.fromkeys(range(6), "region")
    before = layer("conv1 + relu1", "CaskConvolution", [INT8], [INT8])
    after = layer("fc", "gemm", [FP32], [FP32])
    assert ran(before, region("pool1", "add"), after) == {
        0: "int8", 1: "int8", 2: "region", 3: "region", 4: "region", 5: "fp32",
    }  # fmt: skip


def test_a_layer_that_has_a_kernel_of_its_own_is_not_in_the_region_around_it():
    assert ran(region("conv1", "fc"), layer("pool1", "Pooling", [INT8], [INT8])) == {
        **dict.fromkeys((0, 1, 3, 4, 5), "region"),
        2: "int8",
    }


@pytest.mark.parametrize(
    ("first", "last", "inside"),
    [
        ("fc.weight + (Unnamed Layer* 5) [Shuffle]", "fc", range(6)),
        ("pool1 + conv2", "(Unnamed Layer* 9) [Shuffle]", range(2, 6)),
        ("conv2 + add", "PWN(pool1)", range(2, 5)),
    ],
)
def test_an_end_that_is_no_layer_of_the_network_leaves_the_side_open(first, last, inside):
    assert ran(region(first, last)) == dict.fromkeys(inside, "region")


def test_a_region_of_one_layer():
    assert ran(layer("{ForeignNode[conv2]}", "DLA", [INT8], [INT8])) == {3: "dla"}


def test_a_region_whose_metadata_lists_its_layers_holds_these():
    listed = region(metadata="[ONNX Layer: conv1]\x1e[ONNX Layer: fc]")
    assert ran(listed) == {0: "region", 5: "region"}
    assert engine_layers(json.dumps({"Layers": [listed]}))[0].network_layers == ("conv1", "fc")


def test_a_change_of_format_before_a_region_is_none():
    before, after = "Reformatting CopyNode for Input Tensor 0 to {ForeignNode[conv1...fc]}", "{ForeignNode[conv1]}"
    for name in (before, f"{after} output reformatter 0"):
        assert ran(layer(name, "Reformat", [FP32], [INT8])) == {}


def test_an_end_of_a_region_is_in_it_although_another_engine_layer_has_its_name():
    """TensorRT 8 names the layers that bring a product's weights after it; in what the product ran they do not say."""
    weights = layer("fc + (Unnamed Layer* 7) [Shuffle]", "Shuffle", [FP32], [FP32])
    assert ran(weights, region("add", "fc")) == {4: "region", 5: "region"}
    assert ran(region("add", "fc"), weights) == {4: "region", 5: "region"}


@pytest.mark.parametrize(
    ("name", "kind", "inside"),
    [
        ("{ForeignNode[conv1...pool1]} || {ForeignNode[add...fc]}", "Myelin", {0, 1, 2, 4, 5}),
        ("{ForeignNode[conv1...relu1]} + pool1", "Myelin", {0, 1, 2}),
        ("{ForeignNode[conv1...relu1]}_myl0_0", "kgen", {0, 1}),
        ("{ForeignNode[conv1 + relu1...add || fc]}", "Myelin", {0, 1, 2, 3, 4, 5}),
        ("conv1 + relu1", "Myelin", {0, 1}),
    ],
)
@pytest.mark.parametrize("tactic", ["", "sm80_xmma_gemm_i8i8_i8i32_imma"])
def test_no_layer_of_a_region_has_a_precision(name, kind, inside, tactic):
    """Neither what a region reads and writes nor the name of a kernel shows in what its layers ran."""
    for reads in ([INT8], [FP32], [INT8, FP32]):
        assert ran(layer(name, kind, reads, [INT8], tactic=tactic)) == dict.fromkeys(sorted(inside), "region")


def test_the_second_product_in_one_kernel_shows_no_precision():
    """Attention as one kernel: the second MatMul reads what the Softmax made, which no input shows."""
    network = chain(scores="MatMul", softmax="Softmax", mixed="MatMul")
    metadata = "[ONNX Layer: scores][ONNX Layer: softmax][ONNX Layer: mixed]"
    kernel = layer("_gemm_mha_v2_myl0_59", "kgen", ["Int8"] * 3, ["Int8"], metadata)
    assert ran_in(engine_layers(json.dumps({"Layers": [kernel]})), network) == {0: "int8", 1: "int8"}


def read_report(name, network):
    layers = engine_layers((FILES / name).read_text())
    names = {layer.index: layer.name for layer in network}
    return layers, {names[index]: precision for index, precision in ran_in(layers, network).items()}


def test_report_of_8_names_only():
    """Regions, copies, shape copies and synchronisations beside the layers; no precision of any."""
    network = chain(
        conv="Conv", pool="MaxPool", const="Shape", head_a="Sub", head_b="Unsqueeze", nms="NonMaxSuppression",
        split="Split", concat="Concat",
    )  # fmt: skip
    layers, said = read_report("names_only.json", network)
    assert said == {
        "const": "region", "head_a": "region", "head_b": "region", "split": "region", "concat": "region",
    }  # fmt: skip
    assert [layer.network_layers for layer in layers if layer.name.startswith("PWN")] == [("act",)]


def test_report_of_8_with_explicit_quantization():
    """Q nodes are Reformat layers of their own, weights and their Q nodes are in the name, the Relu has no name."""
    network = chain(Conv_9="Conv", Relu_10="Relu", MaxPool_12="MaxPool", Conv_22="Conv", Conv_34="Conv", Add_42="Add",
                    Relu_43="Relu", Gemm_50="Gemm")  # fmt: skip
    _, said = read_report("explicit_8.json", network)
    assert said == {
        "Conv_9": "int8", "MaxPool_12": "int8", "Conv_22": "int8", "Conv_34": "int8", "Add_42": "int8",
        "Relu_43": "int8", "Gemm_50": "fp32",
    }  # fmt: skip


def test_report_of_8_with_two_convolutions_side_by_side():
    network = chain(cv2="Conv", cv2_relu="Relu", cv3="Conv", cv3_relu="Relu")
    network[2] = replace(network[2], inputs=network[0].inputs)
    assert read_report("side_by_side_8.json", network)[1] == {layer.name: "int8" for layer in network}


def test_report_of_10_with_implicit_quantization():
    """Reformat layers with an origin and empty metadata; batch norm, activation and pooling in one layer's name."""
    network = chain(conv0="Conv", batchnorm0="BatchNormalization", relu0="Relu", pool0="MaxPool", dense="Gemm")
    assert read_report("implicit_10.json", network)[1] == {
        **dict.fromkeys(("conv0", "batchnorm0", "relu0", "pool0"), "int8"),
        "dense": "fp16",
    }


def test_report_of_10_of_a_transformer():
    """Kernels of the compiler, named by their operators, with the ONNX nodes in the metadata, no separator between."""
    network = chain(query="MatMul", scores="MatMul", div="Div", mask="Add", softmax="Softmax", mixed="MatMul",
                    dense="MatMul", dense_add="Add", norm="LayerNormalization", pos_ff="MatMul")  # fmt: skip
    assert read_report("transformer_10.json", network)[1] == {
        "query": "int8", "scores": "fp16", "div": "fp16", "mask": "fp16", "softmax": "fp16", "dense": "fp16",
        "dense_add": "fp16", "norm": "fp16", "pos_ff": "fp16",
    }  # fmt: skip


def test_report_of_11():
    network = chain(conv="Conv", act="Relu")
    assert read_report("split_format_11.json", network)[1] == {"conv": "int8", "act": "int8"}


def test_layers_that_tensorrt_rtx_made_of_lenet():
    """A real engine: between conv2 and pool2, Q and DQ are one float kernel with the bias; pool2 reads floats."""
    network = chain(conv1="Conv", pool1="MaxPool", conv2="Conv", pool2="MaxPool", flatten="Flatten", ip1="Gemm",
                    relu1="Relu", ip2="Gemm", prob="Softmax")  # fmt: skip
    assert read_report("lenet_rtx.json", network)[1] == {
        "conv1": "int8", "pool1": "int8", "conv2": "int8", "pool2": "fp32", "ip1": "int8", "relu1": "fp32",
        "ip2": "int8", "prob": "fp32",
    }  # fmt: skip


def test_report_of_a_dla_with_gpu_fallback():
    network = chain(
        conv1_1="Conv", relu1_1="Relu", pool5="MaxPool", fc6="Conv", relu6="Relu", fc8="Conv", prob="Softmax"
    )
    assert read_report("dla_8.json", network)[1] == {
        "conv1_1": "dla", "relu1_1": "dla", "pool5": "dla", "fc6": "int8", "relu6": "dla", "fc8": "dla", "prob": "fp32",
    }  # fmt: skip


def test_a_change_of_format_does_no_layers_work():
    """With an empty ``Metadata``, as TensorRT 10 writes it (issue 4020), with one that names the layer, and without."""
    name = "Reformatting CopyNode for Input Tensor 0 to conv1 + relu1 + pool1"
    changes = [
        {**layer(name, "Reformat", [FP32], [INT8]), "Origin": "REFORMAT", "Metadata": ""},
        layer(name, "Reformat", [FP32], [INT8], "[ONNX Layer: conv1]\x1f[ONNX Layer: relu1]"),
        layer(name.replace("Input", "Output"), "Reformat", [INT8], [FP32]),
        layer("conv1 + relu1 || conv2 output reformatter 0", "Reformat", [INT8], [FP32]),
        name,
    ]
    assert [part.network_layers for part in engine_layers(json.dumps({"Layers": changes}))] == [()] * len(changes)


@pytest.mark.parametrize("text", ["", "not JSON", "[]", "{}", '{"Layers": []}'])
def test_what_is_no_inspection_tells_of_nothing(text):
    assert engine_layers(text) == ()


def test_control_characters_in_the_json_are_read():
    text = '{"Layers": [{"Name": "a", "LayerType": "gemm", "Metadata": "[ONNX Layer: conv1]\x1f[ONNX Layer: fc]"}]}'
    assert engine_layers(text)[0].network_layers == ("conv1", "fc")


@pytest.mark.parametrize(("precision", "descriptions"), [
    ("int8", ["Row major Int8 format", "Channel major INT8 format where channel == 4 and column stride % 32 == 0"]),
    ("fp16", ["Channel major FP16 format where channel % 8 == 0", "Half"]),
    ("bf16", ["Row major linear BFloat16 format"]),
    ("fp32", ["Float", "Row major linear FP32"]),
    (None, [f"Row major linear {kind}" for kind in ("UInt8 format", "Int32", "Int64 format", "BOOL")]),
    (None, ["N/A due to dynamic shapes", ""]),
])  # fmt: skip
def test_formats(precision, descriptions):
    assert {description: precision_of(description) for description in descriptions} == dict.fromkeys(
        descriptions, precision
    )


def test_names_in_metadata():
    assert onnx_layers_in("[ONNX Layer: /model/conv][ONNX Layer: a]b]") == ("/model/conv", "a]b")
    assert onnx_layers_in("") == ()
    assert onnx_layers_in("[ShapeHostToDeviceCopy 0]") == ()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("conv1.weight + x_QuantizeLinear + conv1", ["conv1.weight", "x_QuantizeLinear", "conv1"]),
        ("PWN(PWN(sigmoid), mul) + add", ["sigmoid", "mul", "add"]),
        # TensorRT issues 1602 and 2525, and the names that NVIDIA's Model Optimizer reads in its tests.
        ("Conv_45 + Relu_46 || Conv_52 + Relu_53", ["Conv_45", "Relu_46", "Conv_52", "Relu_53"]),
        ("Conv_68 || Conv_72", ["Conv_68", "Conv_72"]),
        ("Conv_531 + PWN(LeakyRelu_532)", ["Conv_531", "LeakyRelu_532"]),
        ("Conv_785 (32, 32, 3)", ["Conv_785 (32, 32, 3)"]),
        (
            "PWN(Clip_589 + (Unnamed Layer* 16) [Shuffle], PWN(PWN(Add_586, Clip_46), Div_49))",
            ["Clip_589", "(Unnamed Layer* 16) [Shuffle]", "Add_586", "Clip_46", "Div_49"],
        ),
        # A Gemm with a bias in the profile of a network that NVIDIA's engine explorer has as an example.
        (
            "Gemm_305 + fc.bias + (Unnamed Layer* 354) [Shuffle]_(Unnamed Layer* 354) [Shuffle]_output + Add_306",
            ["Gemm_305", "fc.bias", "(Unnamed Layer* 354) [Shuffle]_(Unnamed Layer* 354) [Shuffle]_output", "Add_306"],
        ),
        ("(Unnamed Layer* 306) [Shuffle]", ["(Unnamed Layer* 306) [Shuffle]"]),
        ("PWN(conv (1), conv (2)) + relu", ["conv (1)", "conv (2)", "relu"]),
        ("conv (a + b) || conv (c, d)", ["conv (a + b)", "conv (c, d)"]),
        ("a(b + PWN(c) + d)e", ["a(b", "c", "d)e"]),
        ("{ForeignNode[318...(Unnamed Layer* 4183) [Shuffle]]}", []),
        ("Reformatting CopyNode for Output Tensor 0 to Conv_705 || Conv_733", []),
        ("Conv_41 input reformatter 0", []),
    ],
)
def test_names_joined_into_one(name, parts):
    assert list(named_in(name)) == parts


LOGGED = """Layers:
Name: __myl_Move_myl0_0, LayerType: kgen, Inputs: [ { Name: x, Dimensions: [1,3], Strides: [3,1], StrideOrder: [1,0], \
Datatype: Float, Format: (Linear) Row major linear format }], Constants: [], Outputs: [ { Name: t, Dimensions: [1,3], \
Strides: [3,1], StrideOrder: [1,0], Datatype: Int8, Format: (Linear) Row major linear format }], \
TacticName: __myl_Move_0x7c57, StreamId: 0, Metadata:\x20
Name: __mye3010_myl0_19, LayerType: signal, Inputs: [], Constants: [], Outputs: [], TacticName: , StreamId: 0, \
EventId: 1, Metadata:\x20
Name: a, b_myl0_1, LayerType: gemm, Inputs: [ { Name: t, Datatype: y, Dimensions: [1,3], Strides: [3,1], \
StrideOrder: [1,0], Datatype: Int8, Format: (Linear) Row major linear format }, { Name: u, Dimensions: [1,3], \
Strides: [3,1], StrideOrder: [1,0], Datatype: Half, Format: (Linear) Row major linear format }], Constants: [ \
{ Name: w, Dimensions: [3,5], Strides: [1,3], StrideOrder: [0,1], Datatype: Int8, Format: (Transposed) Transposed \
format }, { Name: s, Dimensions: [1], Strides: [1], StrideOrder: [0], Datatype: Float, Format: (Linear) Row major \
linear format }], Outputs: [ { Name: y, Dimensions: [1,5], Strides: [5,1], StrideOrder: [1,0], Datatype: Float, \
Format: (Linear) Row major linear format }], TacticName: __myelin_CASK_STUB, StreamId: 1, Metadata: \
[ONNX Layer: a, b]\x1f[ONNX Layer: x__int8_DequantizeLinear]

I/O Tensors:
 Name: x, IOMode: Input, DataType: Float, Dimensions: [1,3], Location: Device
"""
"""Lines of TensorRT-RTX 1.7's log as it wrote them, with a comma in a name, and a tensor named like a key."""


def test_tensorrt_rtx_logs_the_layers_of_an_engine():
    move, signal, gemm = logged_layers(LOGGED)
    assert (move.kind, move.inputs, move.outputs, move.tactic) == ("kgen", ("fp32",), ("int8",), "__myl_Move_0x7c57")
    assert (signal.kind, signal.inputs, signal.outputs, signal.tactic) == ("signal", (), (), "")
    assert (gemm.name, gemm.kind, gemm.inputs, gemm.outputs) == ("a, b_myl0_1", "gemm", ("int8", "fp16"), ("fp32",))
    assert gemm.network_layers == ("a, b", "x__int8_DequantizeLinear")


@pytest.mark.parametrize("text", ["", "Layers:", "Layers:\nName: x", LOGGED.replace("Layers:", "Tactics:")])
def test_no_layers_are_read_from_other_messages(text):
    assert logged_layers(text) == ()
