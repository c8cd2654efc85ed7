"""The history: every report and trial of all runs, in one SQLite file beside the run folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from trt_bisect.errors import BadInput, first_line
from trt_bisect.history.connection import open_to_read, open_to_write, save_copy, telling
from trt_bisect.history.queries import EVERYTHING, Wanted, read_layers, read_reports, read_trials, table
from trt_bisect.history.rows import PastLayer, PastReport, PastTrial
from trt_bisect.history.run_folder_reader import take
from trt_bisect.history.schema import transaction
from trt_bisect.history.writer import write

if TYPE_CHECKING:
    import pandas as pd

HISTORY = "trt-bisect-history.sqlite"


class History:
    """A history's file, opened, and made where there is none; a connection for one thread.

    Several processes may have it open and write. Whoever writes does so in one short transaction.

    Args:
        path: of the file.
        say: told once where SQLite cannot work as it should.
        reading: open only a file that is there, also where it cannot be written.

    Raises:
        BadInput: it cannot be opened or written, is no history, or one of a newer version. So its methods.
    """

    def __init__(self, path: str | Path, *, say: Callable[[str], None] = lambda _: None, reading: bool = False) -> None:
        self.path = Path(path)
        self._base = open_to_read(self.path) if reading else open_to_write(self.path, say)

    def record(self, folder: str | Path, label: str = "") -> None:
        """Takes in what a run folder holds, finished or not; what was taken in before is not doubled but replaced.

        A report that is not finished is replaced by the next one on the same question.

        Args:
            folder: that ``run`` or ``recover`` has written into.
            label: the network's name; by default that given before, else the model file's stem.

        Raises:
            BadInput: there is no run in the folder that can be read, or the history cannot be written.
        """
        try:
            taken = take(Path(folder))
            with telling(self.path), transaction(self._base):
                write(self._base, taken, label)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"The files of the run in '{folder}' are damaged: {first_line(error)}",
                "The same command writes them anew.",
            ) from error

    def reports(self, wanted: Wanted = EVERYTHING) -> pd.DataFrame:
        """A row a report, in the order of recording; the columns are the attributes of ``PastReport``."""
        return table(PastReport, self.past(wanted))

    def trials(self, wanted: Wanted = EVERYTHING) -> pd.DataFrame:
        """A row a trial, run by run in the order of the journal; the columns are the attributes of ``PastTrial``.

        A trial is as old as the newest report of its run.
        """
        return table(PastTrial, self.past_trials(wanted))

    def past(self, wanted: Wanted = EVERYTHING) -> list[PastReport]:
        """What ``reports`` gives, as objects."""
        with telling(self.path):
            return read_reports(self._base, wanted)

    def past_trials(self, wanted: Wanted = EVERYTHING) -> list[PastTrial]:
        """What ``trials`` gives, as objects."""
        with telling(self.path):
            return read_trials(self._base, wanted)

    def layers(self, report: int) -> list[PastLayer]:
        """The quantizable layers in the report of that ``id``; none where an older version has recorded it."""
        with telling(self.path):
            return read_layers(self._base, report)

    def copy(self, path: str | Path) -> None:
        """Writes all that is recorded now into one sound file, while others go on recording.

        Raises:
            BadInput: the file cannot be written, or is the history itself.
        """
        target = Path(path)
        if target.exists() and target.samefile(self.path):
            raise BadInput(f"'{target}' is the history itself.", "Give --copy another file.")
        save_copy(self._base, target)

    def close(self) -> None:
        """Ends the connection."""
        self._base.close()

    def __enter__(self) -> History:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
