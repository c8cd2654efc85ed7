"""The network as it was read against its file, as ONNX Runtime runs it."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import trt_bisect
from tests.support import networks
from tests.support.networks import Sketch
from tests.support.quantized import plain_session, quantized_by_onnxruntime
from trt_bisect import BadInput, load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.reading import compare_with_file, relative_difference, without_pairs
from trt_bisect.model.session import make_session
from trt_bisect.precision import int8_set

ASYMMETRIC = {"per_channel": False, "extra_options": {"ActivationSymmetric": False, "WeightSymmetric": True}}
SYMMETRIC = {"per_channel": True, "extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True}}


def quantized(make, folder, **options):
    """A network that ONNX Runtime quantized, and a sample."""
    model = make()
    samples = networks.feeds(networks.samples(model)["x"])
    quantized_by_onnxruntime(networks.save(model, folder), folder / "quantized.onnx", samples, **options)
    return folder / "quantized.onnx", samples[0]


def with_scale(network, index, slot, change):
    """``network`` with another scale for one rounding of one layer, as if it had been misread."""
    layer = network.layers[index]
    found = next(r for r in layer.roundings if r.slot == slot)
    wrong = replace(found.fixed[0], scale=np.asarray(change(found.fixed[0].scale), np.float32))
    roundings = tuple(replace(r, fixed=(wrong,)) if r is found else r for r in layer.roundings)
    layers = tuple(replace(each, roundings=roundings) if each is layer else each for each in network.layers)
    return replace(network, layers=layers)


def test_a_scale_that_was_misread_is_refused_by_name(tmp_path):
    """A weight's scale is 5 % off: layer 'block1.conv1', and no later one, though its error runs on to the output."""
    path, feeds = quantized(networks.residual, tmp_path, **SYMMETRIC)
    network = load_network(path)
    layer = network.layer_named("block1.conv1")
    wrong = with_scale(network, layer.index, 1, lambda scale: scale * 1.05)
    with pytest.raises(BadInput, match=r"full INT8, layer 'block1\.conv1' .* \d\.\d\d%"):
        compare_with_file(wrong, feeds, ["y"])
    with pytest.raises(BadInput, match=r"layer 'block1\.conv1'"):
        trt_bisect.run(wrong, inputs=feeds, engine="onnxruntime")


def test_two_percent_off_in_fp32_is_refused_with_the_figure(tmp_path):
    """A bias that was lost changes each layer less than the 50 % that were once allowed."""
    model = networks.chain(depth=4)
    path = networks.save(model, tmp_path)
    network = load_network(path)
    feeds = {"x": networks.samples(model)["x"][:1]}
    assert compare_with_file(network, feeds, ["y"]) == []
    node = network.skeleton.graph.node[network.layer_named("conv2").index]
    biased, maker = node.output[0], node.input[0]
    del node.input[2]
    file = onnx.load(path)
    file.graph.output.extend(onnx.ValueInfoProto(name=name) for name in (biased, maker))
    tensor = plain_session(file).run([biased], feeds)[0]
    bias = next(numpy_helper.to_array(t) for t in file.graph.initializer if t.name == "conv2.bias")
    share = np.linalg.norm(np.broadcast_to(bias.reshape(1, -1, 1, 1), tensor.shape)) / np.linalg.norm(tensor)
    assert 0.01 < share < 0.2
    with pytest.raises(BadInput, match=f"FP32, layer 'conv2' .*'conv2_out'.* {share:.2%}"):
        compare_with_file(network, feeds, ["y"])


def fp32_difference(path, network, feeds):
    """The relative difference of the output 'y' between a file without its pairs and the network in FP32."""
    file = without_pairs(onnx.load(path), {layer.name for layer in network.layers})
    plan = int8_set(len(network.layers), ())
    session = make_session(PlanWriter(network, {}, GraphTarget.ONNXRUNTIME).write(plan))
    return relative_difference(plain_session(file).run(["y"], feeds)[0], session.run(["y"], feeds)[0])


def test_float_noise_that_grows_is_no_other_network(tmp_path):
    """The output is what rounding a float32 leaves: (BatchNorm(conv(x)) - its own value) * 1e6."""
    feeds = {"x": networks.normal(0, 1, 3, 8, 8)}

    def model(subtracted):
        sketch = Sketch(5)
        x = sketch.conv("x", "conv", 3, 4)
        parts = [sketch.constant(f"norm.{k}", sketch.random.uniform(0.5, 1.5, 4)) for k in range(4)]
        x = sketch.node("BatchNormalization", [x, *parts], "norm")
        x = sketch.node("Sub", [x, sketch.constant("own", subtracted)], "sub")
        sketch.node("Mul", [x, sketch.constant("million", 1e6)], "mul", out="y")
        return sketch.model(["n", 3, 8, 8], ["n", 4, 8, 8])

    made = plain_session(model(np.zeros((1, 4, 8, 8)))).run(["y"], feeds)[0] / 1e6
    path = networks.save(model(made.astype(np.float32)), tmp_path)
    network = load_network(path)
    assert fp32_difference(path, network, feeds) > 0.1
    (note,) = compare_with_file(network, feeds, ["y"])
    assert "FP32" in note


def test_an_activation_that_a_pair_took_in_is_no_difference(tmp_path):
    """ONNX Runtime's quantizer takes the Relus away: without its pairs, the file lacks them."""
    path, feeds = quantized(networks.chain, tmp_path, **ASYMMETRIC)
    assert "Relu" not in {node.op_type for node in onnx.load(path).graph.node}
    network = load_network(path)
    assert fp32_difference(path, network, feeds) > 0.05
    kept = network.keeping_high({network.quantizable[0]: "the user wants it so"})
    for each in (network, kept):
        assert compare_with_file(each, feeds, ["y"]) == []
