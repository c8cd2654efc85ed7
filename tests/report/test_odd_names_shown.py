"""Layers called ``a, b``, ``it's``, ``x: y;`` and ``<b>`` keep their names in the files of a recipe and of a night."""

from __future__ import annotations

import json
import runpy
import shlex
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from lxml import etree
from markdown_it import MarkdownIt

import trt_bisect
from tests.support import networks
from tests.support.odd_names import NAMES, odd_network
from trt_bisect.report.changes import RECIPE_LAYERS


@pytest.fixture(scope="module")
def recipe(recorded):
    """The recipe of a run on the network with those layers, which are the culprits; not to be changed."""
    return recorded("odd") / "runs/odd/recipe"


def test_in_the_network_and_the_plan(recipe):
    plan = json.loads((recipe / "plan.json").read_text())["layers"]
    assert {name for name, precision in plan.items() if precision == "fp32"} >= set(NAMES)
    annotated = onnx.load(recipe / "annotated.onnx", load_external_data=False)
    noted = {node.name for node in annotated.graph.node if "culprit: yes" in node.doc_string}
    assert noted == set(NAMES)


def test_in_the_script_of_polygraphy(recipe, monkeypatch):
    """The script sets the precision of TensorRT's layers by their names, as they are in the network."""
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(float32="fp32", float16="fp16"))
    script = runpy.run_path(str(recipe / "polygraphy_postprocess.py"))
    names = [name for name, _, _ in script["CONSTRAINTS"]]
    layers = [Mock(num_outputs=1, precision=None) for _ in names]
    for layer, name in zip(layers, names, strict=True):
        layer.name = name
    script["postprocess"](Mock(num_layers=len(layers), get_layer=layers.__getitem__, num_outputs=0))
    assert {layer.name for layer in layers if layer.precision == "fp32"} >= set(NAMES)


def test_in_the_flags_of_trtexec(recipe):
    """trtexec cuts a list at commas: no name with one may stand in it, and the file says so and fails."""
    (word,) = shlex.split((recipe / "trtexec.flags").read_text(), comments=True)
    assert word.startswith("--refused")
    assert NAMES[0] in word


def test_in_junit_and_the_summary_of_a_night(tmp_path):
    """A night in which the recipe keeps these layers, since it asks for more than the night before.

    Three inputs are too few to tell that full INT8 no longer depends on them, which the first night would ask for.
    """
    np.savez(tmp_path / "data.npz", **networks.samples(odd_network(), 3))
    networks.save(odd_network(), tmp_path)
    asked = '[[network]]\nname = "odd"\nmodel = "network.onnx"\ncalibration = "data.npz"\nengine = "onnxruntime"\n'
    asked += 'calibrator = "minmax"\nrepeats = 1\nexplain = "none"\n'
    for threshold, updates in ((0.2, True), (0.999, False)):
        (tmp_path / "suite.toml").write_text(f"{asked}threshold = {threshold}\n")
        found = trt_bisect.regress(tmp_path / "suite.toml", tmp_path / "known", update_baseline=updates)
    (change,) = (each for each in found.networks[0].changes if each.kind == RECIPE_LAYERS)
    assert change.now == NAMES
    (written,) = sorted(tmp_path.rglob("junit.xml"))[-1:]
    said = "".join(etree.parse(written).getroot().itertext()) + "".join(
        value for element in etree.parse(written).iter() for value in element.attrib.values()
    )
    summary = written.with_name("summary.md").read_text()
    rendered = "".join(token.content for token in MarkdownIt().parse(summary) for token in token.children or [token])
    for name in NAMES:
        assert repr(name) in said or f"'{name}'" in said
        assert name in rendered
