"""``trt-bisect compare``: every tensor in FP32 and in low precision, and which layers are abnormal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trt_bisect.cli.display import Display, console
from trt_bisect.cli.options import WIDE, Columns, Top, listed, with_options
from trt_bisect.jobs.options.commands import CompareOptions


@with_options(CompareOptions)
def compare_command(
    options: CompareOptions,
    display: Display,
    model: Annotated[
        Path | None, typer.Argument(help="The ONNX network; not needed for two saved runs.", show_default=False)
    ] = None,
    other: Annotated[
        Path | None,
        typer.Argument(help="A second network: the same one quantized, or of yesterday.", show_default=False),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            help="index, or the worst first by cosine, sqnr, mse, l1, kl, max_abs, max_rel, or any other column."
        ),
    ] = "index",
    top: Top = 50,
    columns: Columns = "",
) -> None:
    """Compare every tensor and weight in FP32 and low precision, or of two networks, or of two saved runs."""
    from trt_bisect.jobs.compare import compare_with
    from trt_bisect.report.comparison import sort_column
    from trt_bisect.report.screen.tensors import print_comparison

    sort_column(sort)
    found = compare_with(model, replace(options, other=other, progress=display.progress()))
    if display.as_json:
        display.print_json(found)
        return
    print_comparison(found, console(WIDE), sort=sort, top=top, columns=listed(columns))
