"""A nightly run as Markdown, for GitHub's step summary, a merge request or a mail."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from trt_bisect.analyzer.figures import INT8, RECIPE
from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.markdown import bullets, literal, table
from trt_bisect.report.regression.result import FAILED, NetworkResult, Regression
from trt_bisect.report.regression.text import headline, made_of_text, range_text, sentences
from trt_bisect.support.figures import listed

_HEADER = ("network", "", "full INT8", "was", "recipe", "was", "culprits")
_MOST_ROWS = 500
_MOST_DETAILED = 50
"""The most networks with details: GitHub takes 1 MiB a step."""
_MOST_NAMES = 4


def markdown(regression: Regression) -> str:
    """Returns the whole summary."""
    return "\n\n".join(_blocks(regression)) + "\n"


def accept_command(regression: Regression) -> str:
    """Returns the command that makes the figures of this nightly run the baseline."""
    folder = regression.baseline_folder
    options = ["--config", regression.suite, *(["--baseline", str(folder)] if folder else []), "--update-baseline"]
    return shlex.join(["trt-bisect", "regress", *options])


def _blocks(regression: Regression) -> Iterator[str]:
    yield f"## trt-bisect: {regression.status}"
    yield literal(f"Night {regression.number}, {regression.began}: {headline(regression)}.")
    yield table(_HEADER, map(_row, regression.networks[:_MOST_ROWS]))
    if len(regression.networks) > _MOST_ROWS:
        yield f"{len(regression.networks) - _MOST_ROWS} more are in `regression.json`."
    if regression.gone:
        yield literal(f"In the baseline, and no longer in the suite: {listed(regression.gone)}.")
    yield from _details(regression.networks)
    if regression.is_worse:
        yield "If that is as it should be, this command takes it as the new baseline:"
        yield f"```\n{accept_command(regression)}\n```"


def _details(networks: Iterable[NetworkResult]) -> Iterator[str]:
    changed = [result for result in networks if _is_changed(result)]
    for result in sorted(changed, key=lambda result: result.status != FAILED)[:_MOST_DETAILED]:
        yield f"### {literal(result.name)}: {result.status}"
        yield bullets(sentences(result) or ["no figure moved beyond noise"])
        if result.baseline is not None and result.figures is not None:
            yield literal(f"What differs from the baseline: {made_of_text(result.differs)}.")
    if len(changed) > _MOST_DETAILED:
        yield f"{len(changed) - _MOST_DETAILED} more networks changed: `regression.json` has them."


def _is_changed(result: NetworkResult) -> bool:
    return bool(result.changes or result.noise or result.message or result.differs)


def _row(result: NetworkResult) -> tuple[str, ...]:
    if result.figures is None:
        return (result.name, result.status, *[""] * 5)
    metric, similarity = result.figures.judge.name, result.figures.similarity
    cells = []
    for plan in (INT8, RECIPE):
        was = result.range_of(plan)
        cells += [
            figure_text(metric, similarity.get(plan)),
            range_text(was, lambda v: figure_text(metric, v)) if was else "",
        ]
    culprits = listed(result.figures.culprits, _MOST_NAMES) if result.figures.culprits else "none"
    return (result.name, result.status, *cells, culprits)
