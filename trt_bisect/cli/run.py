"""``trt-bisect run``: finds the culprits and a recipe."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trt_bisect.cli.display import DISPLAY, Configured, Display, Model, run_folder
from trt_bisect.options.commands import RunOptions
from trt_bisect.options.concerns import EXPLAIN_FULL
from trt_bisect.options.declare import FLAT
from trt_bisect.options.kinds import SWITCH


def run_command(
    model: Model,
    /,
    *,
    options: Annotated[RunOptions, FLAT] = RunOptions(),
    all_layers: Annotated[bool, DISPLAY(SWITCH, expert=True)] = False,
    display: Display = Configured(),
) -> int:
    """Find the layers that lose the accuracy, print them, and write the plan that restores it.

    Exit codes: 0 full INT8 passes; 1 it fails, or passes with doubts; 2 bad use or input; 3 nothing could be measured;
    130 interrupted, the same command goes on.

    Args:
        all_layers: Print the curve with a row per layer, and the advice in full.
    """
    from trt_bisect.commands.run.run import run_with
    from trt_bisect.commands.run.stopped import StoppedRun
    from trt_bisect.report.page.render import PAGE
    from trt_bisect.report.screen.run import console_for_reports, print_advice, print_report, print_verdict
    from trt_bisect.report.screen.tables import TENSORS_UP_TO, print_explained_tensors

    folder = Path(str(run_folder(options.output, model)))
    command = shlex.join(["trt-bisect", *sys.argv[1:]])
    try:
        report = run_with(model, replace(options, output=folder, progress=display.progress()), command)
    except StoppedRun as stop:
        if display.json:
            display.print_json(stop.report)
        else:
            print_verdict(stop.report, console_for_reports())
        raise
    if display.json:
        display.print_json(report)
        return report.exit_code
    console = console_for_reports()
    if display.quiet:
        print_verdict(report, console)
        return report.exit_code
    print_report(report, console, every_layer=all_layers)
    if all_layers and report.explanation is not None:
        print_advice(report.explanation, report.metric, console)
    if options.explain == EXPLAIN_FULL and report.explanation is not None:
        print_explained_tensors(report.explanation, report.low, console, top=0 if all_layers else TENSORS_UP_TO)
    console.print(
        f"Plans: {report.plans}; engines: {report.builds}, {report.engine} ({report.arithmetic}); "
        f"{report.seconds.total:.1f} s, at most {report.peak_bytes >> 20} MiB.",
        markup=False,
    )
    console.print(f"Report and recipe: {folder}\nThe page to look at: {folder / PAGE}", markup=False, soft_wrap=True)
    return report.exit_code
