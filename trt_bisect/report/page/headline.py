"""The verdict in one sentence, for the top of the page."""

from __future__ import annotations

from trt_bisect.results.figure_text import figure_text
from trt_bisect.results.recovery import Recovery
from trt_bisect.results.run_report import Report
from trt_bisect.results.summary import FIGURES, over_inputs


def headline(report: Report, status: str = "finished") -> str:
    """Returns the verdict in one sentence, or the progress of a run that is not finished.

    Args:
        report: of a finished run, or of one under way.
        status: ``finished``, ``running`` or ``interrupted``.
    """
    if status != "finished":
        return _so_far(report, status)
    if report.exit_code == 3:
        return "Nothing could be measured: no plan's engine was built and run."
    figure, low = FIGURES.get(report.metric, report.metric), report.low.upper()
    int8, threshold = _over_inputs(report, "int8"), _text(report, report.threshold)
    if report.exit_code == 0:
        return f"In full {low} the {figure} is {int8}, within the threshold of {threshold}: no layer is to blame."
    if report.similarity.get("int8") is None:
        return f"Full {low} gives no figure: {_blame(report)}, and {_cure(report)}."
    return f"In full {low} the {figure} is {int8}, which misses {threshold}: {_blame(report)}, and {_cure(report)}."


def recovered_headline(found: Recovery) -> str:
    """Returns the result of ``recover`` in one sentence."""
    int8, recipe = (
        found.text(found.measured.get(plan)) + over_inputs(found.by_input.get(plan), found.text)
        for plan in ("int8", "recipe")
    )
    least = found.text(found.target.get("least"))
    start = f"In full INT8 the {FIGURES.get(found.figure, found.figure)} is {int8}"
    if found.meets and not found.high and not found.moves:
        return f"{start}, which meets the target of {least}: nothing has to be left high."
    scales, high = len(found.moves), len(found.high)
    changes = [f"{scales} other {'scale' if scales == 1 else 'scales'}"] if scales else []
    left = f"{high} {'layer' if high == 1 else 'layers'} in {found.precision.upper()}"
    changes.append(left if high else "all layers in INT8")
    ends = "meets" if found.meets else "misses"
    return (
        f"{start}; with {' and '.join(changes)} it is {recipe}, which {ends} the target of {least} and gives up "
        f"{found.cost:.2%} of INT8's gain in speed."
    )


def _so_far(report: Report, status: str) -> str:
    tried = [row for row in report.layers if row.quantizable]
    done = sum(row.outcome != "not tried" for row in tried)
    found = f"{len(report.culprits)} {'culprit' if len(report.culprits) == 1 else 'culprits'} so far"
    word = "Measuring" if status == "running" else "Interrupted"
    return f"{word}: {done} of {len(tried)} layers judged, {found}."


def _blame(report: Report) -> str:
    if len(report.culprits) == 1:
        return f"'{report.culprits[0]}' is to blame"
    return f"{len(report.culprits)} layers are to blame" if report.culprits else "no single layer is to blame"


def _cure(report: Report) -> str:
    restored, high = _text(report, report.similarity.get("recipe")), len(report.recipe.get("high", ()))
    layers = f"{high} {'layer' if high == 1 else 'layers'} in {report.precision.upper()}"
    if report.recipe.get("meets"):
        return f"with {layers} it is {restored}"
    return f"no plan that was tried meets it, {layers} gave {restored}"


def _over_inputs(report: Report, plan: str) -> str:
    """Returns a plan's figure and the inputs that it is of, without their mean, which stands below."""
    facts = report.by_input.get(plan)
    text = _text(report, report.similarity.get(plan))
    if not facts:
        return text
    inputs = "over {} inputs together" if facts.get("together") else "on the worst of {} inputs"
    return f"{text} {inputs.format(facts['inputs'])}"


def _text(report: Report, value: float | None) -> str:
    return figure_text(report.metric, value)
