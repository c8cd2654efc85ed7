"""The page of ``check``: the findings, and the quantization of each layer."""

from __future__ import annotations

from dataclasses import asdict

from trt_bisect.analyzer.structure.findings import ERROR
from trt_bisect.report.check import CHECK_CSV, TENSORS_CSV, CheckReport
from trt_bisect.report.page.tables.shape import INDEX, NAME, TEXT, Column, Distribution, Section, TablePage

_FINDINGS = (
    Column("layer", "Layer", "Empty for the network as a whole", NAME, phone=True, paper=True),
    Column("severity", "Severity", "", TEXT, phone=True, paper=True),
    Column("kind", "Kind", "", TEXT, phone=True, paper=True),
    Column("what", "What", "", TEXT, paper=True),
    Column("why", "Why it matters", "", TEXT),
    Column("remedy", "Remedy", "", TEXT, paper=True),
)
_QUANTIZATION = (
    Column("index", "#", "Place in execution order", INDEX, paper=True),
    Column("layer", "Layer", "", NAME, phone=True, paper=True),
    Column("op_type", "Op", "Operator", TEXT, paper=True),
    Column("role", "Role", "", TEXT, phone=True, paper=True),
    Column("tensor", "Tensor", "", TEXT, paper=True),
    Column("dtype", "dtype", "In the network", TEXT, paper=True),
    Column("quantized", "Rounded to", "The integer type of its pair", TEXT, phone=True, paper=True),
    Column("scales", "Scales", "1, or one for each channel", paper=True),
    Column("axis", "Axis", "Of the channels"),
    Column("origin", "From", "The file has the pair, or a plan writes it", TEXT, paper=True),
    Column("calls", "Read by", "Layers that read a weight or constant"),
    Column("why_not", "Why not", "The reason why the layer cannot be in INT8", TEXT),
)


def page(found: CheckReport) -> TablePage:
    """Returns the page of a structure check."""
    unread = [f"The layers are not listed: {found.unread}"] if found.unread else []
    return TablePage(
        command="check",
        model=found.model,
        headline=found.summary,
        facts={"Opset": str(found.opset), "Nodes": str(found.nodes), "Q/DQ pairs": str(found.pairs)},
        notes=[*unread, *([] if found.engine is None else [found.engine.summary])],
        sections=(
            Section(
                "findings",
                "Findings",
                _FINDINGS,
                [{**row, "layer": row["layer"] or "the network"} for row in found.records()],
                CHECK_CSV,
                plots=(Distribution("How many findings of which kind", "kind"),),
                filters=("severity", "kind"),
                red=("severity", ERROR),
            ),
            Section(
                "quantization",
                "Quantization of each layer",
                _QUANTIZATION,
                [asdict(row) for row in found.tensors],
                TENSORS_CSV,
                plots=(Distribution("How many tensors are rounded to what", "quantized"),),
                filters=("role", "op_type", "quantized", "origin"),
            ),
        ),
    )
