"""``trt-bisect clean``: frees the space of what a run can make again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from trt_bisect.cli.display import DISPLAY, Configured, Display
from trt_bisect.jobs.options.kinds import PLACES, SWITCH


def clean_command(
    folders: Annotated[list[Path], DISPLAY(PLACES)],
    /,
    *,
    yes: Annotated[bool, DISPLAY(SWITCH, "--yes", "-y")] = False,
    display: Display = Configured(),
) -> None:
    """List files in run folders that a rerun would recreate; delete them with --yes.

    The files are saved tensors, calibration results and TensorRT's timing cache. Journal, reports, page and recipe
    stay: the command of the run calibrates again and reuses its trials.

    Args:
        folders: Run folders.
        yes: Delete the listed files.
    """
    from trt_bisect.jobs.workspace import clean, removable

    found = [each for folder in folders for each in (clean(folder) if yes else removable(folder))]
    total = sum(each.size for each in found)
    if display.json:
        rows = [{"path": str(each.path), "what": each.what, "bytes": each.size} for each in found]
        display.print_json({"removed": yes, "bytes": total, "found": rows})
        return
    for each in found:
        print(f"{each.size / (1 << 20):10.1f} MiB  {each.path}  ({each.what})")
    verb = "Freed" if yes else "Can be freed, with --yes:"
    print(f"{verb} {total / (1 << 20):.1f} MiB." if found else "There is nothing to remove.")
