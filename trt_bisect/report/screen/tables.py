"""The screens of all commands but ``run``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_bisect.analyzer.blame import LEAST_COSINE, LOW_SIMILARITY
from trt_bisect.analyzer.compared import ComparedChannel, ComparedTensor
from trt_bisect.analyzer.metrics import figure_text, loss_text
from trt_bisect.analyzer.structure.findings import ERROR, NOTE, WARNING, Finding
from trt_bisect.analyzer.structure.graph import DroppedNode
from trt_bisect.analyzer.structure.qdq import TensorRounding
from trt_bisect.builder.debug_tensors import EngineTensor
from trt_bisect.data.feeds import TensorSpec
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.report.comparison import Comparison, Profile, ProfiledTensor, sorted_rows
from trt_bisect.report.explanation import ExplainedTensor, Explanation
from trt_bisect.report.losses import JudgedSample, SensitiveOp, Sensitivity, WorstReport, description
from trt_bisect.report.screen.layout import fitted, titled
from trt_bisect.report.screen.run import NOTES_UP_TO
from trt_bisect.report.structure import CheckReport, Migration
from trt_bisect.report.verification import SAME, Tried, Verification
from trt_bisect.support.text import counted, listed, number

LAYERS_OF_A_KIND = 5
_SCALE = ("quantized_dtype", "scale", "sqnr", "mse")
_WEIGHT_SCALES = ("layer", "tensor", "shape", "observer", "axis", "scales", "least_scale", *_SCALE)
_CHANNEL_SCALES = ("layer", "tensor", "channel", *_SCALE, "fp32_min", "fp32_max")
_STYLES = {ERROR: "bold red", WARNING: "yellow", NOTE: "dim"}


def print_layers(network: Network, console: Console, dropped: Sequence[DroppedNode] = ()) -> None:
    """Prints the layers, the ``dropped`` nodes (no layers), inputs and outputs, and an option for dynamic sizes."""
    names = {"low": network.low.title}
    console.print(
        fitted(Layer, network.layers, console, names=names, style=lambda row: "" if row.quantizable else "dim")
    )
    if dropped:
        console.print()
        _print_dropped(dropped, console)
    pairs = " The network has Q/DQ pairs: plans keep their scales." if network.has_pairs else ""
    lines = [f"{len(network.layers)} layers, {len(network.quantizable)} of them quantizable.{pairs}"]
    lines.append(f"Inputs: {', '.join(map(str, network.inputs))}. Outputs: {', '.join(map(str, network.outputs))}.")
    if dynamic := [spec for spec in network.inputs if None in spec.shape]:
        lines.append(f"'?' is dynamic. Sizes, as an example: {' '.join(map(_sized, dynamic))}")
    console.print(Text("\n".join(lines)), soft_wrap=True)


def _print_dropped(dropped: Sequence[DroppedNode], console: Console) -> None:
    if dropped:
        console.print(Text(f"Nodes of the file that are no layers ({len(dropped)}):"))
        console.print(fitted(DroppedNode, dropped, console, style=lambda _: "dim"))
        console.print()


def _sized(spec: TensorSpec) -> str:
    shape = spec.shape
    edges: tuple[int, ...] = ()
    if len(shape) == 4 and spec.dtype.kind in "fu":
        if shape[1] in _CHANNELS:
            edges = (2, 3)
        elif shape[3] in _CHANNELS:
            edges = (1, 2)
    usual = {0: 1, **dict.fromkeys(edges, 224)}
    sizes = (size or usual.get(axis, 128) for axis, size in enumerate(shape))
    return f"--shape {spec.name}:{'x'.join(map(str, sizes))}"


_CHANNELS = (1, 3, 4)


def print_check(report: CheckReport, console: Console, *, every_layer: bool = False) -> None:
    """Prints the findings by kind, with ``every_layer`` all of a kind and the tensors, then the summary."""
    if report.findings:
        console.print(check_table(report, every_layer=every_layer))
        console.print()
    if every_layer and report.tensors:
        rows = report.tensors
        console.print(fitted(TensorRounding, rows, console, style=lambda row: "" if row.quantized else "dim"))
        console.print()
        _print_dropped(report.dropped, console)
    for remark in report.remarks:
        console.print(Text(remark, style="yellow"))
    console.print(Text(report.summary, style="bold red" if report.exit_code else "bold green"))


def check_table(report: CheckReport, *, every_layer: bool = False) -> Table:
    """Returns a table of findings by kind: severity, layers (``every_layer``: all), reason and remedy."""
    kinds: dict[str, list[Finding]] = {}
    for finding in report.findings:
        kinds.setdefault(finding.kind, []).append(finding)
    table = _of_paragraphs(("Finding", 2), ("Layers", 4), ("Why it matters, and what to do", 5))
    for kind, findings in kinds.items():
        first = findings[0]
        shown = findings if every_layer else findings[:LAYERS_OF_A_KIND]
        lines = [": ".join(filter(None, (", ".join(finding.layers), finding.what))) for finding in shown]
        if len(findings) > len(shown):
            lines.append(f"and {len(findings) - len(shown)} more")
        table.add_row(
            Text(f"{first.severity}: {kind} ({len(findings)})", style=_STYLES[first.severity]),
            Text("\n".join(lines)),
            Text.assemble(first.why, "\n", (first.remedy, "bold")),
        )
    return table


def _of_paragraphs(*columns: tuple[str, int]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 1, 0))
    for title, ratio in columns:
        table.add_column(title, overflow="fold", ratio=ratio)
    return table


def print_migration(report: Migration, console: Console) -> None:
    """Prints the assumptions, commands and measurements of ``migrate``."""
    table = _of_paragraphs(("Unknown", 5), ("Assumed", 4), ("Layers", 4))
    for note in report.choices:
        table.add_row(Text(note.about), Text(note.choice, style="bold"), Text(listed(note.names, LAYERS_OF_A_KIND)))
    if report.choices:
        console.print(table)
    for option, why in report.gone.items():
        console.print(Text(f"Gone in TensorRT 11: {option.lstrip('-')}; {why}.", style="dim"))
    for sentence in report.refused:
        console.print(Text(f"DOUBT: {sentence}", style="bold red"), soft_wrap=True)
    for engine, command in report.commands.items() if not report.refused else ():
        console.print(Text(f"{engine}: {command}"), soft_wrap=True)
    if report.predicted:
        console.print(Text(report.predicted), soft_wrap=True)
    style = "" if report.proof is None else "bold green"
    if report.exit_code:
        style = "bold red"
    for sentence in (report.summary, *report.proven):
        console.print(Text(sentence, style=style), soft_wrap=True)


_SUSPICIONS_UP_TO = 5


def print_verification(result: Verification, console: Console) -> None:
    """Prints the most likely suspicions, the answer and the next steps."""
    if result.answer != SAME and result.tried:
        console.print(fitted(Tried, result.tried[:_SUSPICIONS_UP_TO], console))
    for rows in (result.tensors, result.different):
        if rows:
            console.print(fitted(type(rows[0]), rows[:_SUSPICIONS_UP_TO], console))
    style = {0: "bold green", 1: "bold red"}.get(result.exit_code, "bold yellow")
    for line in result.lines:
        console.print(Text(line, style="" if line.startswith(("NEXT", " ")) else style), soft_wrap=True)
    _print_notes(console, result.notes)


ADVICE_UP_TO = TENSORS_UP_TO = 20


def print_comparison(
    result: Comparison, console: Console, *, top: int = 0, columns: Sequence[str] = (), weight_scales: bool = False
) -> None:
    """Prints tensors, weights, advice and notes; with ``weight_scales`` only the scales of weights.

    Args:
        top: the most rows of each table; 0 for all.
        columns: the columns to show instead of the default ones; raises BadInput for an unknown one.
    """
    if weight_scales:
        _print_weight_scales(result, console, top)
        return
    tensors = result.sorted_by()
    sides = f"'{result.other}' against '{result.model}'" if result.other else f"{result.low.upper()} against FP32"
    tensors_of = sides if result.other else f"{result.low.upper()} ({result.arithmetic}) against FP32"
    console.print(Text(f"Tensors of {tensors_of}, {counted(result.samples, 'sample')}:"))
    _print_compared(tensors, result, columns, console, top)
    if result.weights:
        console.print(Text(f"\nWeights, {sides}:"))
        _print_compared(result.sorted_by(weights=True), result, columns, console, top)
    if result.engine_tensors:
        console.print(Text("\nTensors of the engine:"))
        _print_rows(EngineTensor, result.engine_tensors, console, top)
    console.print()
    if not result.advice:
        console.print(Text("No layer is abnormal.", style="bold green"))
    causes_first = sorted(result.advice, key=lambda advice: advice.reason == LOW_SIMILARITY)
    for advice in causes_first[:ADVICE_UP_TO]:
        where = ", ".join(f"'{name}'" for name in advice.layers) or "The network"
        console.print(Text(f"{where}: {advice.reason} ({advice.kind} '{advice.tensor}'): {advice.words}"))
    if len(result.advice) > ADVICE_UP_TO:
        more = len(result.advice) - ADVICE_UP_TO
        console.print(Text(f"{more} more findings; --output FOLDER writes all.", style="dim"))
    _print_notes(console, result.notes)


def _print_weight_scales(result: Comparison, console: Console, top: int) -> None:
    several = [row for row in sorted_rows(result.channels, result.sort) if row.scale is not None]
    console.print(Text(f"Scales of the weights of '{result.other or result.model}':"))
    _print_compared(result.sorted_by(weights=True), result, _WEIGHT_SCALES, console, top)
    console.print(Text("\nScales of their channels:"))
    _print_rows(ComparedChannel, several, console, top, names=result.names, only=_CHANNEL_SCALES)


def print_explained_tensors(explanation: Explanation, low: str, console: Console, *, top: int = 0) -> None:
    """Prints activations and weights in FP32 and full INT8, sorted by MSE, at most ``top`` of each; 0 for all."""
    activations = [
        (name if len(layer.outputs) == 1 else tensor.tensor, tensor)
        for name, layer in explanation.layers.items()
        for tensor in layer.outputs
    ]
    weights = {tensor.tensor: tensor for layer in explanation.layers.values() for tensor in layer.weights}
    inputs = [(tensor.tensor, tensor) for tensor in explanation.inputs]
    sides = ("FP32", low.upper())
    for title, rows, table_of in (
        ("Activations", [*inputs, *activations], _of_activations),
        ("Weights", weights.items(), _of_weights),
    ):
        ordered = sorted(rows, key=lambda row: -1.0 if row[1].mse is None else row[1].mse, reverse=True)
        console.print(Text(f"\n{title} by MSE, FP32 against full {sides[1]}:"))
        console.print(table_of(ordered[: top or None], sides))
        if top and len(rows) > top:
            console.print(Text(f"{len(rows) - top} more rows; --all-layers prints all.", style="dim"))


_Named = tuple[str, ExplainedTensor]


def _of_activations(rows: Sequence[_Named], sides: tuple[str, str]) -> Table:
    table = titled("Layer", "MSE>", *(f"{side} {end}>" for side in sides for end in ("min", "max")))
    for name, tensor in rows:
        figures = (value for side in (tensor.fp32, tensor.int8) for value in (side.min, side.max))
        table.add_row(*map(Text, (name, number(tensor.mse), *map(partial(number, digits=4), figures))))
    return table


def _of_weights(rows: Sequence[_Named], sides: tuple[str, str]) -> Table:
    table = titled("Weight", "MSE>", "In", "Min>", "Max>", "Mean>", "Std>", "Variance>")
    # Ten figures and a name do not fit into one line.
    for name, tensor in rows:
        for label, side, first in zip(sides, (tensor.fp32, tensor.int8), (True, False), strict=True):
            figures = (number(value, 4) for value in (side.min, side.max, side.mean, side.std, side.variance))
            table.add_row(*map(Text, (*((name, number(tensor.mse)) if first else ("", "")), label, *figures)))
    return table


def print_profile(profile: Profile, console: Console, *, top: int = 0, columns: Sequence[str] = ()) -> None:
    """Prints at most ``top`` tensors (0: all) and the notes; raises BadInput for an unknown column."""
    if profile.samples:
        console.print(Text(f"{counted(profile.samples, 'sample')} of {profile.source}:"))
    _print_rows(ProfiledTensor, profile.tensors, console, top, only=columns)
    _print_notes(console, profile.notes)


def print_sensitivity(
    sensitivity: Sensitivity, console: Console, *, rows: Sequence[SensitiveOp], sort: str, top: int = 0
) -> None:
    """Prints at most ``top`` rows (0: all); on a narrow screen the column ``sort`` is left out last."""
    shown = rows[: top or None]
    console.print(fitted(SensitiveOp, shown, console, names=sensitivity.names, raised=(sensitivity.metric, sort)))
    full = "not measured" if sensitivity.full is None else loss_text(sensitivity.metric, sensitivity.full)
    loss = f"Loss of full {sensitivity.low.upper()}: {full} ({sensitivity.metric}, {sensitivity.arithmetic})."
    console.print(Text(f"\n{len(shown)} of {len(rows)} rows. {loss}"))


def _print_compared(
    rows: Sequence[ComparedTensor], result: Comparison, columns: Sequence[str], console: Console, top: int
) -> None:
    def style(row: ComparedTensor) -> str:
        return "bold red" if row.figures.cosine < LEAST_COSINE else ""

    _print_rows(ComparedTensor, rows, console, top, names=result.names, only=columns, style=style)


def _print_rows(kind: type, rows: Sequence[Any], console: Console, top: int, **layout: Any) -> None:
    console.print(fitted(kind, rows[: top or None], console, **layout))
    if top and len(rows) > top:
        text = f"{len(rows) - top} more rows; --top 0 prints all, --output FOLDER writes all."
        console.print(Text(text, style="dim"))


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(Text(f"Note: {note}", style="yellow"))


_BAR = 40


def print_worst(report: WorstReport, console: Console) -> None:
    """Prints the data, the distribution, the worst inputs and the verdict."""
    for title, text in description(report).items():
        console.print(Text(f"{title + ':':7} {text}"))
    console.print()
    spread = titled("", *(f"{title}>" for title in report.quantiles))
    spread.add_row(Text(report.metric), *map(Text, report.quantiles.values()))
    console.print(spread)
    console.print()
    for line in histogram_lines(report):
        console.print(Text(line))
    console.print()
    worst = [report.samples[index] for index in report.places]
    console.print(fitted(JudgedSample, worst, console, names=report.names, only=("rank", "sample", "value")))
    console.print()
    if report.data:
        console.print(Text(f"DATA: {report.data}", style="bold yellow"))
    console.print(Text(report.verdict, style="bold green" if report.distribution.bad == 0 else "bold yellow"))
    _print_notes(console, remarks(report)[:NOTES_UP_TO])


def histogram_lines(report: WorstReport) -> Iterator[str]:
    """Yields a line for each bar of the metric's histogram."""
    bins = report.distribution.bins
    most = max((bar.count for bar in bins), default=0)
    edges = [[figure_text(report.metric, edge) for edge in (bar.low, bar.high)] for bar in bins]
    width = max((len(edge) for pair in edges for edge in pair), default=0)
    for bar, (low, high) in zip(bins, edges, strict=True):
        blocks = max(round(_BAR * bar.count / most), int(bar.count > 0))
        yield f"{low:>{width}} to {high:>{width}}  {'█' * blocks:<{_BAR}} {bar.count}".rstrip()
    if report.distribution.not_finite:
        yield f"{'not finite':>{2 * width + 4}}  {report.distribution.not_finite}"


def remarks(report: WorstReport) -> list[str]:
    """Returns notes on the data and the search."""
    notes = []
    if report.stopped:
        notes.append(f"the search was stopped: only the first {len(report.values)} samples were seen")
    if report.faint:
        notes.append(
            f"{len(report.faint)} of {len(report.values)} samples were left out, the first is number "
            f"{report.faint[0]}: FP32's output on them is almost zero, so that float noise decides"
        )
    return [*notes, *report.notes]
