"""The engines that NVIDIA published: inspector and profile of ResNet-18 on an A100, from its engine explorer.

The files are not ours to copy: they lie beside the checkout, in ``../shared/profiles``. An expectation comes from the
name of a kernel, in which NVIDIA names the types that it multiplies, and from the profile.
"""

import json
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from trt_bisect.builder.base import Latency, LayerTime
from trt_bisect.builder.inspector import engine_layers, ran_in
from trt_bisect.evaluator.speed import layer_times
from trt_bisect.evaluator.trial import Trial
from trt_bisect.model.layers import Layer
from trt_bisect.report.precision_check import obedience_doubts

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


@pytest.mark.parametrize("engine", ENGINES)
def test_the_times_of_the_layers_add_up_to_the_profile_without_formats(engine):
    """Each time of the profile is that of a layer of the inspector, and goes to the nodes in its name."""
    _, layers, network = published(engine)
    known, mine = {part.name: part.network_layers for part in layers}, {layer.name for layer in network}
    parts = json.loads((FOLDER / f"{engine}.profile.json").read_text())
    profile = {part["name"]: part["averageMs"] for part in parts if "name" in part}
    assert profile.keys() <= known.keys()
    timed = Latency.of(
        [sum(profile.values())],
        tuple(LayerTime(name, tuple(n for n in known[name] if n in mine), spent) for name, spent in profile.items()),
    )
    times = layer_times(timed, SimpleNamespace(layers=network, quantizable=range(len(network))))
    of_nodes = [name for name in profile if NODE.search(name) and not name.startswith("Reformatting")]
    expected = sum(profile[name] for name in of_nodes)
    assert sum(times.values()) == pytest.approx(expected)
    assert 0.7 * sum(profile.values()) < expected < sum(profile.values()) + 1e-9


def test_full_int8_is_doubted_on_the_fp16_engine_and_not_where_all_products_ran_in_int8():
    """The doubt on these engines, as if each of their convolutions had been asked for INT8."""
    for engine, low in (("resnet-fp16", 0), ("resnet-qat", 21)):
        _, layers, network = published(engine)
        asked = {layer.index: layer for layer in network if layer.op_type in ("Conv", "Gemm")}
        ran = {k: kind for k, kind in ran_in(layers, network).items() if k in asked}
        found = obedience_doubts(asked, Trial(f"8*{len(network)}", "measured", ran=ran))
        assert sum(kind == "int8" for kind in ran.values()) == low
        assert bool(found) is (low == 0)
