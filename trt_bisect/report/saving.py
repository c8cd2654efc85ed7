"""Results as files of a folder: one JSON file, and tables as CSV."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trt_bisect.errors import BadInput
from trt_bisect.recipe.files import FOLDER, RecipeFiles
from trt_bisect.report.network_graph import NETWORK
from trt_bisect.support.files import make_folder, write_whole
from trt_bisect.support.from_json import built
from trt_bisect.support.plain_json import csv_text, write_json

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

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


class Tabular(Saved):
    """Base of results that are a table: one record a row.

    Attributes:
        CSV: the name of the table's CSV file.
        COLUMNS: the table's columns where there are no records; empty for a table that always has some.
    """

    CSV: ClassVar[str]
    COLUMNS: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Returns the rows, each a value by column."""

    def table(self) -> pd.DataFrame:
        """Returns the rows as a pandas table."""
        import pandas as pd

        table: pd.DataFrame = pd.DataFrame(self.records(), columns=list(self.COLUMNS) or None)
        return table

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Returns the result that ``save`` wrote.

        Args:
            folder: the folder that was saved into.

        Raises:
            BadInput: the folder holds no such result, or one that this version cannot read.
        """
        path = Path(folder) / cls.JSON
        try:
            return cls.from_json(json.loads(path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadInput(
                f"'{path}' cannot be read as a {cls.__name__}: {type(error).__name__}: {error}",
                "Give the folder that was the --output of the command.",
            ) from error

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Returns the result of the content of its JSON file.

        Raises:
            KeyError, TypeError, ValueError: the record is none.
        """
        if record["schema"] != SCHEMA:
            raise ValueError(f"schema {record['schema']}, this version reads {SCHEMA}")
        return built(cls, record)

    def to_csv(self) -> str:
        """Returns the rows as CSV, with a header."""
        return csv_text(self.records(), self.COLUMNS)

    def csv_files(self) -> Mapping[str, str]:
        """Returns the table's CSV file, by its name."""
        return {self.CSV: self.to_csv()}


class WithRecipe(Tabular):
    """Base of results with a recipe and a page: ``Report`` and ``Recovery``.

    A subclass has the attributes ``files`` (``RecipeFiles``, or None for a result read from a file) and ``graph`` (the
    value of ``network_facts``, or None).
    """

    def _write_files(self, folder: Path) -> None:
        """Writes the recipe's files, ``network.json``, the CSV file, the JSON file and ``report.html``."""
        files: RecipeFiles | None = getattr(self, "files", None)
        graph: Mapping[str, Any] | None = getattr(self, "graph", None)
        if files is not None:
            files.write(folder / FOLDER)
        if graph is not None:
            write_json(folder / NETWORK, graph)
        super()._write_files(folder)
        self._write_page(folder)

    @abstractmethod
    def _write_page(self, folder: Path) -> None:
        """Writes ``report.html`` into a folder that has the other files."""
