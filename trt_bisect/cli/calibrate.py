"""``trt-bisect calibrate``: ranges from data, written as a TensorRT calibration cache."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

from trt_bisect.cli.display import Configured, Display, Model
from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.commands import CalibrateOptions
from trt_bisect.jobs.options.declare import FLAT


def calibrate_command(
    model: Model,
    /,
    *,
    options: Annotated[CalibrateOptions, FLAT] = CalibrateOptions(),
    display: Display = Configured(),
) -> None:
    """Calibrate, and write a TensorRT calibration cache with the scale of every activation."""
    from trt_bisect.calibration.cache import DEFAULT_VERSION, format_cache, parse_version
    from trt_bisect.calibration.collect import Calibrating, ranges_from_data
    from trt_bisect.calibration.ranges import notes_on_unusable
    from trt_bisect.data.datasets import open_dataset
    from trt_bisect.support.files import write_whole

    if options.calibration is None:
        raise BadInput("There is no data to calibrate with.", "Give --calibration.")
    version = parse_version(options.trt_version) if options.trt_version else DEFAULT_VERSION
    if not version.weak:
        raise BadInput(
            f"{version.title} reads no calibration cache.", "Give --trt-version 5.0 to 10.x, or leave it out."
        )
    network = options.network(model, options.shapes)
    samples = open_dataset(options.calibration, network.inputs, pictures=options.preprocessing())
    with closing(display.progress()) as progress:
        how = Calibrating(options.calibrator_method, options.percentile, options.keep_mask_ranges, options.memory_bytes)
        ranges = ranges_from_data(network, samples, how, progress)
    write_whole(Path(options.output), format_cache(ranges.scales, version.header).encode())
    if display.json:
        display.print_json(
            {
                "output": str(options.output),
                "origin": ranges.origin,
                "trt_version": str(version),
                "scales": {name: float(scale) for name, scale in ranges.scales.items()},
                "unusable": dict(ranges.unusable),
            }
        )
    display.say(
        f"{len(ranges.scales)} scales ({ranges.origin}) for TensorRT {version} (--trt-version), written to\n"
        f"{options.output}"
    )
    for sentence in notes_on_unusable(ranges.unusable.items()):
        print(f"{sentence}.", file=sys.stderr)
