"""``trt-bisect profile``: one network's tensors alone."""

from __future__ import annotations

from dataclasses import replace

from trt_bisect.cli.options import Model, Top, wide_console, with_options
from trt_bisect.jobs.options.commands import ProfileOptions


@with_options(ProfileOptions)
def profile_command(model: Model, options: ProfileOptions, top: Top = 0) -> None:
    """List the inputs, outputs, weights and biases of each layer in FP32: dtype, INT8 scale, shape, moments."""
    from trt_bisect.jobs.profile import profile_with
    from trt_bisect.report.screen.tensors import print_profile
    from trt_bisect.support.progress import RichProgress

    found = profile_with(model, replace(options, progress=RichProgress()))
    print_profile(found, wide_console(), top=top)
