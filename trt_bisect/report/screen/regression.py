"""A nightly run on the screen: a line for each network, and its changes under it."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from trt_bisect.analyzer.figures import INT8, RECIPE
from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.regression.markdown import accept_command
from trt_bisect.report.regression.result import ERROR, FAILED, JUNIT, PASSED, SUMMARY, NetworkResult, Regression
from trt_bisect.report.regression.text import PLANS, headline, made_of_text, sentences
from trt_bisect.support.figures import listed

_STYLES = {PASSED: "bold green", FAILED: "bold red", ERROR: "bold yellow"}


def print_regression(regression: Regression, console: Console) -> None:
    """Prints a nightly run. Names are printed as they are, never as markup."""
    for result in regression.networks:
        console.print(
            Text.assemble((f"{result.status:7}", _STYLES[result.status]), f" {result.name}{_figures(result)}")
        )
        for text in sentences(result):
            console.print(Text(f"        {text}"))
        if (result.differs is None and result.baseline is not None and result.figures is not None) or result.differs:
            console.print(Text(f"        what differs: {made_of_text(result.differs)}", style="dim"))
    if regression.gone:
        console.print(Text(f"In the baseline, and no longer in the suite: {listed(regression.gone)}"))
    console.print(Text(f"\n{headline(regression)}.", style=_STYLES[regression.status]))
    if regression.is_worse:
        console.print(Text(f"If that is as it should be: {accept_command(regression)}"))
    console.print(Text(f"{regression.folder / SUMMARY}, {JUNIT} and the runs' reports beside it"))


def _figures(result: NetworkResult) -> str:
    if result.figures is None:
        return ""
    metric, similarity = result.figures.judge.name, result.figures.similarity
    return ": " + ", ".join(f"{PLANS[plan]} {figure_text(metric, similarity.get(plan))}" for plan in (INT8, RECIPE))
