"""A run folder: its lock while a run works in it, and the files in it that can be removed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trt_bisect.errors import BadInput, first_line
from trt_bisect.history.store import NONE, recorded
from trt_bisect.model.network import Network
from trt_bisect.report.parts import REPORT, SO_FAR
from trt_bisect.runs.cached_inputs import CANDIDATES, MAGNITUDES, RANGES
from trt_bisect.runs.journal import JOURNAL
from trt_bisect.runs.progress_file import Heartbeat
from trt_bisect.support.codec import read
from trt_bisect.support.files import locked, output_folder
from trt_bisect.support.progress import Progress

BOUNDARIES = "boundaries"  # the folder of the curve: ``boundaries/fp32``, and by layer ``boundaries/0002-conv2``
TENSORS, INDEX = "tensors", "index.json"
SAMPLE = "{:06}.npz"
# The folder of the tensors in Polygraphy's JSON: ``inputs.json``, ``fp32.json`` and so on.
POLYGRAPHY, INPUTS_JSON = "polygraphy", "inputs.json"

TIMING_CACHE = "timing.cache"
_REMOVED = {
    TENSORS: "tensors of --save-tensors",
    MAGNITUDES.file: "histograms of the calibration data",
    RANGES.file: "ranges",
    CANDIDATES.file: "ranges of the other calibrators",
    TIMING_CACHE: "TensorRT's timings of kernels",
}
_KEPT = (JOURNAL, REPORT)

# a file that write_whole has not completed, with the number of the writing process
_UNFINISHED = re.compile(r"\.(.+)-(\d+)")


@contextmanager
def working_in(folder: Path | None, display: Progress, history: str | Path = NONE) -> Iterator[Progress]:
    """Opens and locks a run folder, and yields progress that is also written there.

    Args:
        folder: created if missing; None to lock and record nothing.
        history: the file that records the run: ``beside`` (next to the folder), ``none`` or a path.

    Raises:
        BadInput: another run works in the folder, or it cannot be written to.
    """
    with ExitStack() as open_until_the_end:
        open_until_the_end.enter_context(output_folder(folder))
        if folder is not None:
            open_until_the_end.enter_context(locked(folder))
            for directory in (folder, folder / "recipe"):
                with suppress(OSError):
                    for path in list(directory.iterdir()):
                        if _UNFINISHED.fullmatch(path.name):
                            _remove(path)
        open_until_the_end.enter_context(recorded(folder, history, display.say))
        yield open_until_the_end.enter_context(closing(display if folder is None else Heartbeat(folder, display)))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def refuse_another_network(folder: Path | None, network: Network) -> None:
    """Raises BadInput if a folder holds the run of a network from another file with other content."""
    if folder is None:
        return
    # The same file with other content is a new version; another file with the same content was moved.
    for name in (SO_FAR, REPORT):
        record = read(dict, folder / name) or {}
        before = record.get("model")
        if not isinstance(before, str) or Path(before).resolve() == Path(network.source).resolve():
            continue
        if record.get("network") != network.digest():
            problem = f"The folder '{folder}' has the run of another network, '{before}'."
            raise BadInput(problem, "Give another folder with --output, or remove this one.")
        return


@dataclass(frozen=True)
class Removable:
    """A file or folder in a run folder that can be recreated: its path, what it holds, and its bytes."""

    path: Path
    what: str
    size: int


def removable(folder: str | Path) -> tuple[Removable, ...]:
    """Returns the removable files of a run folder, never journal, reports or recipe.

    Raises BadInput if ``folder`` is no run folder.
    """
    run_folder = Path(folder)
    if not any((run_folder / name).is_file() for name in _KEPT):
        raise BadInput(
            f"'{folder}' is not a run folder.", "Give the --output folder of a run, which has a journal.jsonl."
        )
    leftovers = []
    for name, what in _REMOVED.items():
        path = run_folder / name
        if path.exists():
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            leftovers.append(Removable(path, what, sum(file.stat().st_size for file in files)))
    return tuple(leftovers)


def clean(folder: str | Path) -> tuple[Removable, ...]:
    """Removes the files of a run folder that can be recreated, and returns them.

    Raises BadInput if ``folder`` is no run folder, in use, or cannot be cleaned.
    """
    leftovers = removable(folder)
    with locked(Path(folder)):
        for leftover in leftovers:
            try:
                _remove(leftover.path)
            except OSError as error:
                problem = f"'{leftover.path}' cannot be removed: {first_line(error)}"
                raise BadInput(problem, "Remove it yourself.") from error
    return leftovers
