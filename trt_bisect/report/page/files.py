"""``report.html`` in a run folder, made from the other files there."""

from __future__ import annotations

from pathlib import Path

from trt_bisect.recipe.files import FOLDER
from trt_bisect.report.explanation import EXPLANATION, Explanation
from trt_bisect.report.model import REPORT, Report
from trt_bisect.report.network_graph import NETWORK, Graph
from trt_bisect.report.older import read_report
from trt_bisect.report.page.data import explanation_for, graph_for, page_data, recipe_texts, recovery_for
from trt_bisect.report.page.render import PAGE, render_page
from trt_bisect.report.recovery import RECOVERY, Recovery, read_recovery
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
        recovery=recovery_for(read_recovery(folder / RECOVERY), report),
        folder=str(folder),
    )
    write_whole(folder / PAGE, render_page(data).encode())


def write_recovered_page(found: Recovery, folder: Path) -> None:
    """Writes ``report.html`` of a recovery's folder, with the run in the folder if it is of the same network.

    Raises:
        BadInput: the folder cannot be written.
    """
    report = read_report(folder / REPORT)
    if report is None or recovery_for(found, report) is None:
        report = found.as_report(read(Graph, folder / NETWORK))
    write_page(report, folder)
