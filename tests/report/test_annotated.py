"""``recipe/annotated.onnx``: what a run found stands on the nodes, read back with ONNX, and computes the same."""

import json

import numpy as np
import onnx

from tests.support.quantized import plain_run


def facts_of(node):
    return {entry.key.removeprefix("trt-bisect."): entry.value for entry in node.metadata_props}


def test_the_culprit_carries_what_the_report_says(finished, lenet):
    report = json.loads((finished / "report.json").read_text())
    model = onnx.load(finished / "recipe/annotated.onnx")
    onnx.checker.check_model(model)
    found = {node.name: facts_of(node) for node in model.graph.node}
    [culprit] = [name for name, facts in found.items() if facts.get("culprit") == "yes"]
    assert [culprit] == report["culprits"]
    for row in report["layers"]:
        facts = found[row["name"]]
        assert facts["precision"] == row["recipe"]
        assert ("loss" in facts) == (row["loss"] is not None)
        if row["loss"] is not None:
            np.testing.assert_allclose(float(facts["loss"]), row["loss"], rtol=1e-5)
    scale = next(each["scale"] for row in report["layers"] for each in row["rounds"] if each["tensor"] == "relu1")
    written = dict(pair.split(" ") for pair in found["ip2"]["scales"].split(", "))
    np.testing.assert_allclose(float(written["relu1"]), scale, rtol=1e-5)
    assert "culprit: yes" in next(node.doc_string for node in model.graph.node if node.name == culprit)
    digit = {"data": np.load(lenet / "digits.npz")["data"][:1]}
    files = (str(lenet / "lenet_planted.onnx"), str(finished / "recipe/annotated.onnx"))
    before, after = (plain_run(file, digit)[0] for file in files)
    np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-7)


def test_its_weights_are_those_of_the_network_beside_it(finished):
    """Its own file is small, and ONNX reads the same tensors from both."""
    folder = finished / "recipe"
    apart = onnx.load(folder / "annotated.onnx", load_external_data=False).graph.initializer
    assert {entry.value for t in apart for entry in t.external_data if entry.key == "location"} == {"network.onnx"}
    assert 20 * (folder / "annotated.onnx").stat().st_size < (folder / "network.onnx").stat().st_size
    ours, theirs = (onnx.load(folder / name).graph.initializer for name in ("annotated.onnx", "network.onnx"))
    assert {t.name for t in ours} == {t.name for t in theirs}
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(one), onnx.numpy_helper.to_array(other))
