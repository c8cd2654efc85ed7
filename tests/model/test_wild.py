"""Peculiarities of published networks, each in its smallest form."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

import trt_bisect
from tests.support import networks
from tests.support.flawed_structures import pair
from tests.support.networks import Sketch
from tests.support.quantized import for_tensorrt, same_as_the_file
from tests.support.records import texts
from trt_bisect import BadInput, load_network, make_rule
from trt_bisect.analyzer.metrics import BUILT_IN
from trt_bisect.analyzer.worst import worst_inputs
from trt_bisect.builder.tensorrt_rtx import layers_of_file
from trt_bisect.model.file import save_model
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.reading import relative_difference
from trt_bisect.model.session import make_session
from trt_bisect.precision import prefix
from trt_bisect.report.summary import INTEGERS

FEEDS = {"x": networks.normal(0, 1, 3, 8, 8)}


def one_conv(seed=20):
    sketch = Sketch(seed)
    return sketch, sketch.conv("x", "conv", 3, 4)


def run(path, data=None, **options):
    data = data or {"x": networks.normal(1, 4, 3, 8, 8)}
    return trt_bisect.run(path, data, engine="onnxruntime", calibrator="minmax", **options)


def test_a_part_of_a_shape_is_not_taken_for_the_whole():
    """``Shape(start=-1)`` of a static tensor, folded as the whole shape, made another network without a word."""
    sketch, x = one_conv()
    width = sketch.node("Cast", [sketch.node("Shape", [x], "width", start=-1)], "cast", to=TensorProto.FLOAT)
    first = sketch.node("Gather", [width, sketch.constant("zero", 0, np.int64)], "first")
    middle = sketch.node("Cast", [sketch.node("Shape", [x], "middle", start=1, end=3)], "cast2", to=TensorProto.FLOAT)
    total = sketch.node("ReduceSum", [middle], "total", keepdims=0)
    divided = sketch.node("Div", [x, first], "div")
    sketch.node("Div", [divided, total], "div2", out="y")
    assert same_as_the_file(sketch.model([1, 3, 8, 8], [1, 4, 8, 8]), FEEDS).layers


@pytest.mark.parametrize(
    ("op", "weight", "kernel"),
    [("Conv", (4, 3, 3, 5), [3, 5]), ("ConvTranspose", (3, 4, 2, 2), [2, 2]), ("Conv", (4, 3, 7), [7])],
)
@pytest.mark.parametrize("has_pairs", [False, True])
def test_convolutions_with_pairs_say_the_size_of_their_kernels(op, weight, kernel, has_pairs):
    """TensorRT 8.6 refused them on an H200: its parser reads the attribute alone if the weight is a tensor."""
    sketch = Sketch(20)
    name = sketch.constant("w", np.random.default_rng(0).normal(size=weight))
    if has_pairs:
        name = pair(sketch, name, "pair", 0.02)
    sketch.node(op, ["x", name], "conv", out="y")
    shape = [1, 3, *[8] * len(kernel)]
    network = load_network(sketch.model({"x": shape}, {"y": [1, 4, *[None] * len(kernel)]}))
    scales = {"x": np.float32(0.1)}
    written = for_tensorrt(network, scales, prefix(len(network.layers), 0)).model
    (node,) = (node for node in written.graph.node if node.op_type == op)
    assert [list(found.ints) for found in node.attribute if found.name == "kernel_shape"] == [kernel]
    assert "DequantizeLinear" in {made.op_type for made in written.graph.node if node.input[1] in made.output}


def test_axes_named_with_a_question_mark_are_not_equally_long(tmp_path):
    """Paddle names every unknown size ``?``; TensorRT refuses sizes of one name that differ."""
    sketch, x = one_conv()
    network = load_network(sketch.model({"x": [1, 3, "?", "?"]}, {x: [1, 4, "?", "?"]}))
    assert [spec.shape for spec in network.inputs] == [(1, 3, None, None)]
    written = for_tensorrt(network, {"x": np.float32(0.1)}, prefix(1, 0))
    assert "?" not in str(written.model.graph.input) + str(written.model.graph.output)
    pytest.importorskip("tensorrt_rtx_bindings")
    save_model(written.model, written.weights, tmp_path / "written.onnx")
    assert layers_of_file(tmp_path / "written.onnx", {"x": (1, 3, 8, 16)})


def test_boxes_whose_number_flips_on_float_noise_are_no_other_network():
    assert relative_difference(np.ones((5, 4)), np.ones((4, 4))) == 0.0
    assert relative_difference(np.ones((5, 4)), np.ones(20)) == 1.0
    assert relative_difference(np.ones((0, 4)), np.ones((0, 4))) == 0.0
    assert relative_difference(np.array([1.0, np.nan]), np.array([np.nan, 1.0])) == 1.0
    assert relative_difference(np.array([3.0, 4.0]), np.array([3.0, 3.0])) == pytest.approx(0.2)


class Adding:
    """An engine that adds a number to its input."""

    def __init__(self, number):
        self.number = number

    def infer(self, feeds):
        return {"y": feeds["x"] + self.number}


def test_the_worst_input_is_found_in_one_pass():
    rule = make_rule(BUILT_IN["cosine"], None)
    once = iter([{"x": np.array([[1.0, 1.0 - 2.0 * i]])} for i in range(5)])
    found = worst_inputs(once, Adding(0.0), Adding(0.5), rule)
    assert found.places == (1,)  # from (1, -1) to (1.5, -0.5): cosine 0.894, the least of the five
    assert next(once, None) is None


def test_an_infinite_reference_does_not_make_the_others_faint():
    rule = make_rule(BUILT_IN["cosine"], None)
    data = [{"x": np.array([[1.0, 2.0, value]])} for value in (np.inf, np.inf, 3.0)]
    assert worst_inputs(data, Adding(0.0), Adding(0.5), rule).faint == ()


def test_an_if_with_a_constant_condition_and_two_outputs():
    sketch, x = one_conv()

    def branch(name, *ops):
        outs = [helper.make_tensor_value_info(f"{name}_{op}", TensorProto.FLOAT, None) for op in ops]
        return helper.make_graph([helper.make_node(op, [x], [f"{name}_{op}"]) for op in ops], name, [], outs)

    yes, branches = sketch.constant("yes", True, np.bool_), {"then_branch": branch("then", "Relu", "Neg")}
    branches["else_branch"] = branch("else", "Abs", "Sqrt")
    sketch.nodes.append(helper.make_node("If", [yes], ["y", "z"], name="if", **branches))
    shape = [1, 4, 8, 8]
    network = same_as_the_file(sketch.model({"x": [1, 3, 8, 8]}, {"y": shape, "z": shape}), FEEDS)
    assert [layer.name for layer in network.layers] == ["conv", "if"]


def test_integer_layers_without_constant_scales_are_refused(tmp_path):
    path, out = networks.save(networks.transformer(1), tmp_path), tmp_path / "q.onnx"
    quantize_dynamic(path, out)
    with pytest.raises(BadInput, match="quantized already"):
        load_network(out)


@pytest.mark.slow
def test_labels_are_judged_by_equality_and_sequences_do_not_break_a_run(tmp_path):
    sketch, x = one_conv()
    sketch.node("ArgMax", [x], "argmax", out="label", axis=1)
    sketch.node("SplitToSequence", [x], "parts", out="parts", axis=1)
    sketch.node("Flatten", [x], "flatten", out="y")
    model = sketch.model(["n", 3, 8, 8], ["n", 256])
    model.graph.output.append(helper.make_tensor_value_info("label", TensorProto.INT64, ["n", 1, 8, 8]))
    model.graph.output.append(helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None))
    report = run(networks.save(model, tmp_path))
    assert {row.output for row in report.layers if row.output} == {"y"}
    (integers,) = [line.text for line in report.lines if line.kind == INTEGERS]
    assert "'label'" in integers
    assert any("'parts'" in line.text for line in report.lines)
    assert "label" in report.outputs.int8
    assert {row.output for row in run(tmp_path / "network.onnx", outputs=["label"]).layers if row.output} == {"label"}


def test_an_output_of_one_value_is_not_always_perfect(tmp_path):
    sketch, x = one_conv()
    sketch.node("ReduceMean", [sketch.node("Relu", [x], "relu")], "mean", out="y", keepdims=0)
    report = run(networks.save(sketch.model(["n", 3, 8, 8], []), tmp_path))
    assert 0.9 < report.similarity.int8 < 1.0
    assert not any("SQNR" in note for note in texts(report.notes))


def test_samples_with_almost_no_output_are_not_the_worst(tmp_path):
    sketch, x = one_conv()
    gate = sketch.node("Mul", [x, "gate"], "gated")
    sketch.node("Flatten", [gate], "flatten", out="y")
    path = networks.save(sketch.model({"x": ["n", 3, 8, 8], "gate": ["n", 1, 1, 1]}, {"y": ["n", 256]}), tmp_path)
    random = np.random.default_rng(3)
    images = random.normal(size=(5, 3, 8, 8)).astype(np.float32)
    images[2] *= 0.01  # badly rounded, but nothing of it comes out
    gates = np.float32([1, 1, 1e-9, 1, 1]).reshape(5, 1, 1, 1)
    report = run(path, {"x": images, "gate": gates})
    assert report.inputs.faint == (2,)
    assert report.inputs.places != (2,)
    assert any("first: number 2" in note for note in texts(report.notes))


def test_scalar_inputs_and_the_saved_inputs_can_be_given_again(tmp_path):
    sketch, x = one_conv()
    scaled = sketch.node("Mul", [x, "s"], "scaled")
    sketch.node("Relu", [scaled], "relu", out="y")
    path = networks.save(sketch.model({"x": ["n", 3, 8, 8], "s": []}, {"y": ["n", 4, 8, 8]}), tmp_path)
    data = {"x": np.ones((3, 3, 8, 8), np.float32), "s": np.array([1, 2, 3], np.float32)}
    first = run(path, data, output=tmp_path / "run")
    again = run(path, data, inputs=tmp_path / "run/inputs.npz")
    assert again.similarity == first.similarity


def test_a_cache_of_length_zero_is_legal(tmp_path):
    sketch, x = one_conv()
    flat = sketch.node("Flatten", [x], "flat")
    sketch.node("Concat", ["past", flat], "joined", out="y", axis=1)
    path = networks.save(sketch.model({"x": [1, 3, 8, 8], "past": [1, "length"]}, {"y": [1, "all"]}), tmp_path)
    report = run(path, [{"x": FEEDS["x"], "past": np.zeros((1, 0), np.float32)}])
    assert report.exit_code == 0


def test_the_domain_written_out_and_tensors_named_as_ours():
    sketch, x = one_conv()
    renamed = sketch.node("Relu", [x], "x__int8")
    sketch.node("GlobalAveragePool", [renamed], "pool", out="y")
    model = sketch.model([1, 3, 8, 8], [1, 4, 1, 1])
    for node in model.graph.node:
        node.domain = "ai.onnx"
        for names in (node.input, node.output):
            for slot, name in enumerate(names):
                names[slot] = {"x__int8_out": "x__int8"}.get(name, name)
    network = load_network(model)
    scales = dict.fromkeys(network.activations, np.float32(0.02))
    everything = network.free_plan(network.quantizable)
    for target in GraphTarget:
        session = make_session(PlanWriter(network, scales, target).write(everything))
        assert session.run(None, FEEDS)[0].shape == (1, 4, 1, 1)


def test_pairs_that_cannot_be_switched_are_said():
    sketch, x = one_conv()
    scale, zero = sketch.node("ReduceMax", [x], "computed", keepdims=0), sketch.constant("z", 0, np.int8)
    rounded = sketch.node("QuantizeLinear", [x, scale, zero], "q")
    sketch.node("DequantizeLinear", [rounded, scale, zero], "dq", out="y")
    (note,) = load_network(sketch.model(["n", 3, 8, 8], ["n", 4, 8, 8], opset=21)).notes
    assert "2 Q/DQ nodes" in note


def test_weights_shared_with_a_converted_constant_keep_their_values():
    """A weight read by an INT8 layer and by one that stays high is rounded for the first alone."""
    sketch = Sketch(21)
    weight = sketch.constant("w", sketch.random.normal(size=(8, 8)))
    one = sketch.node("MatMul", ["x", weight], "one")
    sketch.node("MatMul", [one, weight], "two", out="y")
    network = load_network(sketch.model([4, 8], [4, 8]))
    scales = dict.fromkeys(network.activations, np.float32(1e-4))
    feeds = {"x": np.full((4, 8), 1e-3, np.float32)}
    exact = numpy_helper.to_array(sketch.constants[0])
    largest = np.abs(exact).max(axis=0) / np.float32(127)
    rounded = np.rint(exact / largest) * largest
    written = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME).write(prefix(2, 0))
    np.testing.assert_allclose(make_session(written).run(None, feeds)[0], feeds["x"] @ rounded @ exact, rtol=1e-4)
