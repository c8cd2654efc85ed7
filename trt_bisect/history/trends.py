"""Trends: the reports of a network over time, and the differences from one report to the next, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trt_bisect.history.rows import PastReport
from trt_bisect.report.changes import Difference, differences
from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.model import RECOVER
from trt_bisect.runs.progress_file import FINISHED
from trt_bisect.support.figures import listed

LATENCY_MOVED = 0.05
"""A latency has changed if it differs by more than this share."""
_NAMES_UP_TO = 3
_PARTS = {
    "model": "another network",
    "ranges": "other ranges",
    "data (the judged inputs)": "other data",
    "the metric's function": "another metric",
}


@dataclass(frozen=True)
class Trend:
    """Reports that can be compared with each other: of the same label, engine, typing and metric.

    Reports of ``recover`` are in a trend of their own.

    Attributes:
        label: the label of the network.
        engine: see ``engine_text``.
        metric: the name of the metric.
        reports: the reports in the order of recording.
    """

    label: str
    engine: str
    metric: str
    reports: tuple[PastReport, ...]

    @property
    def finished(self) -> tuple[PastReport, ...]:
        """The finished reports."""
        return tuple(report for report in self.reports if report.state == FINISHED)

    @property
    def last_change(self) -> str:
        """Date and differences of the latest report that differs from the one before it; empty if none does."""
        reports = self.finished
        for before, after in reversed(list(pairwise(reports))):
            found = changes(before, after)
            if found:
                return f"{after.started:%Y-%m-%d}: {', '.join(found)}"
        return ""

    def compared(self) -> list[tuple[PastReport, list[str]]]:
        """Returns each report with its differences from the finished report before it."""
        rows: list[tuple[PastReport, list[str]]] = []
        before: PastReport | None = None
        for report in self.reports:
            is_compared = before is not None and report.state == FINISHED
            rows.append((report, changes(before, report) if before is not None and is_compared else []))
            before = report if report.state == FINISHED else before
        return rows


def trends(reports: Iterable[PastReport]) -> list[Trend]:
    """Groups reports that can be compared with each other, in the order of labels."""
    groups: dict[tuple[str, str, str], list[PastReport]] = {}
    for report in reports:
        groups.setdefault((report.label, engine_text(report), report.metric), []).append(report)
    return [Trend(*key, tuple(found)) for key, found in sorted(groups.items())]


def engine_text(report: PastReport) -> str:
    """Returns the engine of a report as text, with TensorRT's typing, and with ``recover`` if that command made it."""
    typing = f" {report.typing}" if report.engine == "tensorrt" else ""
    return f"{report.engine}{typing}{', recover' if report.strategy == RECOVER else ''}"


def changes(before: PastReport, after: PastReport) -> list[str]:
    """Returns the differences between two finished reports, a few words each: first the results, then the inputs."""
    found = [
        f"{title} {old} → {new}"
        for title, name in (("INT8", "int8"), ("recipe", "recipe"))
        if (old := _figure(before, name)) != (new := _figure(after, name))
    ]
    found += _names("new culprit", [name for name in after.culprits if name not in before.culprits])
    found += _names("former culprit", [name for name in before.culprits if name not in after.culprits])
    found += [
        f"{title} {old:.3f} → {new:.3f} ms"
        for title, old, new in (
            ("INT8", before.int8_ms, after.int8_ms),
            ("recipe", before.recipe_ms, after.recipe_ms),
        )
        if old and new and abs(new - old) > LATENCY_MOVED * old
    ]
    if before.threshold != after.threshold:
        found.append(f"threshold {before.threshold:g} → {after.threshold:g}")
    if before.strategy != after.strategy:
        found.append(f"strategy {before.strategy} → {after.strategy}")
    return found + [_part(each) for each in differences(before, after, settings=()) or ()]


def _figure(report: PastReport, name: str) -> str:
    return figure_text(report.metric, getattr(report, name))


def _names(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what}{'s' if len(names) > 1 else ''} {listed(names, _NAMES_UP_TO)}"] if names else []


def _part(found: Difference) -> str:
    return _PARTS.get(found.what) or f"{found.what} {found.before} → {found.now}"
