"""Every surface of a run shows what its report has: asserted here once, for six runs with names of all kinds."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html import unescape

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

import trt_bisect
from tests.support import pages
from tests.support.event_files import read, text
from tests.support.recorded import RUNS
from tests.support.records import record_of
from trt_bisect import Report
from trt_bisect.history.store import HISTORY
from trt_bisect.report.page import PAGE, render_page
from trt_bisect.report.parts import spoken
from trt_bisect.report.screen.run import print_report
from trt_bisect.report.words import headline
from trt_bisect.runs.progress_file import FINISHED
from trt_bisect.support.voices import in_python
from trt_bisect.view.index import RunFolder, Runs


@pytest.fixture(scope="module", params=RUNS)
def run(request, recorded):
    """The folder of a finished run and its report."""
    folder = recorded(request.param) / "runs" / request.param
    return folder, Report.load(folder)


def json_of(path):
    return json.loads(path.read_text()) if path.exists() else None


def cells_of(markdown: str) -> set[str]:
    """Returns the texts in Markdown, without its marks, as a parser of CommonMark with tables reads them."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    return {"".join(part.content for part in token.children) for token in tokens if token.type == "inline"}


def test_the_files_are_read_again(run):
    folder, report = run
    record = json_of(folder / "report.json")
    assert record_of(report) == record
    assert trt_bisect.load(folder) == trt_bisect.load(folder / "report.json") == report
    with (folder / "layers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    told = [(row["name"], row["culprit"] == "True") for row in rows]
    constants = {row["name"] for row in record["constants"]}
    told = [row for row in told if row[0] not in constants]
    assert told == [(row["name"], row["name"] in record["culprits"]) for row in record["layers"]]
    assert list(report.table().name) == [name for name, _ in told]


def test_page_and_view_hold_the_report_and_what_stands_beside_it(run):
    folder, report = run
    data = pages.data_of(folder / PAGE)
    for key, name in (("report", "report"), ("explanation", "explanation"), ("pictures", "pictures")):
        assert data[key] == json_of(folder / f"{name}.json")
    assert [layer["name"] for layer in data["graph"]["layers"]] == [row.name for row in report.layers]
    assert (data["status"], data["headline"]) == (FINISHED, headline(report))
    recipe = {path.name: path for path in (folder / "recipe").iterdir()}
    networks = {name: path.stat().st_size for name, path in recipe.items() if path.suffix == ".onnx"}
    texts = {name: path.read_text() for name, path in recipe.items() if name not in networks}
    assert data["recipe"] == {**texts, **{name: {"bytes": size} for name, size in networks.items()}}
    assert record_of(RunFolder(folder).state().data) == data


def test_the_list_of_runs_and_the_history_have_it(run):
    folder, report = run
    (row,) = Runs(folder.parent).rows()
    assert (row.status, row.command, row.address) == (FINISHED, "run", f"run/{folder.name}/")
    assert row.verdict.startswith(spoken(report.verdict))
    assert row.value("recipe") == repr(report.similarity.recipe)
    (entry,) = trt_bisect.History(folder.parent / HISTORY).past()
    assert (entry.folder, entry.label) == (str(folder), report.model.rpartition("/")[2].removesuffix(".onnx"))
    assert entry.started.timestamp() == pytest.approx(report.started, abs=1e-6)
    assert record_of(entry.report) == {**record_of(report), "layers": []}
    first, *lines = map(json.loads, (folder / "journal.jsonl").read_text().splitlines())
    assert entry.run == first["id"]
    about = [line["about"] for line in (first, *lines) if line["run"] == report.fingerprint and "about" in line]
    assert about == [record_of(report)["made_of"]]


def test_names_are_text(run):
    """The elements of a page are the same whatever the layers are called."""
    folder, report = run
    data = RunFolder(folder).state().data
    plain = replace(data, headline="", report=replace(report, model="", front=(), layers=(), lines=()))
    html = report._repr_html_()
    assert pages.Elements((folder / PAGE).read_text()).names == pages.Elements(render_page(plain)).names
    assert not {"script", "img"} & set(pages.Elements(html).names)
    assert headline(report) in unescape(html)
    console = Console(file=io.StringIO(), width=200)
    print_report(report, console, every_layer=True)
    lines = console.file.getvalue().splitlines()
    curve = read(folder.parents[1] / "logs")["curve"]
    for name in report.culprits:
        assert name in unescape(html)
        assert name in cells_of(report.to_markdown())
        assert name in cells_of(text(curve, "culprits"))
        assert any(line.startswith(f"{name} ") for line in lines), name


def test_print_shows_the_lines_and_the_next_step(run):
    _, report = run
    said = " ".join(str(report).split())
    assert all(" ".join(in_python(line.text).split()) in said for line in report.lines)
    assert report.next.what in said
    assert repr(report) == str(report)
    assert len(str(report).splitlines()) <= 20
