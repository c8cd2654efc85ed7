"""Run folders for tests of their pages: real runs, and changes to them that no run here can cause."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import trt_bisect
from tests.support import networks
from trt_bisect import Report
from trt_bisect.report.page import PAGE, PageData, render_page, write_page
from trt_bisect.report.parts import LayerRow

STRANGE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "{{ 7 * 7 }} <b>bold</b> <a href='javascript:alert(3)'>link</a>",
    "\"'&amp;<!--",
    "__proto__",
    "constructor",
    "层/ é.ß",
    "[red]rich[/red]",
)


def strange_network(folder: Path) -> Path:
    """Writes a residual network with a planted culprit; names of layers are such as break pages."""
    model = networks.residual(blocks=4)
    networks.plant_between(model, "block1.conv1", "block1.conv2")
    culprit = next(node for node in model.graph.node if node.name == "block1.conv2")
    others = [node for node in model.graph.node if node is not culprit and node.name != "block1.conv1"]
    for node, name in zip((culprit, *others), STRANGE, strict=False):
        node.name = name
    return networks.save(model, folder, "strange.onnx")


def run_on(model: Path, output: Path, **options: Any) -> Report:
    """Runs a network into a folder, with a threshold that a planted layer of ``residual`` misses."""
    data = networks.samples(onnx.load(str(model)))
    usual = {"engine": "onnxruntime", "calibrator": "minmax", "threshold": 0.999}
    return trt_bisect.run(model, data, output=output, **{**usual, **options})


def rewritten(folder: Path, change: Any) -> Path:
    """The page of ``folder`` with its report's layers changed: ``change`` takes a row and gives one."""
    report = read(folder)
    return written(folder, replace(report, layers=tuple(change(row) for row in report.layers)))


def read(folder: Path) -> Report:
    """The report in a run folder."""
    return Report.load(folder)


def written(folder: Path, report: Report) -> Path:
    """The page of a folder with another report."""
    write_page(report, folder)
    return folder / PAGE


def drawn(folder: Path, data: PageData) -> Path:
    """Writes the page of some data into a folder; returns its file."""
    (folder / PAGE).write_text(render_page(data))
    return folder / PAGE


def data_of(page: Path) -> dict:
    """The data in a page."""
    return json.loads(Elements(page.read_text()).scripts["data"])


def copied(folder: Path, place: Path) -> Path:
    """Copies the files that a run's page is made of."""
    for name in ("report.json", "network.json", "explanation.json"):
        (place / name).write_bytes((folder / name).read_bytes())
    return place


def failed(row: LayerRow) -> LayerRow:
    """Returns the row of a layer whose build TensorRT refused."""
    said = "Error Code 10: <no kernel>"
    return replace(row, similarity=None, loss=None, sqnr=None, outcome="build failed", message=said)


def long_report(report: Report, layers: int) -> Report:
    """Returns the report with its rows repeated under new names, ``layers`` in all."""

    def repeated(place: int) -> LayerRow:
        row = report.layers[place % len(report.layers)]
        name = f"part{place // 50}/{row.name}.{place}"
        return replace(row, index=place, name=name, culprit=row.culprit and place < 50)

    return replace(report, layers=tuple(map(repeated, range(layers))))


def percent(value: float, threshold: float) -> str:
    """Returns a similarity as the page writes it: two decimals, more near 0 and 100 %, not past the threshold."""
    distance = 100 * min(abs(value), abs(1 - value))
    digits = 2 if distance == 0 else max(2, min(4, 1 - math.floor(math.log10(distance))))
    while digits < 6 and (round(100 * value, digits) >= round(100 * threshold, 10)) != (value >= threshold):
        digits += 1
    text = f"{100 * value:.{digits}f}"
    if abs(float(text) - 100 * value) < 1e-9:
        return f"{float(text):g}%"
    return ">99.9999%" if value < 1 and text == "100.0000" else f"{text}%"


def similarities(report: Report) -> np.ndarray:
    """Returns the similarities of the quantizable layers that were measured."""
    return np.array([row.similarity for row in report.layers if row.quantizable and row.similarity is not None])


class Elements(HTMLParser):
    """The names of a page's elements, and the text of its scripts by id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self._script = dict(attrs).get("id", "") if tag == "script" else None

    def handle_data(self, data):
        if self._script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data

    def handle_endtag(self, tag):
        self._script = None
