"""The page of ``worst``: the metric on each sample of a data set."""

from __future__ import annotations

from trt_bisect.report.figure_text import figure_text, threshold_text
from trt_bisect.report.page.tables.shape import FLAG, NAME, Column, Distribution, Panels, Section, TablePage
from trt_bisect.report.worst import WORST_CSV, WorstReport, description


def page(found: WorstReport) -> TablePage:
    """Returns the page of a search for the worst inputs."""
    spread = found.distribution
    quantiles = {"Best": spread.best, "Median": spread.median}
    quantiles |= {f"{percent}% reach": value for percent, value in spread.percentiles.items()}
    quantiles["Worst"] = spread.worst
    text = {title: _figure(found, value) for title, value in quantiles.items()}
    least = "" if found.threshold is None else threshold_text(found.metric, found.threshold)
    return TablePage(
        command="worst",
        model=found.model,
        headline=found.verdict,
        low=found.low,
        facts={**description(found), **text, "Threshold": least},
        notes=found.notes,
        sections=(
            Section(
                "samples",
                "Samples",
                (
                    Column("sample", "Sample", "Its index in the data set", NAME, phone=True, paper=True),
                    Column("rank", "Rank", "1 is the worst input", phone=True, paper=True),
                    Column("value", found.metric, f"Of {found.low.upper()} against FP32", phone=True, paper=True),
                    Column("loss", "Loss", "", paper=True),
                    Column("misses", "Misses", "The threshold", FLAG, phone=True, paper=True),
                    Column("faint", "Faint", "FP32's output on it is almost zero: it does not count", FLAG, paper=True),
                ),
                [{**row, "misses": _misses(row["loss"], found.allowed)} for row in found.records()],
                WORST_CSV,
                plots=(
                    Distribution("How many samples have which value", "value"),
                    Panels("The samples in their order", ("value", "loss"), log=("loss",)),
                ),
                filters=("misses", "faint"),
                sort="loss",
                descending=True,
                red=("misses", True),
            ),
        ),
    )


def _figure(found: WorstReport, value: float | None) -> str:
    return "no figure" if value is None else figure_text(found.metric, value)


def _misses(loss: float | None, allowed: float | None) -> bool | None:
    if allowed is None:
        return None
    return loss is None or loss > allowed
