"""The engines that NVIDIA published: inspector and profile of ResNet-18 on an A100, from its engine explorer.

The files are not ours to copy: they lie beside the checkout, in ``../shared/profiles``. An expectation comes from the
name of a kernel, in which NVIDIA names the types that it multiplies, and from the profile.
"""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from trt_bisect.builder.inspector import engine_layers, ran_in
from trt_bisect.model.layers import Layer

FOLDER = Path(__file__).parents[3] / "shared" / "profiles" / "A100"
ENGINES = ("resnet-fp32", "resnet-fp16", "resnet-qat", "resnet-qat-residual")
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the published engines are not on this machine")

NODE = re.compile(r"\b(Conv|Add|Relu|MaxPool|GlobalAveragePool|Gemm)_(\d+)\b")
MULTIPLIES = {"i8i8": "int8", "i8f16": "int8", "i8f32": "int8", "int8x4": "int8", "f16f16": "fp16", "h16816": "fp16"}
MULTIPLIES |= {"gemm_f32f32": "fp32", "scudnn": "fp32"}
"""The parts of a kernel's name that say what it multiplies; cuDNN's ``s`` is single, its ``h`` half precision."""


@cache
def published(engine):
    """The inspector's layers as they are in the file, and a network of the nodes in their names, in order."""
    text = (FOLDER / f"{engine}.graph.json").read_text()
    nodes = {int(number): kind for part in json.loads(text)["Layers"] for kind, number in NODE.findall(part["Name"])}
    network = [
        Layer(k, f"{nodes[number]}_{number}", nodes[number], (f"in{k}",), (f"out{k}",), None, None)
        for k, number in enumerate(sorted(nodes))
    ]
    return json.loads(text)["Layers"], engine_layers(text), network


def multiplied(tactic):
    """The types that a kernel multiplies, by its name."""
    return {kind for word, kind in MULTIPLIES.items() if word in tactic}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_convolution_computes_in_what_its_kernels_name_says(engine):
    described, layers, network = published(engine)
    ran = {network[k].name: kind for k, kind in ran_in(layers, network).items()}
    checked = 0
    for part in described:
        products = [f"{kind}_{number}" for kind, number in NODE.findall(part["Name"]) if kind in ("Conv", "Gemm")]
        if part["LayerType"] == "CaskConvolution":
            assert {ran[name] for name in products} == multiplied(part["TacticName"]), part["Name"]
            checked += len(products)
    assert checked >= 20, "ResNet-18 has 20 convolutions and a Gemm; one file has the first in a kernel of its own kind"


def test_poolings_compute_in_the_type_of_the_tensors_between_them():
    """With Q/DQ on all inputs of weighted layers, NVIDIA's QAT leaves the poolings in float."""
    for engine, pools in zip(ENGINES, ({"fp32"}, {"fp16"}, {"fp32", "fp16"}, {"int8", "fp32"}), strict=True):
        _, layers, network = published(engine)
        ran = ran_in(layers, network)
        found = {ran[layer.index] for layer in network if layer.op_type in ("MaxPool", "GlobalAveragePool")}
        assert found == pools, engine


@pytest.mark.parametrize("engine", ENGINES)
def test_every_node_is_in_one_engine_layer_and_no_change_of_format_has_one(engine):
    described, layers, network = published(engine)
    names = {layer.name for layer in network}
    inside = [name for part in layers for name in part.network_layers if name in names]
    assert sorted(inside) == sorted(names)
    assert len([name for name in names if name.startswith("Conv")]) == 20
    copies = [part for part in layers if part.name.startswith("Reformatting")]
    assert copies or engine == "resnet-qat-residual"
    assert all(part.network_layers == () for part in copies)
    assert [part.name for part in layers] == [part["Name"] for part in described]
