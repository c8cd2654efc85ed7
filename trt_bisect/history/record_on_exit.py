"""A run that is recorded in the history when it ends, however it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trt_bisect.errors import TrtBisectError, first_line
from trt_bisect.history.run_folder_reader import holds_run
from trt_bisect.history.store import HISTORY, History

BESIDE, NONE = "beside", "none"


def history_file(history: str | Path, folder: Path) -> Path | None:
    """The file that ``history`` means for a run folder: ``beside`` it, ``none``, or the file itself."""
    if str(history) == NONE:
        return None
    return folder.absolute().parent / HISTORY if str(history) == BESIDE else Path(history)


@contextmanager
def recorded(folder: Path | None, history: str | Path, say: Callable[[str], None], label: str = "") -> Iterator[None]:
    """Records the run folder on the way out; what goes wrong with that is said, and breaks nothing.

    Args:
        folder: of the run; without one nothing is recorded.
        history: ``beside``, ``none`` or a file.
        say: where a line can be said.
        label: as ``History.record`` has it.
    """
    try:
        yield
    finally:
        file = None if folder is None else history_file(history, folder)
        if folder is not None and file is not None and holds_run(folder):
            _record(folder, file, say, label)


def _record(folder: Path, file: Path, say: Callable[[str], None], label: str) -> None:
    try:
        with History(file, say=say) as kept:
            kept.record(folder, label)
    except TrtBisectError as error:
        say(f"Not recorded in the history: {error.problem}")
    except Exception as error:
        logging.getLogger(__name__).debug("not recorded", exc_info=True)
        say(f"Not recorded in the history '{file}': {type(error).__name__}: {first_line(error)}")
