"""The changes of a nightly run as sentences, for the screen, the Markdown summary and JUnit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trt_bisect.analyzer.changes import (
    BETTER,
    CULPRIT,
    CURVE,
    DROP,
    LATENCY,
    LAYER,
    OBEYED,
    OUTCOME,
    PART,
    RECIPE_LAYERS,
    SIMILARITY,
    TARGET,
    THRESHOLD,
    WORSE,
    Change,
)
from trt_bisect.analyzer.differences import Difference
from trt_bisect.analyzer.figures import INT8, RECIPE
from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.regression.result import ERROR, FAILED, PASSED, NetworkResult, Regression, of_kinds
from trt_bisect.report.screen.run import drop_text
from trt_bisect.support.figures import listed

PLANS = {INT8: "full INT8", RECIPE: "the recipe"}
_MOST = 5
"""The most layers with a sentence of their own, where only their own figures changed."""


def sentence(change: Change, metric: str) -> str:
    """Returns the sentence on one change.

    Args:
        change: the change.
        metric: the name of the metric that decides.
    """
    return _SENTENCES[change.kind](change, metric)


def sentences(result: NetworkResult) -> list[str]:
    """Returns the changes of a network, the failures first; of layers with changed figures a few and a count."""
    if result.figures is None:
        return [result.message]
    metric = result.figures.judge.name
    failures = result.failures
    others = [change for change in result.changes if not change.fails_even_if(result.accepted)]
    overall = [change for change in others if change.kind not in (DROP, CURVE, LAYER)]
    known = any(change.kind == PART for change in result.changes)
    texts = [] if known or not result.figures.part else [result.figures.part]
    texts += [sentence(change, metric) for change in (*failures, *overall)]
    for kind in (DROP, CURVE):
        changed = of_kinds(others, kind)
        texts += [sentence(change, metric) for change in changed[:_MOST]]
        if len(changed) > _MOST:
            texts.append(f"{len(changed) - _MOST} more layers changed in the same way (regression.json has all)")
    for state in ("new", "gone"):
        names = [change.what for change in of_kinds(others, LAYER) if change.now == state]
        if names:
            texts.append(f"{'layer' if len(names) == 1 else 'layers'} {state}: {listed(names)}")
    if result.baseline is None:
        texts.append("new: only its targets and its recipe are judged")
    elif result.baseline.measured:
        texts.append(f"compared with {result.baseline.measured}")
    if result.noise:
        texts.append(
            f"noise: {len(result.noise)} figures were outside the baseline's range but inside it in a repeat, first "
            f"{sentence(result.noise[0], metric)}"
        )
    return texts


def made_of_text(differs: Sequence[Difference] | None) -> str:
    """Returns the parts that differ between the baseline and this run."""
    if differs is None:
        return "not known: the baseline is of an older version that did not record its parts"
    if not differs:
        return "nothing: model, ranges, data, engine, versions, GPU and options are the same"
    return "; ".join(f"{one.what} ({one.before} → {one.now})" for one in differs)


def headline(regression: Regression) -> str:
    """Returns the nightly run in a sentence."""
    counts = [
        f"{len(names)} {word}"
        for status, word in ((FAILED, "failed"), (ERROR, "not measured"), (PASSED, "passed"))
        if (names := regression.named(status))
    ]
    against = f"against {regression.baseline}" if regression.baseline else "with nothing to compare with"
    accepted = "; this run is the new baseline" if regression.accepted else ""
    return f"{', '.join(counts)}, {against}{accepted}"


def range_text(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    """Returns the range of the values that were measured, as text."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return "not measured"
    ends = list(dict.fromkeys((text(known[0]), text(known[-1]))))
    return " to ".join(ends)


def _figures_text(change: Change, text: Callable[[float], str]) -> str:
    now = "not measured" if change.now is None else text(change.now)
    return f"{now}, was {range_text(change.before, text)}"


def _milliseconds(value: float) -> str:
    return f"{value:.3f} ms"


def _similarity(change: Change, metric: str) -> str:
    return f"{PLANS[change.what]} is {change.effect}: {_figures_text(change, lambda v: figure_text(metric, v))}"


def _latency(change: Change, _metric: str) -> str:
    side = {WORSE: "slower", BETTER: "faster"}[change.effect]
    return f"latency of {change.what} is {side}: {_figures_text(change, _milliseconds)}"


def _culprit(change: Change, metric: str) -> str:
    word = "new culprit" if change.effect == WORSE else "no longer a culprit:"
    return f"{word} '{change.what}', costs {_figures_text(change, lambda v: drop_text(metric, v))}"


def _drop(change: Change, metric: str) -> str:
    side = "more" if change.effect == WORSE else "less"
    return f"'{change.what}' costs {side}: {_figures_text(change, lambda v: drop_text(metric, v))}"


def _curve(change: Change, metric: str) -> str:
    figures = _figures_text(change, lambda v: figure_text(metric, v))
    return f"the curve at '{change.what}' is {change.effect}: {figures}"


def _outcome(change: Change, _metric: str) -> str:
    return f"'{change.what}': {change.now}, was {' or '.join(change.before)}"


def _obeyed(change: Change, _metric: str) -> str:
    word = "runs again" if change.effect == BETTER else "no longer runs"
    return f"'{change.what}' {word} in the requested precision"


def _recipe(change: Change, _metric: str) -> str:
    means = {WORSE: ", and no longer meets the threshold", BETTER: ", and meets the threshold again"}
    before = " or ".join(_high(high) for high in change.before)
    return f"the recipe leaves {_high(change.now)} high, was {before}{means.get(change.effect, '')}"


def _high(layers: Sequence[str]) -> str:
    return listed(layers, most=6) if layers else "no layer"


def _target(change: Change, metric: str) -> str:
    now = "is not measured" if change.now is None else f"measures {figure_text(metric, change.now)}"
    return f"{PLANS[change.what]} {now}, the target is {figure_text(metric, change.before[0])}"


def _threshold(change: Change, metric: str) -> str:
    now = "is not measured" if change.now is None else f"measures {figure_text(metric, change.now)}"
    missed = f"{PLANS[change.what]} {now}, the threshold is {figure_text(metric, change.before[0])}"
    if change.effect == WORSE:
        return f"{missed}: no baseline is made of that unless --update-baseline says so"
    return f"{missed}: a baseline of these figures fails only what becomes worse; a 'target' holds it to a figure"


def _layer(change: Change, _metric: str) -> str:
    return f"layer '{change.what}' is {change.now}"


def _part(change: Change, _metric: str) -> str:
    if not change.now:
        return "the whole network was judged, and a part of it before"
    return f"another part of the network was judged than before. {change.now}"


_SENTENCES: Mapping[str, Callable[[Change, str], str]] = {
    SIMILARITY: _similarity,
    LATENCY: _latency,
    CULPRIT: _culprit,
    DROP: _drop,
    CURVE: _curve,
    OUTCOME: _outcome,
    OBEYED: _obeyed,
    RECIPE_LAYERS: _recipe,
    TARGET: _target,
    THRESHOLD: _threshold,
    LAYER: _layer,
    PART: _part,
}
