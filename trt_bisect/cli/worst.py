"""``trt-bisect worst``: the inputs on which INT8 and FP32 differ most."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from trt_bisect.cli.display import Configured, Display, Model, console
from trt_bisect.errors import Interrupted
from trt_bisect.jobs.options.commands import WorstOptions
from trt_bisect.jobs.options.declare import FLAT


def worst_command(
    model: Model,
    /,
    *,
    options: Annotated[WorstOptions, FLAT] = WorstOptions(),
    display: Display = Configured(),
) -> None:
    """Find the inputs that lose most in low precision, and say whether a few inputs or the network is bad.

    Exit codes: 0 searched; 2 bad use or input; 130 interrupted, the result covers the samples until then.
    """
    from trt_bisect.jobs.worst import worst_with
    from trt_bisect.report.screen.worst import print_worst

    report = worst_with(model, replace(options, progress=display.progress()))
    if display.json:
        display.print_json(report)
    else:
        screen = console(120)
        print_worst(report, screen)
    if options.output is not None and not display.json:
        screen.print(f"Report and inputs: {options.output}", markup=False, soft_wrap=True)
    if report.stopped:
        raise Interrupted("interrupted.", "The result above covers the samples until then.")
