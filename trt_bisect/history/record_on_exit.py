"""Records a run in the history when it ends, also after an error or an interrupt."""

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
    """Returns the history's file for a run folder; None if ``history`` is ``none``.

    Args:
        history: ``beside`` for a file beside the run folder, ``none``, or the path of the file.
        folder: the run folder.
    """
    if str(history) == NONE:
        return None
    return folder.absolute().parent / HISTORY if str(history) == BESIDE else Path(history)


@contextmanager
def recorded(folder: Path | None, history: str | Path, say: Callable[[str], None], label: str = "") -> Iterator[None]:
    """Records the run folder in the history at the end of the block. An error in that is shown and not raised.

    Args:
        folder: the folder of the run; None records nothing.
        history: ``beside``, ``none`` or a file; see ``history_file``.
        say: called with a message for the user.
        label: see ``History.record``.
    """
    try:
        yield
    finally:
        file = None if folder is None else history_file(history, folder)
        if folder is not None and file is not None and holds_run(folder):
            _record(folder, file, say, label)


def _record(folder: Path, file: Path, say: Callable[[str], None], label: str) -> None:
    try:
        with History(file, say=say) as opened:
            opened.record(folder, label)
    except TrtBisectError as error:
        say(f"Not recorded in the history: {error.problem}")
    except Exception as error:
        logging.getLogger(__name__).debug("not recorded", exc_info=True)
        say(f"Not recorded in the history '{file}': {type(error).__name__}: {first_line(error)}")
