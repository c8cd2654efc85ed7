"""Results as files of a folder: one JSON file, and tables as CSV."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trt_bisect.support.files import make_folder, write_whole
from trt_bisect.support.plain_json import write_json

if TYPE_CHECKING:
    pass

SCHEMA = 1


class Saved(ABC):
    """Base of results that a command writes into a folder.

    Attributes:
        JSON: the name of the JSON file.
    """

    JSON: ClassVar[str]

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Returns the content of the JSON file."""

    def csv_files(self) -> Mapping[str, str]:
        """Returns the text of each CSV file by its name."""
        return {}

    def save(self, folder: str | Path) -> Path:
        """Writes the result's files into a folder, which is made if it is missing.

        Returns:
            The folder.

        Raises:
            BadInput: the folder cannot be written.
        """
        path = make_folder(Path(folder))
        self._write_files(path)
        return path

    def _write_files(self, folder: Path) -> None:
        """Writes the CSV files and then the JSON file into a folder that exists."""
        for name, text in self.csv_files().items():
            write_whole(folder / name, text.encode())
        write_json(folder / self.JSON, self.to_json())
