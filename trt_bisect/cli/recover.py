"""``trt-bisect recover``: the best recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from trt_bisect.cli.display import Configured, Display, Model, console, run_folder
from trt_bisect.jobs.options.commands import RecoverOptions
from trt_bisect.jobs.options.declare import FLAT


def recover_command(
    model: Model,
    /,
    *,
    options: Annotated[RecoverOptions, FLAT] = RecoverOptions(),
    display: Display = Configured(),
) -> int:
    """Find the fastest plan that meets the threshold or an accuracy, and the front of plans between INT8 and FP32.

    Exit codes: 0 the recipe meets the target; 1 no plan does; 2 bad use or input; 3 nothing could be measured.
    """
    from trt_bisect.jobs.recover.recover import recover_with
    from trt_bisect.report.screen.recovery import print_recovery

    options = replace(options, output=run_folder(options.output, model), progress=display.progress())
    found = recover_with(model, options)
    if display.json:
        display.print_json(found)
    else:
        screen = console(140)
        print_recovery(found, screen)
        screen.print(f"\nThe recipe, the front and all figures: {options.output}", markup=False, soft_wrap=True)
    return found.exit_code
