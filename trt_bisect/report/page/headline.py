"""The verdict in one sentence, for the top of the page and for the screen as soon as it is known."""

from __future__ import annotations

from trt_bisect.analyzer.metrics import JUDGING, figure_text, threshold_text
from trt_bisect.report.model import Report
from trt_bisect.report.screen.run import setting_text
from trt_bisect.report.summary import NO_RECIPE, means
from trt_bisect.report.verdict import PASSES, UNMEASURED, WITH_DOUBTS
from trt_bisect.support.text import counted

_OF_THE_PART = " of the part that was judged"


def headline(report: Report, status: str = "finished") -> str:
    """Returns the verdict in one sentence, or the progress of a run that is not finished.

    Args:
        report: the report of a finished run, or of one under way.
        status: ``finished``, ``running`` or ``interrupted``.
    """
    if status != "finished":
        word = "Still running" if status == "running" else "Interrupted"
        return _so_far(report, status) if report.answer is None else f"{word}. So far: {headline(report)}"
    verdict = report.verdict
    if verdict == UNMEASURED and report.stopped:
        return f"Stopped before full {report.low.upper()} was measured on all inputs."
    if verdict == UNMEASURED:
        return "Nothing could be measured: no engine could be built and run."
    threshold = "-" if report.least is None else threshold_text(report.figure, report.least)
    full = f"Full {report.low.upper()}{_OF_THE_PART if report.inputs.part else ''}"
    if verdict == PASSES:
        return f"{full} passes: it meets {threshold}, and no layer has to stay in high precision."
    if verdict == WITH_DOUBTS:
        return f"{full} passes, but doubtful: it meets {threshold}, and the doubts speak against it."
    misses = "gives no figure" if report.figures.int8 is None else f"misses {threshold}"
    if report.recipe.meets:
        cure = f"{means(report)} {'restores' if means(report).startswith('1 layer') else 'restore'} it"
    else:
        cure = "no recipe is known yet" if _is_unfinished(report) else "no plan tried meets it"
    return f"{full} {verdict}: it {misses}; {_blame(report)}, and {cure}."


def fragile(report: Report) -> tuple[str, ...]:
    """Returns clauses on what would reverse the verdict on the recipe: noise, or another setting of the engine."""
    answer, metric = report.answer, JUDGING.get(report.metric)
    if answer is None or not report.recipe.meets:
        return ()
    said = ["noise could reverse the verdict"] if answer.close else []
    if metric is None:
        return tuple(said)
    for name, value in answer.settings.items():
        if value is None or metric.loss(value) > metric.loss(report.threshold):
            figure = figure_text(report.metric, value, report.threshold)
            said.append(f"with {setting_text(name)} the network misses the threshold ({figure})")
    return tuple(said)


def _so_far(report: Report, status: str) -> str:
    tried = [row for row in report.layers if row.quantizable]
    done = sum(row.outcome != "not tried" for row in tried)
    suspects = sum(bool(row.suspect) for row in report.layers)
    word = "Measuring" if status == "running" else "Interrupted"
    return f"{word}: {done} of {len(tried)} layers judged, {counted(suspects, 'suspect')} so far."


def _blame(report: Report) -> str:
    if len(report.culprits) == 1:
        return f"'{report.culprits[0]}' is to blame"
    main, weak = report.ranked_culprits
    if main and weak:
        who = f"'{main[0].name}'" if len(main) == 1 else f"{len(main)} layers"
        return f"{who} and {counted(len(weak), 'weak culprit')} are to blame"
    if _is_unfinished(report) and not report.culprits:
        return "the culprits are not known yet"
    return f"{len(report.culprits)} layers are to blame" if report.culprits else "no single layer is to blame"


def _is_unfinished(report: Report) -> bool:
    """True if the search of the recipe was stopped, or goes on."""
    stopped = bool(report.stopped) or (report.answer is not None and bool(report.answer.not_done))
    return stopped and not any(line.kind == NO_RECIPE for line in report.lines)
