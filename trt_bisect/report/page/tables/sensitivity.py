"""The page of ``sensitivity``: the loss of each layer alone."""

from __future__ import annotations

from trt_bisect.report.page.tables.shape import (
    INDEX,
    NAME,
    PERCENT,
    TEXT,
    Column,
    Distribution,
    Panels,
    Section,
    TablePage,
)
from trt_bisect.report.sensitivity import LAYERS, Sensitivity

_OWN = ("loss", "gain", "worth")


def page(found: Sensitivity) -> TablePage:
    """Returns the page of a sensitivity analysis."""
    low = found.low.upper()
    full = "not measured" if found.full is None else f"{found.full:.6g}"
    metrics = list(dict.fromkeys(name for op in found.ops for name in op.metrics))
    return TablePage(
        command="sensitivity",
        model=found.model,
        headline=_headline(found, low),
        low=found.low,
        facts={"Metric": found.metric, "Arithmetic": found.arithmetic, f"Loss of full {low}": full},
        sections=(
            Section(
                "layers",
                "Layers",
                (
                    Column("index", "#", "Place in execution order", INDEX, paper=True),
                    Column("op_name", "Layer", "", NAME, phone=True, paper=True),
                    Column("sensitive_type", "Rounded", "The part that is rounded", TEXT, phone=True, paper=True),
                    Column("op_type", "Op", "Operator", TEXT, paper=True),
                    Column("loss", "Loss", f"Of the layer alone in {low}, by {found.metric}", phone=True, paper=True),
                    Column("gain", "Gain", f"Full {low} wins back so much with this layer alone high", paper=True),
                    Column("worth", "Worth", "Gain by the share of the multiply-adds", paper=True),
                    Column("share", "Cost", "Share of the network's multiply-adds", PERCENT, paper=True),
                    Column("macs", "MACs", "Multiply-adds for one inference"),
                    *(Column(name, name, "On the worst final output", paper=name == found.metric) for name in metrics),
                ),
                found.records(),
                LAYERS,
                plots=(
                    Panels("Loss, gain and worth over the layers", _OWN, log=("loss",), split="sensitive_type"),
                    Distribution("How many rows have which value", "loss"),
                ),
                filters=("sensitive_type", "op_type"),
                sort="loss",
                descending=True,
            ),
        ),
    )


def _headline(found: Sensitivity, low: str) -> str:
    known = [op for op in found.ops if op.loss is not None]
    if not known:
        return "No layer could be measured."
    worst = max(known, key=lambda op: op.loss or 0.0)
    part = "" if worst.sensitive_type == "both" else f" ({worst.sensitive_type} alone)"
    return f"'{worst.op_name}'{part} is the most sensitive layer: alone in {low} it loses {worst.loss:.4g}."
