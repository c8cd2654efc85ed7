"""Layers called ``a, b``, ``it's``, ``x: y;`` and ``<b>`` go through explanation, advice, commands and structure check.

What is compared are whole names: none is cut, joined, or mistaken for a part of another one.
"""

import csv
import io
import json
import re
import shlex

import pytest
from rich.console import Console

import trt_bisect
from tests.support import networks
from tests.support.advised import advice_on, run
from tests.support.odd_names import INPUT, NAMES, odd_network, sharing_network
from tests.support.recorded import explained
from trt_bisect.analyzer.structure.findings import SHARED_WEIGHT
from trt_bisect.cli.app import bound_to
from trt_bisect.report.advice import CALIBRATOR, EQUALISATION
from trt_bisect.report.screen.run import print_advice
from trt_bisect.support.text import SHAPES


@pytest.fixture(scope="module")
def odd(recorded):
    """The report of a run on the network, with its remedies tried, and its folder, which is not to be changed."""
    folder = recorded("odd") / "runs/odd"
    return explained(folder), folder


def test_each_layer_is_blamed_and_explained_under_its_name(odd):
    report, _ = odd
    assert report.culprits == NAMES
    explanation = report.explanation
    layers = [node.name for node in odd_network().graph.node]
    assert list(explanation.layers) == layers
    assert [each.culprit for each in explanation.advice] == list(NAMES)
    for name, advice in zip(NAMES, explanation.advice, strict=True):
        assert advice.evidence.startswith(f"'{name}' (Conv) loses ")
        made = [tensor.tensor for tensor in explanation.layers[name].outputs]
        assert made == [f"{name}_out"]
        assert [tensor.tensor for tensor in explanation.layers[name].weights] == [f"{name}.weight"]


def test_findings_and_causes_hold_whole_names(odd):
    report, _ = odd
    known = {node.name for node in odd_network().graph.node}
    assert {name for found in report.explanation.findings for name in found.layers} <= known
    starved = [found for found in report.explanation.findings if found.reason == "starved range"]
    assert {found.layers: found.tensor for found in starved if found.kind != "weight"}.items() >= {
        ((name,), f"relu of {name}_out") for name in NAMES[:3]
    }
    grouped = [name for cause in report.explanation.causes for name in cause.culprits]
    assert sorted(grouped) == sorted(NAMES)


def test_the_remedies_are_for_these_layers_and_their_files_can_be_read(odd):
    report, folder = odd
    for_some = {each.culprits for each in report.explanation.tried if each.culprits and each.remedy == CALIBRATOR}
    assert for_some == {cause.culprits for cause in report.explanation.causes}
    moved = next(each for each in report.explanation.tried if each.remedy == EQUALISATION)
    network = trt_bisect.load_network(folder / moved.network)
    assert [layer.name for layer in network.layers] == [node.name for node in odd_network().graph.node]


def test_every_command_is_words_of_a_shell_and_names_the_layers_whole(odd):
    report, _ = odd
    nodes = [node.name for node in odd_network().graph.node]
    commands = [each for advice in report.advice for remedy in advice.remedies for each in remedy.commands]
    excluded = 0
    for command in commands:
        if command.text.startswith(("(cd", "from ", "import ", "quantize_static")):
            continue
        words = shlex.split(command.text)
        if command.tool == "trt-bisect":
            bound_to(words[1:])
        if "--nodes_to_exclude" in words:
            patterns = words[words.index("--nodes_to_exclude") + 1 : words.index("--high_precision_dtype")]
            matched = [node for node in nodes if any(re.match(pattern, node) for pattern in patterns)]
            assert matched == list(report.recipe.high)
            excluded += 1
    assert excluded == 2 * len(NAMES), "in FP16 and in FP32"


def test_names_are_text_on_the_screen(odd):
    report, _ = odd
    text = io.StringIO()
    print_advice(report, report.explanation, Console(file=text, width=4000))
    for name in NAMES:
        assert f"'{name}' (Conv) loses " in text.getvalue()


def test_a_structure_finding_on_two_of_them_has_both_names(tmp_path):
    path = networks.save(sharing_network(), tmp_path)
    report = trt_bisect.check(path, output=tmp_path / "check")
    assert [each.layers for each in report.findings if each.kind == SHARED_WEIGHT] == [NAMES[:2]]
    (record,) = [
        each
        for each in json.loads((tmp_path / "check/check.json").read_text())["findings"]
        if each["kind"] == SHARED_WEIGHT
    ]
    assert record["layers"] == list(NAMES[:2])
    rows = list(csv.DictReader(io.StringIO((tmp_path / "check/check.csv").read_text())))
    assert [row["layer"] for row in rows if row["kind"] == SHARED_WEIGHT] == list(NAMES[:2])
    advised = run(sharing_network(), tmp_path, 4)
    for name in advised.culprits:
        assert SHARED_WEIGHT not in advice_on(advised, name).reasons, "a copy of the weight changes no figure"
    assert set(advised.culprits) & set(NAMES[:2])


def test_the_shapes_that_a_note_offers_are_words_of_a_shell(odd):
    report, _ = odd
    (note,) = [note.text for note in report.notes if note.kind == SHAPES]
    words = shlex.split(note[note.index("--shape") :])
    assert words == ["--shape", f"{INPUT}:1x3x16x16"]
