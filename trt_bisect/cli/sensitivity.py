"""``trt-bisect sensitivity``: the cost of each layer alone in low precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from trt_bisect.cli.display import Display, console
from trt_bisect.cli.options import Model, in_folder, with_options
from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.commands import SensitivityOptions


@with_options(SensitivityOptions)
def sensitivity_command(
    model: Model,
    options: SensitivityOptions,
    display: Display,
    top: Annotated[int, typer.Option(help="How many rows are printed; 0 for all.")] = 20,
    way: Annotated[str, typer.Option(help="Rows of both, weight, activation, or all.")] = "all",
    sort: Annotated[str, typer.Option(help="loss, gain, worth, macs, or a metric.")] = "loss",
    order: Annotated[
        str, typer.Option(help="Sort the rows: worst (the most sensitive first), descending or ascending.")
    ] = "worst",
) -> None:
    """Rank the layers by the loss of each alone in low precision, in INT8 by weights and activations, and by its gain.

    ``loss``: the layer alone low. ``gain``: the network, all low, loses so much less with it alone high.
    ``worth``: gain for its share of the multiply-adds.
    """
    from trt_bisect.jobs.sensitivity import sensitivity_with
    from trt_bisect.report.screen.layout import fitted
    from trt_bisect.report.sensitivity import WAYS, SensitiveOp

    if way not in ("all", *WAYS):
        raise BadInput(f"There is no way '{way}'.", f"Use all, {', '.join(WAYS)}.")
    if way in ("weight", "activation") and options.low != "int8":
        raise BadInput(
            f"Weights and activations are told apart for INT8 only, not for {options.low}.", "Give --way all."
        )
    if order not in ("worst", "descending", "ascending"):
        raise BadInput(f"There is no order '{order}'.", "Use worst, descending or ascending.")
    options = in_folder(options, model)
    found = sensitivity_with(model, replace(options, progress=display.progress()))
    descending = None if order == "worst" else order == "descending"
    rows = found.sorted_by(sort, descending=descending, way=None if way == "all" else way)
    if display.as_json:
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
