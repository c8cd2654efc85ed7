"""A run's report on the screen and in Markdown."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trt_bisect.analyzer.blame import BOTH
from trt_bisect.analyzer.metrics import ACCURACY, AGREEMENT, EQUAL, KAPPA, figure_text, loss_text, metric_texts
from trt_bisect.data.statistics import FedInput
from trt_bisect.report.advice import NO_SINGLE_CAUSE
from trt_bisect.report.answer import AS_CHEAP, RECIPE, AnswerFacts, CalibratorRow, FrontPoint, Held
from trt_bisect.report.choices import (
    FP16,
    FP16_INSTEAD,
    FP32,
    INT8,
    RECIPE as RECIPE_PLAN,
    Choice,
    choice_of,
    costs_from,
    speed_of,
)
from trt_bisect.report.explanation import EXPLANATION, Cause, CulpritAdvice, Explanation, Remedy, Tried
from trt_bisect.report.given import DOUBTING
from trt_bisect.report.parts import FOLLOWS, NOT_TRIED, STYLES, WITH_DOUBTS, LayerRow, NetworkRow
from trt_bisect.report.screen.layout import ScreenPart, fitted, fitting, height, spaced, titled, with_columns_that_fit
from trt_bisect.report.summary import FEW_INPUTS
from trt_bisect.report.words import asked_for
from trt_bisect.support.table import DECIDING, FIGURE, PERCENT
from trt_bisect.support.text import Line, counted, listed, number, percent

if TYPE_CHECKING:
    from trt_bisect.report.model import Report

NOTES_UP_TO = 5
LINES = 40
"""The most lines of ``run``'s screen, unless the verdict is unusually long."""
_AROUND = 8  # lines that the command prints around the report, and that name parts left out
_ROWS, _FEW_ROWS = 5, 3
_SUSPECTS = 3
_OUTPUTS = 4
_LATENCIES = 10
_FED = 3
SEEN_BY = {"calibration": "calibration", "judged": "search"}


def print_report(report: Report, console: Console, *, every_layer: bool = False, around: int = _AROUND) -> None:
    """Prints the report on one screen, leaving ``around`` lines free; with ``every_layer`` all of it."""
    report = report.titled
    print_verdict(report, console)
    parts = [*_parts(report, console), *_note_parts(report)]
    if every_layer:
        parts = [part for part in parts if part.name != "causes"]  # the advice at the end has them
    tried = [row for row in report.layers if row.quantizable and row.outcome != NOT_TRIED]
    if tried or every_layer:
        table = layer_table(report, report.rows if every_layer else tried, console)
        parts.append(ScreenPart(f"curve of {counted(len(tried), 'layer')}", 9, [spaced(table)]))
    head = [verdict_lines(report.lines, report.verdict), _next(report)]
    if report.choices:
        head.append(Text("\n" * (len(report.choices) + 3)))
    room = LINES - 1 - around - sum(height(text, console) for text in head)
    shown = dict.fromkeys(range(len(parts)), 0) if every_layer else fitting(parts, console, room)
    for index, version in sorted(shown.items()):
        console.print(parts[index].versions[version])
    hidden = [part.name for index, part in enumerate(parts) if index not in shown and part.name]
    if hidden:
        console.print(Text(f"More in report.html: {', '.join(hidden)} (--all-layers prints it here).", style="dim"))
    if every_layer and report.explanation is not None:
        print_advice(report, report.explanation, console)


def print_verdict(report: Report, console: Console) -> None:
    """Prints the verdict, the plans to ship, the next step, doubts and reasons."""
    report = report.titled
    verdict, reasons = verdict_first(report)
    console.print(verdict_lines(verdict, report.verdict))
    if report.choices:
        console.print(spaced(choices_table(report)), Text(""))
    if next_lines(report):
        console.print(_next(report), soft_wrap=True)
    if report.networks:
        console.print(spaced(networks_table(report, console)))
    if reasons:
        console.print(Text(""))
        console.print(verdict_lines(reasons, report.verdict))


def networks_table(report: Report, console: Console) -> Table:
    """Returns the table of a pipeline's networks."""
    texts = {FIGURE: partial(figure_text, report.metric, threshold=report.threshold)}
    style = lambda row: "" if row.meets else "yellow"  # noqa: E731
    return fitted(NetworkRow, report.networks, console, names=report.names, style=style, texts=texts)


def choices_table(report: Report) -> Table:
    """Returns the table of plans to ship, with times or speedups."""
    rows = [_choice_cells(report, choice) for choice in report.choices]
    table = titled(*rows[0])
    for choice, cells in zip(report.choices, rows, strict=True):
        table.add_row(*map(Text, cells.values()), style="yellow" if choice.meets is False else "")
    return table


def _choice_cells(report: Report, choice: Choice) -> dict[str, str]:
    # by title of the column
    passes = {None: "-", True: "yes", False: "no"}[choice.meets]
    fp16_doubted = choice.plan == FP16 and choice.meets and (choice.held_out is False or report.refused)
    verdict = {INT8: report.verdicts.int8, RECIPE_PLAN: report.verdicts.recipe}.get(choice.plan)
    if verdict == WITH_DOUBTS or (fp16_doubted and not report.accept):
        passes = "doubtful"
    worst = "reference" if choice.plan == FP32 else "no figure"
    if choice.plan == FP16 and choice.meets is None:
        worst = "not measured"
    if choice.similarity is not None:
        worst = figure_text(report.metric, choice.similarity, report.threshold)
    by_input = report.by_input.int8
    inputs = "all inputs>" if by_input is not None and by_input.together else "worst input>"
    cells = {"plan": _plan_name(report, choice), "passes": passes, inputs: worst}
    if report.accuracy is not None:
        cells["accuracy>"] = figure_text(ACCURACY, choice.accuracy)
    if any(each.ms is not None for each in report.choices):
        of_fp32, ms = choice_of(FP32, report.choices), choice.ms
        title = "ms (measured)"
        if not report.latency and report.predicted is not None:
            title = f"ms (predicted on {report.predicted.gpu})"
        cells[f"{title}>"] = "-" if ms is None else f"{ms:.3g}"
        cells["speed, FP32 = 1>"] = "-"
        if of_fp32 is not None and of_fp32.ms and ms:
            cells["speed, FP32 = 1>"] = f"{of_fp32.ms / ms:.2f}"
        return cells
    kept = "-" if choice.gives_up is None else percent(1.0 - choice.gives_up)
    if choice.gives_up is not None and choice.gives_up > 1.0:
        kept = "slower"
    by_macs = report.goal.costs == "macs"
    costs = "(by multiply-adds; time: --gpu)" if by_macs else costs_from(report.goal.costs)
    cells[f"speedup kept {costs}>"] = kept
    return cells


def _plan_name(report: Report, choice: Choice) -> str:
    names = {INT8: f"full {report.low.upper()}", RECIPE_PLAN: "recipe"}
    return names.get(choice.plan, choice.plan.upper())


def plan_texts(report: Report) -> list[str]:
    """Returns a text for each plan with the figure that decides, and the time if known."""
    texts = []
    for choice in report.choices:
        value = choice.accuracy if report.goal.drop else choice.similarity
        told = [] if choice.plan == FP32 and value is None else [report.text(value)]
        told += [] if choice.ms is None else [f"in {choice.ms:.3g} ms"]
        if told:
            texts.append(f"{_plan_name(report, choice)} {' '.join(told)}")
    return texts


def verdict_first(report: Report) -> tuple[Sequence[Line], Sequence[Line]]:
    """Splits the report's lines into those that say which plan to ship, and the others."""
    if report.verdict not in {line.kind for line in report.lines}:
        return report.lines, ()
    first = [line for line in report.lines if line.kind in (FP16_INSTEAD, report.verdict)]
    return first, [line for line in report.lines if line not in first]


def next_lines(report: Report) -> list[str]:
    """Returns a line with the next step and one with its command, if any."""
    step = report.next
    if step is None:
        return []
    if not step.command:
        return [f"NEXT: {step.what}."]
    return [f"NEXT: {step.what}:", step.command]


def _next(report: Report) -> Text:
    return Text("\n".join(next_lines(report)), style="bold", overflow="fold")


def _parts(report: Report, console: Console) -> Iterator[ScreenPart]:
    if report.culprits:
        yield ScreenPart("culprits", 0, [spaced(_culprits(report, rows, console)) for rows in (_ROWS, _FEW_ROWS)])
    if report.explanation is not None:
        short = causes_in_short(report, report.explanation)
        yield from (ScreenPart("causes", 2, [short]),) if short else ()
    if suspects := _suspects(report):
        lengths = range(len(suspects), 0, -1)
        yield ScreenPart("suspects", 5, [spaced(Text("\n".join(suspects[:length]))) for length in lengths])
    if any(len(figures) > 1 for _, figures in report.outputs.items()):
        yield ScreenPart("outputs", 4, [spaced(table) for table in output_tables(report)])
    if report.answer is not None:
        yield from _answer_parts(report, report.answer, console)
    if (fed := _fed(report)) is not None:
        yield ScreenPart("input values", 6, [spaced(fed)])
    if report.answer is not None and report.answer.confidence:
        yield ScreenPart("confidence", 1, [Text(f"Confidence: {report.answer.rests_on}")])
    for name, lines in (("latency", latency_lines(report)), ("predicted", predicted_lines(report))):
        if lines:
            yield ScreenPart(name, 2, [Text("\n".join(lines)), Text(lines[0])])


def _answer_parts(report: Report, answer: AnswerFacts, console: Console) -> Iterator[ScreenPart]:
    if len(answer.calibrators) > 1:
        usable = [row for row in answer.calibrators if row.chosen or row.meets or row.cost is not None]
        rows = (answer.calibrators, usable) if len(usable) > 1 else (answer.calibrators,)
        why = _why_chosen(report, answer.calibrators)
        tables = [_calibrators(report, shown, console) for shown in rows]
        explained = [spaced(Group(table, Text(why))) for table in tables] if why else []
        yield ScreenPart("calibrators", 5, [*explained, *map(spaced, tables)])
    if report.front:
        named = [point for point in report.front if point.names]
        yield ScreenPart("front", 1, [spaced(front_table(report, points, console)) for points in (report.front, named)])
    if sets := sets_of_inputs(answer):
        plan = "Recipe" if report.has_recipe else f"Full {report.low.upper()}"
        table = titled(f"{plan} on", "passes>", "mean>", "5th perc.>", "worst>", "which")
        for name, held in sets:
            style = "" if held.holds == held.inputs else "yellow"
            table.add_row(*map(Text, held_cells(report, name, held)), style=style)
        yield ScreenPart("inputs", 0, [spaced(with_columns_that_fit(table, console, ("which", "mean")))])
    text = partial(figure_text, report.metric, threshold=report.threshold)
    settings = ", ".join(f"{name} {text(value)}" for name, value in answer.settings.items())
    if len(answer.settings) > 1:
        yield ScreenPart("other settings", 7, [Text(f"Worst input in other settings: {settings}.")])
    if answer.equals:
        equals = " or ".join(listed(names, 4) for names in answer.equals[:2])
        yield ScreenPart("other recipes", 8, [Text(f"Equally good sets of layers: {equals}.")])


def _note_parts(report: Report) -> Iterator[ScreenPart]:
    notes, count, versions = report.notes[:NOTES_UP_TO], len(report.notes), []
    for shown in range(len(notes), 0, -1):
        lines = [f"Note: {note.text}" for note in notes[:shown]]
        if count > shown:
            are = "note is" if count == shown + 1 else "notes are"
            lines.append(f"{count - shown} more {are} in report.json.")
        versions.append(Text("\n".join(lines), style="yellow"))
    if versions:
        yield ScreenPart(counted(count, "note"), 5, versions)


def verdict_lines(lines: Sequence[Line], verdict: str) -> Text:
    """Returns lines in the colour of the verdict, doubts in their own colour."""
    text, style = Text(), STYLES[verdict]
    for k, line in enumerate(lines):
        text.append("\n" if k else "")
        text.append(line.text, STYLES[WITH_DOUBTS] if line.kind in (*DOUBTING, FEW_INPUTS) else style)
    return text


def _culprits(report: Report, most: int, console: Console) -> Table:
    main, weak = report.ranked_culprits
    causes = {advice.culprit: _cause(advice) for advice in report.advice}
    back = f"{report.put_back_title}>"
    table = titled(f"Culprit{report.of_unchanged}", "Op", back, *(["Cause"] if causes else []), "Loss>", "Alone>")
    for rank, row in enumerate((*main, *weak)[:most]):
        if rank == len(main):
            table.add_row(Text("Weak (for the margin, or within the noise):"), style="dim")
        name, op_type, put_back, *losses = culprit_cells(report, row)
        cause = [causes.get(name, "")] if causes else []
        style = "red" if rank < len(main) else "yellow"
        table.add_row(*map(Text, (name, op_type, put_back, *cause, *losses)), style=style)
    hidden = len(main) + len(weak) - most
    if hidden > 0:
        others = hidden - min(hidden, len(weak))
        kinds = [f"{others} more" if others else "", f"{hidden - others} weak" if hidden > others else ""]
        table.add_row(Text(f"{' and '.join(filter(None, kinds))}, in layers.csv"), style="dim")
    return with_columns_that_fit(table, console, ("Op", "Alone", "Loss"), prose=("Cause",))


def culprit_cells(report: Report, row: LayerRow) -> tuple[str, ...]:
    """Returns as texts a culprit's name, operator, the recipe's figure with it in INT8, its loss on the curve, and
    ``alone``.
    """
    losses = (loss_text(report.metric, value) for value in (row.loss, row.alone))
    return row.name, row.op_type, report.put_back_text(row), *losses


def _cause(advice: CulpritAdvice) -> str:
    reason = advice.reasons[0] if advice.reasons else NO_SINGLE_CAUSE
    if advice.blame is None:
        return reason
    side = "weight and activation" if advice.blame == BOTH else advice.blame
    return f"{side}: {reason}"


def _suspects(report: Report) -> list[str]:
    rows = sorted((row for row in report.layers if row.suspect), key=lambda row: -(row.loss or 0.0))
    losses = [(row, loss_text(report.metric, row.loss)) for row in rows[:_SUSPECTS]]
    lines = [f"Suspect '{row.name}' (loss {loss}): {row.suspect}." for row, loss in losses]
    if len(rows) > _SUSPECTS:
        lines.append(f"{len(rows) - _SUSPECTS} more suspects are in report.html.")
    return lines


def _calibrators(report: Report, rows: Sequence[CalibratorRow], console: Console) -> Table:
    full = f"Full {report.low.upper()}>"
    table = titled("Calibrator", full, "inputs>", "passes", "first recipe>", "layers>", "mean loss>", "")
    for row in rows:
        table.add_row(*map(Text, calibrator_cells(report, row)), style="bold" if row.chosen else "")
    return with_columns_that_fit(table, console, ("inputs", "mean loss", "layers", "passes"))


def _why_chosen(report: Report, rows: Sequence[CalibratorRow]) -> str:
    known = [(row.cost, row.mean_loss, row) for row in rows if row.cost is not None and row.mean_loss is not None]
    chosen = next((entry for entry in known if entry[2].chosen), None)
    if chosen is None or chosen[0] <= min(cost for cost, _, _ in known):
        return ""
    (cost, mean, row), (its_cost, its_mean, cheapest) = chosen, min(known, key=lambda entry: entry[0])
    if cost > its_cost + AS_CHEAP or mean >= its_mean:
        return f"{row.calibrator} is chosen by the recipes that hold on all inputs, not by the first ones."
    text = f"{report.cost_text(cost)} with {counted(row.high or 0, 'layer')}"
    its_text = f"{report.cost_text(its_cost)} with {counted(cheapest.high or 0, 'layer')}"
    return (
        f"{row.calibrator} is chosen: its first recipe costs about as much as the recipe of {cheapest.calibrator} "
        f"({text}, not {its_text}) and loses less (on average {loss_text(report.metric, mean)}, not "
        f"{loss_text(report.metric, its_mean)}), so it is more likely to pass on new inputs."
    )


def calibrator_cells(report: Report, row: CalibratorRow) -> tuple[str, ...]:
    """Returns a calibrator's cells in the table of calibrators; ``or worse`` if not all inputs were run."""
    metric, answer = report.metric, report.answer
    layers = "-" if row.high is None else str(row.high)
    figure = figure_text(metric, row.similarity, report.threshold)
    if answer is not None and answer.is_bound(row):
        figure += " or worse"
    mean = loss_text(metric, row.mean_loss)
    meets, chosen = "yes" if row.meets else "no", "chosen" if row.chosen else ""
    if report.goal.drop:
        meets = "-"  # the accuracy decides, and was not measured with each calibrator
    return row.calibrator, figure, str(row.inputs), meets, report.cost_text(row.cost), layers, mean, chosen


def _fed(report: Report) -> Text | None:
    by_source = report.inputs.fed
    names = dict.fromkeys(name for inputs in by_source.values() for name in inputs)
    lines = [f"Pictures of {source}: {way}." for source, way in report.inputs.pictures.items()]
    for name in [*names][:_FED]:
        spreads = [f"{SEEN_BY.get(by, by)} {_spread(fed[name])}" for by, fed in by_source.items() if name in fed]
        lines.append(f"Values of input '{name}': {'; '.join(spreads)}.")
    return Text("\n".join(lines)) if lines else None


def _spread(fed: FedInput) -> str:
    least, most, mean, std = number(fed.least, 4), number(fed.most, 4), number(fed.mean, 3), number(fed.std, 3)
    return f"{least} to {most} (mean {mean}, std {std})"


def sets_of_inputs(answer: AnswerFacts) -> list[tuple[str, Held]]:
    """Returns pairs of a title and the recipe's figures: for given and for held-out inputs, if measured."""
    sets = (("your inputs", answer.given), ("held-out inputs", answer.held_out))
    return [(name, held) for name, held in sets if held is not None]


def held_cells(report: Report, name: str, held: Held) -> tuple[str, ...]:
    """Returns the cells of a set of inputs: name, number that passes, mean, fifth and worst figure, worst input."""
    figures = (figure_text(report.metric, value, report.threshold) for value in (held.mean, held.fifth, held.worst))
    return name, f"{held.holds} of {held.inputs}", *figures, held.worst_input.rsplit("/", 1)[-1]


def layer_table(report: Report, rows: Sequence[LayerRow], console: Console) -> Table:
    """Returns the table of the curve, one layer per row."""
    texts = {**metric_texts(report.metric, report.threshold), DECIDING: report.text}
    return fitted(LayerRow, rows, console, names=report.names, without=[report.metric], style=_style, texts=texts)


def front_table(report: Report, points: Sequence[FrontPoint], console: Console) -> Table:
    """Returns the table of plans of the front."""

    def style(point: FrontPoint) -> str:
        return "bold" if RECIPE in point.names else ""

    texts = {**metric_texts(report.figure, report.least), PERCENT: report.cost_text}
    return fitted(FrontPoint, points, console, names=report.names, style=style, texts=texts)


def output_tables(report: Report) -> list[Table]:
    """Returns a table of final outputs and, with a task, a shorter table of those that the task judges."""
    of_task, figures = report.metric == AGREEMENT.name, report.outputs.int8
    shown = list(dict.fromkeys(name for _, of_plan in report.outputs.items() for name in of_plan))
    if len(shown) > _OUTPUTS:
        sqnrs = {name: figures.get(name, {}).get("sqnr") for name in shown}
        shown.sort(key=lambda name: -math.inf if (sqnr := sqnrs[name]) is None else sqnr)
        del shown[_OUTPUTS:]
    judged = [name for name in shown if any(AGREEMENT.name in plan.get(name, {}) for _, plan in report.outputs.items())]
    return [_output_table(report, names, of_task=of_task) for names in ([shown, judged] if of_task else [shown])]


def _output_table(report: Report, shown: Sequence[str], *, of_task: bool) -> Table:
    measured = {metric for _, of_plan in report.outputs.items() for name in shown for metric in of_plan.get(name, ())}
    columns = (AGREEMENT.name, "cosine", "sqnr") if of_task else tuple(dict.fromkeys((report.metric, "sqnr")))
    columns = (*columns, *(metric for metric in (EQUAL.name, KAPPA) if metric in measured and metric not in columns))
    metrics = [metric for metric in columns if metric in measured] if of_task else columns
    table = titled("Output", "Plan", *metrics, *(("counted",) if of_task else ()))
    plans = {report.low: report.outputs.int8, **({"recipe": report.outputs.recipe} if report.has_recipe else {})}
    for plan, outputs in plans.items():
        for name, values in ((name, outputs[name]) for name in shown if name in outputs):
            is_task = AGREEMENT.name in values
            figures = {AGREEMENT.name: values[AGREEMENT.name]} if is_task else values
            texts = [
                figure_text(metric, figures.get(metric), report.threshold if metric == report.metric else None)
                for metric in metrics
            ]
            counts = ", ".join(f"{key} {value:.6g}" for key, value in values.items() if is_task and key not in figures)
            table.add_row(*map(Text, (name, plan, *texts, *([counts] if of_task else []))))
    return table


def latency_lines(report: Report) -> list[str]:
    """Returns lines on the latency of each plan and each layer in high precision."""
    timed = {plan: latency for plan, latency in (report.latency or {}).items() if latency}
    if not timed:
        return []
    plans = []
    for plan, latency in timed.items():
        p99 = "" if latency.p99_ms is None else f" (p99 {latency.p99_ms:.3f})"
        plans.append(f"{plan} {latency.mean_ms:.3f} ms{p99}")
    lines = [f"Latency, mean: {', '.join(plans)}"]
    for name in report.recipe.high[:_LATENCIES]:
        int8, high = (report.layer_milliseconds(plan, name) for plan in ("int8", "recipe"))
        if int8 is not None and high is not None:
            times = f"{int8:.4f} ms in {report.low.upper()}, {high:.4f} ms in the recipe"
            lines.append(f"'{name}' and what is fused with it: {times}")
    return lines


def predicted_lines(report: Report) -> list[str]:
    """Returns lines on predicted times, the slowest kernels and reformats."""
    times = report.predicted
    if times is None:
        return []
    plans = (f"{plan} {time}" for plan, time in times.plans.items())
    lines = [f"Predicted on {times.gpu}: {', '.join(plans)}"]
    if times.slowest:
        lines.append(f"Longest kernels: {', '.join(f'{kernel.name} {kernel.ms:.3f} ms' for kernel in times.slowest)}")
    if times.reformats:
        ms = sum(kernel.ms for kernel in times.reformats)
        lines.append(f"The recipe adds {counted(len(times.reformats), 'reformat')} between layers: {ms:.3f} ms")
    return lines


def _style(row: LayerRow) -> str:
    if row.culprit:
        return "bold red"
    if row.outcome in (FOLLOWS, NOT_TRIED):
        return "dim"
    return "" if row.outcome == "measured" else "yellow"


CULPRITS_UP_TO = 5
_CAUSES_UP_TO = _MEETING_UP_TO = _MISSING_UP_TO = 3


def print_advice(report: Report, explanation: Explanation, console: Console) -> None:
    """Prints the causes, and each culprit's evidence and remedies."""
    for cause in explanation.causes:
        console.print(Text(_title(cause, explanation), style="bold"))
        for line in _measured_lines(report, cause.measured):
            console.print(line)
        if cause.remedies:
            names = ", ".join(remedy.remedy for remedy in cause.remedies)
            console.print(_indented(Text(f"Not measured: {names}", style="dim")))
    console.print()
    for advice in explanation.advice[:CULPRITS_UP_TO]:
        console.print(Text(advice.evidence))
        for rank, remedy in enumerate(advice.remedies, start=1):
            console.print(_indented(_remedy_text(report, rank, remedy)))
            if rank == 1 and remedy.commands:
                console.print(Text(f"     {remedy.commands[0].text}", style="dim"), soft_wrap=True)
        console.print()
    more = len(explanation.advice) - CULPRITS_UP_TO
    if more > 0:
        console.print(Text(f"{more} more culprits are in {EXPLANATION}.", style="dim"))
    if explanation.advice:
        console.print(Text(f"{EXPLANATION} has the commands for every tool.", style="dim"))
    of_network = [attempt for attempt in explanation.tried if not attempt.culprits]
    if of_network:
        console.print(Text("Measured for the whole network:", style="bold"))
    for attempt in of_network:
        console.print(Text(f"  {_sentence(report, attempt)}.", style="green" if attempt.offered else ""))


def causes_in_short(report: Report, explanation: Explanation) -> Group | None:
    """Returns a line for each cause, and one on the best remedy that costs less than the recipe, if any; None without
    causes.
    """
    if not explanation.causes:
        return None
    causes = [Text(_title(cause, explanation)) for cause in explanation.causes[:_CAUSES_UP_TO]]
    recipe = next((tried.cost for tried in explanation.tried if tried.own and tried.meets), math.inf)
    cheaper = [tried for tried in explanation.tried if tried.offered and tried.is_cheaper(recipe)]
    return Group(*causes, *_measured_lines(report, sorted(cheaper, key=lambda row: row.rank)[:1]))


def _title(cause: Cause, explanation: Explanation) -> str:
    total = sum(len(group.culprits) for group in explanation.causes)
    of_all = f" ({len(cause.culprits)} of {total} culprits)" if total > 1 else ""
    return f"{listed(cause.culprits, _CAUSES_UP_TO)}{of_all}: {cause.words}."


def _measured_lines(report: Report, measured: Sequence[Tried]) -> Iterator[Padding]:
    for attempt in [attempt for attempt in measured if attempt.offered][:_MEETING_UP_TO]:
        yield _indented(Text(f"{_sentence(report, attempt)} (measured)", style="green"))
    missing = [attempt for attempt in measured if not attempt.offered][:_MISSING_UP_TO]
    if missing:
        figures = "; ".join(f"{attempt.title} {_result(report, attempt)}" for attempt in missing)
        yield _indented(Text(f"Measured, not good enough: {figures}", style="yellow"))


def _remedy_text(report: Report, rank: int, remedy: Remedy) -> Text:
    text = Text.assemble(f"{rank}. ", (remedy.remedy, "bold"), f" (cost in speed: {remedy.speed}). {remedy.why}")
    if remedy.tried is None:
        return text.append(" Not measured.", style="dim")
    style = "green" if remedy.tried.offered else "yellow"
    return text.append(f" Measured: {_sentence(report, remedy.tried)}.", style=style)


def _sentence(report: Report, tried: Tried) -> str:
    if tried.similarity is None:
        return f"{tried.title}: no figure (not finite or not measured)"
    high = ""
    if tried.high:
        high = f" with {counted(tried.high, 'layer')} in high precision ({speed_of(report, tried.cost)})"
    meets = f"{'meets' if tried.meets else 'misses'} the {asked_for(report)}"
    meets += "" if tried.offered or not tried.meets else ", but not in every setting or not without a doubt"
    return f"{tried.title} gives {_result(report, tried)}{high}, which {meets}"


def _result(report: Report, tried: Tried) -> str:
    return figure_text(report.figure, tried.similarity) + (" or worse" if tried.part else "")


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 2))


_MARKS = re.compile(r"([\\`*_{}\[\]()#+\-.!|])")
# Strikethrough, formulas, mentions, emojis and addresses.
_OF_GITHUB = re.compile(r"[~$@]|:(?=[A-Za-z+/_-])")


def literal(text: str) -> str:
    """Returns a text as Markdown that shows it literally, on one line."""
    marked = _MARKS.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
    return _OF_GITHUB.sub(lambda mark: f"&#{ord(mark[0])};", marked)


def bullets(sentences: Iterable[str]) -> str:
    """Returns sentences as a Markdown list, escaped."""
    return "\n".join(f"- {literal(sentence)}" for sentence in sentences)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a Markdown table, escaped: figures with six digits, None as an empty cell."""
    lines = [header, ["---"] * len(header), *(map(_cell, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return literal(f"{value:.6g}" if isinstance(value, float) else str(value))


def markdown(report: Report) -> str:
    """Returns the verdict, culprits, inputs, calibrators and notes as Markdown."""
    return "\n\n".join(_blocks(report.titled)) + "\n"


def _blocks(report: Report) -> Iterator[str]:
    yield f"# {literal(report.model)} in {report.low.upper()}"
    yield bullets(line.text for line in report.lines)
    if report.next is not None:
        command = f"\n\n```\n{report.next.command}\n```" if report.next.command else ""
        yield f"Next: {literal(report.next.what)}{command}"
    main, weak = report.ranked_culprits
    if main:
        yield f"## Culprits{report.of_unchanged}"
        yield _culprit_table(report, main)
    if weak:
        yield f"## Weak culprits{report.of_unchanged}"
        yield "Put back, they miss the threshold by less than the noise, or miss only the margin."
        yield _culprit_table(report, weak)
    answer, full = report.answer, f"full {report.low.upper()}, worst"
    if answer is not None and (sets := sets_of_inputs(answer)):
        yield "## Inputs"
        plan = "recipe" if report.has_recipe else f"full {report.low.upper()}"
        header = (f"{plan} on", "passes", "mean", "5th percentile", "worst", "which")
        yield table(header, (held_cells(report, name, held) for name, held in sets))
    if answer is not None and len(answer.calibrators) > 1:
        yield "## Calibrators"
        titles = ("calibrator", full, "inputs", "passes", "first recipe", "layers", "mean loss", "")
        yield table(titles, (calibrator_cells(report, row) for row in answer.calibrators))
    if report.notes:
        yield "## Notes"
        yield bullets(note.text for note in report.notes)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield literal(f"{report.engine} ({report.arithmetic}), {report.plans} plans, {versions}")


def _culprit_table(report: Report, rows: Iterable[LayerRow]) -> str:
    titles = ("culprit", "op", report.put_back_title.replace("If", "if", 1), "loss", "alone", "rounds")
    return table(titles, ((*culprit_cells(report, row), ", ".join(map(str, row.rounds))) for row in rows))
