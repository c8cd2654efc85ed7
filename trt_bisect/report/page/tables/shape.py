"""The parts of a page of tables, as the page's script reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trt_bisect._version import __version__
from trt_bisect.support.plain_json import plain

NUMBER, PERCENT, DECIBELS, TEXT, SHAPE, FLAG = "number", "percent", "decibels", "text", "shape", "flag"
INDEX, NAME = "index", "name"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: the key of its values in a record.
        title: the title in the table's head.
        help: a phrase on it; may be empty.
        kind: the form of its values: one of the constants of this module.
        phone: it is shown on a phone.
        paper: it is printed.
    """

    key: str
    title: str
    help: str = ""
    kind: str = NUMBER
    phone: bool = False
    paper: bool = False


@dataclass(frozen=True)
class Panels:
    """A plot with one panel for each column, the rows' positions on the shared x axis.

    Attributes:
        columns: keys of numbers; one without any is left out.
        log: those of them that have a logarithmic axis.
        split: the key whose values are told apart by colour; empty for none.
    """

    title: str
    columns: tuple[str, ...]
    log: tuple[str, ...] = ()
    split: str = ""
    kind: str = "panels"


@dataclass(frozen=True)
class Ranges:
    """A plot of each row's range in both runs, and below it of the difference of their widths."""

    title: str
    kind: str = "ranges"


@dataclass(frozen=True)
class Distribution:
    """A histogram of the values of one column over the rows shown; the reader can choose another column."""

    title: str
    column: str
    kind: str = "distribution"


Plot = Panels | Ranges | Distribution


@dataclass(frozen=True)
class Section:
    """A table, its plots, and the pictures of its rows.

    Attributes:
        id: the element's ``id`` in HTML.
        columns: the columns of the table; one without any value is left out. Exactly one is of the kind ``name``.
        rows: the records.
        pictures: the pictures of each row, its ``histogram`` and ``map``; empty where no row has any.
        filters: keys of the columns by whose values rows can be selected.
        file: the CSV file with all rows.
        sort: the key of the column that rows are sorted by at first; empty for their own order.
        descending: the largest first.
        red: rows are red where they have this value in this column: ``(key, value)``.
        words: a sentence above the table.
    """

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Mapping[str, Any]]
    file: str
    plots: tuple[Plot, ...] = ()
    pictures: Sequence[Mapping[str, Any]] = ()
    filters: tuple[str, ...] = ()
    sort: str = ""
    descending: bool = False
    red: tuple[str, Any] = ("", None)
    words: str = ""


@dataclass(frozen=True)
class TablePage:
    """A page of tables.

    Attributes:
        command: the command that made the result.
        model: the network's file.
        headline: the result in one sentence.
        sections: tables; one without rows is left out.
        facts: by title, facts of the whole.
        notes: further remarks, a sentence each.
        low: the low precision.
    """

    command: str
    model: str
    headline: str
    sections: tuple[Section, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    low: str = "int8"

    def data(self) -> dict[str, Any]:
        """Returns the data of the page in JSON's types; rows are lists of values in the order of the columns."""
        data: dict[str, Any] = plain(
            {
                "command": self.command,
                "model": Path(self.model).name or "two saved runs",
                "headline": self.headline,
                "facts": {title: text for title, text in self.facts.items() if text},
                "notes": list(self.notes),
                "low": self.low,
                "version": __version__,
                "sections": [_section(each) for each in self.sections if each.rows],
            }
        )
        return data


def _section(section: Section) -> dict[str, Any]:
    columns = [each for each in section.columns if any(_is_known(row.get(each.key)) for row in section.rows)]
    held = {each.key for each in columns}
    return {
        "id": section.id,
        "title": section.title,
        "words": section.words,
        "file": section.file,
        "columns": [asdict(each) for each in columns],
        "rows": [[row.get(each.key) for each in columns] for row in section.rows],
        "pictures": section.pictures,
        "filters": [key for key in section.filters if key in held],
        "sort": section.sort,
        "descending": section.descending,
        "red": list(section.red),
        "plots": [asdict(each) for each in section.plots],
    }


def _is_known(value: Any) -> bool:
    return value is not None and value != "" and value == value
