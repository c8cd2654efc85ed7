"""The pairs on the two sides of a sum, and their results, against graphs and Q/DQ files drawn by hand."""

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support import networks
from tests.support.flawed_structures import pair
from tests.support.networks import Sketch
from tests.support.quantized import for_tensorrt, in_plan, plain_run
from trt_bisect.builder.base import BuildOptions
from trt_bisect.model.layers import Rounding
from trt_bisect.model.network import load_network

WIDTH = 4


class Block(Sketch):
    """A sum over ``stem_out``, which a convolution of the network's input makes, [1, 4, 8, 8]."""

    def __post_init__(self):
        super().__post_init__()
        self.stem = self.node("Relu", [self.conv("x", "first", 3, WIDTH)], "stem")

    def main(self):
        """A convolution of the stem."""
        return self.conv(self.stem, "main", WIDTH, WIDTH)

    def of(self, op, *inputs, name=None, **attributes):
        return self.node(op, list(inputs), name or op.lower(), **attributes)

    def gate(self, x):
        """Squeeze and excitation: what each channel of ``x`` is multiplied by."""
        squeezed = self.conv(self.of("GlobalAveragePool", x), "squeeze", WIDTH, WIDTH, 1)
        return self.of("Sigmoid", squeezed, name="gate")

    def summed(self, one, other):
        """The network whose output is the sum."""
        self.node("Add", [one, other], "sum", out="y")
        return self.model([1, 3, 8, 8], [1, None, 8, 8], opset=20)


def from_a_convolution(block):
    return block.main(), block.stem


def on_the_second_side(block):
    return block.stem, block.main()


def from_the_networks_input(block):
    return block.conv("x", "main", 3, 3), "x"


def through_batch_normalization(block):
    parameters = [block.constant(n, np.linspace(0.5, 2, WIDTH)) for n in ("gamma", "beta", "mean", "var")]
    return block.of("BatchNormalization", block.main(), *parameters), block.stem


def through_an_activation(block):
    return block.of("Relu", block.main()), block.stem


def through_silu(block):
    main = block.main()
    return block.of("Mul", main, block.of("Sigmoid", main)), block.stem


def through_gelu_spelled_out(block):
    main = block.main()
    half = block.of("Mul", main, block.constant("half", 0.5), name="halved")
    inside = block.of("Erf", block.of("Div", main, block.constant("root", 2**0.5)))
    return block.of("Mul", half, block.of("Add", inside, block.constant("one", 1.0), name="plus")), block.stem


def through_a_layer_scale(block):
    scale = block.constant("scale", np.full((1, WIDTH, 1, 1), 0.1))
    return block.of("Mul", block.main(), scale), block.stem


def from_a_transposed_convolution(block):
    weight = block.constant("up.weight", block.weight("up", WIDTH, WIDTH, 3, 3))
    return block.of("ConvTranspose", block.stem, weight, pads=[1] * 4), block.stem


BARE = {
    **dict.fromkeys((from_a_convolution, on_the_second_side, through_batch_normalization), "stem_out"),
    **dict.fromkeys((through_an_activation, through_silu, through_gelu_spelled_out), "stem_out"),
    **dict.fromkeys((through_a_layer_scale, from_a_transposed_convolution), "stem_out"),
    from_the_networks_input: "x",
}
"""One side comes from a convolution alone; the tensor that has the pair, the skip."""


def a_projection_first(block):
    main = block.of("Relu", block.conv(block.stem, "one", WIDTH, WIDTH))
    return block.conv(block.stem, "projection", WIDTH, WIDTH, 1), block.conv(main, "two", WIDTH, WIDTH)


def a_projection_last(block):
    return a_projection_first(block)[::-1]


def two_alike(block):
    return block.conv(block.stem, "left", WIDTH, WIDTH), block.conv(block.stem, "right", WIDTH, WIDTH)


TWO = {a_projection_first: "projection_out", a_projection_last: "projection_out", two_alike: "left_out"}
"""Both sides come from convolutions; the tensor that has the pair, which is of the shorter branch or the first."""


def pooled(block):
    return block.of("MaxPool", block.stem, kernel_shape=[3, 3], pads=[1] * 4), block.stem


def twice_the_same(block):
    main = block.main()
    return main, main


def read_by_the_skip_too(block):
    main = block.main()
    return main, block.of("MaxPool", main, kernel_shape=[3, 3], pads=[1] * 4)


def read_on_its_way(block):
    main = block.main()
    return block.of("Relu", main), block.of("MaxPool", main, kernel_shape=[3, 3], pads=[1] * 4)


def with_squeeze_and_excitation(block):
    main = block.main()
    return block.of("Mul", main, block.gate(main)), block.stem


def multiplied_by_the_stem(block):
    return block.of("Mul", block.main(), block.stem), block.stem


def broadcast(block):
    return block.conv(block.of("GlobalAveragePool", block.stem), "main", WIDTH, WIDTH, 1), block.stem


def from_a_product(block):
    weight = block.constant("weight", block.weight("weight", 8, 8))
    return block.of("MatMul", block.stem, weight), block.stem


NEITHER = [pooled, twice_the_same, read_by_the_skip_too, read_on_its_way, with_squeeze_and_excitation]
NEITHER += [multiplied_by_the_stem, broadcast, from_a_product]


def loaded(draw):
    """The network, and the sides of its sum."""
    block = Block(3)
    sides = draw(block)
    return load_network(block.summed(*sides)), sides


def paired(network):
    return [rounding.tensor for rounding in network.layer_named("sum").roundings]


@pytest.mark.parametrize(("draw", "pair"), {**BARE, **TWO}.items(), ids=lambda case: getattr(case, "__name__", case))
def test_a_side_that_comes_from_a_convolution_stays_bare(draw, pair):
    network, _ = loaded(draw)
    assert paired(network) == [pair]
    assert network.layer_named("sum").quantizable


@pytest.mark.parametrize("draw", NEITHER, ids=lambda draw: draw.__name__)
def test_both_sides_have_pairs_where_no_convolution_can_take_up_the_sum(draw):
    network, sides = loaded(draw)
    assert paired(network) == list(sides)


def test_a_convolutions_output_that_is_the_networks_too_has_a_pair():
    block = Block(3)
    sides = from_a_convolution(block)
    model = block.summed(*sides)
    model.graph.output.append(helper.make_tensor_value_info("main_out", onnx.TensorProto.FLOAT, [1, WIDTH, 8, 8]))
    assert paired(load_network(model)) == list(sides)


def scales_for(network):
    """A scale for each activation, all different."""
    return {name: np.float32(0.02 + 0.003 * place) for place, name in enumerate(network.activations)}


def residual_block(pair):
    """Conv and Relu, again, and the sum across the second; ``pair`` is called where TensorRT wants a pair.

    It takes the sketch, a tensor and its name, and the values of a weight; it returns what is read in its place.
    """
    sketch = Sketch(3)

    def conv(x, name, inside):
        values = sketch.random.normal(0, 0.3, (WIDTH, inside, 3, 3)).astype(np.float32)
        weight = pair(sketch, sketch.constant(f"{name}.weight", values), f"{name}.weight", values)
        return sketch.node("Relu", [sketch.node("Conv", [x, weight], name, pads=[1] * 4)], f"{name}_relu")

    stem = pair(sketch, conv(pair(sketch, "x", "x"), "first", 3), "first_relu_out")
    sketch.node("Add", [conv(stem, "main", WIDTH), stem], "sum", out="y")
    return sketch.model([1, 3, 8, 8], [1, WIDTH, 8, 8])


SCALES = {"x": np.float32(0.03), "first_relu_out": np.float32(0.02), "main_relu_out": np.float32(0.05)}


def with_pairs(sketch, tensor, name, weight=None):
    """A pair with the scale of ``SCALES``, or of a weight with one an output channel."""
    if weight is None:
        return pair(sketch, tensor, name, SCALES[name])
    return pair(sketch, tensor, name, np.abs(weight).max(axis=(1, 2, 3)) / np.float32(127), axis=0)


def test_full_int8_is_what_onnx_runtime_makes_of_a_file_with_pairs_drawn_by_hand():
    network = load_network(residual_block(lambda _sketch, tensor, *_: tensor))
    feeds = {"x": networks.normal(5, 1, 3, 8, 8)}
    (theirs,) = plain_run(residual_block(with_pairs), feeds, optimised=False)
    ours = in_plan(network, network.free_plan(network.quantizable), feeds, SCALES)["y"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("draw", [through_silu, a_projection_first, with_squeeze_and_excitation])
def test_tensorrt_takes_the_pairs_where_they_stand(draw):
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    from trt_bisect.builder.tensorrt_build import RTX
    from trt_bisect.builder.tensorrt_engine import TensorRTStrongBuilder

    network, _ = loaded(draw)
    builder = TensorRTStrongBuilder(network, scales_for(network), BuildOptions(), {}, engine=RTX)
    plan = network.free_plan(network.quantizable)
    parsed = builder.network_definition(plan).network
    layers = {layer.name: layer for layer in map(parsed.get_layer, range(parsed.num_layers))}
    makers = {layer.get_output(0).name: layer.type for layer in layers.values()}
    read = [makers[layers["sum"].get_input(slot).name] for slot in range(2)]
    assert read.count(trt.LayerType.DEQUANTIZE) == len(paired(network))
    assert len(builder.serialize(plan).data) > 10_000


def test_the_trials_of_another_placement_are_not_taken():
    """The digest, which a run's fingerprint is made of, tells the placements apart."""
    network, sides = loaded(from_a_convolution)
    both = tuple(Rounding(slot, tensor) for slot, tensor in enumerate(sides))
    layers = tuple(replace(layer, roundings=both) if layer.name == "sum" else layer for layer in network.layers)
    assert replace(network, layers=layers).digest() != network.digest()


def test_the_skip_shares_the_pair_of_the_next_convolution():
    network, _ = loaded(from_a_convolution)
    plan = network.free_plan(network.quantizable)
    written = for_tensorrt(network, scales_for(network), plan).model.graph
    reads = {node.name: list(node.input) for node in written.node}
    assert reads["sum"][0] == "main_out"
    assert reads["sum"][1] == reads["main"][0]
    quantized = Counter(node.input[0] for node in written.node if node.op_type == "QuantizeLinear")
    assert quantized["stem_out"] == 1
    assert "main_out" not in quantized
