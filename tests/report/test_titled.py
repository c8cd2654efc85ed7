"""A run of a network whose nodes have names as TorchScript writes them: modules on every surface, the file's names in
files and commands."""

from __future__ import annotations

import json

import pytest

import trt_bisect
from tests.support import pages
from tests.support.event_files import read
from tests.support.module_names import CULPRIT, MODULE, TITLES, written
from trt_bisect.preparation.asked_network import matching
from trt_bisect.report.page import PAGE
from trt_bisect.report.parts import LayerRow
from trt_bisect.report.words import titled, titles_in


@pytest.fixture(scope="module")
def run(lenet, tmp_path_factory):
    folder = tmp_path_factory.mktemp("titled")
    network, data = written(lenet, folder)
    how = {"calibrator": "minmax", "tensorboard": folder / "events", "output": folder / "run"}
    return folder, trt_bisect.run(network, data, **how)


def test_files_and_python_have_the_names_of_the_file(run):
    folder, report = run
    assert report.culprits == (CULPRIT,)
    assert json.loads((folder / "run" / "report.json").read_text())["culprits"] == [CULPRIT]
    assert CULPRIT in json.loads((folder / "run" / "recipe" / "plan.json").read_text())["layers"]
    assert dict(titles_in(report.layers)) == TITLES


def test_screen_page_and_tensorboard_have_the_modules(run, command):
    folder, report = run
    asked = ["--calibration", folder / "calibration.npz", "--calibrator", "minmax", "-o", folder / "run"]
    _, screen, _ = command("run", folder / "net.onnx", *asked)
    for text in (screen, report.summary, "\n".join(report.titled.overview.lines)):
        shown = [line for line in text.splitlines() if not line.strip().startswith(("trt-bisect", "python"))]
        assert any(f"'{MODULE}'" in line for line in shown)
        assert not any(CULPRIT in line for line in shown)
    data = pages.data_of(folder / "run" / PAGE)
    (row,) = (row for row in data["report"]["layers"] if row["culprit"])
    assert (row["name"], row["node"], row["module"]) == (MODULE, CULPRIT, MODULE)
    assert [layer["name"] for layer in data["graph"]["layers"]] == [row["name"] for row in data["report"]["layers"]]
    assert MODULE in data["headline"]
    assert CULPRIT not in json.dumps(data["explanation"])
    tags = [tag for events in read(folder / "events").values() for tag in events.Tags()["histograms"]]
    assert any(tag.startswith(f"{MODULE}/") for tag in tags)


@pytest.mark.parametrize("named", [CULPRIT, MODULE, "head*1", "head"])
def test_a_user_names_a_layer_in_either_way_or_a_module_of_several(run, named):
    """``tests/preparation/test_fixed_layers.py`` has that ``--high`` keeps the layers of a pattern high."""
    found = matching(trt_bisect.load_network(run[0] / "net.onnx"), named)
    high = {layer.name for layer in found if layer.quantizable}
    assert high == ({CULPRIT, "/head/head.0/Gemm"} if named == "head" else {CULPRIT})


def test_names_are_replaced_as_words():
    titles = {"/a/Conv": "a", "/a/Conv_1": "b", "node_1": "c.d"}
    told = titled(["/a/Conv: /a/Conv_1, (node_1).", "x/a/Conv node_12", {"/a/Conv": ("node_1",)}], titles)
    assert told == ["a: b, (c.d).", "x/a/Conv node_12", {"a": ("c.d",)}]
    assert titled(LayerRow, titles) is LayerRow
