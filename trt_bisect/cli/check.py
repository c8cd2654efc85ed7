"""``trt-bisect check``: the findings on a file before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from trt_bisect.cli.display import DISPLAY, Configured, Display, Model, console
from trt_bisect.jobs.options.concerns import DATA, RESULTS, TENSORRT
from trt_bisect.jobs.options.kinds import PLACE, SHAPES, SWITCH, Shapes


def check_command(
    model: Model,
    /,
    *,
    output: Annotated[Path | None, RESULTS(PLACE, "--output", "-o")] = None,
    engine: Annotated[str, TENSORRT(without="no engine is built", expert=False)] = "",
    shapes: Annotated[Shapes | None, DATA(SHAPES, *("--shape", "--shapes"), without="1 for each dynamic axis")] = None,
    all_layers: Annotated[bool, DISPLAY(SWITCH)] = False,
    display: Display = Configured(),
) -> int:
    """Check a network, with or without Q/DQ, for what costs accuracy or speed in INT8, or what TensorRT refuses.

    Exit codes: 0 no errors; 1 at least one error; 2 bad use or input.

    Args:
        output: Write check.json, check.csv and check.html to this folder.
        engine: Also build an engine (tensorrt-rtx, without a GPU), and list what its kernels do with the Q/DQ pairs.
        shapes: Set the shape of a dynamic input for --engine: images:1x3x640x640. Repeatable.
        all_layers: Print all layers of each finding, and the quantization of each layer.
    """
    from trt_bisect.jobs.check import check
    from trt_bisect.report.screen.check import print_check

    report = check(model, output=output, engine=engine, shapes=shapes)
    if display.json:
        display.print_json(report)
        return report.exit_code
    screen = console(160)
    print_check(report, screen, every_layer=all_layers)
    if output is not None:
        screen.print(f"Report: {output}", markup=False, soft_wrap=True)
    return report.exit_code
