"""What is read off the engine inspector's JSON, on samples in the formats of TensorRT 8, 10 and 11."""

from __future__ import annotations

import json

import pytest

from trt_bisect.builder.inspector import engine_layers, named_in, onnx_layers_in, precision_of, ran_in

INT8 = "Thirty-two wide channel vectorized row major Int8 format"
FP32 = "Row major linear FP32"
INDICES = {"conv1": 0, "relu1": 1, "pool1": 2, "conv2": 3, "add": 4, "fc": 5}


def layer(name, kind, inputs, outputs, metadata="", tactic="", key="Format/Datatype"):
    def tensors(formats):
        return [{"Name": f"t{i}", "Location": "Device", "Dimensions": [1], key: f} for i, f in enumerate(formats)]

    described = {
        "Name": name,
        "LayerType": kind,
        "Inputs": tensors(inputs),
        "Outputs": tensors(outputs),
        "TacticName": tactic,
    }
    return {**described, "Metadata": metadata} if metadata else described


def ran(*layers):
    return ran_in(engine_layers(json.dumps({"Layers": list(layers), "Bindings": ["x", "y"]})), INDICES)


def test_tensorrt_8_names_fused_layers_by_their_parts():
    assert ran(
        layer("Reformatting CopyNode for Input Tensor 0 to conv1 + relu1", "Reformat", [FP32], [INT8]),
        layer("conv1 + relu1", "CaskConvolution", [INT8], [INT8]),
        layer("pool1", "CaskPooling", [INT8], [INT8]),
        layer("conv2", "CaskConvolution", [FP32], [FP32]),
        layer("PWN(PWN(add), other)", "PointWiseV2", [FP32, FP32], [FP32]),
    ) == {0: "int8", 1: "int8", 2: "int8", 3: "fp32", 4: "fp32"}


def test_tensorrt_10_names_them_in_the_metadata():
    assert ran(
        layer(
            "__myl_ConvRelu_myl0_1",
            "conv",
            ["Int8"],
            ["Half"],
            "[ONNX Layer: x__int8_DequantizeLinear]\x1f[ONNX Layer: conv1]\x1e[ONNX Layer: relu1]",
        ),
        layer("__myl_Max_myl0_2", "kgen", ["Half"], ["Half"], "[ONNX Layer: pool1]"),
        layer("__myl_Gemm_myl0_3", "gemm", ["Float"], ["Float"], "[ONNX Layer: fc]"),
    ) == {0: "int8", 1: "int8", 2: "fp16", 5: "fp32"}


def test_tensorrt_11_tells_format_and_type_apart():
    split = layer("conv1", "conv", ["Int8"], ["Int8"], "[ONNX Layer: conv1]", key="DataType")
    split["Inputs"][0]["Format"] = "Channel major format where channel % 16 == 0"
    assert ran(split) == {0: "int8"}


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


def test_blocks_that_name_only_their_ends_tell_of_nothing():
    assert ran(layer("{ForeignNode[conv1...fc]}", "Myelin", [FP32], [FP32])) == {}


def test_a_region_is_not_taken_for_obeyed_where_its_metadata_lists_it():
    """What it reads is FP32; in what its nodes ran nothing says. Their time is theirs together."""
    region = layer("{ForeignNode[conv1...fc]}", "Myelin", [FP32], [FP32], "[ONNX Layer: conv1]\x1e[ONNX Layer: fc]")
    assert ran(region) == {}
    assert engine_layers(json.dumps({"Layers": [region]}))[0].network_layers == ("conv1", "fc")


def test_layers_fused_side_by_side_are_all_read():
    """Two convolutions of one input in one kernel, as TensorRT issue 1602 shows them; issue 2525 says what they are."""
    side_by_side = layer("conv1 + relu1 || conv2 + add", "CaskConvolution", [INT8], [INT8, INT8])
    assert ran(side_by_side) == {0: "int8", 1: "int8", 3: "int8", 4: "int8"}


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


def test_an_engine_without_detailed_verbosity_lists_names():
    layers = engine_layers(json.dumps({"Layers": ["conv1 + relu1", "fc"], "Bindings": ["x"]}))
    assert [part.network_layers for part in layers] == [("conv1", "relu1"), ("fc",)]
    assert ran_in(layers, INDICES) == {}


@pytest.mark.parametrize("text", ["", "not JSON", "[]", "{}", '{"Layers": []}'])
def test_what_is_no_inspection_tells_of_nothing(text):
    assert engine_layers(text) == ()


def test_control_characters_in_the_json_are_read():
    text = '{"Layers": [{"Name": "a", "LayerType": "gemm", "Metadata": "[ONNX Layer: conv1]\x1f[ONNX Layer: fc]"}]}'
    assert engine_layers(text)[0].network_layers == ("conv1", "fc")


@pytest.mark.parametrize(
    ("description", "precision"),
    [
        ("Row major Int8 format", "int8"),
        ("Channel major INT8 format where channel == 4 and column stride % 32 == 0", "int8"),
        ("Channel major FP16 format where channel % 8 == 0", "fp16"),
        ("Half", "fp16"),
        ("Row major linear BFloat16 format", "bf16"),
        ("Float", "fp32"),
        ("Row major linear FP32", "fp32"),
        ("Row major linear UInt8 format", None),
        ("Row major linear Int32", None),
        ("Row major linear Int64 format", None),
        ("Row major linear BOOL", None),
        ("N/A due to dynamic shapes", None),
        ("", None),
    ],
)
def test_formats(description, precision):
    assert precision_of(description) == precision


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
