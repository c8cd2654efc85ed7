"""The page of a run, ``report.html``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from trt_bisect.precision import Precision
from trt_bisect.recipe.files import BUILD, FOLDER, PLAN, network_file, recipe_commands
from trt_bisect.recipe.trtexec import Build
from trt_bisect.report.explanation import EXPLANATION, PICTURES, Explanation, Pictures
from trt_bisect.report.html import WORKER, asset, rendered
from trt_bisect.report.network_graph import NETWORK, Graph
from trt_bisect.report.parts import TONES, LayerRow
from trt_bisect.report.result import PageColumn
from trt_bisect.report.words import fragile, headline, kept_in, layers_high, put_back_remark, titled, titles_in
from trt_bisect.support.codec import read
from trt_bisect.support.files import write_whole
from trt_bisect.support.table import INDEX, columns_of

if TYPE_CHECKING:
    from trt_bisect.report.model import Report

_LARGEST_TEXT = 1 << 20


@dataclass(frozen=True)
class PageData:
    """The content of a run's page.

    Attributes:
        kept_in: the precisions of the recipe's layers in high precision, as text.
        layers_high: the same with their number.
        put_back_remarks: by culprit, what restricts the recipe's figure with the culprit in INT8.
        ranked_culprits: the culprits, and the weak ones, the worst first.
        progress: of a run that goes on: ``stage``, ``done``, ``total``, ``seconds`` and ``left``; else None.
        recipe: by file of the recipe its text, or ``{"bytes": size}`` for a binary or long file.
        commands: by file of the recipe, the command that uses it.
    """

    report: Report
    graph: Graph | None
    explanation: Explanation | None
    headline: str
    fragile: tuple[str, ...]
    kept_in: str
    layers_high: str
    put_back_remarks: Mapping[str, str]
    ranked_culprits: tuple[tuple[str, ...], ...]
    status: str
    tones: Mapping[str, str]
    progress: Mapping[str, Any] | None
    recipe: Mapping[str, Any]
    command: str
    commands: Mapping[str, str]
    columns: tuple[PageColumn, ...]
    pictures: Pictures | None = None
    predicted_ms: tuple[float, float] | None = None


def page_data(
    report: Report,
    graph: Graph | None = None,
    explanation: Explanation | None = None,
    recipe: Mapping[str, Any] | None = None,
    *,
    status: str = "finished",
    progress: Mapping[str, Any] | None = None,
    folder: str = "",
    pictures: Pictures | None = None,
) -> PageData:
    """Returns the content of a run's page, without a graph or explanation that belongs to another network.

    Args:
        recipe: the recipe's files, from ``recipe_texts``; None without one.
        status: ``finished``, ``running`` or ``interrupted``.
        progress: of a running run; else None.
        folder: the run folder in the page's commands.
    """
    titles = titles_in(report.layers)
    report, graph, explanation, pictures = titled((report, graph, explanation, pictures), titles)
    names = [row.name for row in report.layers]
    columns = [column for column in columns_of(LayerRow, **report.names) if column.title]
    # The index comes first, then by rank, texts before numbers.
    columns.sort(key=lambda col: (col.kind != INDEX, math.inf if col.rank is None else col.rank, col.is_number))
    return PageData(
        report,
        graph if graph is not None and [layer.name for layer in graph.layers] == names else None,
        explanation if explanation is not None and set(names).issuperset(explanation.layers) else None,
        headline=headline(report, status),
        fragile=fragile(report),
        kept_in=kept_in(report),
        layers_high=layers_high(report),
        ranked_culprits=tuple(tuple(row.name for row in rows) for rows in report.ranked_culprits),
        put_back_remarks={row.name: put_back_remark(report, row) for row in report.layers if row.culprit},
        status=status,
        tones={
            "verdict": TONES[report.verdict] if status == "finished" else "",
            **{plan: TONES[verdict] for plan, verdict in report.verdicts.items()},
        },
        progress=progress,
        recipe=recipe or {},
        command=report.command,
        commands=_commands(recipe or {}, folder, report.low),
        columns=tuple(map(PageColumn.of, columns)),
        pictures=pictures,
        predicted_ms=report.predicted_ms,
    )


def _commands(recipe: Mapping[str, Any], folder: str, low: str) -> dict[str, str]:
    try:
        plan = json.loads(recipe.get(PLAN, ""))
    except (TypeError, ValueError, RecursionError):
        return {}
    build = Build.from_json(plan.get(BUILD)) if isinstance(plan, dict) else None
    if build is None:
        return {}
    commands = recipe_commands(f"{folder}/{FOLDER}" if folder else FOLDER, build, network_file(Precision(low)))
    return {name: command for name, command in commands.items() if name in recipe}


def recipe_texts(folder: Path) -> dict[str, str | dict[str, int]]:
    """Returns the files in a recipe's folder by name: the text, or ``{"bytes": size}`` for a binary or long file."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else ()
    files = [path for path in paths if path.is_file() and not path.is_symlink() and not path.name.startswith(".")]
    return {path.name: _text(path) for path in files}


def _text(path: Path) -> str | dict[str, int]:
    size = path.stat().st_size
    with suppress(ValueError):
        if size <= _LARGEST_TEXT and path.suffix != ".onnx":
            return path.read_text(encoding="utf-8")
    return {"bytes": size}


PAGE = "report.html"


def render_page(data: PageData, live: str = "") -> str:
    """Returns the page of a run as HTML; ``live``: the address of newer data, empty for none."""
    report = data.report
    return rendered(
        "page.html.j2",
        "page.js",
        data,
        live,
        report=report,
        model=report.model,
        low=report.low.upper(),
        version=report.versions.get("trt_bisect", ""),
        headline=data.headline,
        selected="Selected layer",
        worker=Markup(asset(WORKER)),
    )


def write_page(report: Report, folder: Path) -> None:
    """Writes ``report.html`` with the network, explanation and recipe in the folder; raises BadInput if this fails."""
    data = page_data(
        report,
        read(Graph, folder / NETWORK),
        read(Explanation, folder / EXPLANATION),
        recipe_texts(folder / FOLDER),
        folder=str(folder),
        pictures=read(Pictures, folder / PICTURES),
    )
    write_whole(folder / PAGE, render_page(data).encode())
