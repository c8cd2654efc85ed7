"""The head of a report: the verdict in one sentence, and the step to go on with after the run.

The step is the cheapest that is not yet done, from the data to the engine.
"""

from __future__ import annotations

from dataclasses import replace

from trt_bisect.analyzer.doubts import CONSTANT, UNSEEN
from trt_bisect.analyzer.metrics import JUDGING, figure_text, threshold_text
from trt_bisect.recipe.commands import Command, Setting, calibrating, running, using_recipe
from trt_bisect.report.advice import CALIBRATOR
from trt_bisect.report.explanation import Tried
from trt_bisect.report.model import PASSES, UNMEASURED, WITH_DOUBTS, NextStep, Report
from trt_bisect.report.screen.run import setting_text
from trt_bisect.report.summary import NO_RECIPE, TOO_DEAR, means
from trt_bisect.support.text import counted, percent

_OF_THE_PART = " of the part that was judged"


def headline(report: Report, status: str = "finished") -> str:
    """Returns the verdict in one sentence, or the progress of a run that is not finished.

    Args:
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


DATA, WHOLE, INPUTS = "data", "whole network", "more inputs"
CHEAPER, DOUBT, GO_ON = "cheaper", "doubt", "go on"
SEARCH, RECIPE, BUILD = "search", "recipe", "build"
"""The kinds of steps, in the order in which they are taken."""
_OF_DOUBTS = {CONSTANT: DATA, UNSEEN: INPUTS}
"""The steps that doubts ask for; the other kinds ask for a look."""
_FIRST = {
    DATA: "correct the data as described above, then run again",
    WHOLE: "give ONNX Runtime the missing operators (--plugin), or accept the part (--accept)",
    INPUTS: "give more inputs, of other kinds, then run again",
    DOUBT: "check the doubts, and accept the plan if it is good enough",
}
"""The steps before any plan can be trusted."""


def next_step(report: Report, setting: Setting, *, accept: bool) -> NextStep | None:
    """Returns the step to go on with; None if nothing was measured.

    Args:
        accept: the user takes a doubted plan as it is.
    """
    if report.verdict == UNMEASURED:
        return None
    kind = "" if accept else _before_trust(report)
    cheaper = _cheaper(report, setting) if kind in ("", DOUBT) else None
    if cheaper is not None:
        return cheaper
    if kind:
        return NextStep(kind, _FIRST[kind], running(setting, {"--accept": ()} if kind == DOUBT else {}).text)
    if report.stopped and not report.recipe.meets:
        return NextStep(GO_ON, "continue with the same command", report.command)
    if not report.recipe.meets:
        return _search_further(report, setting)
    if report.answer is not None and report.answer.cost > TOO_DEAR and report.goal.most is None:
        return _within_budget(report, setting)
    command = using_recipe(setting, report.typing).text
    if not report.has_recipe:
        return NextStep(BUILD, f"build full {report.low.upper()}", command)
    return NextStep(RECIPE, f"build the recipe: {means(report)}", command)


def _search_further(report: Report, setting: Setting) -> NextStep:
    """The search to make where no plan tried meets what is asked: without a budget, else longer, else within one.

    Where an accuracy decides, the search was thorough.
    """
    if report.goal.most is not None:
        free = {name: values for name, values in setting.options.items() if name != "--budget"}
        command = running(replace(setting, options=free)).text
        return NextStep(SEARCH, "search for the cheapest plan that meets the threshold, whatever it gives up", command)
    if not report.goal.drop and setting.options.get("--effort") != ("thorough",):
        command = running(setting, {"--effort": ("thorough",)}).text
        return NextStep(SEARCH, "search further: no plan tried meets the threshold", command)
    return _within_budget(report, setting)


def _within_budget(report: Report, setting: Setting) -> NextStep:
    most = f"for at most {percent(TOO_DEAR)} of {report.low.upper()}'s gain in speed"
    command = running(setting, {"--budget": (percent(TOO_DEAR).replace(" ", ""),)}).text
    return NextStep(SEARCH, f"search for the most accurate plan {most}", command)


def _before_trust(report: Report) -> str:
    """The step before any plan can be trusted: the first in order of what speaks against the data or the plan."""
    asked = {_OF_DOUBTS.get(doubt.kind, DOUBT) for doubt in (report.answer.doubts if report.answer else ())}
    asked |= {DATA} if report.inputs.warnings else set()
    asked |= {WHOLE} if report.inputs.part else set()
    return next((kind for kind in _FIRST if kind in asked), "")


def _cheaper(report: Report, setting: Setting) -> NextStep | None:
    """The best remedy that was measured to cost less than the recipe; None without one, and where a goal decides."""
    if report.goal.drop or report.goal.most is not None:
        return None
    least = report.answer.cost if report.answer and report.recipe.meets else float("inf")
    known = [
        Tried((), CALIBRATOR, row.calibrator, row.similarity, None, True, row.by)
        for row in (report.answer.free_ranges if report.answer and report.recipe.high else ())
        if row.by is not None
    ]
    known += [
        each
        for each in (report.explanation.tried if report.explanation else ())
        if each.meets and (each.culprits or each.high or each.calibrator is None or known)
    ]
    by_cost = sorted((each for each in known if each.cost < least), key=lambda each: (each.cost, each.loss or 0.0))
    for best in by_cost:
        command = _command_of(best, report, setting)
        if command is not None:
            left = f"with {counted(best.high, 'layer')} in high precision" if best.high else "at no cost in speed"
            figure = figure_text(report.metric, best.similarity, report.threshold)
            return NextStep(CHEAPER, f"use {best.title}: {figure} {left}", command.text)
    return None


def _command_of(tried: Tried, report: Report, setting: Setting) -> Command | None:
    remedies = (remedy for advice in report.advice for remedy in advice.remedies)
    known = next((each.commands[0] for each in remedies if each.tried == tried and each.commands), None)
    if known is None and tried.calibrator is not None and not tried.culprits:
        return calibrating(setting, tried.calibrator)[0]
    return known
