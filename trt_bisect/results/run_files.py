"""The files of a run folder, read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from trt_bisect.results.empty_report import recovered_report
from trt_bisect.results.network_graph import NETWORK
from trt_bisect.results.recovery import Recovery
from trt_bisect.results.run_report import RECOVER, Report
from trt_bisect.support.json_files import read_record

Facts = TypeVar("Facts")


def recovered_in(path: Path) -> Report | None:
    """The report that a ``recovery.json`` stands for where there is no run's, None where there is none to be read."""
    graph = read_record(path.with_name(NETWORK))
    return read_as(lambda record: recovered_report(Recovery.from_json(record), graph), path)


def read_as(parse: Callable[[Mapping[str, Any]], Facts], path: Path) -> Facts | None:
    """What ``parse`` makes of a file's JSON object, None where it can make nothing of it or there is none."""
    record = read_record(path)
    if record is None:
        return None
    try:
        return parse(record)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def recovering(found: Recovery | None, report: Report) -> Recovery | None:
    """``found`` where it is of the report's network, else None."""
    if found is None or Path(found.model).name != Path(report.model).name:
        return None
    named = {row.layer for row in found.high}.union(*(point.high for point in found.front))
    return found if report.strategy == RECOVER or named <= {row.name for row in report.layers} else None


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
