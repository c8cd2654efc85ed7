"""The figures of a report that nightly runs compare."""

from __future__ import annotations

from typing import Any

from trt_bisect.analyzer.differences import SCHEMA, origin
from trt_bisect.analyzer.figures import Figures, LayerFigures
from trt_bisect.analyzer.metrics import JUDGING
from trt_bisect.errors import BadInput
from trt_bisect.results.run_report import Report
from trt_bisect.support.plain_json import plain


def figures_of(report: Report, direction: str = "higher") -> Figures:
    """Returns the figures of a report that nightly runs compare. Values that are not finite count as not measured.

    Args:
        report: of this run, or read from a file.
        direction: for the user's own metric, which values are better, ``higher`` or ``lower``.

    Raises:
        BadInput: the metric is the user's own, and an older version wrote the report, which lacks the metric's budget.
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
        part=report.inputs.get("part", ""),
    )


def origin_of(report: Report) -> dict[str, Any]:
    """Returns the parts of the report's fingerprint and its options in JSON types; see ``differences.origin``."""
    parts: dict[str, Any] = origin(
        plain(report.made_of),
        metric=report.metric,
        threshold=report.threshold,
        share=report.share,
        strategy=report.strategy,
        **{SCHEMA: report.schema},
    )
    return parts


def _metric_facts(report: Report, direction: str) -> dict[str, Any]:
    if report.metric in JUDGING:
        return JUDGING[report.metric].facts()
    if report.budget is None:
        raise BadInput(
            f"The report on '{report.model}' does not have the loss that the threshold of '{report.metric}' allows.",
            "An older trt-bisect wrote it: run it again.",
        )
    higher = direction == "higher"
    perfect = report.threshold + report.budget if higher else report.threshold - report.budget
    return {"name": report.metric, "perfect": repr(perfect), "higher": higher, "own": True}


def _medians(report: Report) -> dict[str, float | None] | None:
    if report.latency is None:
        return None
    return {plan: None if timed is None else plain(timed["median_ms"]) for plan, timed in report.latency.items()}
