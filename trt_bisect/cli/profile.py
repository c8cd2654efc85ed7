"""``trt-bisect profile``: one network's tensors alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trt_bisect.cli.options import (
    Calibrator,
    KeepMasks,
    Model,
    Percentile,
    Shape,
    Tensorboard,
    TensorboardChannels,
    Top,
    parse_shapes,
    wide_console,
)


def profile_command(
    model: Model,
    calibration: Annotated[
        str | None,
        typer.Option(help="Data or a TensorRT calibration cache, for the INT8 scales; not needed.", show_default=False),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            "--input", help="The samples. [default: the calibration data; none: constants alone]", show_default=False
        ),
    ] = None,
    prefix: Annotated[str, typer.Option(help="Only layers whose name begins so.", show_default=False)] = "",
    op: Annotated[
        list[str] | None,
        typer.Option("--op", help="Only layers of this operator; may be repeated.", show_default=False),
    ] = None,
    top: Top = 0,
    calibrator: Calibrator = "entropy",
    percentile: Percentile = 99.99,
    keep_mask_ranges: KeepMasks = False,
    shape: Shape = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder for profile.json and profile.csv.", show_default=False),
    ] = None,
    tensorboard: Tensorboard = None,
    tensorboard_channels: TensorboardChannels = 0,
) -> None:
    """List the inputs, outputs, weights and biases of each layer in FP32: dtype, INT8 scale, shape, moments."""
    from trt_bisect.jobs.profile import profile
    from trt_bisect.report.screen.tensors import print_profile
    from trt_bisect.support.progress import RichProgress

    found = profile(
        model,
        calibration,
        inputs,
        prefix=prefix,
        op_types=tuple(op or ()),
        calibrator=calibrator,
        percentile=percentile,
        keep_mask_ranges=keep_mask_ranges,
        shapes=parse_shapes(shape),
        output=output,
        tensorboard=tensorboard,
        tensorboard_channels=tensorboard_channels,
        progress=RichProgress(),
    )
    print_profile(found, wide_console(), top=top)
