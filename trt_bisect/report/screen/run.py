"""The report on the screen: the verdict, the next command, the culprits, the calibrators and the inputs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from trt_bisect.analyzer.metrics import AGREEMENT, FRACTIONS
from trt_bisect.builder.base import IN_REGION, ON_DLA
from trt_bisect.results.answer import AnswerFacts, CalibratorRow, Held
from trt_bisect.results.explanation import Explanation
from trt_bisect.results.figure_text import figure_text
from trt_bisect.results.run_report import FOLLOWS, NOT_TRIED, LayerRow, Report
from trt_bisect.results.summary import DATA, DOUBTED, listed

NOTES_UP_TO = 5
LINES = 40
"""The report fits on a screen of so many lines, if its texts are not unusually long."""
_FILES = 6
"""Lines that the command prints after the report, and the line on the curve."""
_ROWS = 8
_SUSPECTS = 3
_OUTPUTS = 4
_LATENCIES = 10
_UNPROVEN = {IN_REGION: "in a region, unproven", ON_DLA: "on the DLA, unproven"}
_FED = 3
SEEN_BY = {"calibration": "in calibration", "judged": "where judged"}
_PIPED = 100
"""Columns where the output is no terminal."""


def console_for_reports() -> Console:
    """Returns the console: as wide as the terminal; where there is none, as COLUMNS says, or 100 columns."""
    console = Console(highlight=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(highlight=False, width=_PIPED)


def print_report(report: Report, console: Console, *, every_layer: bool = False) -> None:
    """Prints the verdict and what it rests on, and with ``every_layer`` the whole curve after it.

    Names are printed as they are, never as markup.
    """
    print_verdict(report, console)
    room = LINES - _FILES - _lines(verdict_text(report), console) - _lines(Text(report.next_command), console)
    for part in _parts(report):
        console.print(part)
        room -= _lines(part, console)
    for note in _note_lines(report, console, room):
        console.print(note)
        room -= _lines(note, console)
    _print_curve(report, console, room, every_layer=every_layer)


def print_verdict(report: Report, console: Console) -> None:
    """Prints the verdict and the next command alone."""
    console.print(verdict_text(report))
    if report.next_command:
        console.print(Text(f"NEXT: {report.next_command}", style="bold"), soft_wrap=True)


def _lines(part: RenderableType, console: Console) -> int:
    """Returns the number of lines that a part takes on a console."""
    return len(console.render_lines(part, pad=False))


def _print_curve(report: Report, console: Console, room: int, *, every_layer: bool) -> None:
    """Prints the curve if it fits or is asked for, else a line that says where it is."""
    tried = [row for row in report.layers if row.quantizable and row.outcome != NOT_TRIED]
    table = layer_table(report, report.layers if every_layer else tried)
    if every_layer or (tried and _lines(table, console) + 1 < room):
        console.print()
        console.print(table)
    elif tried:
        console.print(Text(f"Curve of {len(tried)} layers: report.html, layers.csv, --all-layers.", style="dim"))


def _parts(report: Report) -> Iterator[RenderableType]:
    """Yields the tables, the most important first."""
    for table in (culprit_table(report), *_answer_tables(report)):
        if table is not None:
            yield Text("")
            yield table
    if report.answer is not None and report.answer.confidence:
        yield Text(f"Confidence: {report.answer.rests_on}")
    yield from (Text(line) for line in latency_lines(report))


def verdict_text(report: Report) -> Text:
    """Returns the lines of the summary, doubts in yellow."""
    style = {0: "bold green", 1: "bold red"}.get(report.exit_code, "bold yellow")
    text = Text()
    for number, line in enumerate(report.summary.splitlines()):
        text.append("\n" if number else "")
        text.append(line, "bold yellow" if line.startswith((DOUBTED, DATA)) else style)
    return text


def _answer_tables(report: Report) -> Iterator[RenderableType | None]:
    """Yields what stands under the culprits: suspects, outputs, calibrators, inputs."""
    yield _suspects(report)
    if any(len(figures) > 1 for figures in report.outputs.values()):
        yield output_table(report)
    if report.answer is not None:
        yield _calibrators(report, report.answer)
        yield _inputs(report, report.answer)
    yield _fed(report)


def culprit_table(report: Report) -> Table | None:
    """Returns the culprits with their drop, gain, the similarity when taken back, and the cause; None without any."""
    rows = [row for row in report.layers if row.culprit]
    if not rows:
        return None
    causes = _causes(report.explanation)
    titles = ["Culprit", "Op", "Drop", "Gain", "Taken back", *(["Cause"] if causes else [])]
    table = _table(titles, figures=("Drop", "Gain", "Taken back"))
    for row in rows[:_ROWS]:
        figures = [_drop(report, row.drop), _drop(report, row.gain), figure_text(report.metric, row.taken_back)]
        cause = [causes.get(row.name, "")] if causes else []
        table.add_row(*map(Text, (row.name, row.op_type, *figures, *cause)), style="red")
    if len(rows) > _ROWS:
        table.add_row(Text(f"{len(rows) - _ROWS} more, in layers.csv"), style="dim")
    return table


def _causes(explanation: Explanation | None) -> dict[str, str]:
    """Returns for each culprit the side that loses and the first reason; empty without an explanation."""
    advice = explanation.advice if explanation is not None else ()
    return {each.culprit: ": ".join(filter(None, (each.blame, *each.reasons[:1]))) or "not known" for each in advice}


def _suspects(report: Report) -> Text | None:
    """Returns the layers with a large drop that are no culprits, with the reasons, the largest drop first."""
    rows = sorted((row for row in report.layers if row.suspect), key=lambda row: -(row.drop or 0.0))
    if not rows:
        return None
    lines = [f"Suspect {row.name} (drop {_drop(report, row.drop)}): {row.suspect}." for row in rows[:_SUSPECTS]]
    if len(rows) > _SUSPECTS:
        lines.append(f"{len(rows) - _SUSPECTS} more suspects are in report.html.")
    return Text("\n".join(lines))


def _calibrators(report: Report, answer: AnswerFacts) -> Table | None:
    """Returns the calibrators: full INT8 with each, and the recipe that its ranges lead to; None for a single one."""
    if len(answer.calibrators) < 2:
        return None
    table = _table(
        ["Calibrator", "Full INT8, worst", "inputs", "meets", "first recipe", "layers", ""],
        figures=("Full INT8, worst", "inputs", "first recipe", "layers"),
    )
    for row in answer.calibrators:
        table.add_row(*map(Text, calibrator_cells(report.metric, row)), style="bold" if row.chosen else "")
    return table


def calibrator_cells(metric: str, row: CalibratorRow) -> tuple[str, ...]:
    """Returns the cells of a calibrator; ``-`` where it was given up because another is better."""
    cost = "-" if row.cost is None else f"{100 * row.cost:.2g}%"
    layers = "-" if row.high is None else str(row.high)
    figure = figure_text(metric, row.similarity)
    meets, chosen = "yes" if row.meets else "no", "chosen" if row.chosen else ""
    return row.calibrator, figure, str(row.inputs), meets, cost, layers, chosen


def _inputs(report: Report, answer: AnswerFacts) -> Table | None:
    """Returns the recipe on given and unseen inputs, and in other settings; None without inputs."""
    sets = [(name, held) for name, held in (("given", answer.given), ("unseen", answer.unseen)) if held is not None]
    if not sets:
        return None
    titles = ["Recipe on", "holds", "mean", "5th perc.", "worst", "which"]
    table = _table(titles, figures=titles[1:5])
    for name, held in sets:
        table.add_row(*map(Text, held_cells(report.metric, name, held)), style="" if _holds(held) else "yellow")
    settings = ", ".join(f"{name} {figure_text(report.metric, value)}" for name, value in answer.settings.items())
    lines = [f"Worst given input, in other settings: {settings}."] if len(answer.settings) > 1 else []
    lines += [f"As good: {' or '.join(listed(names, 4) for names in answer.equals[:2])}."] if answer.equals else []
    if lines:
        table.caption, table.caption_justify, table.caption_style = Text("\n".join(lines)), "left", ""
    return table


def _fed(report: Report) -> Text | None:
    """Returns a line for each input: the values that the calibration and the judged inputs hold; None without any."""
    fed = report.inputs.get("fed") or {}
    names = list(dict.fromkeys(name for inputs in fed.values() for name in inputs))
    lines = []
    for name in names[:_FED]:
        spreads = [f"{SEEN_BY.get(by, by)} {_spread(inputs[name])}" for by, inputs in fed.items() if name in inputs]
        lines.append(f"Fed {name}: {'; '.join(spreads)}.")
    return Text("\n".join(lines)) if lines else None


def _spread(facts: Mapping[str, float]) -> str:
    return "{least:.4g} to {most:.4g} (mean {mean:.3g}, std {std:.3g})".format(**facts)


def _holds(held: Held) -> bool:
    return held.holds == held.inputs


def held_cells(metric: str, name: str, held: Held) -> tuple[str, ...]:
    """Returns the cells of a set of inputs; of the worst one the file's name without its folder."""
    figures = (figure_text(metric, value) for value in (held.mean, held.fifth, held.worst))
    return name, f"{held.holds} of {held.inputs}", *figures, held.worst_input.rsplit("/", 1)[-1]


def _note_lines(report: Report, console: Console, room: int) -> Iterator[Text]:
    """Yields notes: at most five, and only as many as fit into ``room`` lines; then the number of the others."""
    shown = 0
    for note in report.notes[:NOTES_UP_TO]:
        text = Text(f"Note: {note}", style="yellow")
        room -= len(console.render_lines(text, pad=False))
        if shown and room < 1:
            break
        shown += 1
        yield text
    if len(report.notes) > shown:
        left = len(report.notes) - shown
        yield Text(f"{left} more {'note is' if left == 1 else 'notes are'} in report.json.", style="yellow")


def _table(titles: Sequence[str], figures: Iterable[str]) -> Table:
    """Returns an empty table whose columns ``figures`` are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    numbers = set(figures)
    for title in titles:
        is_number = title in numbers
        table.add_column(title, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    return table


def layer_table(report: Report, rows: Iterable[LayerRow]) -> Table:
    """Returns the curve: a row for each layer with name, shape, similarity, drop and SQNR.

    The name ``prob_ip2`` is the output ``prob`` with ip2 and all layers before it in INT8.
    """
    similarity_title = "Similarity%" if report.metric in FRACTIONS else report.metric
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("LayerName", justify="right", overflow="fold", ratio=3)
    table.add_column("LayerShape", justify="right", overflow="fold", ratio=2)
    table.add_column(similarity_title, justify="right", no_wrap=True)
    table.add_column("Drop", justify="right", no_wrap=True)
    if report.metric != "sqnr":
        table.add_column("SQNR", justify="right", no_wrap=True)
    table.add_column("", overflow="fold", ratio=2)
    for row in rows:
        table.add_row(*_cells(report, row), style=_style(row))
    return table


def output_table(report: Report) -> Table:
    """Returns the metric and the SQNR of the final outputs, in full INT8 and in the recipe.

    Of many outputs it has the worst in full INT8. With a task, it has the agreement, the cosine of the outputs beside
    it, and what the task counted.
    """
    of_task = report.metric == AGREEMENT.name
    metrics = (AGREEMENT.name, "cosine", "sqnr") if of_task else tuple(dict.fromkeys((report.metric, "sqnr")))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("Output", "Plan", *metrics, *(("counted",) if of_task else ())):
        table.add_column(title, overflow="fold")
    shown = _worst_outputs(report)
    for plan, outputs in report.outputs.items():
        for name, values in ((name, outputs[name]) for name in shown if name in outputs):
            is_task = AGREEMENT.name in values
            known = {AGREEMENT.name: values[AGREEMENT.name]} if is_task else values
            figures = [figure_text(metric, known.get(metric)) for metric in metrics]
            counted = [f"{key} {value:.6g}" for key, value in values.items() if is_task and key != AGREEMENT.name]
            table.add_row(Text(name), Text(plan), *map(Text, figures), *([Text(", ".join(counted))] if of_task else []))
    return table


def _worst_outputs(report: Report) -> list[str]:
    """Returns the names of the outputs to show: all of a few, of many the ones that full INT8 has the least SQNR on."""
    outputs = report.outputs.get("int8", {})
    names = list(dict.fromkeys(name for of_plan in report.outputs.values() for name in of_plan))
    if len(names) <= _OUTPUTS:
        return names
    return sorted(names, key=lambda name: outputs.get(name, {}).get("sqnr", -math.inf))[:_OUTPUTS]


def latency_lines(report: Report) -> list[str]:
    """Returns lines with the latency of each plan and of each layer left high; empty if no engine was timed."""
    timed = {plan: found for plan, found in (report.latency or {}).items() if found}
    if not timed:
        return []
    plans = (f"{plan} {found['mean_ms']:.3f} ms (p99 {found['p99_ms']:.3f})" for plan, found in timed.items())
    lines = [f"Latency, mean: {', '.join(plans)}"]
    for name in report.recipe["high"][:_LATENCIES]:
        int8, high = (report.layer_milliseconds(plan, name) for plan in ("int8", "recipe"))
        if int8 is not None and high is not None:
            lines.append(f"'{name}' and what is fused with it: {int8:.4f} ms in INT8, {high:.4f} ms in the recipe")
    return lines


def _cells(report: Report, row: LayerRow) -> list[Text]:
    name = f"{row.output}_{row.name}" if row.output else row.name
    shape = "?" if row.shape is None else str([d if d is not None else "?" for d in row.shape]).replace("'", "")
    drop = "" if row.drop is None else drop_text(report.metric, row.drop)
    outcome = "" if row.outcome in ("measured", FOLLOWS) else row.outcome
    remark = "culprit" if row.culprit else f"fixed {row.fixed}" if row.fixed else outcome
    if row.obeyed is False:
        remark = f"{remark} ran in {row.ran}".strip()
    elif row.ran in _UNPROVEN:
        remark = f"{remark} {_UNPROVEN[row.ran]}".strip()
    cells = [name, shape, figure_text(report.metric, row.similarity), "" if row.outcome == FOLLOWS else drop]
    if report.metric != "sqnr":
        cells.append("" if row.sqnr is None else f"{row.sqnr:.1f} dB")
    return [Text(cell) for cell in (*cells, remark)]


def _drop(report: Report, drop: float | None) -> str:
    return "-" if drop is None else drop_text(report.metric, drop)


def _style(row: LayerRow) -> str:
    if row.culprit:
        return "bold red"
    if row.outcome in (FOLLOWS, NOT_TRIED):
        return "dim"
    return "" if row.outcome == "measured" else "yellow"


def drop_text(metric: str, drop: float) -> str:
    """Returns a drop as text, in the units of the metric's loss."""
    return f"{100 * drop:.4f}%" if metric in FRACTIONS else f"{drop:.3g}"
