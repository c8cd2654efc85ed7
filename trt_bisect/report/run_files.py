"""The files of a run folder, read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from trt_bisect.report.empty_report import recovered_report
from trt_bisect.report.model import RECOVER, Report
from trt_bisect.report.network_graph import NETWORK
from trt_bisect.report.recovery import Recovery
from trt_bisect.support.json_files import read_record

Facts = TypeVar("Facts")


def recovered_in(path: Path) -> Report | None:
    """Returns a ``recovery.json`` as a report, for a folder without a run's; None if it cannot be read."""
    graph = read_record(path.with_name(NETWORK))
    return read_as(lambda record: recovered_report(Recovery.from_json(record), graph), path)


def read_as(parse: Callable[[Mapping[str, Any]], Facts], path: Path) -> Facts | None:
    """Returns ``parse`` of a file's JSON object; None if there is no such object or ``parse`` fails on it."""
    record = read_record(path)
    if record is None:
        return None
    try:
        return parse(record)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def recovery_for(found: Recovery | None, report: Report) -> Recovery | None:
    """Returns the recovery if it is of the report's network, else None."""
    if found is None or Path(found.model).name != Path(report.model).name:
        return None
    named = {row.layer for row in found.high}.union(*(point.high for point in found.front))
    return found if report.strategy == RECOVER or named <= {row.name for row in report.layers} else None


def graph_for(graph: Mapping[str, Any] | None, report: Report) -> Mapping[str, Any] | None:
    """Returns the graph if it is of the report's network, else None: an earlier run may have left it."""
    if graph is None or not isinstance(layers := graph.get("layers"), list):
        return None
    names = [layer.get("name") for layer in layers if isinstance(layer, dict)]
    return graph if names == [row.name for row in report.layers] else None


def explanation_for(explanation: Mapping[str, Any] | None, report: Report) -> Mapping[str, Any] | None:
    """Returns the explanation if it is of the report's network, else None."""
    if explanation is None or not isinstance(layers := explanation.get("layers"), dict):
        return None
    return explanation if set(layers) <= {row.name for row in report.layers} else None
