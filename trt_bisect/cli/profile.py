"""``trt-bisect profile``: one network's tensors alone."""

from __future__ import annotations

from dataclasses import replace

from trt_bisect.cli.display import Display, console
from trt_bisect.cli.options import WIDE, Columns, Model, Top, listed, with_options
from trt_bisect.jobs.options.commands import ProfileOptions


@with_options(ProfileOptions)
def profile_command(
    model: Model, options: ProfileOptions, display: Display, top: Top = 0, columns: Columns = ""
) -> None:
    """List the inputs, outputs, weights and biases of each layer in FP32: dtype, INT8 scale, shape, moments."""
    from trt_bisect.jobs.profile import profile_with
    from trt_bisect.report.screen.tensors import print_profile

    found = profile_with(model, replace(options, progress=display.progress()))
    if display.as_json:
        display.print_json(found)
        return
    print_profile(found, console(WIDE), top=top, columns=listed(columns))
