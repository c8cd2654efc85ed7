"""The results of ``compare``, ``profile``, ``sensitivity``, ``worst`` and ``check``: one tree of dataclasses each.

The tree is the content of the JSON file. CSV files, the page and the tables on the screen follow from the descriptions
on the fields of its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trt_bisect.errors import BadInput
from trt_bisect.support import codec
from trt_bisect.support.files import make_folder, write_whole
from trt_bisect.support.table import csv_of, table_of

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

    from trt_bisect.report.page.tables import TablePage

SCHEMA = 2


@dataclass(frozen=True)
class _Head:
    schema: int


@dataclass(frozen=True)
class Result(ABC):
    """Base of the results that are tables.

    Attributes:
        COMMAND: the command that makes the result, and the name of its JSON file and its page.
        schema: the version of the form of the JSON file.
    """

    COMMAND: ClassVar[str]

    schema: int = field(default=SCHEMA, kw_only=True)

    @abstractmethod
    def tables(self) -> Mapping[str, tuple[type, Sequence[Any]]]:
        """Returns for each CSV file the dataclass of its rows, and the rows; the main table first."""

    @abstractmethod
    def page(self) -> TablePage:
        """Returns the page."""

    @property
    def names(self) -> Mapping[str, str]:
        """The texts that stand in the titles of columns."""
        return {}

    def table(self) -> pd.DataFrame:
        """Returns the main table as a pandas table."""
        return table_of(*next(iter(self.tables().values())))

    def to_csv(self) -> str:
        """Returns the main table as CSV, with a header."""
        return csv_of(*next(iter(self.tables().values())))

    def save(self, folder: str | Path) -> Path:
        """Writes the CSV files, the JSON file and the page into a folder, which is made if it is missing.

        Returns:
            The folder.

        Raises:
            BadInput: the folder cannot be written.
        """
        from trt_bisect.report.page.render import render_tables

        path = make_folder(Path(folder))
        for name, (kind, rows) in self.tables().items():
            write_whole(path / name, csv_of(kind, rows).encode())
        codec.write(path / f"{self.COMMAND}.json", self)
        write_whole(path / f"{self.COMMAND}.html", render_tables(self.page()).encode())
        return path

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Returns the result that ``save`` wrote.

        Args:
            folder: the folder that was saved into.

        Raises:
            BadInput: the folder holds no such result, or one of another version.
        """
        path, again = Path(folder) / f"{cls.COMMAND}.json", f"Run 'trt-bisect {cls.COMMAND}' again."
        try:
            text = path.read_bytes()
            schema = codec.decode(_Head, text).schema
            if schema != SCHEMA:
                raise BadInput(f"'{path}' is of schema {schema}, and this version reads schema {SCHEMA}.", again)
            return codec.decode(cls, text)
        except OSError as error:
            raise BadInput(
                f"'{path}' cannot be read as a {cls.__name__}: {error.strerror}",
                "Give the folder that was the --output of the command.",
            ) from error
        except (codec.Malformed, RecursionError) as error:
            raise BadInput(f"'{path}' is no {cls.__name__}: {error}", again) from error
