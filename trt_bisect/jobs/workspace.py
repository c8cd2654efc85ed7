"""A run at work in its folder: alone there, with one network, its progress beside it, recorded when it ends."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from trt_bisect.errors import BadInput
from trt_bisect.history.store import NONE, recorded
from trt_bisect.model.network import Network
from trt_bisect.report.model import REPORT, SO_FAR
from trt_bisect.report.recovery import RECOVERY
from trt_bisect.runs.progress_file import Heartbeat
from trt_bisect.support.codec import read
from trt_bisect.support.files import locked, output_folder
from trt_bisect.support.progress import Progress

_UNFINISHED = re.compile(r"\.(.+)-(\d+)")
"""The name that ``write_whole`` gives a file until it is complete; the number is that of the writing process."""


@contextmanager
def working_in(folder: Path | None, display: Progress, history: str | Path = NONE) -> Iterator[Progress]:
    """Progress, shown and written into ``folder``, which is made, locked, and rid of what killed runs were writing.

    Args:
        folder: the folder of the run; without one there is nothing to lock, and nothing to record.
        display: shows the progress.
        history: the file in which the run is recorded when it ends: ``beside``, ``none`` or a file.

    Raises:
        BadInput: another run works in the folder, or it cannot be written to.
    """
    with ExitStack() as open_until_the_end:
        open_until_the_end.enter_context(output_folder(folder))
        if folder is not None:
            open_until_the_end.enter_context(locked(folder))
            for place in (folder, folder / "recipe"):
                _clear(place)
        open_until_the_end.enter_context(recorded(folder, history, display.say))
        yield open_until_the_end.enter_context(closing(display if folder is None else Heartbeat(folder, display)))


def _clear(folder: Path) -> None:
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if _UNFINISHED.fullmatch(path.name):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def refuse_another_network(folder: Path | None, network: Network) -> None:
    """Raises BadInput if a folder holds the run of another network: another file, with other content.

    The same file with other content is a new version of the network, and a file with the same content was moved.

    Args:
        folder: the run folder; None for none.
        network: as it was read.
    """
    if folder is None:
        return
    for name in (SO_FAR, REPORT, RECOVERY):
        record = read(dict, folder / name) or {}
        before = record.get("model")
        if not isinstance(before, str) or Path(before).resolve() == Path(network.source).resolve():
            continue
        if record.get("network") != network.digest():
            raise BadInput(
                f"The folder '{folder}' holds the run of another network, '{before}'.",
                "Give another folder with --output, or remove this one.",
            )
        return
