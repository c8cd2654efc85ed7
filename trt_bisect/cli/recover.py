"""``trt-bisect recover``: the best recipe."""

from __future__ import annotations

from dataclasses import replace

import typer

from trt_bisect.cli.options import Model, in_folder, with_options
from trt_bisect.jobs.options.commands import RecoverOptions


@with_options(RecoverOptions)
def recover_command(model: Model, options: RecoverOptions) -> None:
    """Find the plan that meets the threshold, or an accuracy, at the least cost in speed, and the front it lies on.

    Exit codes: 0 the recipe meets the target; 1 no plan does; 2 bad use or input; 3 nothing could be measured.
    """
    from rich.console import Console

    from trt_bisect.jobs.recover.recover import recover_with
    from trt_bisect.report.screen.recovery import print_recovery
    from trt_bisect.support.progress import RichProgress

    options = in_folder(options, model)
    found = recover_with(model, replace(options, progress=RichProgress()))
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=140, highlight=False)
    print_recovery(found, console)
    console.print(f"\nThe recipe, the front and all figures: {options.output}", markup=False, soft_wrap=True)
    if not found.meets:
        raise typer.Exit(1)
