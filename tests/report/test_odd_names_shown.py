"""Layers called ``a, b``, ``it's``, ``x: y;`` and ``<b>`` keep their names in the files of a recipe and of a night."""

from __future__ import annotations

import json
import runpy
import shlex
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import onnx
import pytest

from tests.support.odd_names import NAMES


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
