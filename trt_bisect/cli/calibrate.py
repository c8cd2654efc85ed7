"""``trt-bisect calibrate``: ranges from data, written as a TensorRT calibration cache."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from trt_bisect.cli.options import CacheVersion, Calibrator, KeepMasks, Model, Percentile, Shape, parse_shapes


def calibrate_command(
    model: Model,
    calibration: Annotated[
        str, typer.Option(help="Data: .npz, .npy, .json, a folder, or module:function.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The cache to write.")] = Path("calibration.cache"),
    calibrator: Calibrator = "entropy",
    percentile: Percentile = 99.99,
    keep_mask_ranges: KeepMasks = False,
    trt_version: CacheVersion = "",
    shape: Shape = None,
) -> None:
    """Calibrate and write a TensorRT calibration cache, the scale of every activation."""
    from trt_bisect.calibration.cache import DEFAULT_VERSION, format_cache, parse_version
    from trt_bisect.calibration.collect import calibrate
    from trt_bisect.calibration.ranges import notes_on_unusable
    from trt_bisect.data.datasets import open_dataset
    from trt_bisect.model.network import load_network
    from trt_bisect.support.files import write_whole
    from trt_bisect.support.progress import RichProgress

    version = parse_version(trt_version) if trt_version else DEFAULT_VERSION
    network = load_network(model, parse_shapes(shape))
    samples = open_dataset(calibration, network.inputs)
    with closing(RichProgress()) as progress:
        progress.stage("Calibrating", samples.length)
        ranges = calibrate(
            network,
            samples,
            calibrator,
            percentile,
            keep_masks=keep_mask_ranges,
            on_sample=lambda done: progress.step(f"sample {done}"),
        )
    write_whole(output, format_cache(ranges.scales, version.header).encode())
    typer.echo(
        f"{len(ranges.scales)} scales ({ranges.origin}) written to {output}, for TensorRT {version} (--trt-version)."
    )
    for sentence in notes_on_unusable(ranges.unusable.items()):
        typer.echo(f"{sentence}.", err=True)
