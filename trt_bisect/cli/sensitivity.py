"""``trt-bisect sensitivity``: the cost of each layer alone in low precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from trt_bisect.cli.display import DISPLAY, Configured, Display, Model, Top, console, run_folder
from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.commands import SensitivityOptions
from trt_bisect.jobs.options.declare import FLAT
from trt_bisect.jobs.options.kinds import choice


def sensitivity_command(
    model: Model,
    /,
    *,
    options: Annotated[SensitivityOptions, FLAT] = SensitivityOptions(),
    top: Top = 20,
    way: Annotated[str, DISPLAY(choice("all", "weight", "activation", "both"))] = "all",
    sort: Annotated[str, DISPLAY()] = "loss",
    order: Annotated[str, DISPLAY(choice("worst", "descending", "ascending"))] = "worst",
    display: Display = Configured(),
) -> None:
    """Rank layers by the accuracy each loses when it alone runs in INT8: its weights, its activations, and both.

    loss: the loss with this layer alone in INT8. gain: what full INT8 wins back with this layer alone in high
    precision. worth: the gain per share of the multiply-adds.

    Args:
        way: Print only the rows with these parts of a layer in INT8.
        sort: Sort by loss, gain, worth, macs, or a metric.
        order: Sort the most sensitive layers first (worst), or by value.
    """
    from trt_bisect.jobs.sensitivity import sensitivity_with
    from trt_bisect.report.screen.layout import fitted
    from trt_bisect.report.sensitivity import SensitiveOp

    if way in ("weight", "activation") and options.low != "int8":
        raise BadInput(
            f"Only INT8 has separate rows for weights and activations, {options.low} has none.", "Give --way all."
        )
    options = replace(options, output=run_folder(options.output, model), progress=display.progress())
    found = sensitivity_with(model, options)
    descending = None if order == "worst" else order == "descending"
    rows = found.sorted_by(sort, descending=descending, way=None if way == "all" else way)
    if display.json:
        display.print_json(found)
        return
    shown = rows[:top] if top else rows
    screen = console(140)
    screen.print(fitted(SensitiveOp, shown, screen, names=found.names, raised=(found.metric, sort)))
    full = "not measured" if found.full is None else f"{found.full:.6g}"
    screen.print(
        f"\n{len(shown)} of {len(rows)} rows. Loss of full {found.low.upper()}: {full} "
        f"({found.metric}, {found.arithmetic}).",
        markup=False,
    )
    screen.print(f"All rows: {options.output}", markup=False, soft_wrap=True)
