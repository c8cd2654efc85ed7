"""``trt-bisect profile``: one network's tensors alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from trt_bisect.cli.display import WIDE, Columns, Configured, Display, Model, Top, console, listed
from trt_bisect.jobs.options.commands import ProfileOptions
from trt_bisect.jobs.options.declare import FLAT


def profile_command(
    model: Model,
    /,
    *,
    options: Annotated[ProfileOptions, FLAT] = ProfileOptions(),
    top: Top = 0,
    columns: Columns = "",
    display: Display = Configured(),
) -> None:
    """List the inputs, outputs, weights and biases of each layer in FP32: dtype, INT8 scale, shape, moments."""
    from trt_bisect.jobs.profile import profile_with
    from trt_bisect.report.screen.tensors import print_profile

    found = profile_with(model, replace(options, progress=display.progress()))
    if display.json:
        display.print_json(found)
        return
    print_profile(found, console(WIDE), top=top, columns=listed(columns))
