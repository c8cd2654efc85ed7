"""Nodes whose names TensorRT's parser gives to layers that it adds, parsed by TensorRT-RTX: its metadata is the truth.

PyTorch's exporter writes ``node_linear``, ``node_linear_1``, ...; the parser calls the sum with a bias after its node,
with a number. The metadata of a layer names its node: every expectation here is read from there.
"""

import json
import re

import onnx
import pytest

from tests.builder.test_parsed_networks import copied
from tests.builder.test_tensorrt_rtx import layers_of
from tests.support.networks import Sketch, save
from tests.support.trtexec_rules import by_rules
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.tensorrt_build import RTX, parse_file, start_tensorrt
from trt_bisect.builder.tensorrt_weak import walk_steps, weak_plan
from trt_bisect.calibration.cache import DEFAULT_VERSION
from trt_bisect.model.file import save_model
from trt_bisect.model.network import load_network
from trt_bisect.precision import Precision
from trt_bisect.recipe.files import recipe_files
from trt_bisect.recipe.trtexec import Build

pytest.importorskip("tensorrt_rtx_bindings")

LINEARS = ["node_linear", *(f"node_linear_{k}" for k in range(1, 7))]
NODES = ["node_addmm", *LINEARS]
CULPRIT = "node_linear_3"
"""The name that the parser of TensorRT-RTX 1.7 gives to the sum with the bias of ``node_linear``."""


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Eight Gemms with biases in a chain; a constant has the name of a node."""
    sketch = Sketch(5)
    tensor = "x"
    for name in NODES:
        bias = name if name == "node_linear_5" else f"{name}.bias"
        weights = [sketch.constant(f"{name}.weight", sketch.weight(name, 8, 8)), sketch.constant(bias, [0.1] * 8)]
        tensor = sketch.node("Gemm", [tensor, *weights], name)
    model = sketch.model({"x": ["n", 8]}, {tensor: ["n", 8]})
    return load_network(save(model, tmp_path_factory.mktemp("names")))


@pytest.fixture(scope="module")
def recipe(network, tmp_path_factory):
    """The files of the recipe that leaves one node high."""
    folder = tmp_path_factory.mktemp("recipe")
    scales = dict.fromkeys(network.activations, 0.01)
    plan = network.full(Precision.FP32).keeping({network.layer_named(CULPRIT).index}, Precision.FP32)
    weak = weak_plan(OnnxRuntimeBuilder(network, scales, BuildOptions()), network, plan)
    recipe_files(network, scales, plan, Precision.FP32, weak, Build(DEFAULT_VERSION)).write(folder)
    return folder


def parsed(path):
    """The parsed network, with the parser, which owns it, and by TensorRT layer the node that its metadata names."""
    rt = start_tensorrt(RTX)
    definition = parse_file(rt, path)
    named = [layer for layer in layers_of(definition) if layer.metadata]
    return definition, {layer.name: layer.metadata[len("[ONNX Layer: ") : -1] for layer in named}


def owners(definition, layers):
    return {
        step.layer.name: layers[step.owner].name for step in walk_steps(definition, layers) if step.owner is not None
    }


def test_metadata_decides_before_the_name(network):
    """In the user's own file the parser gives the name of one node to the bias of another."""
    definition, nodes = parsed(network.source)
    assert nodes[CULPRIT] == "node_linear", "the names do not collide"
    mine = owners(definition.network, network.layers)
    assert {name: mine[name] for name in nodes} == nodes
    mains = {step.owner: step.layer.name for step in walk_steps(definition.network, network.layers) if step.computes}
    assert {nodes[name] for name in mains.values()} == {*NODES}


def test_without_metadata_renamed_nodes_are_not_mistaken(network, tmp_path):
    """As TensorRT 8.5 parses them: the names are given in the same way, and nothing else says whose a layer is."""
    renamed = network.for_parser
    save_model(renamed.skeleton, renamed.weights, tmp_path / "network.onnx")
    definition, nodes = parsed(tmp_path / "network.onnx")
    assert all(layer not in {one.name for one in renamed.layers} or node == layer for layer, node in nodes.items())
    bare = copied(definition.network, None)
    for layer in bare.layers:
        layer.metadata = ""
    mine = owners(bare, renamed.layers)
    assert {name: mine[name] for name in nodes} == nodes


def test_a_network_whose_names_do_not_collide_keeps_them(network, tmp_path):
    sketch = Sketch(1)
    first = sketch.node("Relu", ["x"], "Relu_1")
    sketch.node("Relu", [first], "Relu_2")
    plain = load_network(save(sketch.model({"x": [4]}, {"Relu_2_out": [4]}), tmp_path))
    assert plain.for_parser is plain
    assert [layer.name for layer in network.layers] == NODES, "reports have the user's names"


def test_the_flags_name_the_layers_of_the_recipes_network(recipe):
    """The file's node keeps the user's name in its text; trtexec reads the flags by its own rules."""
    _, nodes = parsed(recipe / "network.onnx")
    told = {node.name: node.doc_string.rpartition(": ")[2] or node.name for node in _graph(recipe).node}
    assert list(told.values()) == NODES
    words = [line for line in (recipe / "trtexec.flags").read_text().split("\n") if not line.startswith("#")]
    precisions, _ = by_rules(words)
    assert {told[nodes[name]]: kind for name, kind in precisions.items()} == {CULPRIT: ["fp32"]}
    assert all(nodes[name] == name for name in precisions), "each is the main layer of its node"


def test_the_script_asks_for_the_same_layers(recipe):
    """Polygraphy's script names layers of the network that the recipe ships, and fails if one of them is missing."""
    script = {}
    text = (recipe / "polygraphy_postprocess.py").read_text()
    exec(text.replace("import tensorrt as trt", ""), script)
    nodes = {node.name: node for node in _graph(recipe).node}
    assert [nodes[name].doc_string.rpartition(": ")[2] for name in script["MUST_BE_THERE"]] == [CULPRIT]
    assert all(name in nodes for name, *_ in script["CONSTRAINTS"])


def test_the_plan_and_modelopts_list_fit_both_files(network, recipe):
    """ModelOpt's patterns match the node in the user's file and in the recipe's; the plan has the user's names."""
    patterns = json.loads((recipe / "modelopt_nodes_to_exclude.json").read_text())["nodes_to_exclude"]
    for model in (onnx.load(network.source), onnx.load(recipe / "network.onnx")):
        outputs = [node.output[0] for node in model.graph.node if any(re.match(each, node.name) for each in patterns)]
        assert outputs == [f"{CULPRIT}_out"]
    again = load_network(recipe / "network.onnx")
    assert [layer.name for layer in again.layers] == NODES
    assert list(json.loads((recipe / "plan.json").read_text())["layers"]) == NODES


def _graph(recipe):
    return onnx.load(recipe / "network.onnx").graph
