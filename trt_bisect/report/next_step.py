"""The step to recommend after a run, with its command."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from trt_bisect.analyzer.doubts import CONSTANT, HELD_OUT as HELD_OUT_INPUTS
from trt_bisect.analyzer.metrics import figure_text
from trt_bisect.calibration.ranges import SCALE_INFINITE, SCALE_NOT_POSITIVE
from trt_bisect.model.cost import instead_of
from trt_bisect.precision import Precision
from trt_bisect.recipe.commands import TRT_BISECT, Setting, calibrating, running, using_fp16, using_recipe
from trt_bisect.report.answer import AnswerFacts
from trt_bisect.report.choices import (
    FP16,
    FP16_INSTEAD,
    LEAST_GAIN,
    MOST_GIVEN_UP,
    cheaper_remedies,
    choice_of,
    no_gain,
    other_of,
    pays_in_fp16,
    ships_fp16,
    speed_of,
)
from trt_bisect.report.given import DATA, NAMED
from trt_bisect.report.parts import UNMEASURED, WITH_DOUBTS, NextStep
from trt_bisect.report.summary import BASE, RECIPE
from trt_bisect.report.words import means
from trt_bisect.support.text import counted, listed, percent

if TYPE_CHECKING:
    from trt_bisect.report.model import Report

_MOST_HIGH = 20
_OF_INT8 = ("--low", "--base", "--precision", "--high", "--calibrator")
FILE, WHOLE, INPUTS, CHEAPER, DOUBT, GO_ON, SEARCH, BUILD, REQUANTIZE, OTHER_LAYERS = (
    *("another file", "whole network", "more inputs", "cheaper", "doubt", "go on"),
    *("search", "build", "quantize again", "other layers"),
)
_OF_DOUBTS = {CONSTANT: DATA, HELD_OUT_INPUTS: INPUTS}
_FIRST = {
    FILE: "change the network as described, then run again",
    DATA: "correct the data, or the file, as described, then run again",
    REQUANTIZE: "quantize the network again as described, then run it",
    WHOLE: "give ONNX Runtime the missing operators (--plugin), or accept the part (--accept)",
    INPUTS: "give more inputs, of other kinds, then run again",
    DOUBT: "check the doubts, and accept the plan if it is good enough",
}


def next_step(report: Report, setting: Setting, *, accept: bool) -> NextStep | None:
    """Returns the next step; None if nothing was measured.

    Args:
        setting: the run whose options the command repeats.
        accept: a plan with doubts counts as a pass.
    """
    if report.verdict == UNMEASURED:
        return None
    answer, goal = report.answer, report.goal
    kinds = {_OF_DOUBTS.get(doubt.kind, DOUBT) for doubt in (answer.doubts if answer else ())}
    kinds |= {FILE} if report.refused or report.inputs.random else set()
    kinds |= {DATA} if report.inputs.warnings else set()
    kinds |= {WHOLE} if report.inputs.part else set()
    if not report.recipe.meets and any(line.kind in (SCALE_INFINITE, SCALE_NOT_POSITIVE) for line in report.lines):
        kinds.add(REQUANTIZE)
    kind = "" if accept else next((kind for kind in _FIRST if kind in kinds), "")
    cheaper = _cheaper(report, setting) if kind in ("", DOUBT) and not ships_fp16(report) else None
    if cheaper is not None:
        return cheaper
    if kind == DOUBT and report.verdict != WITH_DOUBTS:
        kind = ""  # a failure is not accepted: the recipe's doubts are told, and it is built
    if kind == WHOLE:
        passes = report.verdict == WITH_DOUBTS
        return NextStep(WHOLE, _FIRST[WHOLE], running(setting, {"--accept": ()}).text if passes else "")
    if kind == INPUTS and ships_fp16(report):
        what = f"build FP16, until more inputs, of other kinds, give a recipe in {report.low.upper()} that holds"
        return NextStep(FP16_INSTEAD, what, using_fp16(setting, report.typing).text)
    if kind:
        return NextStep(kind, _FIRST[kind], running(setting, {"--accept": ()} if kind == DOUBT else {}).text)
    if ships_fp16(report):
        also = f"; recipe/README.md builds the recipe in {report.low.upper()}" if report.has_recipe else ""
        return NextStep(FP16_INSTEAD, f"build FP16{also}", using_fp16(setting, report.typing).text)
    if report.stopped and not report.recipe.meets:
        return NextStep(GO_ON, "continue with the same command", report.command)
    if report.stopped and _may_be_slower(report):
        what = "continue with the same command: FP16 may be faster, and was not measured yet"
        return NextStep(GO_ON, what, report.command)
    if not report.recipe.meets:
        return _without_recipe(report, setting)
    if mixed := pays_in_fp16(report):
        what = f"keep the layers in FP16: the recipe then {speed_of(report, mixed.cost)}"
        return NextStep(CHEAPER, what, running(setting, {**_folder(setting, "mixed"), "--precision": ("mixed",)}).text)
    fastest = ""
    if answer is not None and answer.cost > MOST_GIVEN_UP and goal.most is None:
        fp16 = choice_of(FP16, report.choices)
        if fp16 is not None and fp16.meets is False:
            return _in_fp16(report, answer, setting)
        if answer.cost >= 1.0:
            return _for_half(report, setting)
        fastest = ", the fastest plan found that passes"
    command = using_recipe(setting, report.typing).text
    if not report.has_recipe:
        return NextStep(BUILD, f"build full {report.low.upper()}", command)
    doubts = "check the doubts, then " if answer is not None and answer.doubts else ""
    return NextStep(RECIPE, f"{doubts}build the recipe: {means(report)}{fastest}", command)


def _without(setting: Setting, *options: str) -> Setting:
    return replace(setting, options={name: values for name, values in setting.options.items() if name not in options})


def _folder(setting: Setting, suffix: str) -> dict[str, tuple[str, ...]]:
    return {"--output": (f"{setting.folder}-{suffix}",)} if setting.folder else {}


def _may_be_slower(report: Report) -> bool:
    fp16, best = choice_of(FP16, report.choices), report.choices[-1] if report.choices else None
    if best is None or report.goal.most is not None or (fp16 is not None and fp16.meets is not None):
        return False
    if fp16 is not None and fp16.ms is not None and best.ms is not None:
        return best.ms > (1.0 - LEAST_GAIN) * fp16.ms
    return instead_of(Precision(report.low)) is Precision.FP16 and (best.gives_up or 0.0) > MOST_GIVEN_UP


def _without_recipe(report: Report, setting: Setting) -> NextStep:
    goal, low = report.goal, report.low.upper()
    base = next(iter(setting.options.get("--base", ())), "")
    in_fp32 = {**_folder(setting, "fp32"), "--precision": (str(Precision.FP32),)}
    if report.base_high:
        high = (*setting.options.get("--high", ()), *report.base_high)
        command = running(setting, {**in_fp32, "--high": high})
        what = f"keep {listed(report.base_high, NAMED)} in FP32: full {low} then meets the threshold"
        return NextStep(CHEAPER, what, command.text)
    if goal.most is not None:
        what = "search for the cheapest plan that meets the threshold, whatever it gives up"
        return NextStep(SEARCH, what, running(_without(setting, "--budget")).text)
    if any(line.kind == BASE for line in report.lines) and base:
        command = running(_without(setting, "--base"), {"--low": (base,), **_folder(setting, base)})
        what = f"find the layers that {base.upper()} cannot hold, then add --precision fp32 --high LAYER for each"
        return NextStep(SEARCH, what, command.text)
    searched = [row for row in report.layers if row.quantizable and not row.fixed]
    if {row.name for row in searched} <= {*report.recipe.high}:
        if searched and setting.high is Precision.FP16 and not base:
            what = "keep layers in FP32: with all of them in FP16 the threshold is missed"
            return NextStep(SEARCH, what, running(setting, in_fp32).text)
        if any(row.fixed for row in report.layers):
            return NextStep(OTHER_LAYERS, "fix other layers: with those that you fixed no plan meets the threshold", "")
    if not goal.drop and setting.options.get("--effort") != ("thorough",):
        command = running(setting, {"--effort": ("thorough",)})
        return NextStep(SEARCH, "search further: no plan tried meets the threshold", command.text)
    return _for_half(report, setting)


def _in_fp16(report: Report, answer: AnswerFacts, setting: Setting) -> NextStep:
    other = other_of(report).lower()
    command = running(_without(setting, *_OF_INT8), {"--low": (other,), **_folder(setting, other)})
    speed = f"the recipe in {report.low.upper()} {speed_of(report, answer.cost)}"
    if no_gain(report):
        speed = f"{report.low.upper()} is not predicted to be faster"
    what = f"find the layers that {other.upper()} cannot hold, as {speed}"
    return NextStep(SEARCH, what, command.text)


def _for_half(report: Report, setting: Setting) -> NextStep:
    most = f"for at most {percent(MOST_GIVEN_UP)} of {report.low.upper()}'s speedup over {other_of(report)}"
    command = running(setting, {"--budget": (percent(MOST_GIVEN_UP).replace(" ", ""),)})
    return NextStep(SEARCH, f"search for the most accurate plan {most}", command.text)


def _cheaper(report: Report, setting: Setting) -> NextStep | None:
    advised = [remedy for advice in report.advice for remedy in advice.remedies]
    for tried in cheaper_remedies(report):
        commands = [command for remedy in advised if remedy.tried == tried for command in remedy.commands]
        if tried.calibrator is not None and not tried.culprits:
            commands = [*calibrating(setting, tried.calibrator)]
        runs = [command.text for command in commands if command.tool == TRT_BISECT]
        if runs:
            speed = "at no cost in speed"
            if tried.high:
                speed = f"with {counted(tried.high, 'layer')} in high precision ({speed_of(report, tried.cost)})"
            figure = figure_text(report.metric, tried.similarity, report.threshold)
            is_named = tried.precision == str(setting.high) and tried.high <= _MOST_HIGH
            # No option keeps layers in FP16 around FP32, or in both: there a search finds them again.
            high = shlex.join(word for name in tried.layers if is_named for word in ("--high", name))
            return NextStep(CHEAPER, f"use {tried.title}: {figure} {speed}", f"{runs[0]} {high}".strip())
    return None
