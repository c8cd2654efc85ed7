"""``report.html`` in a run folder, made from the other files there."""

from __future__ import annotations

from pathlib import Path

from trt_bisect.recipe.files import FOLDER
from trt_bisect.report.explanation import EXPLANATION, Explanation
from trt_bisect.report.model import Report
from trt_bisect.report.network_graph import NETWORK, Graph
from trt_bisect.report.page.data import explanation_for, graph_for, page_data, recipe_texts
from trt_bisect.report.page.render import PAGE, render_page
from trt_bisect.support.codec import read
from trt_bisect.support.files import write_whole


def write_page(report: Report, folder: Path) -> None:
    """Writes ``report.html``, with the network, the explanation and the recipe that the folder holds.

    Raises:
        BadInput: the folder cannot be written.
    """
    data = page_data(
        report,
        graph_for(read(Graph, folder / NETWORK), report),
        explanation_for(read(Explanation, folder / EXPLANATION), report),
        recipe_texts(folder / FOLDER),
        folder=str(folder),
    )
    write_whole(folder / PAGE, render_page(data).encode())
