"""``trt-bisect check``: the findings on a file before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trt_bisect.cli.config import with_config
from trt_bisect.cli.display import Display, console
from trt_bisect.cli.options import Model


@with_config
def check_command(
    model: Model,
    display: Display,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder for check.json, check.csv and check.html.", show_default=False),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="tensorrt-rtx",
            help="Build a real engine, which needs no GPU, and say what its kernels make of the Q/DQ pairs.",
            show_default="none is built",
        ),
    ] = "",
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            "--shapes",
            metavar="<name:1x3x224x224>",
            help="Sizes of dynamic inputs for --engine, by name, repeated for each input.",
            show_default="1 for each dynamic axis",
        ),
    ] = None,
    all_layers: Annotated[
        bool,
        typer.Option("--all-layers", help="Print every layer of every kind, and the quantization of each layer."),
    ] = False,
) -> None:
    """Check a file, with or without Q/DQ, for what costs accuracy or speed in INT8, or is refused by TensorRT.

    Exit codes: 0 no errors; 1 at least one error; 2 bad use or input.
    """
    from trt_bisect.jobs.check import check
    from trt_bisect.jobs.options.kinds import parse_shapes
    from trt_bisect.report.screen.check import print_check

    report = check(model, output=output, engine=engine, shapes=parse_shapes(shapes))
    if display.as_json:
        display.print_json(report)
        raise typer.Exit(report.exit_code)
    screen = console(160)
    print_check(report, screen, every_layer=all_layers)
    if output is not None:
        screen.print(f"Report: {output}", markup=False, soft_wrap=True)
    raise typer.Exit(report.exit_code)
