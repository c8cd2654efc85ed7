"""``trt-bisect recover``: the best recipe."""

from __future__ import annotations

from dataclasses import replace

import typer

from trt_bisect.cli.display import Display, console
from trt_bisect.cli.options import Model, in_folder, with_options
from trt_bisect.jobs.options.measuring import RecoverOptions


@with_options(RecoverOptions)
def recover_command(model: Model, options: RecoverOptions, display: Display) -> None:
    """Find the plan that meets the threshold, or an accuracy, at the least cost in speed, and the front it lies on.

    Exit codes: 0 the recipe meets the target; 1 no plan does; 2 bad use or input; 3 nothing could be measured.
    """
    from trt_bisect.jobs.recover.recover import recover_with
    from trt_bisect.report.screen.recovery import print_recovery

    options = in_folder(options, model)
    found = recover_with(model, replace(options, progress=display.progress()))
    if display.as_json:
        display.print_json(found)
    else:
        screen = console(140)
        print_recovery(found, screen)
        screen.print(f"\nThe recipe, the front and all figures: {options.output}", markup=False, soft_wrap=True)
    raise typer.Exit(found.exit_code)
