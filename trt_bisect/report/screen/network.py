"""A network on the screen: its layers, and the structure check with each kind of finding, its reason and remedy."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_bisect.analyzer.structure.findings import ERROR, NOTE, WARNING, Finding
from trt_bisect.analyzer.structure.roundings import TensorRounding
from trt_bisect.data.feeds import TensorSpec
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.report.check import CheckReport
from trt_bisect.report.screen.layout import fitted

LAYERS_OF_A_KIND = 5
_STYLES = {ERROR: "bold red", WARNING: "yellow", NOTE: "dim"}


def print_layers(network: Network, console: Console) -> None:
    """Prints a row for each layer, the inputs and outputs, and the option that gives dynamic inputs their sizes."""
    names = {"low": network.low.title}
    console.print(
        fitted(Layer, network.layers, console, names=names, style=lambda row: "" if row.quantizable else "dim")
    )
    pairs = " The network has Q/DQ pairs: plans keep their scales." if network.has_pairs else ""
    lines = [f"{len(network.layers)} layers, {len(network.quantizable)} of them quantizable.{pairs}"]
    lines.append(f"Inputs: {', '.join(map(str, network.inputs))}. Outputs: {', '.join(map(str, network.outputs))}.")
    if dynamic := [spec for spec in network.inputs if None in spec.shape]:
        lines.append(f"'?' is dynamic. Sizes: {' '.join(map(_sized, dynamic))}")
    console.print(Text("\n".join(lines)), soft_wrap=True)


def _sized(spec: TensorSpec) -> str:
    """The option that gives a dynamic input sizes, 1 for the batch and 224 elsewhere as an example."""
    sizes = (size or (224 if place else 1) for place, size in enumerate(spec.shape))
    return f"--shape {spec.name}:{'x'.join(map(str, sizes))}"


def print_check(report: CheckReport, console: Console, *, every_layer: bool = False) -> None:
    """Prints the table of findings by kind, then the summary. Names are printed as they are, never as markup."""
    if report.findings:
        console.print(check_table(report, every_layer=every_layer))
        console.print()
    if every_layer and report.tensors:
        rows = report.tensors
        console.print(fitted(TensorRounding, rows, console, style=lambda row: "" if row.quantized else "dim"))
        console.print()
    for remark in report.remarks:
        console.print(Text(remark, style="yellow"))
    style = "bold red" if report.exit_code else "bold green"
    console.print(Text(report.summary, style=style))


def check_table(report: CheckReport, *, every_layer: bool = False) -> Table:
    """Returns a table with one row for each kind: severity and kind, the layers, the reason and the remedy."""
    kinds: dict[str, list[Finding]] = {}
    for finding in report.findings:
        kinds.setdefault(finding.kind, []).append(finding)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 1, 0))
    table.add_column("Finding", overflow="fold", ratio=2)
    table.add_column("Layers", overflow="fold", ratio=4)
    table.add_column("Why it matters, and what to do", overflow="fold", ratio=5)
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
