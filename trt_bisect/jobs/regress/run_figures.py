"""From a report to what nights compare of it."""

from __future__ import annotations

from typing import Any

from trt_bisect.analyzer.differences import origin
from trt_bisect.analyzer.figures import Figures, LayerFigures
from trt_bisect.analyzer.metrics import BUILT_IN
from trt_bisect.errors import BadInput
from trt_bisect.results.run_report import Report
from trt_bisect.support.plain_json import plain


def figures_of(report: Report, direction: str = "higher") -> Figures:
    """The figures of a report that nights compare; a figure that is not finite counts as not measured.

    Args:
        report: of this run, or read from a file.
        direction: for a metric that is no built-in one, which values are better, ``higher`` or ``lower``.

    Raises:
        BadInput: the report is too old to judge figures of the user's own metric by it.
    """
    return Figures(
        metric=_metric_facts(report, direction),
        threshold=report.threshold,
        similarity=plain(report.similarity),
        high=tuple(report.recipe.get("high", ())),
        meets=bool(report.recipe.get("meets")),
        latency=_medians(report),
        layers={
            row.name: LayerFigures(plain(row.similarity), plain(row.drop), row.culprit, row.outcome, row.obeyed)
            for row in report.layers
            if row.quantizable
        },
    )


def origin_of(report: Report) -> dict[str, Any]:
    """The parts of a report's fingerprint and its other options, in JSON's types."""
    made: dict[str, Any] = origin(
        plain(report.made_of),
        metric=report.metric,
        threshold=report.threshold,
        share=report.share,
        strategy=report.strategy,
    )
    return made


def _metric_facts(report: Report, direction: str) -> dict[str, Any]:
    if report.metric in BUILT_IN:
        return BUILT_IN[report.metric].facts()
    if report.budget is None:
        raise BadInput(
            f"The report on '{report.model}' does not say what the threshold of its metric '{report.metric}' allows.",
            "An older trt-bisect wrote it: run it again.",
        )
    higher = direction == "higher"
    perfect = report.threshold + report.budget if higher else report.threshold - report.budget
    return {"name": report.metric, "perfect": repr(perfect), "higher": higher, "own": True}


def _medians(report: Report) -> dict[str, float | None] | None:
    if report.latency is None:
        return None
    return {plan: None if timed is None else plain(timed["median_ms"]) for plan, timed in report.latency.items()}
