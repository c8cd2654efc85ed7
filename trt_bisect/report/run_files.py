"""The files of a run folder that must be of one network."""

from __future__ import annotations

from pathlib import Path

from trt_bisect.report.explanation import Explanation
from trt_bisect.report.model import RECOVER, Report
from trt_bisect.report.network_graph import Graph
from trt_bisect.report.recovery import Recovery


def recovery_for(found: Recovery | None, report: Report) -> Recovery | None:
    """Returns the recovery if it is of the report's network, else None."""
    if found is None or Path(found.model).name != Path(report.model).name:
        return None
    named = {row.layer for row in found.high}.union(*(point.high for point in found.front))
    return found if report.strategy == RECOVER or named <= {row.name for row in report.layers} else None


def graph_for(graph: Graph | None, report: Report) -> Graph | None:
    """Returns the graph if it is of the report's network, else None: an earlier run may have left it."""
    same = graph is not None and [layer.name for layer in graph.layers] == [row.name for row in report.layers]
    return graph if same else None


def explanation_for(explanation: Explanation | None, report: Report) -> Explanation | None:
    """Returns the explanation if it is of the report's network, else None."""
    names = {row.name for row in report.layers}
    return explanation if explanation is not None and names.issuperset(explanation.layers) else None
