"""``trt-bisect regress``: measures a suite of networks and compares it with a baseline."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from trt_bisect.cli.display import Output
from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.concerns import RESOURCES
from trt_bisect.jobs.options.declare import FLAT, panel
from trt_bisect.jobs.options.kinds import FILE, SWITCH

SUITE = "trt-bisect.toml"
"""The suite, where none is given."""
NIGHT = panel("Night")
_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Names the file whose Markdown GitHub Actions shows with a job's step."""


def regress_command(
    suite: Annotated[Path | None, NIGHT(FILE, without=SUITE)] = None,
    /,
    *,
    suite_file: Annotated[Path | None, NIGHT(FILE, "--config")] = None,
    baseline: Annotated[str, NIGHT()] = "latest",
    update_baseline: Annotated[bool, NIGHT(SWITCH)] = False,
    cluster: Annotated[str | None, RESOURCES(without="that of the suite, else in this process", expert=False)] = None,
    display: Annotated[Output, FLAT] = Output(),
) -> int:
    """Measure a suite of networks, and say what is worse than in the baseline and what else changed.

    Exit codes: 0 nothing is worse; 1 a figure is worse, or misses a target; 2 bad use or config, nothing was run; 3 a
    network could not be measured, and no network is worse; 130 interrupted, the same command goes on.

    Args:
        suite: The suite, a TOML file: networks, their data, engines, targets.
        suite_file: Take this suite, like the argument SUITE.
        baseline: Compare with this folder of --update-baseline, run folder or report.json, or with the newest night
            that passed or was accepted (latest).
        update_baseline: Take tonight's figures as the new baseline, good or bad.
        cluster: Measure the networks side by side on a Ray cluster (auto, HOST:PORT, ray://HOST:PORT), or try each
            network's plans in N processes here (local:N).
    """
    from rich.console import Console

    from trt_bisect.jobs.regress.regress import regress
    from trt_bisect.report.regression.result import SUMMARY
    from trt_bisect.report.regression.text import print_regression

    if suite is not None and suite_file is not None:
        raise BadInput(f"Two suites are given, '{suite}' and --config '{suite_file}'.", "Leave out one of the two.")
    regression = regress(
        suite or suite_file or SUITE,
        baseline,
        update_baseline=update_baseline,
        cluster=cluster,
        progress=display.progress(),
    )
    if display.json:
        display.print_json(regression)
    else:
        print_regression(regression, Console(highlight=False, soft_wrap=True))
    summary = os.environ.get(_STEP_SUMMARY)
    if summary:
        _append(Path(summary), regression.folder / SUMMARY)
    return regression.exit_code


def _append(target: Path, source: Path) -> None:
    """Appends a file to another; if that cannot be written, a line on stderr says so and the command goes on."""
    try:
        with target.open("ab") as file:
            file.write(source.read_bytes())
    except OSError as error:
        print(f"trt-bisect: ${_STEP_SUMMARY} cannot be written: {error}", file=sys.stderr)
