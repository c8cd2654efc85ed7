"""The log folder: checked before anything is measured, and cleared of the logs of earlier commands."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from trt_bisect.errors import BadInput, first_line, install
from trt_bisect.report.tensorboard.tags import RUN
from trt_bisect.support.files import make_folder, unwritable

OPTION = "--tensorboard"
SUFFIX = ".trt-bisect"
"""The end of an event file's name that marks it as written by trt-bisect, which may remove it."""
MOST_CHANNELS = 256


@dataclass(frozen=True)
class Board:
    """The log folder and its options.

    Attributes:
        folder: TensorBoard's ``--logdir``; each run is a folder in it.
        channels: the number of channels of a tensor that get histograms.
    """

    folder: Path
    channels: int = 0

    def clear(self) -> None:
        """Removes the runs that earlier commands wrote here; other files stay.

        Raises:
            BadInput: they cannot be removed.
        """
        try:
            for run in [path for path in self.folder.iterdir() if path.is_dir() and RUN.fullmatch(path.name)]:
                for file in run.glob(f"events.out.tfevents.*{SUFFIX}"):
                    file.unlink()
                if not any(run.iterdir()):
                    run.rmdir()
        except OSError as error:
            raise unwritable(self.folder, error, OPTION) from error


def open_board(folder: str | Path | None, channels: int = 0) -> Board | None:
    """Returns the board, None without a folder.

    Args:
        folder: the folder for the logs; it is made if it is missing.
        channels: the number of channels of a tensor that get histograms.

    Raises:
        BadInput: the package is not installed, the folder cannot be written, or the channels are out of range.
    """
    if not 0 <= channels <= MOST_CHANNELS:
        raise BadInput(
            f"Histograms of {channels} channels of a tensor cannot be written.",
            f"Give --tensorboard-channels 0 to {MOST_CHANNELS}.",
        )
    if folder is None:
        if channels:
            raise BadInput("There is no folder for the channels' histograms.", "Give --tensorboard LOGDIR too.")
        return None
    try:
        importlib.import_module("tensorboard.summary.writer.record_writer")
    except ImportError as error:
        raise BadInput(
            f"TensorBoard's logs need the package 'tensorboard': {first_line(error)}",
            f"Install it: {install('tensorboard')}",
        ) from error
    return Board(make_folder(Path(folder), OPTION), channels)
