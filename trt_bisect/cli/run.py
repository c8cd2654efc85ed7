"""``trt-bisect run``: finds the culprits and a recipe."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trt_bisect.cli.display import Display
from trt_bisect.cli.options import Model, in_folder, with_options
from trt_bisect.jobs.options.measuring import RunOptions


@with_options(RunOptions)
def run_command(
    model: Model,
    options: RunOptions,
    display: Display,
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Print the curve, a row for each layer, and the advice in full.")
    ] = False,
) -> None:
    """Find the layers that lose the accuracy, print them, and write the plan that restores it.

    Exit codes: 0 full INT8 meets the threshold; 1 it does not, the culprits are named; 2 bad use or input; 3 nothing
    could be measured, or full INT8 ran out of memory or time; 130 interrupted: the verdict so far is printed and
    written, and the same command goes on.
    """
    from trt_bisect.jobs.run.run import StoppedRun, run_with
    from trt_bisect.report.page.render import PAGE
    from trt_bisect.report.screen.advice import print_advice
    from trt_bisect.report.screen.run import console_for_reports, print_report, print_verdict

    options = in_folder(options, model)
    folder = Path(str(options.output))
    command = shlex.join(["trt-bisect", *sys.argv[1:]])
    try:
        report = run_with(model, replace(options, progress=display.progress()), command)
    except StoppedRun as stop:
        if display.as_json:
            display.print_json(stop.report)
        else:
            print_verdict(stop.report, console_for_reports())
        raise
    if display.as_json:
        display.print_json(report)
        raise typer.Exit(report.exit_code)
    console = console_for_reports()
    if display.quiet:
        print_verdict(report, console)
        raise typer.Exit(report.exit_code)
    print_report(report, console, every_layer=all_layers)
    if all_layers and report.explanation is not None:
        print_advice(report.explanation, report.metric, console)
    console.print(
        f"Plans: {report.plans}; engines: {report.builds}, {report.engine} ({report.arithmetic}); "
        f"{report.seconds.total:.1f} s, at most {report.peak_bytes >> 20} MiB.",
        markup=False,
    )
    console.print(f"Report and recipe: {folder}\nThe page to look at: {folder / PAGE}", markup=False, soft_wrap=True)
    raise typer.Exit(report.exit_code)
