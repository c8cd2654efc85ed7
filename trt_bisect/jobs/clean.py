"""Removes from a run folder what the same command makes again: tensors, calibration results, the timing cache."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from trt_bisect.errors import BadInput, first_line
from trt_bisect.report.model import REPORT
from trt_bisect.report.recovery import RECOVERY
from trt_bisect.report.saved_run import TENSORS
from trt_bisect.runs.cached_inputs import CANDIDATES, MAGNITUDES, RANGES
from trt_bisect.runs.journal import JOURNAL
from trt_bisect.support.files import locked

TIMING_CACHE = "timing.cache"
_REMOVED = {
    TENSORS: "tensors of --save-tensors",
    MAGNITUDES.file: "histograms of the calibration data",
    RANGES.file: "ranges",
    CANDIDATES.file: "ranges of the other calibrators",
    TIMING_CACHE: "TensorRT's timings of kernels",
}
_KEPT = (JOURNAL, REPORT, RECOVERY)


@dataclass(frozen=True)
class Removable:
    """Something in a run folder that can be made again.

    Attributes:
        path: a file or a folder.
        what: it holds, in words.
        size: the size in bytes.
    """

    path: Path
    what: str
    size: int


def removable(folder: str | Path) -> tuple[Removable, ...]:
    """Returns what can be removed from a run folder; the journal, the reports and the recipe never are.

    Raises:
        BadInput: it is no run folder.
    """
    place = Path(folder)
    if not any((place / name).is_file() for name in _KEPT):
        raise BadInput(f"'{folder}' is no run folder.", "Give the folder of a run: it has a journal.jsonl.")
    paths = {place / name: what for name, what in _REMOVED.items() if (place / name).exists()}
    return tuple(Removable(path, what, _size(path)) for path, what in paths.items())


def clean(folder: str | Path) -> tuple[Removable, ...]:
    """Removes what ``removable`` lists, and returns it.

    Raises:
        BadInput: it is no run folder, another process uses it, or something cannot be removed.
    """
    found = removable(folder)
    with locked(Path(folder)):
        for each in found:
            try:
                shutil.rmtree(each.path) if each.path.is_dir() and not each.path.is_symlink() else each.path.unlink()
            except OSError as error:
                problem = f"'{each.path}' cannot be removed: {first_line(error)}"
                raise BadInput(problem, "Remove it yourself.") from error
    return found


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)
