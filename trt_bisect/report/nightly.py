"""A nightly run in words: the sentences on its changes, on the screen and as Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from trt_bisect.report.changes import (
    BETTER,
    CULPRIT,
    CURVE,
    DROP,
    INT8,
    LATENCY,
    LAYER,
    OBEYED,
    OUTCOME,
    PART,
    RECIPE,
    RECIPE_LAYERS,
    SIMILARITY,
    TARGET,
    WORSE,
    Change,
    Difference,
)
from trt_bisect.report.figure_text import figure_text, loss_text
from trt_bisect.report.markdown import bullets, literal, table
from trt_bisect.report.regression.result import ERROR, FAILED, JUNIT, PASSED, SUMMARY, NetworkResult, Regression
from trt_bisect.support.figures import counted, listed

_PLANS = {INT8: "full INT8", RECIPE: "the recipe"}
_STYLES = {PASSED: "bold green", FAILED: "bold red", ERROR: "bold yellow"}
_MOST = 5
"""The most layers with a sentence of their own, where only their own figures changed."""
_MOST_ROWS = 500
_MOST_DETAILED = 50
"""The most networks with details in Markdown: GitHub takes 1 MiB a step."""
_MOST_NAMES = 4


def sentence(change: Change, metric: str) -> str:
    """Returns the sentence on one change.

    Args:
        change: the change.
        metric: the name of the metric that decides.
    """

    def figure(value: float) -> str:
        return figure_text(metric, value)

    def drop(value: float) -> str:
        return loss_text(metric, value)

    kind, what, is_worse, now = change.kind, change.what, change.effect == WORSE, change.now
    if kind == SIMILARITY:
        return f"{_PLANS[what]} is {change.effect}: {_moved(change, figure)}"
    if kind == LATENCY:
        side = "slower" if is_worse else "faster"
        return f"latency of {what} is {side}: {_moved(change, lambda value: f'{value:.3f} ms')}"
    if kind == CULPRIT:
        return f"{'new culprit' if is_worse else 'no longer a culprit:'} '{what}', costs {_moved(change, drop)}"
    if kind == DROP:
        return f"'{what}' costs {'more' if is_worse else 'less'}: {_moved(change, drop)}"
    if kind == CURVE:
        return f"the curve at '{what}' is {change.effect}: {_moved(change, figure)}"
    if kind == OUTCOME:
        return f"'{what}': {now}, was {' or '.join(change.before)}"
    if kind == OBEYED:
        return f"'{what}' {'no longer runs' if is_worse else 'runs again'} in the requested precision"
    if kind == RECIPE_LAYERS:
        means = {WORSE: ", and no longer meets the threshold", BETTER: ", and meets the threshold again"}
        after, *before = (listed(high, most=6) or "no layer" for high in (now, *change.before))
        return f"the recipe keeps {after} in high precision, was {' or '.join(before)}{means.get(change.effect, '')}"
    if kind == LAYER:
        return f"layer '{what}' is {now}"
    if kind == PART and not now:
        return "the whole network was judged, before only a part"
    if kind == PART:
        return f"a different part of the network was judged than before. {now}"
    measured = "is not measured" if now is None else f"measures {figure(now)}"
    missed = f"{_PLANS[what]} {measured}, the {kind} is {figure(change.before[0])}"
    if kind == TARGET:
        return missed
    if is_worse:
        return f"{missed}: only --update-baseline makes this a baseline"
    return f"{missed}: with this baseline only worse figures fail; set a 'target' to require a figure"


def sentences(result: NetworkResult) -> list[str]:
    """Returns the changes of a network, the failures first; of layers with changed figures a few and a count."""
    report = result.tonight
    if report is None:
        return [result.message]
    part = report.inputs.part
    is_told = not part or any(change.kind == PART for change in (*result.failures, *result.changes))
    overall = [change for change in result.changes if change.kind not in (DROP, CURVE, LAYER)]
    texts = [] if is_told else [part]
    texts += [sentence(change, report.metric) for change in (*result.failures, *overall)]
    for kind in (DROP, CURVE):
        changed = [change for change in result.changes if change.kind == kind]
        texts += [sentence(change, report.metric) for change in changed[:_MOST]]
        if len(changed) > _MOST:
            texts.append(f"{len(changed) - _MOST} more layers changed in the same way (regression.json has all)")
    for state in ("new", "gone"):
        names = [change.what for change in result.changes if change.kind == LAYER and change.now == state]
        if names:
            texts.append(f"{'layer' if len(names) == 1 else 'layers'} {state}: {listed(names)}")
    if result.baseline is None:
        texts.append("new: only its targets and its recipe are judged")
    elif result.baseline.measured:
        texts.append(f"compared with {result.baseline.measured}")
    if result.noise:
        texts.append(
            f"noise: {counted(len(result.noise), 'figure')} outside the baseline's range, inside it in a repeat, first "
            f"{sentence(result.noise[0], report.metric)}"
        )
    return texts


def made_of_text(differs: Sequence[Difference] | None) -> str:
    """Returns the parts that differ between the baseline and this run."""
    if differs is None:
        return "not known: the baseline is of an older version that did not record its parts"
    if not differs:
        return "nothing: model, ranges, data, engine, versions, GPU and options are the same"
    return "; ".join(f"{part.what} ({part.before} → {part.now})" for part in differs)


def print_regression(regression: Regression, console: Console) -> None:
    """Prints a nightly run: a line for each network, and its changes under it. Names are never read as markup."""
    for result in regression.networks:
        report, figures = result.tonight, ""
        if report is not None:
            cells = (f"{_PLANS[plan]} {figure_text(report.metric, value)}" for plan, value in report.similarity.items())
            figures = f": {', '.join(cells)}"
        console.print(Text.assemble((f"{result.status:7}", _STYLES[result.status]), f" {result.name}{figures}"))
        for text in sentences(result):
            console.print(Text(f"        {text}"))
        if report is not None and result.baseline is not None and result.differs != ():
            console.print(Text(f"        what differs: {made_of_text(result.differs)}", style="dim"))
    if regression.gone:
        console.print(Text(f"In the baseline, but no longer in the suite: {listed(regression.gone)}"))
    console.print(Text(f"\n{_headline(regression)}.", style=_STYLES[regression.status]))
    if regression.is_worse:
        console.print(Text(f"To accept the changes: {_accept_command(regression)}"))
    console.print(Text(f"{regression.folder / SUMMARY}, {JUNIT} and the runs' reports beside it"))


def markdown(regression: Regression) -> str:
    """Returns a nightly run as Markdown, for GitHub's step summary, a merge request or a mail."""
    return "\n\n".join(_blocks(regression)) + "\n"


def _blocks(regression: Regression) -> Iterator[str]:
    yield f"## trt-bisect: {regression.status}"
    yield literal(f"Night {regression.number}, {regression.began}: {_headline(regression)}.")
    header = ("network", "", "full INT8", "was", "recipe", "was", "culprits")
    yield table(header, map(_row, regression.networks[:_MOST_ROWS]))
    if len(regression.networks) > _MOST_ROWS:
        yield f"{len(regression.networks) - _MOST_ROWS} more are in `regression.json`."
    if regression.gone:
        yield literal(f"In the baseline, but no longer in the suite: {listed(regression.gone)}.")
    changed = [
        result
        for result in regression.networks
        if result.failures or result.changes or result.noise or result.message or result.differs
    ]
    for result in sorted(changed, key=lambda result: result.status != FAILED)[:_MOST_DETAILED]:
        yield f"### {literal(result.name)}: {result.status}"
        yield bullets(sentences(result) or ["no figure moved beyond noise"])
        if result.baseline is not None and result.tonight is not None:
            yield literal(f"What differs from the baseline: {made_of_text(result.differs)}.")
    if len(changed) > _MOST_DETAILED:
        yield f"{len(changed) - _MOST_DETAILED} more networks changed: `regression.json` has them."
    if regression.is_worse:
        yield "To accept the changes as the new baseline:"
        yield f"```\n{_accept_command(regression)}\n```"


def _row(result: NetworkResult) -> tuple[str, ...]:
    report = result.tonight
    if report is None:
        return (result.name, result.status, *[""] * 5)

    def figure(value: float | None) -> str:
        return figure_text(report.metric, value)

    runs = result.baseline.runs if result.baseline else ()
    cells = []
    for plan, value in report.similarity.items():
        was = [earlier for run in runs if (earlier := getattr(run.similarity, plan)) is not None]
        cells += [figure(value), _range(was, figure) if was else ""]
    return (result.name, result.status, *cells, listed(report.culprits, _MOST_NAMES) or "none")


def _headline(regression: Regression) -> str:
    """Returns the nightly run in a sentence."""
    statuses = [result.status for result in regression.networks]
    counts = [
        f"{statuses.count(status)} {word}"
        for status, word in ((FAILED, "failed"), (ERROR, "not measured"), (PASSED, "passed"))
        if status in statuses
    ]
    against = f"against {regression.baseline}" if regression.baseline else "with nothing to compare with"
    accepted = "; this run is the new baseline" if regression.accepted else ""
    return f"{', '.join(counts)}, {against}{accepted}"


def _accept_command(regression: Regression) -> str:
    """Returns the command that makes the figures of this nightly run the baseline."""
    folder = regression.baseline_folder
    options = ["--config", regression.suite, *(["--baseline", str(folder)] if folder else []), "--update-baseline"]
    return shlex.join(["trt-bisect", "regress", *options])


def _moved(change: Change, text: Callable[[float], str]) -> str:
    now = "not measured" if change.now is None else text(change.now)
    return f"{now}, was {_range(change.before, text)}"


def _range(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    """Returns the range of the values that were measured, as text."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return "not measured"
    return " to ".join(dict.fromkeys((text(known[0]), text(known[-1]))))
