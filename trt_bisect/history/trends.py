"""What the history says in words: how the figures of a network went, and what differs from one report to the next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trt_bisect.analyzer.differences import Difference, differences, origin
from trt_bisect.history.rows import PastReport
from trt_bisect.results.figure_text import figure_text
from trt_bisect.results.run_report import RECOVER
from trt_bisect.results.summary import listed
from trt_bisect.runs.progress_file import FINISHED

LATENCY_MOVED = 0.05
"""The share by which a latency has to differ to be spoken of."""
_NAMES_UP_TO = 3
_PARTS = {
    "model": "another network",
    "ranges": "other ranges",
    "data (the judged inputs)": "other data",
    "the metric's function": "another metric",
}


@dataclass(frozen=True)
class Trend:
    """The reports that can be compared with one another: one label, engine, typing and metric; ``recover`` apart.

    Attributes:
        reports: in the order of recording.
    """

    label: str
    engine: str
    metric: str
    reports: tuple[PastReport, ...]

    @property
    def finished(self) -> tuple[PastReport, ...]:
        """Those with a verdict."""
        return tuple(report for report in self.reports if report.state == FINISHED)

    @property
    def last_change(self) -> str:
        """What the latest report that differs from the one before it differs in, and when it began."""
        reports = self.finished
        for before, after in reversed(list(pairwise(reports))):
            said = changes(before, after)
            if said:
                return f"{after.started:%Y-%m-%d}: {', '.join(said)}"
        return ""

    def compared(self) -> list[tuple[PastReport, list[str]]]:
        """Each report with what differs from the finished one before it."""
        rows: list[tuple[PastReport, list[str]]] = []
        before: PastReport | None = None
        for report in self.reports:
            said: list[str] = changes(before, report) if before is not None and report.state == FINISHED else []
            rows.append((report, said))
            before = report if report.state == FINISHED else before
        return rows


def trends(reports: Iterable[PastReport]) -> list[Trend]:
    """The reports by what can be compared, in the order of labels."""
    groups: dict[tuple[str, str, str], list[PastReport]] = {}
    for report in reports:
        groups.setdefault((report.label, engine_text(report), report.metric), []).append(report)
    return [Trend(*key, tuple(found)) for key, found in sorted(groups.items())]


def engine_text(report: PastReport) -> str:
    """The engine, with TensorRT's typing, and whether it is ``recover`` that asked."""
    typing = f" {report.typing}" if report.engine == "tensorrt" else ""
    return f"{report.engine}{typing}{', recover' if report.strategy == RECOVER else ''}"


def changes(before: PastReport, after: PastReport) -> list[str]:
    """What differs between two finished reports, in a few words each: what was found, then what it was found on."""
    said = [
        f"{title} {old} → {new}"
        for title, name in (("INT8", "int8"), ("recipe", "recipe"))
        if (old := _figure(before, name)) != (new := _figure(after, name))
    ]
    said += _names("new culprit", [name for name in after.culprits if name not in before.culprits])
    said += _names("no more culprit", [name for name in before.culprits if name not in after.culprits])
    said += [
        f"{title} {old:.3f} → {new:.3f} ms"
        for title, old, new in (
            ("INT8", before.int8_ms, after.int8_ms),
            ("recipe", before.recipe_ms, after.recipe_ms),
        )
        if old and new and abs(new - old) > LATENCY_MOVED * old
    ]
    if before.threshold != after.threshold:
        said.append(f"threshold {before.threshold:g} → {after.threshold:g}")
    if before.strategy != after.strategy:
        said.append(f"strategy {before.strategy} → {after.strategy}")
    return said + [_part(each) for each in differences(origin(before.made_of), origin(after.made_of)) or ()]


def _figure(report: PastReport, name: str) -> str:
    return figure_text(report.metric, getattr(report, name))


def _names(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what}{'s' if len(names) > 1 else ''} {listed(names, _NAMES_UP_TO)}"] if names else []


def _part(found: Difference) -> str:
    return _PARTS.get(found.what) or f"{found.what} {found.before} → {found.now}"
