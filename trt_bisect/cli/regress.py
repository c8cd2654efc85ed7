"""``trt-bisect regress``: measures a suite of networks and compares it with a baseline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trt_bisect.cli.display import Display
from trt_bisect.cli.options import with_options
from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.commands import RegressOptions

SUITE = "trt-bisect.toml"
"""The suite, where none is given."""
_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Names the file whose Markdown GitHub Actions shows with a job's step."""


@with_options(RegressOptions, config=False)
def regress_command(
    options: RegressOptions,
    display: Display,
    suite: Annotated[
        Path | None,
        typer.Argument(help="The suite, a TOML file: networks, their data, engines, targets.", show_default=SUITE),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The suite, as an option.", show_default=False)] = None,
    baseline: Annotated[
        str,
        typer.Option(
            help="What to compare with: a folder that --update-baseline wrote, a run folder, a report.json, or latest, "
            "the newest night that passed or was accepted."
        ),
    ] = "latest",
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Take tonight's figures as the baseline, whatever they are.")
    ] = False,
) -> None:
    """Measure a suite of networks and say what is worse than in the baseline, where, and what else is different.

    Exit codes: 0 nothing is worse; 1 something is, or a target is missed; 2 bad use or config, nothing was run; 3 some
    network could not be measured, and none is worse; 130 interrupted, the same command goes on.
    """
    from rich.console import Console

    from trt_bisect.jobs.regress.regress import regress
    from trt_bisect.report.regression.result import SUMMARY
    from trt_bisect.report.regression.text import print_regression

    if suite is not None and config is not None:
        raise BadInput(f"Two suites are given, '{suite}' and --config '{config}'.", "Leave one of them out.")
    regression = regress(
        suite or config or SUITE,
        baseline,
        update_baseline=update_baseline,
        cluster=options.cluster,
        progress=display.progress(),
    )
    if display.as_json:
        display.print_json(regression)
    else:
        print_regression(regression, Console(highlight=False, soft_wrap=True))
    summary = os.environ.get(_STEP_SUMMARY)
    if summary:
        _append(Path(summary), regression.folder / SUMMARY)
    raise typer.Exit(regression.exit_code)


def _append(target: Path, source: Path) -> None:
    """Appends a file to another; if that cannot be written, a line on stderr says so and the command goes on."""
    try:
        with target.open("ab") as file:
            file.write(source.read_bytes())
    except OSError as error:
        typer.echo(f"trt-bisect: ${_STEP_SUMMARY} cannot be written: {error}", err=True)
