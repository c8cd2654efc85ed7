"""Networks as they come: read, prepared, seen as layers, written with plans."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper

import trt_bisect
from tests.support import networks
from tests.support.editions import edition
from tests.support.networks import Sketch, attached
from tests.support.quantized import for_tensorrt, in_plan, reference, same_as_the_file
from trt_bisect import BadInput, NothingMeasured, load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import make_session
from trt_bisect.precision import int8_set


def test_quantizable_layers_of_a_residual_network():
    network = load_network(networks.residual(blocks=2))
    quantizable = [layer.name for layer in network.layers if layer.quantizable]
    blocks = [f"block{b}.{part}" for b in (0, 1) for part in ("conv1", "conv2", "add")]
    assert quantizable == ["stem", *blocks, "pool", "fc"]
    assert network.layer_named("fc").roundings[1].axis == 1
    assert network.layer_named("stem").shape == ("n", 8, 16, 16)


def of_norm(sketch, channels):
    """The parameters of a BatchNormalization."""
    return [sketch.constant(n, sketch.random.uniform(0.5, 2, channels)) for n in ("gamma", "beta", "mean", "var")]


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_batch_normalization_goes_into_the_layer_before(op, has_bias):
    random = np.random.default_rng(5)
    sketch = Sketch(5)
    shapes = {"Conv": (6, 2, 3, 3), "ConvTranspose": (4, 3, 3, 3), "Gemm": (6, 4)}
    weight = sketch.constant("w", random.normal(size=shapes[op]))
    attributes = {"transB": 1, "alpha": 0.5, "beta": 2.0} if op == "Gemm" else {"group": 2}
    inputs = ["x", weight] + ([sketch.constant("b", random.normal(size=6))] if has_bias else [])
    x = sketch.node(op, inputs, "layer", **attributes)
    sketch.node("BatchNormalization", [x, *of_norm(sketch, 6)], "norm", out="y", epsilon=1e-3)
    shape = [1, 4] if op == "Gemm" else [1, 4, 5, 5]
    model = sketch.model({"x": shape}, {"y": [1, 6] if op == "Gemm" else [1, 6, None, None]})
    network = same_as_the_file(model, {"x": random.normal(size=shape).astype(np.float32)})
    assert [layer.name for layer in network.layers] == ["layer"]


@pytest.mark.parametrize("first", ["conv1", "conv2"])
def test_a_weight_that_two_convolutions_share_is_scaled_for_one_alone(first):
    """The scaled weight must not take the name of the one that is there: exporters name it 'conv1.weight'."""
    sketch = Sketch(15)
    weight = sketch.constant("conv1.weight", sketch.random.normal(size=(4, 4, 1, 1)))
    sketch.constant("conv1.folded_bias", np.full(4, 7.0))
    second = {"conv1": "conv2", "conv2": "conv1"}[first]
    one = sketch.node("Conv", ["x", weight], first)
    one = sketch.node("BatchNormalization", [one, *of_norm(sketch, 4)], "norm")
    two = sketch.node("Conv", [one, weight, "conv1.folded_bias"], second)
    sketch.node("Relu", [two], "last", out="y")
    model = sketch.model([1, 4, 3, 3], [1, 4, 3, 3])
    network = same_as_the_file(model, {"x": sketch.random.normal(size=(1, 4, 3, 3)).astype(np.float32)})
    assert [layer.name for layer in network.layers] == [first, second, "last"]


def test_batch_normalization_after_an_add_stays():
    sketch = Sketch(5)
    x = sketch.node("Add", ["x", "x"], "add")
    sketch.node("BatchNormalization", [x, *of_norm(sketch, 4)], "norm", out="y")
    model = sketch.model([1, 4, 3, 3], [1, 4, 3, 3])
    network = same_as_the_file(model, {"x": np.ones((1, 4, 3, 3), np.float32)})
    assert [layer.op_type for layer in network.layers] == ["Add", "BatchNormalization"]


def test_constants_are_folded_identities_bypassed_and_nodes_named():
    sketch = Sketch(6)
    turned = sketch.node("Transpose", [sketch.constant("w", sketch.random.normal(size=(5, 4)))], "", perm=[1, 0])
    dropped = sketch.node("Identity", ["x"], "id")
    sketch.nodes += [
        helper.make_node("MatMul", [dropped, turned], ["a"]),
        helper.make_node("Relu", ["a"], ["b"], name="twice"),
        helper.make_node("Relu", ["b"], ["y"], name="twice"),
    ]
    network = load_network(sketch.model([2, 4], [2, 5]))
    weight = numpy_helper.to_array(sketch.constants[0])
    found = reference(network, {"x": np.ones((2, 4), np.float32)})[0]
    np.testing.assert_allclose(found, np.maximum(np.ones((2, 4)) @ weight.T, 0), rtol=1e-5, atol=1e-6)
    assert [layer.name for layer in network.layers] == ["node_of_a", "twice", "twice_1"]
    assert network.layers[0].roundings[1].axis == 1


@pytest.mark.parametrize("opset", [9, 10])
def test_opsets_9_and_10_are_converted_and_noted(opset):
    """Attributes became inputs (Clip, Pad, Slice); initializers are inputs too, as in IR version 3."""
    sketch = Sketch(7)
    x = sketch.node("Dropout", [sketch.conv("x", "conv", 3, 4)], "drop")
    x = sketch.node("Clip", [x], "clip", min=0.0, max=0.5)
    x = sketch.node("Pad", [x], "pad", pads=[0, 0, 1, 1, 0, 0, 1, 1])
    scales = sketch.constant("scales", [1, 1, 2, 2])
    x = sketch.node("Upsample" if opset == 9 else "Resize", [x, scales], "up", mode="nearest")
    bounds = [sketch.constant(name, [value], np.int64) for name, value in (("from", 1), ("to", 9), ("axis", 2))]
    cut = {"axes": [2], "starts": [1], "ends": [9]} if opset == 9 else {}
    x = sketch.node("Slice", [x, *([] if cut else bounds)], "slice", **cut)
    axes = sketch.node("Squeeze", [sketch.node("GlobalAveragePool", [x], "pool")], "squeeze", axes=[2, 3])
    sketch.node("Softmax", [axes], "softmax", out="y")
    model = sketch.model([1, 3, 8, 8], [1, 4], opset=opset)
    model.ir_version = 3
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in model.graph.initializer
    )
    values = networks.normal(0, 1, 3, 8, 8)
    network = same_as_the_file(model, {"x": values})
    assert [spec.name for spec in network.inputs] == ["x"]
    assert "Dropout" not in {layer.op_type for layer in network.layers}
    assert network.opset == 13
    assert len([note for note in network.notes if f"opset {opset}" in note]) == 1


def test_opset_8_is_refused():
    relu = helper.make_node("Relu", ["x"], ["y"])
    with pytest.raises(BadInput, match="opset 8"):
        load_network(networks.model_of([relu], {"x": [1]}, {"y": [1]}, opset=8))


def test_local_functions_are_inlined():
    function = helper.make_function(
        "mine", "Block", ["a", "w"], ["c"],
        [helper.make_node("MatMul", ["a", "w"], ["b"], name="inner"), helper.make_node("Relu", ["b"], ["c"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    w = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    nodes = [helper.make_node("Block", [x, "w"], [y], domain="mine") for x, y in ("xh", "hy")]
    model = networks.model_of(nodes, {"x": [2, 4]}, {"y": [2, 4]}, [w], functions=[function])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    network = same_as_the_file(model, {"x": np.ones((2, 4), np.float32)})
    assert [layer.op_type for layer in network.layers] == ["MatMul", "Relu", "MatMul", "Relu"]
    assert len(network.quantizable) == 2


def test_control_flow_is_one_layer_and_stays_in_float(tmp_path):
    """The branches read a Conv's output from outside; the layer after the If is quantized like any other."""
    sketch = Sketch(8)
    x = sketch.conv("x", "conv", 3, 4)

    def branch(name, op):
        out = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, [x], [f"{name}_out"], name=name)], name, [], [out])

    largest = sketch.node("ReduceMax", ["x"], "max", axes=[0, 1, 2, 3], keepdims=0)
    flag = sketch.node("Greater", [largest, sketch.constant("zero", 0.0)], "flag")
    chosen = sketch.node("If", [flag], "choice", then_branch=branch("then", "Relu"), else_branch=branch("else", "Neg"))
    sketch.node("GlobalAveragePool", [chosen], "pool", out="y")
    path = networks.save(sketch.model([1, 3, 8, 8], [1, 4, 1, 1]), tmp_path)
    feeds = {"x": networks.normal(0, 1, 3, 8, 8)}
    network = same_as_the_file(path, feeds)
    choice = network.layer_named("choice")
    assert not choice.quantizable
    assert "conv_out" in choice.inputs
    scales = dict.fromkeys(network.activations, np.float32(0.01))
    everything = network.free_plan(network.quantizable)
    written = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME).write(everything)
    if_node = next(node for node in written.model.graph.node if node.op_type == "If")
    assert if_node.attribute[0].g.node[0].input[0] == "conv_out"
    assert make_session(written).run(None, feeds)[0].shape == (1, 4, 1, 1)


def test_external_data_and_its_escape(tmp_path):
    model = networks.chain(depth=2)
    folder = tmp_path / "net"
    folder.mkdir()
    path = folder / "big.onnx"
    onnx.save(model, path, save_as_external_data=True, location="big.data", size_threshold=0)
    same_as_the_file(path, {"x": np.ones((1, 3, 16, 16), np.float32)})
    (folder / "big.data").rename(tmp_path / "big.data")
    skeleton = onnx.load(path, load_external_data=False)
    for tensor in skeleton.graph.initializer:
        tensor.external_data[0].value = "../big.data"
    path.write_bytes(skeleton.SerializeToString())
    with pytest.raises(BadInput, match="external data"):
        load_network(path)


def test_external_data_of_another_size_than_its_tensor(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(networks.chain(depth=2), path, save_as_external_data=True, location="net.data", size_threshold=0)
    skeleton = onnx.load(path, load_external_data=False)
    first = skeleton.graph.initializer[0]
    (length,) = (entry for entry in first.external_data if entry.key == "length")
    first.external_data.remove(length)  # the data is then what follows in the file, as ONNX says
    path.write_bytes(skeleton.SerializeToString())
    with pytest.raises(BadInput, match=f"data of '{first.name}' does not fit its shape"):
        load_network(path)


def test_a_layer_without_inputs_is_refused(tmp_path):
    model = networks.chain(depth=2)
    layer = next(node for node in model.graph.node if node.op_type == "Relu")
    del layer.input[:]
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BadInput, match=rf"is not valid: '{layer.name}' \(Relu\) has 0 inputs and 1 outputs"):
        load_network(path)


def test_dynamic_axes_can_be_fixed(tmp_path):
    path = networks.save(networks.chain(depth=2), tmp_path)
    assert load_network(path).inputs[0].shape == (None, 3, 16, 16)
    assert load_network(path, {"x": (4, 3, 16, 16)}).layers[0].shape == (4, 8, 16, 16)
    with pytest.raises(BadInput, match=r"4x3x20x16 .* input 'x'"):
        load_network(path, {"x": (4, 3, 20, 16)})
    with pytest.raises(BadInput, match="no input 'z'"):
        load_network(path, {"z": (1,)})


@pytest.mark.parametrize("content", [b"", b"hello", b"\x08\x07\x12"])
def test_files_that_are_no_networks(content, tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"broken\.onnx"):
        load_network(path)


def test_a_node_whose_name_is_no_text(tmp_path):
    content = networks.chain(depth=2).SerializeToString().replace(b"Flatten", b"Fl\xfftten")
    (tmp_path / "broken.onnx").write_bytes(content)
    with pytest.raises(BadInput, match="not UTF-8"):
        load_network(tmp_path / "broken.onnx")


@pytest.mark.slow
@settings(max_examples=edition(20, 40), deadline=None)
@given(st.integers(0, 10_000), st.data())
def test_exactly_the_layers_of_the_plan_have_pairs(tmp_path_factory, seed, data):
    network = load_network(networks.save(networks.drawn(seed), tmp_path_factory.mktemp("n")))
    chosen = data.draw(st.sets(st.sampled_from(network.quantizable)))
    scales = dict.fromkeys(network.activations, np.float32(0.02))
    plan = int8_set(len(network.layers), chosen)
    written = for_tensorrt(network, scales, plan)
    whole = attached(written.model, written.weights)
    onnx.checker.check_model(whole, full_check=True)
    dequantized = {n.output[0]: n for n in whole.graph.node if n.op_type == "DequantizeLinear"}
    quantized = {n.output[0]: n for n in whole.graph.node if n.op_type == "QuantizeLinear"}
    for node in whole.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        layer = network.layer_named(node.name)
        rounded = [slot for slot, name in enumerate(node.input) if name in dequantized]
        assert rounded == ([r.slot for r in layer.roundings] if layer.index in chosen else [])
        for slot in rounded:
            q = quantized[dequantized[node.input[slot]].input[0]]
            assert q.input[0] not in dequantized, "rounded twice"
    feeds = {"x": networks.normal(seed, 1, 3, 8, 8)}
    by_pairs = make_session(written).run(None, feeds)[0]
    np.testing.assert_allclose(in_plan(network, plan, feeds, scales)["y"], by_pairs, rtol=1e-5, atol=1e-6)


def test_missing_external_data_and_networks_that_are_no_files_are_named(tmp_path):
    model = networks.chain()
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    with pytest.raises(BadInput, match=r"m\.data' of .* is missing"):
        load_network(tmp_path / "m.onnx")
    with pytest.raises(BadInput, match="URLs are not fetched"):
        load_network("https://example.org/m.onnx")
    for network in (model, model.SerializeToString()):
        with pytest.raises(BadInput, match=type(network).__name__):
            load_network(network)


def test_a_weight_with_nan_is_named_with_its_layer(tmp_path):
    model = networks.chain()
    networks.scale_constant(model, "conv0.weight", lambda values: np.where(values == values.max(), np.nan, values))
    with pytest.raises((BadInput, NothingMeasured)) as raised:
        trt_bisect.run(*networks.given(model, tmp_path, 4), engine="onnxruntime")
    assert "'conv0.weight'" in str(raised.value)
    assert "'conv0'" in str(raised.value)
