"""The kernels of real engines: those of docs/evidence/engines (TensorRT 8.6, H200), and of small pieces of JSON."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.networks import resnet50
from tests.support import networks
from trt_bisect.builder.inspector import Tensor, graph_beside, kernel_of, kernels_of, profiled_kernels
from trt_bisect.errors import BadInput
from trt_bisect.model.cost import TimeCosts
from trt_bisect.model.gpu_time import GPUS, Kind, Product
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import facts_for
from trt_bisect.precision import Precision

FP32 = Precision.FP32
ENGINES = Path(__file__).parents[2] / "docs" / "evidence" / "engines"
RESNET50_MACS = 4_089_184_256
"""Multiply-adds of torchvision's ResNet-50 for one picture of 224 x 224; torchvision lists 4.09 G."""


@pytest.fixture(scope="module")
def torchvision_resnet50(tmp_path_factory):
    """The benchmark's ResNet-50 with the names that torchvision's export has, and its facts for a batch of 32."""
    names = {"stem": "/conv1/Conv", "stem_relu": "/relu/Relu", "stem_pool": "/maxpool/MaxPool", "fc": "/fc/Gemm"}
    names |= {"pool": "/avgpool/GlobalAveragePool"}
    parts = {f"relu{n + 1}": f"relu{f'_{n}' if n else ''}/Relu" for n in range(3)} | {"add": "Add"}
    parts |= {f"conv{n}": f"conv{n}/Conv" for n in (1, 2, 3)} | {"downsample": "downsample/downsample.0/Conv"}
    model = resnet50()
    for node in model.graph.node:
        stage, _, rest = node.name.partition(".")
        block, _, part = rest.partition(".")
        node.name = names.get(node.name) or (f"/{stage}/{stage}.{block}/{parts[part]}" if part else node.name)
    network = load_network(networks.save(model, tmp_path_factory.mktemp("resnet50")))
    return network, facts_for(network, {"x": np.zeros((32, 3, 224, 224), np.float32)})


def tensor(shape, description):
    return {"Name": "x", "Dimensions": shape, "Format/Datatype": description}


def profiled(name):
    return profiled_kernels(ENGINES / f"{name}.graph.json", ENGINES / f"{name}.profile.json")


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_the_convolutions_of_a_real_engine_are_those_of_the_network(precision):
    convolutions = [one.kernel.product for one in profiled(f"h200-resnet50-b32.{precision}") if one.is_convolution]
    assert len(convolutions) == 54
    assert sum(product.macs for product in convolutions) == 32 * RESNET50_MACS
    assert {product.precision for product in convolutions} == {Precision(precision)}


def test_depthwise_convolutions_and_regions_of_a_real_engine():
    described = json.loads((ENGINES / "h200-convnext_tiny-b8.int8.graph.json").read_text())
    kernels = [kernel_of(layer) for layer in described["Layers"]]
    depthwise = [one.product for one in kernels if one.product is not None and one.product.is_depthwise]
    assert {product.groups for product in depthwise} == {96, 192, 384, 768}
    assert len(depthwise) == 3 + 3 + 9 + 3
    assert {product.taps for product in depthwise} == {49}
    assert sum(one.kind is Kind.REGION for one in kernels) == 1 + 18, "the stem's normalization and each block's rest"


@pytest.mark.parametrize(("shape", "description", "size"), [
    ([2, 24, 4, 4], "Thirty-two wide channel vectorized row major Int8 format", 2 * 32 * 16),
    ([2, 24, 4, 4], "Channel major FP16 format where channel % 8 == 0", 2 * 24 * 16 * 2),
    ([2, 3, 4, 4], "Four wide channel vectorized row major Int8 format", 2 * 4 * 16),
    ([2, 3, 4, 4], "Row major linear FP32", 2 * 3 * 16 * 4),
    ([7], "Row major linear FP16 format", 14),
])  # fmt: skip
def test_a_tensor_is_as_large_as_its_format_stores_it(shape, description, size):
    assert Tensor.of(tensor(shape, description)).size == size


def test_a_convolution_with_its_pooling_in_one_kernel():
    """Its output is pooled; its own is 112 x 112: (224 + 6 - 7) // 2 + 1."""
    read, written = (tensor(shape, "Row major Int8 format") for shape in ([32, 3, 224, 224], [32, 64, 56, 56]))
    keys = {"Kernel": [7, 7], "PrePadding": [3, 3], "PostPadding": [3, 3], "Stride": [2, 2], "Dilation": [1, 1]}
    own = {f"Conv{key}": value for key, value in (keys | {"OutMaps": 64, "Groups": 1}).items()}
    kernel = kernel_of({"Name": "a", "LayerType": "ConvActPool", "Inputs": [read], "Outputs": [written], **own})
    assert kernel.product == Product(32 * 112 * 112, 64, 3, 49, Precision.INT8)
    assert kernel.moved == 32 * (3 * 224 * 224 + 64 * 56 * 56) + 64 * 3 * 49


def test_a_matrix_product_of_two_activations_counts_no_weights():
    read = [tensor([2, 8, 64, 32], "Row major linear FP16"), tensor([2, 8, 32, 64], "Row major linear FP16")]
    written = [tensor([2, 8, 64, 64], "Row major linear FP16")]
    kernel = kernel_of({"Name": "a", "LayerType": "gemm", "Inputs": read, "Outputs": written})
    assert kernel.product == Product(64, 64, 32, 1, Precision.FP16, groups=16)
    assert kernel.moved == 2 * 16 * (64 * 32 * 2 + 64 * 64)


@pytest.mark.parametrize(("graph", "profile", "problem"), [
    ('{"Layers": ["only", "names"]}', '[{"name": "only", "averageMs": 1.0}]', "does not describe"),
    ("[]", '[{"name": "only", "averageMs": 1.0}]', "does not describe"),
    ('{"Layers": [{"Name": "a"}]}', '[{"count": 3}]', "no times"),
    ('{"Layers": 3}', '[{"name": "a", "averageMs": 1.0}]', "does not describe"),
    ('{"Layers": [{"Name": "a"}]}', '[{"name": "a", "averageMs": "long"}]', "no times"),
    ('{"Layers": [{"Name": "a", "Inputs": 3}]}', '[{"name": "a", "averageMs": 1.0}]', "cannot be read, 'a'"),
    ('{"Layers": [{"Name": "a", "Inputs": ["x"]}]}', '[{"name": "a", "averageMs": 1.0}]', "cannot be read, 'a'"),
    ('{"Layers": [{"Name": "a"}]}', "{", "cannot be read"),
])  # fmt: skip
def test_files_that_are_not_trtexecs_are_refused(tmp_path, graph, profile, problem):
    (tmp_path / "graph.json").write_text(graph)
    (tmp_path / "profile.json").write_text(profile)
    with pytest.raises(BadInput, match=problem):
        profiled_kernels(tmp_path / "graph.json", tmp_path / "profile.json")


@pytest.mark.slow
def test_the_layers_of_the_network_in_a_real_engine_and_their_times(torchvision_resnet50):
    """Every layer is in one kernel, but ``Flatten``, which does nothing; the seconds are those of the profile."""
    network, _ = torchvision_resnet50
    kernels = kernels_of(network, ENGINES / "h200-resnet50-b32.int8.profile.json")
    inside = [network.layers[k].name for kernel, _ in kernels for k in kernel.layers]
    assert sorted([*inside, "flatten"]) == sorted(layer.name for layer in network.layers)
    assert sum(taken for _, taken in kernels) * 1e3 == pytest.approx(0.930, abs=5e-4)
    (head,) = [kernel for kernel, _ in kernels if network.layer_named("/conv1/Conv").index in kernel.layers]
    assert [network.layers[k].name for k in head.layers] == ["/conv1/Conv", "/relu/Relu", "/maxpool/MaxPool"]
    assert all(not kernel.layers for kernel, _ in kernels if kernel.kind is Kind.REFORMAT)


@pytest.mark.slow
def test_a_profile_makes_the_prediction_of_its_own_engine_exact(torchvision_resnet50):
    """In FP16 the profile of INT8 changes less: the layers' errors count half there."""
    network, facts = torchvision_resnet50
    kernels = kernels_of(network, ENGINES / "h200-resnet50-b32.int8.profile.json")
    plain, profiled = (TimeCosts(network, facts, GPUS["H200"], given) for given in ((), kernels))
    assert plain.seconds(plain.full) * 1e3 == pytest.approx(0.806, abs=5e-4)
    assert profiled.seconds(plain.full) * 1e3 == pytest.approx(0.930, abs=5e-4)
    assert profiled.predicted(plain.full).ms == pytest.approx(0.930, abs=5e-4)
    half = [costs.seconds(costs.in_all(Precision.FP16)) for costs in (plain, profiled)]
    assert half[0] < half[1] < half[0] * 0.930 / 0.806


def test_the_graph_is_found_beside_the_profile(tmp_path):
    names = ["a.profile.json", "a.layers.json", "profile.json", "times.json"]
    for name in names:
        (tmp_path / name).write_text("[]")
    assert graph_beside(tmp_path / "a.profile.json") == tmp_path / "a.layers.json"
    (tmp_path / "a.graph.json").write_text("{}")
    assert graph_beside(tmp_path / "a.profile.json") == tmp_path / "a.graph.json"
    for alone in ("profile.json", "times.json"):
        with pytest.raises(BadInput, match="not next to the profile") as raised:
            graph_beside(tmp_path / alone)
        assert "NAME.graph.json" in raised.value.remedy
    with pytest.raises(BadInput, match=r"b\.profile\.json' does not exist"):
        graph_beside(tmp_path / "b.profile.json")


def test_an_engine_of_another_network_is_refused(tmp_path):
    network = load_network(networks.save(networks.chain(2), tmp_path))
    with pytest.raises(BadInput, match="No layer of the engine"):
        kernels_of(network, ENGINES / "h200-resnet50-b32.int8.profile.json")
