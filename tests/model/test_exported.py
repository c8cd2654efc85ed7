"""The module and the source line of a layer, from metadata as PyTorch's exporter writes it."""

from __future__ import annotations

import csv
import json

import onnx
import pytest
from onnx import helper

import trt_bisect
from tests.support import networks
from trt_bisect.analyzer.structure.check import structure_findings
from trt_bisect.analyzer.structure.graph import FileGraph
from trt_bisect.model.modules import Place, matched_modules, module_tensors, places_of, titles_of
from trt_bisect.report.network_graph import graph_of

TRACE = """File "/nets/model.py", line 12, in forward
    return self.features(x)
File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/container.py", line 250, in forward
    input = module(input)
File "/nets/blocks.py", line 7, in forward
    return self.conv(x)
File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/conv.py", line 548, in forward
    return self._conv_forward(input, self.weight, self.bias)"""
USUAL = {
    "pkg.torch.onnx.name_scopes": "['', 'features', 'features.0', 'features.0.conv', 'conv2d']",
    "pkg.torch.onnx.class_hierarchy": "['nets.model.Net', 'torch.nn.modules.container.Sequential', 'nets.blocks.Block',"
    " 'torch.nn.modules.conv.Conv2d', 'aten.conv2d.default']",
    "pkg.torch.onnx.stack_trace": TRACE,
}


def node(metadata, name="n"):
    made = helper.make_node("Conv", ["x", "w"], ["y"], name=name)
    for key, value in metadata.items():
        entry = made.metadata_props.add()
        entry.key, entry.value = key, value
    return made


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (USUAL, ("features.0.conv (Conv2d)", "/nets/blocks.py:7")),  # the innermost line of one's own
        ({}, None),
        ({"namespace": "anything"}, None),
        ({"pkg.torch.onnx.name_scopes": "['', 'add']"}, None),  # the network itself, whose name is not told
        ({"pkg.torch.onnx.class_hierarchy": "['nets.Net', 'aten.add.Tensor']"}, ("(Net)", "")),
        ({"pkg.torch.onnx.name_scopes": "['', 'head', 'linear']"}, ("head", "")),
        ({"pkg.torch.onnx.name_scopes": "no list"}, None),
        ({"pkg.torch.onnx.stack_trace": "nothing"}, None),
        ({"pkg.torch.onnx.stack_trace": 'File "C:\\me\\a b.py", line 3, in f\n  x'}, ("", "C:\\me\\a b.py:3")),
        (
            {"pkg.torch.onnx.stack_trace": 'File "/tmp/1.py", line 17, in f\n  x\nFile "<eval_with_key>.785", line 40'},
            ("", "/tmp/1.py:17"),
        ),
        ({"pkg.torch.onnx.stack_trace": 'File "<stdin>", line 1, in f'}, ("", "<stdin>:1")),
    ],
)
def test_the_module_and_the_line_are_told_as_far_as_they_are_there(metadata, expected):
    place = places_of(onnx.GraphProto(node=[node(metadata)])).get("n")
    assert (place and (place.module, place.code)) == expected


def test_a_normalization_that_the_exporter_fused_does_not_give_its_module_to_the_convolution():
    scopes = {"pkg.torch.onnx.name_scopes": "['', 'body', 'body.1', 'batch_norm']"}
    graph = onnx.GraphProto(node=[node(scopes)], initializer=[onnx.TensorProto(name="w")])
    assert places_of(graph)["n"].module == "body.1"
    graph.node[0].input[1] = graph.initializer[0].name = "body.0.weight"
    assert places_of(graph)["n"].module == "body.0"


@pytest.mark.parametrize("metadata", [{"pkg.torch.onnx.name_scopes": "['', 'attn', 'linear']"}, {}])
def test_a_layer_with_the_bias_of_a_module_that_is_never_called_is_of_that_module(metadata):
    """As attention calls ``linear`` on parameters of ``attn.qkv``, whose weight the exporter transposed."""
    product = helper.make_node("MatMul", ["x", "val_3"], ["y"], name="/attn/MatMul")
    product.metadata_props.extend(node(metadata).metadata_props)
    add = helper.make_node("Add", ["attn.qkv.bias", "y"], ["z"], name="/attn/Add")
    graph = onnx.GraphProto(node=[product, add])
    graph.initializer.extend([onnx.TensorProto(name="val_3"), onnx.TensorProto(name="attn.qkv.bias")])
    assert places_of(graph)["/attn/MatMul"].path == "attn.qkv"
    graph.initializer[1].name = add.input[0] = "other.bias"
    assert places_of(graph)["/attn/MatMul"].path == "attn"


@pytest.mark.parametrize(
    ("name", "operator", "expected"),
    [
        ("/conv1/Conv", "Conv", "conv1"),
        ("/body/body.1/conv/Conv", "Conv", "body.1.conv"),
        ("/features/features.1/conv/conv.0/conv.0.0/Conv_2", "Conv", "features.1.conv.0.0"),
        ("/blocks.0/mlp/fc1/MatMul", "MatMul", "blocks.0.mlp.fc1"),  # a ModuleList, which is never called
        ("/body/body.0/Conv", "Conv", "body.body.0"),  # its own container of that name, which has parameters
        ("/Add_3", "Add", None),
        ("conv1/Conv", "Conv", None),  # of another exporter
        ("/conv1/Fused", "Conv", None),
    ],
)
def test_names_of_torchscript_are_read_as_module_paths(name, operator, expected):
    made = helper.make_node(operator, ["x"], ["y"], name=name)
    graph = onnx.GraphProto(node=[made], initializer=[onnx.TensorProto(name="body.body.0.weight")])
    place = places_of(graph).get(name)
    assert (place and place.path) == expected


def test_torchscript_writes_the_stack_into_the_doc_string():
    made = helper.make_node("Conv", ["x"], ["y"], name="/conv/Conv")
    made.doc_string = (
        "/v/site-packages/torch/nn/conv.py(456): _conv\n/nets/model.py(12): forward\n/nets/run.py(3): <module>"
    )
    assert places_of(onnx.GraphProto(node=[made]))["/conv/Conv"] == Place("conv", "", "/nets/model.py:12")


def test_titles_are_modules_where_these_say_which_layer_is_meant():
    nodes = [("a", "Conv", True), ("b", "Relu", False), ("c", "Add", False), ("d", "Add", False), ("e", "MatMul", True)]
    places = dict(zip("abcde", map(Place, ["block.conv", "block.act", "block", "block", "fc"]), strict=True))
    nodes += [("f", "Add", False), ("g", "Relu", False), ("h", "Relu", False), ("i", "Mul", False)]
    places |= {"f": Place("fc"), "g": Place("relu"), "h": Place("relu"), "i": Place(kind="Net")}
    assert titles_of(nodes, places) == {
        **{"a": "block.conv", "b": "block.act", "c": "block/Add", "d": "block/Add_1", "e": "fc", "f": "fc/Add"},
        **{"g": "relu/Relu", "h": "relu/Relu_1"},
    }


def twice(exporter):
    """``relu(stem(x))``, ``head``, ``head`` and ``relu`` with names and scopes as PyTorch 2.13 writes them."""
    sketch, x = networks.Sketch(), "x"
    weights = {
        name: sketch.constant(f"{name}.weight", sketch.weight(name, 3, 3, 1, 1)) for name in ("stem", "head.conv")
    }
    scopes = ["stem", "relu", "head/head.conv", "head/head.act", "", "head/head.conv", "head/head.act", "relu"]
    names = ["/stem/Conv", "/relu/Relu", "/head/conv/Conv", "/head/act/Relu", "/Sigmoid"]
    names += ["/head/conv_1/Conv", "/head/act_1/Relu", "/relu_1/Relu"]
    for scope, name in zip(scopes, names, strict=True):
        path, op_type = scope.rpartition("/")[2], name.rpartition("/")[2]
        x = sketch.node(op_type, [x, weights[path]] if op_type == "Conv" else [x], name)
        if exporter == "dynamo":
            entry = sketch.nodes[-1].metadata_props.add()
            entry.key, entry.value = "pkg.torch.onnx.name_scopes", repr(["", *scope.split("/"), op_type.lower()])
    return sketch.model({"x": [1, 3, 4, 4]}, {x: [1, 3, 4, 4]})


@pytest.mark.parametrize(("exporter", "called"), [("dynamo", {"head": 4, "relu": 2}), ("TorchScript", {"head": 4})])
def test_a_module_that_is_called_twice_is_named_with_the_count_and_its_layers(exporter, called):
    found = structure_findings(FileGraph.of(twice(exporter), "net"))
    modules = {each.what: len(each.layers) for each in found if each.kind == "module called again"}
    assert modules == {f"module '{name}' is called 2 times": layers for name, layers in called.items()}
    assert [each.layers for each in found if each.kind == "shared weight"] == [("/head/conv/Conv", "/head/conv_1/Conv")]


def test_calls_of_modules_end_inner_ones_first():
    paths = ["stem", "head.conv", "head.act", "", "head.conv", "head"]
    made = module_tensors((Place(path, path.rpartition(".")[2]), f"t{k}") for k, path in enumerate(paths))
    assert [(place.path, tensor) for place, tensor in made] == [
        ("stem", "t0"),
        ("head.conv", "t1"),
        ("head.act", "t2"),
        ("head", "t2"),
        ("head.conv", "t4"),
        ("head", "t5"),
    ]


def test_calls_are_matched_by_module_and_number_and_a_fused_normalization_by_the_layer_before_it():
    def calls(*paths):
        kinds = {"norm": "BatchNorm2d"}
        return [(Place(path, kinds.get(path, "")), f"{path}:{k}") for k, path in enumerate(paths)]

    module = calls("conv", "norm", "act", "body", "act", "fc", "fc", "all")
    fused = calls("conv", "act", "act_1", "body", "fc")
    expected = {"norm:1": "conv:0", "act:2": "act:1", "act:4": "act_1:2", "body:3": "body:3"}
    assert matched_modules(module, fused) == expected
    assert matched_modules(fused, module) == {other: name for name, other in expected.items()}


@pytest.fixture
def exported(tmp_path):
    """A chain whose first convolution has the metadata."""
    model = networks.chain(depth=2)
    model.ir_version = 10
    conv = next(each for each in model.graph.node if each.op_type == "Conv")
    conv.metadata_props.extend(node(USUAL).metadata_props)
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx", conv.name


def test_layers_and_the_graph_of_the_page_have_them_and_the_digest_has_not(exported, command):
    path, name = exported
    network = trt_bisect.load_network(path)
    layer = network.layer_named(name)
    assert (layer.module, layer.code) == ("features.0.conv (Conv2d)", "/nets/blocks.py:7")
    assert {each.module for each in network.layers if each is not layer} == {""}
    (drawn,) = (each for each in graph_of(network, {}).layers if each.name == name)
    assert (drawn.module, drawn.code) == (layer.module, layer.code)
    code, out, _ = command("layers", path)
    assert code == 0
    assert all(text in out for text in ("Module", "Source line", layer.module, layer.code))
    rows = json.loads(command("layers", path, "--json")[1])
    assert [row["module"] for row in rows if row["name"] == name] == [layer.module]
    plain = networks.chain(depth=2)
    plain.ir_version = 10
    onnx.save(plain, path)
    assert trt_bisect.load_network(path).digest() == network.digest()
    assert "Module" not in command("layers", path)[1]


def test_the_tables_of_commands_have_them(exported, tmp_path):
    path, _ = exported
    data = {"x": networks.samples(networks.chain(depth=2), 2)["x"]}
    trt_bisect.profile(path, inputs=data, output=tmp_path)
    trt_bisect.compare(path, data, output=tmp_path)
    trt_bisect.sensitivity(path, data, engine="onnxruntime", output=tmp_path)
    for file in ("profile.csv", "tensors.csv", "sensitivity.csv"):
        with (tmp_path / file).open(encoding="utf-8", newline="") as opened:
            rows = {(row["index"], row["module"], row["code"]) for row in csv.DictReader(opened)}
        assert {row for row in rows if row[1]} == {("0", "features.0.conv (Conv2d)", "/nets/blocks.py:7")}
        assert len(rows) > 1
