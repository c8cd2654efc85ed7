"""Trends: the reports of a network over time, in sparklines and in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trt_bisect.history.queries import HistoryEntry
from trt_bisect.report.changes import differences
from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.model import Report
from trt_bisect.runs.progress_file import FINISHED
from trt_bisect.support.figures import listed

LATENCY_MOVED = 0.05
"""A latency has changed if it differs by more than this share."""
_NAMES_UP_TO = 3
_PLANS = {"int8": "INT8", "recipe": "recipe"}
_BARS = "▁▂▃▄▅▆▇█"
_PARTS = {
    "model": "another network",
    "ranges": "other ranges",
    "data (the judged inputs)": "other data",
    "the metric's function": "another metric",
}


@dataclass(frozen=True)
class Trend:
    """Entries whose reports can be compared with each other: of the same label, engine, typing and metric.

    Attributes:
        label: the label of the network.
        engine: see ``engine_text``.
        metric: the name of the metric.
        entries: the entries in the order of recording.
    """

    label: str
    engine: str
    metric: str
    entries: tuple[HistoryEntry, ...]

    @property
    def finished(self) -> tuple[HistoryEntry, ...]:
        """The finished entries."""
        return tuple(entry for entry in self.entries if entry.report.state == FINISHED)

    @property
    def last_change(self) -> str:
        """Date and differences of the latest report that differs from the one before it; empty if none does."""
        for before, after in reversed(list(pairwise(self.finished))):
            found = changes(before.report, after.report)
            if found:
                return f"{after.started:%Y-%m-%d}: {', '.join(found)}"
        return ""

    def compared(self) -> list[tuple[HistoryEntry, list[str]]]:
        """Returns each entry with its differences from the finished one before it."""
        before = {after.id: before for before, after in pairwise(self.finished)}
        return [
            (entry, changes(before[entry.id].report, entry.report) if entry.id in before else [])
            for entry in self.entries
        ]


def trends(entries: Iterable[HistoryEntry]) -> list[Trend]:
    """Groups entries that can be compared with each other, in the order of labels."""
    groups: dict[tuple[str, str, str], list[HistoryEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.label, engine_text(entry.report), entry.report.metric), []).append(entry)
    return [Trend(*key, tuple(found)) for key, found in sorted(groups.items())]


def engine_text(report: Report) -> str:
    """Returns the engine of a report as text, with TensorRT's typing; reports of the former ``recover`` stand apart."""
    typing = f" {report.typing}" if report.engine == "tensorrt" else ""
    return f"{report.engine}{typing}{', recover' if report.strategy == 'recover' else ''}"


def milliseconds(report: Report, plan: str) -> float | None:
    """Returns the mean time of an inference of a plan; None if it was not timed."""
    timed = (report.latency or {}).get(plan)
    return timed.mean_ms if timed else None


def changes(before: Report, after: Report) -> list[str]:
    """Returns the differences between two finished reports, a few words each: first the results, then the inputs."""
    found = []
    for plan, title in _PLANS.items():
        old, new = (figure_text(each.metric, getattr(each.similarity, plan)) for each in (before, after))
        found += [f"{title} {old} → {new}"] if old != new else []
    found += _names("new culprit", [name for name in after.culprits if name not in before.culprits])
    found += _names("former culprit", [name for name in before.culprits if name not in after.culprits])
    for plan, title in _PLANS.items():
        was, now = milliseconds(before, plan), milliseconds(after, plan)
        found += [f"{title} {was:.3f} → {now:.3f} ms"] if was and now and abs(now - was) > LATENCY_MOVED * was else []
    parts = differences(before, after) or ()
    return found + [_PARTS.get(part.what) or f"{part.what} {part.before} → {part.now}" for part in parts]


def _names(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what}{'s' if len(names) > 1 else ''} {listed(names, _NAMES_UP_TO)}"] if names else []


def heights(values: Sequence[float]) -> list[float]:
    """Returns the values scaled from the least (0) to the largest (1); 0.5 each if all are equal."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [0.5 if high == low else (value - low) / (high - low) for value in values]


def spark_text(values: Sequence[float | None]) -> str:
    """Returns one bar for each value, and a space for each missing value.

    >>> spark_text([0.0, None, 2.0])
    '▁ █'
    """
    drawn = iter(heights([value for value in values if value is not None]))
    return "".join(" " if value is None else _BARS[round(next(drawn) * (len(_BARS) - 1))] for value in values)
