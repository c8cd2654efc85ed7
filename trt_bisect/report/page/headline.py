"""The verdict in one sentence, at the head of the page."""

from __future__ import annotations

from trt_bisect.report.report import Report
from trt_bisect.report.screen import figure_text


def headline(report: Report, status: str = "finished") -> str:
    """The verdict in one sentence; of a run that is not finished, how far it is.

    Args:
        report: of a finished run, or as far as it is known.
        status: ``finished``, ``running`` or ``interrupted``.
    """
    if status != "finished":
        return _so_far(report, status)
    if report.exit_code == 3:
        return "Nothing could be measured: no plan's engine was built and run."
    int8 = figure_text(report.metric, report.similarity.get("int8"))
    threshold = figure_text(report.metric, report.threshold)
    if report.exit_code == 0:
        return f"INT8 is good enough: {int8} {report.metric} against a threshold of {threshold}, no layer is to blame."
    return f"{_blame(report)}: {int8} {report.metric} against a threshold of {threshold}, {_cure(report)}."


def _so_far(report: Report, status: str) -> str:
    tried = [row for row in report.layers if row.quantizable]
    done = sum(row.outcome != "not tried" for row in tried)
    found = f"{len(report.culprits)} {'culprit' if len(report.culprits) == 1 else 'culprits'} so far"
    word = "Measuring" if status == "running" else "Interrupted"
    return f"{word}: {done} of {len(tried)} layers judged, {found}."


def _blame(report: Report) -> str:
    if len(report.culprits) == 1:
        return f"One layer, '{report.culprits[0]}', loses it in INT8"
    if report.culprits:
        return f"{len(report.culprits)} layers lose it in INT8"
    if report.similarity.get("int8") is None:
        return "Full INT8 could not be measured"
    return "INT8 loses it over many layers, none of which is to blame alone"


def _cure(report: Report) -> str:
    restored = figure_text(report.metric, report.similarity.get("recipe"))
    high = len(report.recipe.get("high", ()))
    layers = f"{high} {'layer' if high == 1 else 'layers'} in {report.precision.upper()}"
    if report.recipe.get("meets"):
        return f"and {restored} with {layers}"
    return f"and no plan that was tried meets it ({restored} with {layers})"
