"""Layers called ``a, b``, ``it's``, ``x: y;`` and ``<b>`` keep their names in every form of a run's report."""

from __future__ import annotations

import csv
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
from rich.console import Console

import trt_bisect
from tests.support import networks
from tests.support.advised import run
from tests.support.event_files import read, text
from tests.support.odd_names import NAMES, odd_network
from tests.support.pages import Elements
from trt_bisect.report.changes import RECIPE_LAYERS
from trt_bisect.report.screen.run import print_report
from trt_bisect.report.summary import CULPRITS


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """The report of a run on the network with those layers, which are the culprits, and the folder of all its files."""
    folder = tmp_path_factory.mktemp("odd names")
    report = run(odd_network(), folder, 4, trt_version="10.3.0", tensorboard=folder / "logs")
    assert report.culprits == NAMES
    return report, folder / "run"


def cells_of(markdown: str) -> set[str]:
    """Returns the texts in Markdown, without its marks, as a parser of CommonMark with tables reads them."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    return {"".join(part.content for part in token.children) for token in tokens if token.type == "inline"}


def test_in_files_and_lines(odd):
    report, folder = odd
    record = json.loads((folder / "report.json").read_text())
    assert tuple(record["culprits"]) == NAMES
    assert [row["name"] for row in record["layers"] if row["culprit"]] == list(NAMES)
    with (folder / "layers.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file) if row["culprit"] == "True"] == list(NAMES)
    (line,) = (line for line in report.lines if line.kind == CULPRITS)
    assert line.layers == NAMES


def test_in_the_page(odd):
    _, folder = odd
    elements = Elements((folder / "report.html").read_text())
    data = json.loads(elements.scripts["data"])
    assert [row["name"] for row in data["report"]["layers"] if row["culprit"]] == list(NAMES)
    assert {layer["name"] for layer in data["graph"]["layers"]} >= set(NAMES)


def test_in_markdown(odd):
    """The names come back from a parser of CommonMark with tables, as text."""
    report, _ = odd
    assert set(NAMES) <= cells_of(report.to_markdown())


def test_on_the_screen(odd, capsys):
    report, _ = odd
    print_report(report, Console(width=200, force_jupyter=False), every_layer=True)
    out = capsys.readouterr().out
    for name in NAMES:
        assert any(line.startswith(f"{name} ") for line in out.splitlines()), name


def test_in_tensorboard(odd):
    _, folder = odd
    curve = read(folder.parent / "logs")["curve"]
    assert set(NAMES) <= cells_of(text(curve, "culprits"))


def test_in_the_network_and_the_plan(odd):
    _, folder = odd
    plan = json.loads((folder / "recipe/plan.json").read_text())["layers"]
    assert {name for name, precision in plan.items() if precision == "fp32"} >= set(NAMES)
    annotated = onnx.load(folder / "recipe/annotated.onnx", load_external_data=False)
    noted = {node.name for node in annotated.graph.node if "culprit: yes" in node.doc_string}
    assert noted == set(NAMES)


def test_in_the_script_of_polygraphy(odd, monkeypatch):
    """The script sets the precision of TensorRT's layers by their names, as they are in the network."""
    _, folder = odd
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(float32="fp32", float16="fp16"))
    script = runpy.run_path(str(folder / "recipe/polygraphy_postprocess.py"))
    names = [name for name, _, _ in script["CONSTRAINTS"]]
    layers = [Mock(num_outputs=1, precision=None) for _ in names]
    for layer, name in zip(layers, names, strict=True):
        layer.name = name
    script["postprocess"](Mock(num_layers=len(layers), get_layer=layers.__getitem__, num_outputs=0))
    assert {layer.name for layer in layers if layer.precision == "fp32"} >= set(NAMES)


def test_in_the_flags_of_trtexec(odd):
    """trtexec cuts a list at commas: no name with one may stand in it, and the file says so and fails."""
    _, folder = odd
    (word,) = shlex.split((folder / "recipe/trtexec.flags").read_text(), comments=True)
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
