"""Two networks side by side, and one judged by another: real exports beside ONNX Runtime on the files."""

import csv
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import trt_bisect
from tests.support import networks
from tests.support.quantized import plain_tensors
from tests.support.records import texts
from trt_bisect.errors import BadInput
from trt_bisect.preparation.two_networks import TwoNetworks
from trt_bisect.report.comparison import Comparison

EXPORTS = Path(__file__).parents[1] / "files" / "quantized"
FLOAT = EXPORTS / "fp32.onnx"
X = {"x": networks.normal(5, 3, 3, 16, 16)}
FAST = {"engine": "onnxruntime", "calibrator": "minmax", "explain": "none"}


def tensors_of(path, names, samples):
    """Tensors of a file as ONNX Runtime computes them."""
    model = onnx.load(path)
    return plain_tensors(model, names, [{model.graph.input[0].name: sample[None]} for sample in samples])


def before_rounding(path, name):
    """The tensor that a Q/DQ pair right before an output rounds; the name itself without one."""
    makers = {out: node for node in onnx.load(path).graph.node for out in node.output}
    while makers[name].op_type in ("DequantizeLinear", "QuantizeLinear"):
        name = makers[name].input[0]
    return name


BY_HAND = {
    "aimet-default": {"silu": "silu", "cat": "cat", "y": "y"},
    "brevitas-layers": {
        "getitem": "/0/0.1/BatchNormalization_output_0",
        "silu": "/0/0.2/Mul_output_0",
        "add": "/1/Add_output_0",
        "view": "/3/Flatten_output_0",
        "y": "y",
    },
    "inc-default": {"silu_1": "silu_1", "add": "add", "view": "view", "y": "y"},
    "pytorch-fake-quantizers": {"silu": "/0.2/Mul_output_0", "cat": "/Concat_output_0", "y": "y"},
    "pytorch-pt2e-xnnpack-channel": {"silu": "silu", "view": "view", "y": "linear"},
    "modelopt-FP16-opset-21": {"y": "y"},
}
"""Tensors that are the same by the code of the network that was exported (``benchmarks.quantizers.nets`` at
commit 7fb68255)."""


@pytest.mark.parametrize("tool", BY_HAND)
def test_a_float_network_against_a_tools_export_of_it(tool, tmp_path):
    export = EXPORTS / f"{tool}.onnx"
    found = trt_bisect.compare(FLOAT, other=export, inputs=X, output=tmp_path)
    rows = {row.origin.tensor: row for row in found.tensors}
    partners = {mine: before_rounding(export, other) for mine, other in BY_HAND[tool].items()}
    floats = tensors_of(FLOAT, list(partners), X["x"])
    theirs = tensors_of(export, list(partners.values()), X["x"])
    for mine, other in partners.items():
        a, b = floats[mine].reshape(3, -1), theirs[other].reshape(3, -1)
        assert rows[mine].figures.mse == pytest.approx(np.mean((a - b) ** 2), rel=0.02, abs=1e-9)
        assert rows[mine].fp32.max == pytest.approx(a.max(), rel=1e-5)
        assert rows[mine].int8.max == pytest.approx(b.max(), rel=2e-3)
    with (tmp_path / "matched.csv").open() as file:
        matched = list(csv.DictReader(file))
    layers = trt_bisect.load_network(FLOAT).layers
    assert sorted(row["layer"] for row in matched if row["layer"]) == sorted(layer.name for layer in layers)
    assert all(bool(row["by"]) == bool(row["layer"] and row["other"]) for row in matched)


def changed(model, folder, name="changed.onnx"):
    """The same network with other names, an Identity inside, and one weight changed by 10 %."""
    text = {node.name: f"n{place}" for place, node in enumerate(model.graph.node)}
    tensors = {out: f"t{place}" for place, node in enumerate(model.graph.node) for out in node.output}
    for node in model.graph.node:
        node.name = text[node.name]
        for names in (node.input, node.output):
            names[:] = [tensors.get(each, each) for each in names]
    model.graph.output[0].name = tensors[model.graph.output[0].name]
    middle = model.graph.node[2]
    middle.input[0], before = "through", middle.input[0]
    model.graph.node.insert(2, helper.make_node("Abs", [before], ["through"], name="inserted"))
    networks.scale_constant(model, "conv2.weight", lambda values: values * 1.1)
    return networks.save(model, folder, name)


def test_layers_without_names_in_common_are_matched_by_structure(tmp_path):
    own, other = networks.save(networks.chain(4), tmp_path), changed(networks.chain(4), tmp_path)
    found = trt_bisect.compare(own, other=other, inputs=networks.samples(networks.chain(4), 2))
    # Node 2 is conv1; it reads a Relu, after which the Abs changes nothing.
    expected = {f"n{place}": node.name for place, node in enumerate(networks.chain(4).graph.node)}
    assert {row.other: row.layer for row in found.matched if row.by} == expected
    assert [(row.other, row.other_op_type) for row in found.matched if not row.layer] == [("inserted", "Abs")]
    weights = {row.origin.tensor: row.figures.mse for row in found.weights}
    (wanted,) = [numpy_helper.to_array(t) for t in networks.chain(4).graph.initializer if t.name == "conv2.weight"]
    assert weights.pop("conv2.weight") == pytest.approx(np.mean((0.1 * wanted.astype(np.float64)) ** 2), rel=1e-3)
    assert set(weights.values()) == {0.0}
    by_layer = {row.origin.layer: row.figures.mse for row in found.tensors}
    assert by_layer["conv1"] == 0.0
    assert by_layer["conv2"] > 0.0


def test_compare_refuses_what_cannot_be_compared(tmp_path):
    own = networks.save(networks.chain(2), tmp_path)
    with pytest.raises(BadInput, match="high"):
        trt_bisect.compare(own, other=own, inputs=networks.samples(networks.chain(2)), high="conv0")
    with pytest.raises(BadInput, match="No data"):
        trt_bisect.compare(own, other=own)
    with pytest.raises(BadInput, match=r"two\.onnx' has the input"):
        trt_bisect.compare(own, other=networks.save(two_inputs(), tmp_path, "two.onnx"), inputs=X)


def two_inputs():
    sketch = networks.Sketch()
    total = sketch.node("Add", ["tokens", "places"], "sum")
    return sketch.model({"tokens": [1, 4], "places": [1, 4]}, {total: [1, 4]})


def test_a_network_is_judged_by_the_float_one(tmp_path):
    """Its weights were spoiled before the export: its own FP32 outputs cannot show that, the float network does."""
    own = networks.save(networks.chain(3), tmp_path)
    other = changed(networks.chain(3), tmp_path)
    samples = networks.samples(networks.chain(3), 4)
    names = onnx.load(other).graph.output[0].name, onnx.load(own).graph.output[0].name
    spoiled = tensors_of(other, [names[0]], samples["x"])[names[0]].reshape(4, -1)
    right = tensors_of(own, [names[1]], samples["x"])[names[1]].reshape(4, -1)
    wanted = [10 * np.log10(np.sum(r**2) / np.sum((r - s) ** 2)) for r, s in zip(right, spoiled, strict=True)]
    options = {**FAST, "metric": "sqnr", "threshold": 30.0}
    alone = trt_bisect.run(other, samples, **options)
    judged = trt_bisect.run(other, samples, samples, reference=own, high=["n0"], **options)  # own has no such layer
    assert alone.similarity.int8 >= 30.0
    assert not judged.recipe.meets
    assert judged.exit_code == 1
    assert judged.similarity.recipe == pytest.approx(min(wanted), abs=0.5)
    assert any("'inserted' (Abs)" in note for note in texts(judged.notes))
    assert judged.made_of["judged_by"]


def test_a_recipe_by_the_float_network_names_the_planted_layer(tmp_path):
    """The pairs of the export clip one activation; the float network is another file with other names."""
    model, planted = networks.chain(3), networks.chain(3)
    networks.plant_between(model, "conv0", "conv1", factor=1.0)
    own = networks.save(model, tmp_path)
    networks.plant_between(planted, "conv0", "conv1")
    other = networks.save(planted, tmp_path, "planted.onnx")
    how = {"reference": own, "metric": "sqnr", "threshold": 20.0, "output": tmp_path / "run", **FAST}
    found, again = (trt_bisect.run(other, networks.samples(model, 4), **how) for _ in range(2))
    assert found.culprits == ("conv1",)
    assert again.similarity == found.similarity


def test_a_reference_of_other_outputs_is_refused(tmp_path):
    wide, narrow = networks.chain(2), networks.chain(2)
    last = narrow.graph.node[-1]
    for name in last.input[1:]:
        networks.scale_constant(narrow, name, lambda values: values[:, :5])
    narrow.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5
    paths = networks.save(wide, tmp_path), networks.save(narrow, tmp_path, "narrow.onnx")
    with pytest.raises(BadInput, match=r"narrow\.onnx"):
        trt_bisect.run(paths[0], networks.samples(wide, 2), reference=paths[1], **FAST)


def test_in_little_memory_the_tensors_are_the_same():
    """In groups of 4 kB network runs in segments, and gives what it gives in one piece."""
    first, second = trt_bisect.load_network(FLOAT), trt_bisect.load_network(EXPORTS / "brevitas-layers.onnx")
    sample = {"x": X["x"][:1]}
    few, whole = (TwoNetworks(first, second, sample, memory) for memory in (1 << 14, 1 << 30))
    assert few.groups > 3
    assert whole.groups == 1
    found = [
        {name: (one[name], other[name]) for one, other in both.on(sample, 0) for name in one} for both in (few, whole)
    ]
    assert found[0].keys() == found[1].keys() == few.origins.keys()
    for name, runs in found[1].items():
        for one, other in zip(found[0][name], runs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_comparison_of_two_networks_is_loaded_again_and_its_page_has_the_layers(tmp_path):
    found = trt_bisect.compare(FLOAT, other=EXPORTS / "brevitas-layers.onnx", inputs=X, output=tmp_path)
    again = Comparison.load(tmp_path)
    assert again.matched == found.matched
    assert again.other == str(EXPORTS / "brevitas-layers.onnx")
    sections = {section.id: section for section in found.page().sections}
    assert [row[0] for row in sections["matched"].rows] == [each.layer or "(none)" for each in found.matched]
    assert "matched" not in {section.id for section in trt_bisect.compare(FLOAT, X).page().sections}
