"""``report.html`` in a run folder, made of the other files there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_bisect.report.page.data import page_data, read_record, recipe_texts
from trt_bisect.report.page.graph import NETWORK
from trt_bisect.report.page.render import PAGE, render_page
from trt_bisect.report.report import Report
from trt_bisect.runs.folder import write_whole

EXPLANATION = "explanation.json"
RECIPE = "recipe"


def write_page(folder: Path, report: Report) -> None:
    """Writes ``report.html``, with the network, the explanation and the recipe that the folder holds.

    Raises:
        BadInput: the folder cannot be written.
    """
    data = page_data(
        report,
        fitting(read_record(folder / NETWORK), report),
        explaining(read_record(folder / EXPLANATION), report),
        recipe_texts(folder / RECIPE),
        command=report.command,
    )
    write_whole(folder / PAGE, render_page(data).encode())


def fitting(graph: Mapping[str, Any] | None, report: Report) -> Mapping[str, Any] | None:
    """``graph`` where it is of the report's network, else None: a folder may have been used for another one before."""
    if graph is None or not isinstance(layers := graph.get("layers"), list):
        return None
    names = [layer.get("name") for layer in layers if isinstance(layer, dict)]
    return graph if names == [row.name for row in report.layers] else None


def explaining(explanation: Mapping[str, Any] | None, report: Report) -> Mapping[str, Any] | None:
    """``explanation`` where it is of the report's network, else None."""
    if explanation is None or not isinstance(layers := explanation.get("layers"), dict):
        return None
    return explanation if set(layers) <= {row.name for row in report.layers} else None
