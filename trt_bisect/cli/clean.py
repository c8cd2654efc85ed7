"""``trt-bisect clean``: frees the space of what a run can make again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trt_bisect.cli.display import Display


def clean_command(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)],
    display: Display,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it. Without this nothing is removed.")] = False,
) -> None:
    """Say what a run folder holds that the same command makes again, and remove it with --yes.

    Saved tensors, calibration results and TensorRT's timing cache go. Journal, reports, page and recipe stay: a run
    whose folder was cleaned calibrates again and takes up its trials.
    """
    from trt_bisect.jobs.workspace import clean, removable

    found = [each for folder in folders for each in (clean(folder) if yes else removable(folder))]
    total = sum(each.size for each in found)
    if display.as_json:
        rows = [{"path": str(each.path), "what": each.what, "bytes": each.size} for each in found]
        display.print_json({"removed": yes, "bytes": total, "found": rows})
        return
    for each in found:
        typer.echo(f"{each.size / (1 << 20):10.1f} MiB  {each.path}  ({each.what})")
    verb = "Freed" if yes else "Can be freed, with --yes:"
    typer.echo(f"{verb} {total / (1 << 20):.1f} MiB." if found else "There is nothing to remove.")
