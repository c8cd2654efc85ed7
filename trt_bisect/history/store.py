"""The history: every report and trial of all runs, in one SQLite file beside the run folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from trt_bisect.errors import BadInput, first_line
from trt_bisect.history.connection import open_to_read, open_to_write, save_copy, sqlite_errors
from trt_bisect.history.queries import EVERYTHING, HistoryFilter, read_layers, read_reports, read_trials, table
from trt_bisect.history.rows import PastLayer, PastReport, PastTrial
from trt_bisect.history.run_folder_reader import read_run_folder
from trt_bisect.history.schema import transaction
from trt_bisect.history.writer import write

if TYPE_CHECKING:
    import pandas as pd

HISTORY = "trt-bisect-history.sqlite"


class History:
    """A connection to a history's file, for one thread. The file is created if there is none.

    Several processes can have it open and write; each write is one short transaction.

    Args:
        path: the path of the file.
        say: called with a message if a new file cannot use WAL.
        reading: open only an existing file, also if it cannot be written.

    Raises:
        BadInput: the file cannot be opened or written, is not a history, or has a newer schema. All methods can raise
            it too.
    """

    def __init__(self, path: str | Path, *, say: Callable[[str], None] = lambda _: None, reading: bool = False) -> None:
        self.path = Path(path)
        self._base = open_to_read(self.path) if reading else open_to_write(self.path, say)

    def record(self, folder: str | Path, label: str = "") -> None:
        """Records the reports and trials in a run folder, finished or not. Earlier records of them are replaced.

        A report that is not finished is replaced by the next one with the same fingerprint and options.

        Args:
            folder: the folder that ``run`` or ``recover`` wrote.
            label: the network's name; by default the one given before, else the model file's stem.

        Raises:
            BadInput: there is no readable run in the folder, or the history cannot be written.
        """
        try:
            stored = read_run_folder(Path(folder))
            with sqlite_errors(self.path), transaction(self._base):
                write(self._base, stored, label)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"The files of the run in '{folder}' are damaged: {first_line(error)}",
                "Run the same command again: it writes them anew.",
            ) from error

    def reports(self, selection: HistoryFilter = EVERYTHING) -> pd.DataFrame:
        """Returns a table of reports in the order of recording. Its columns are the attributes of ``PastReport``."""
        return table(PastReport, self.past(selection))

    def trials(self, selection: HistoryFilter = EVERYTHING) -> pd.DataFrame:
        """Returns a table of the trials, run by run in the order of the journal.

        The columns are the attributes of ``PastTrial``. The date of a trial is that of its run's newest report.
        """
        return table(PastTrial, self.past_trials(selection))

    def past(self, selection: HistoryFilter = EVERYTHING) -> list[PastReport]:
        """Returns the rows of ``reports`` as objects."""
        with sqlite_errors(self.path):
            return read_reports(self._base, selection)

    def past_trials(self, selection: HistoryFilter = EVERYTHING) -> list[PastTrial]:
        """Returns the rows of ``trials`` as objects."""
        with sqlite_errors(self.path):
            return read_trials(self._base, selection)

    def layers(self, report: int) -> list[PastLayer]:
        """Returns the quantizable layers of the report with this id; empty if an older version recorded it."""
        with sqlite_errors(self.path):
            return read_layers(self._base, report)

    def copy(self, path: str | Path) -> None:
        """Writes everything recorded up to now into one file, also while other processes record.

        Raises:
            BadInput: the file cannot be written, or is the history itself.
        """
        target = Path(path)
        if target.exists() and target.samefile(self.path):
            raise BadInput(f"'{target}' is the history itself.", "Give --copy another file.")
        save_copy(self._base, target)

    def close(self) -> None:
        """Closes the connection."""
        self._base.close()

    def __enter__(self) -> History:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
