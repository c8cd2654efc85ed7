"""``trt-bisect compare``: every tensor in FP32 and in INT8, and which layers are abnormal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trt_bisect.cli.options import (
    Calibrator,
    KeepMasks,
    Percentile,
    Shape,
    Tensorboard,
    TensorboardChannels,
    Top,
    parse_shapes,
    wide_console,
)


def compare_command(
    model: Annotated[
        Path | None, typer.Argument(help="The ONNX network; not needed for two saved runs.", show_default=False)
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help="Data to calibrate with (.npz, .npy, .json, folder, module:function) or a TensorRT calibration cache.",
            show_default=False,
        ),
    ] = None,
    inputs: Annotated[
        str | None, typer.Option("--input", help="The samples. [default: the calibration data]", show_default=False)
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(help="A run folder, or its recipe: the layers that it leaves high stay high.", show_default=False),
    ] = None,
    high: Annotated[
        list[str] | None,
        typer.Option("--high", help="A layer that stays high; may be repeated.", show_default=False),
    ] = None,
    fp32: Annotated[
        Path | None,
        typer.Option(
            help="A saved FP32 run: .npz, Polygraphy's --save-outputs JSON, or a folder of them.", show_default=False
        ),
    ] = None,
    int8: Annotated[
        Path | None, typer.Option(help="The saved INT8 run, of the same inputs.", show_default=False)
    ] = None,
    engine: Annotated[
        str, typer.Option(help="onnxruntime emulates; TensorRT's engines give final outputs only, and a note says so.")
    ] = "onnxruntime",
    sort: Annotated[
        str,
        typer.Option(help="index, or the worst first by cosine, sqnr, mse, l1, kl, atol, rtol, or any other column."),
    ] = "index",
    top: Top = 50,
    threshold: Annotated[float, typer.Option(help="The cosine below which a tensor's similarity is low.")] = 0.99,
    calibrator: Calibrator = "entropy",
    percentile: Percentile = 99.99,
    keep_mask_ranges: KeepMasks = False,
    shape: Shape = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder for compare.json and the tables as CSV.", show_default=False),
    ] = None,
    tensorboard: Tensorboard = None,
    tensorboard_channels: TensorboardChannels = 0,
) -> None:
    """Compare every tensor and weight in FP32 and INT8, or in two saved runs; say which layers are abnormal and why."""
    from trt_bisect.jobs.compare import compare
    from trt_bisect.report.screen.tensors import print_comparison
    from trt_bisect.results.comparison import check_sort
    from trt_bisect.support.progress import RichProgress

    check_sort(sort)
    found = compare(
        model,
        calibration,
        inputs,
        recipe=recipe,
        high=tuple(high or ()),
        fp32=fp32,
        int8=int8,
        engine=engine,
        threshold=threshold,
        calibrator=calibrator,
        percentile=percentile,
        keep_mask_ranges=keep_mask_ranges,
        shapes=parse_shapes(shape),
        output=output,
        tensorboard=tensorboard,
        tensorboard_channels=tensorboard_channels,
        progress=RichProgress(),
    )
    print_comparison(found, wide_console(), sort=sort, top=top)
