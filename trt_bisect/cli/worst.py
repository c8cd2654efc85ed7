"""``trt-bisect worst``: the inputs on which INT8 and FP32 differ most."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trt_bisect.cli.options import Calibrator, ClassAxis, KeepMasks, Model, Percentile, Shape, parse_shapes
from trt_bisect.errors import Interrupted


def worst_command(
    model: Model,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="The data set to search (.npz, .npy, .json, folder, module:function). [default: the calibration data]",
            show_default=False,
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help="Data to calibrate with, or a TensorRT calibration cache; none for a network with Q/DQ.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="How many samples are taken. [default: all]", show_default=False)
    ] = None,
    keep: Annotated[int, typer.Option(help="How many of the worst inputs are kept.")] = 10,
    metric: Annotated[
        str,
        typer.Option(help="cosine, sqnr, centered_sqnr, mse, l1, kl, max_abs, max_rel, top1, or module:function."),
    ] = "cosine",
    order: Annotated[
        str | None,
        typer.Option(
            help="For module:function: ascending (the smallest value is the worst) or descending.", show_default=False
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="The worst value that is still good. [default: 0.99 for cosine]", show_default=False),
    ] = None,
    high: Annotated[
        list[str] | None, typer.Option(help="A layer left in FP32; may be repeated.", show_default=False)
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--outputs", help="A final output that counts; may be repeated. [default: all]", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder for worst.json, worst.csv and worst.npz.", show_default=False),
    ] = None,
    engine: Annotated[str, typer.Option(help="auto, onnxruntime, tensorrt or tensorrt-rtx.")] = "auto",
    typing: Annotated[str, typer.Option(help="TensorRT's typing: auto, weak or strong.")] = "auto",
    class_axis: ClassAxis = None,
    calibrator: Calibrator = "entropy",
    percentile: Percentile = 99.99,
    keep_mask_ranges: KeepMasks = False,
    shape: Shape = None,
    build_timeout: Annotated[
        float, typer.Option(help="Seconds that TensorRT may take to build an engine, or to run it.")
    ] = 1800.0,
) -> None:
    """Find the inputs that lose most in INT8, and say whether it is a few inputs or the network.

    Exit codes: 0 searched; 2 bad use or input; 130 interrupted, what was seen until then is printed and saved.
    """
    from rich.console import Console

    from trt_bisect.jobs.worst import worst
    from trt_bisect.report.screen.worst import print_worst
    from trt_bisect.support.progress import RichProgress

    report = worst(
        model,
        dataset,
        calibration=calibration,
        steps=steps,
        keep=keep,
        metric=metric,
        order=order,
        threshold=threshold,
        high=tuple(high or ()),
        outputs=tuple(outputs or ()),
        engine=engine,
        typing=typing,
        class_axis=class_axis,
        calibrator=calibrator,
        percentile=percentile,
        keep_mask_ranges=keep_mask_ranges,
        shapes=parse_shapes(shape),
        build_timeout=build_timeout,
        output=output,
        progress=RichProgress(),
    )
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=120, highlight=False)
    print_worst(report, console)
    if output is not None:
        console.print(f"Report and inputs: {output}", markup=False, soft_wrap=True)
    if report.stopped:
        raise Interrupted("interrupted.", "What is said above is of the samples seen until then.")
