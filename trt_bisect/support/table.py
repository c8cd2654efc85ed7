"""Tables of dataclasses: a column is described once, on its field, for CSV files, the screen and the pages.

``Annotated[float | None, Column("SQNR", "dB", DECIBELS, rank=0)]`` describes the column of a field or a property, and
``Annotated[Spread, NestedColumns("fp32_", "{high}")]`` takes the columns of a nested dataclass. Numbers and texts
without a description are columns of only the CSV file.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from trt_bisect.support.text import percent, shape_text

if TYPE_CHECKING:
    import pandas as pd

Row = TypeVar("Row")
NUMBER, PERCENT, DECIBELS, TEXT, SHAPE, FLAG = "number", "percent", "decibels", "text", "shape", "flag"
INDEX, NAME = "index", "name"
# values of the run's metric, losses in its units, and values of the deciding figure
FIGURE, LOSS, DECIDING = "figure", "loss", "deciding"
PAPER = 4  # columns up to this rank are printed
# first characters of a cell that Excel, LibreOffice and Google Sheets run as a formula (OWASP, CSV injection)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_UNITS = {DECIBELS: " dB"}
_NUMBERS = (NUMBER, PERCENT, DECIBELS, INDEX, FIGURE, LOSS, DECIDING)
_SCALARS: Mapping[Any, str] = {int: NUMBER, float: NUMBER, str: TEXT, bool: FLAG}


@dataclass(frozen=True)
class Column:
    """The description of a table's column. ``{low}`` and other names in braces in title, help and key are replaced.

    Attributes:
        title: empty for a column of only the CSV file.
        kind: form of its cells, such as ``PERCENT``; empty: by the type of the field.
        rank: 0 is shown everywhere, on a phone too; columns up to 4 are printed; a narrow screen leaves out the highest
            ranks first; None is for a page only.
        empty: text of a cell without a value; ``{0.tensor}`` stands for another field.
        key: name in CSV files; empty for the field's name.
    """

    title: str
    help: str = ""
    kind: str = ""
    rank: int | None = None
    empty: str = ""
    key: str = ""


@dataclass(frozen=True)
class NestedColumns:
    """The columns of a nested dataclass, or of the keys of a mapping.

    Attributes:
        prefix, title: prefixes of the columns' names in CSV files and of their titles.
        help: the help of the columns of a mapping.
        rank: rank of the columns ``shown``; None: as in the nested dataclass.
        shown: columns that the screen shows too; the others are on pages alone.
        shares: keys of a mapping that are shares of 1.
    """

    prefix: str = ""
    title: str = ""
    help: str = ""
    rank: int | None = None
    shown: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableColumn(Column):
    """A column of a table; ``path`` has the names of the fields or keys from a row to its value."""

    path: tuple[str, ...] = ()

    @property
    def header(self) -> str:
        """The title with the unit, as the head of the column."""
        return f"{self.title or self.key}{_UNITS.get(self.kind, '')}"

    @property
    def is_number(self) -> bool:
        """True if the column's cells are aligned to the right."""
        return self.kind in _NUMBERS

    def value(self, row: Any) -> Any:
        """Returns the column's value in a row; None if a part of the path has none."""
        for name in self.path:
            row = row.get(name) if isinstance(row, dict) else getattr(row, name, None)
        return row

    def cell(self, row: Any) -> Any:
        """Returns the column's value in a row for a page: names joined by commas, the text ``empty`` for no value."""
        value = self.value(row)
        if isinstance(value, tuple) and self.kind != SHAPE:
            value = ", ".join(map(str, value))
        if self.empty and not value:
            for name in self.path[:-1]:
                row = getattr(row, name)
            return self.empty.format(row)
        return value

    def text(self, row: Any) -> str:
        """Returns the column's value in a row as text for the screen."""
        return cell_text(self.kind, self.cell(row))


def worst_first(
    rows: Iterable[Row], figure: Callable[[Row], float | None], *, higher_is_better: bool
) -> tuple[Row, ...]:
    """Returns rows sorted by a figure, the worst first, rows without the figure last."""
    sign = 1.0 if higher_is_better else -1.0

    def sort_key(row: Row) -> tuple[bool, float]:
        value = figure(row)
        is_missing = value is None or math.isnan(value)
        return is_missing, 0.0 if value is None or is_missing else sign * value

    return tuple(sorted(rows, key=sort_key))


def cell_text(kind: str, value: Any) -> str:
    """Returns a value as the text of a cell; ``kind`` is that of its column. None and NaN are empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if kind == SHAPE:
        return shape_text(value)
    if kind == FLAG:
        return "yes" if value else ""
    if kind == PERCENT:
        return percent(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def columns_of(
    kind: type, rows: Sequence[Any] = (), raised: Collection[str] = (), **names: str
) -> tuple[TableColumn, ...]:
    """Returns the columns of a table whose rows are dataclasses of type ``kind``.

    Args:
        rows: needed for fields that are mappings: each key that occurs is a column.
        raised: keys of columns that narrow screens show too (rank 1 at most).
        names: replacements for names in braces, such as ``low="INT8"``.
    """
    texts = _Names(names)
    return tuple(
        replace(
            column,
            title=column.title.format_map(texts),
            help=column.help.format_map(texts),
            key=column.key.format_map(texts),
            rank=1 if column.key in raised and column.rank != 0 else column.rank,
        )
        for column in _columns(kind, rows, NestedColumns(), ())
    )


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name


def _columns(kind: type, rows: Sequence[Any], part: NestedColumns, path: tuple[str, ...]) -> Iterator[TableColumn]:
    for name, hint, about in _described(kind):
        at = (*path, name)
        if isinstance(about, NestedColumns) and isinstance(hint, type) and is_dataclass(hint):
            yield from _columns(hint, rows, about, at)
        elif isinstance(about, NestedColumns):
            of_all = TableColumn("", about.help, NUMBER, path=at)
            for key in dict.fromkeys(key for row in rows for key in of_all.value(row) or ()):
                title = key.replace("{", "{{").replace("}", "}}")
                unit = PERCENT if key in about.shares else NUMBER
                yield replace(of_all, title=title, kind=unit, key=f"{about.prefix}{title}", path=(*at, key))
        elif about is not None or hint in _SCALARS:
            yield _column(about or Column(""), hint, part, name, at)


def _column(about: Column, hint: Any, part: NestedColumns, name: str, path: tuple[str, ...]) -> TableColumn:
    first = (get_args(hint) or (None,))[0]  # the type of the first element of a tuple
    kind = about.kind or _SCALARS.get(hint) or (SHAPE if int in (get_args(first) or (first,)) else TEXT)
    title, rank = about.title, about.rank
    if part.title and title:
        title = f"{part.title} {title[:1].lower()}{title[1:]}"
    if part.rank is not None:
        rank = part.rank if name in part.shown else None
    return TableColumn(title, about.help, kind, rank, about.empty, f"{part.prefix}{about.key or name}", path)


@cache
def _described(kind: type) -> tuple[tuple[str, Any, Column | NestedColumns | None], ...]:
    # the fields, then the described properties
    hints = get_type_hints(kind, include_extras=True)
    described = [(field.name, *_parted(hints[field.name])) for field in fields(kind)]
    for name, getter in (item for base in reversed(kind.__mro__) for item in vars(base).items()):
        if isinstance(getter, property):
            hint, about = _parted(get_type_hints(getter.fget, include_extras=True).get("return"))
            if about is not None:
                described.append((name, hint, about))
    return tuple(described)


def _parted(hint: Any) -> tuple[Any, Column | NestedColumns | None]:
    # the type in a hint, without None, and the description of its column
    about = None
    if get_origin(hint) is Annotated:
        hint, *attached = get_args(hint)
        about = next((part for part in attached if isinstance(part, (Column, NestedColumns))), None)
    if get_origin(hint) in (Union, UnionType):
        hint = next(member for member in get_args(hint) if member is not NoneType)
    return hint, about


def table_of(kind: type, rows: Sequence[Any], **names: str) -> pd.DataFrame:
    """Returns rows, dataclasses of type ``kind``, as a pandas table with the CSV file's columns.

    ``names`` replace names in braces, as in ``columns_of``.
    """
    import pandas as pd

    columns = columns_of(kind, rows, **names)
    table: pd.DataFrame = pd.DataFrame({column.key: [column.value(row) for row in rows] for column in columns})
    return table


def csv_of(kind: type, rows: Sequence[Any], **names: str) -> str:
    """Returns rows, dataclasses of type ``kind``, as CSV with a header.

    ``names`` replace names in braces, as in ``columns_of``. None and NaN are empty, shapes ``1x3x8``, names separated
    by commas, entries of a mapping ``key:value``. A text that a spreadsheet would run gets an apostrophe in front.
    """
    columns, text = columns_of(kind, rows, **names), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.key for column in columns)
    writer.writerows([_csv_cell(column, column.value(row)) for column in columns] for row in rows)
    return text.getvalue()


def _csv_cell(column: TableColumn, value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, tuple):
        value = shape_text(value) if column.kind == SHAPE else ", ".join(map(str, value))
    if isinstance(value, dict):
        value = " ".join(f"{key}:{item}" for key, item in value.items())
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
