"""A LayerNormalization in parts: found, fused, and equal in FP32; what is none stays as it is."""

from itertools import product

import numpy as np
import pytest

import trt_bisect
from tests.support.editions import edition
from tests.support.norm_in_parts import PARTS, WIDTH, in_parts
from tests.support.quantized import plain_run, reference
from trt_bisect.model.network import load_network
from trt_bisect.options.concerns import RunOptions
from trt_bisect.preparation.asked_network import asked_network

AFFINE = [(True, True), (True, False), (False, False)]
FEW = [(13, "Pow", *AFFINE[0]), (18, "Mul", *AFFINE[1]), (13, "Mul", *AFFINE[2])]


@pytest.mark.parametrize(
    ("opset", "square", "scale", "bias"),
    edition(FEW, [(opset, square, *part) for opset, square, part in product((13, 18), ("Pow", "Mul"), AFFINE)]),
)
def test_it_becomes_one_node_with_the_same_outputs(opset, square, scale, bias):
    model = in_parts(square=square, scale=scale, bias=bias, opset=opset)
    x = np.random.default_rng(1).normal(0, 3, (1, 4, WIDTH)).astype(np.float32)
    network = asked_network(RunOptions(fuse_norms=True), model, None)
    np.testing.assert_allclose(reference(network, {"x": x}), plain_run(model, {"x": x}), rtol=1e-4, atol=1e-5)
    assert [layer.op_type for layer in network.layers] == ["MatMul", "LayerNormalization", "MatMul"]


@pytest.mark.parametrize("changes", [{"axes": (1,)}, {"read_twice": True}, {"axes": (0, 2)}])
def test_what_is_no_layer_normalization_stays_in_parts(changes):
    model = in_parts(**changes)
    assert "LayerNormalization" not in {layer.op_type for layer in load_network(model, fuse_norms=True).layers}
    assert "LayerNormalization in parts" not in {each.kind for each in trt_bisect.check(model).findings}


def test_check_names_its_nodes_and_the_file_is_left_as_it_is():
    model = in_parts()
    (finding,) = (each for each in trt_bisect.check(model).findings if each.kind == "LayerNormalization in parts")
    assert finding.layers == PARTS
    assert "LayerNormalization" not in {layer.op_type for layer in load_network(model).layers}


@pytest.mark.parametrize(("changes", "named"), [({}, True), ({"square": "Mul"}, True), ({"read_twice": True}, False)])
def test_where_fp16_overflows_in_its_parts_the_option_that_fuses_it_is_named(changes, named):
    x = np.random.default_rng(1).normal(0, 1000, (1, 4, WIDTH)).astype(np.float32)
    model = in_parts(**changes)
    run = trt_bisect.run(model, inputs={"x": x}, low="fp16", explain="none", effort="quick", engine="onnxruntime")
    told = [note.text for note in run.notes if "--fuse-norms" in note.text]
    assert bool(told) == named
    assert all("'pow'" in text for text in told)
