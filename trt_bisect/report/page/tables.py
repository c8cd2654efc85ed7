"""The page of a result that is tables: each section has a table, its plots, and the pictures of its rows.

The page's script reads these dataclasses as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trt_bisect.support.table import INDEX, PAPER, TableColumn, columns_of


@dataclass(frozen=True)
class PanelPlot:
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
class RangePlot:
    """A plot of each row's range in both runs, and below it of the difference of their widths."""

    title: str
    kind: str = "ranges"


@dataclass(frozen=True)
class BarPlot:
    """A histogram of the values of one column over the rows shown; the reader can choose another column."""

    title: str
    column: str
    kind: str = "distribution"


@dataclass(frozen=True)
class PageColumn:
    """A column of a table on a page; see ``support.table.Column``."""

    key: str
    title: str
    help: str
    kind: str
    phone: bool
    paper: bool

    @classmethod
    def of(cls, column: TableColumn) -> PageColumn:
        """Returns a column as a page has it."""
        rank = math.inf if column.rank is None else column.rank
        return cls(column.key, column.title, column.help, column.kind, rank == 0, rank <= PAPER)


@dataclass(frozen=True)
class Section:
    """A table, its plots, and the pictures of its rows.

    Attributes:
        id: the element's ``id`` in HTML.
        file: the CSV file with all rows.
        columns: the columns that have a value. Exactly one is of the kind ``name``.
        rows: the cells of each row, in the order of the columns.
        pictures: the pictures of each row, its ``histogram`` and ``map``; empty where no row can have any.
        plots: the plots below the table.
        filters: keys of the columns by whose values rows can be selected.
        sort: the key of the column that rows are sorted by at first; empty for their own order.
        descending: the largest first.
        red: rows are red where they have this value in this column: ``(key, value)``.
        words: a sentence above the table.
    """

    id: str
    title: str
    file: str
    columns: tuple[PageColumn, ...]
    rows: Sequence[Sequence[Any]]
    pictures: Sequence[Mapping[str, Any]]
    plots: tuple[PanelPlot | RangePlot | BarPlot, ...] = ()
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
        sections: the tables that have rows.
        facts: by title, facts of the whole.
        notes: further remarks, a sentence each.
        low: the low precision.
        metric: the metric of the columns of figures and losses.
    """

    command: str
    model: str
    headline: str
    sections: Sequence[Section]
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    low: str = "int8"
    metric: str = ""


def columns_by_rank(kind: type, names: Mapping[str, str]) -> tuple[PageColumn, ...]:
    """Returns the described columns of a dataclass: the index, then those of the least rank, texts before numbers."""
    columns = [each for each in columns_of(kind, **names) if each.title]
    columns.sort(key=lambda each: (each.kind != INDEX, math.inf if each.rank is None else each.rank, each.is_number))
    return tuple(map(PageColumn.of, columns))


def section_of(
    id: str,
    title: str,
    file: str,
    kind: type,
    rows: Sequence[Any],
    names: Mapping[str, str] | None = None,
    *,
    filters: tuple[str, ...] = (),
    raised: Collection[str] = (),
    sort: str = "",
    **more: Any,
) -> list[Section]:
    """Returns a section of a page; none for a table without rows.

    Args:
        filters: see ``Section``; a key without a column is left out.
        raised: columns that are printed although their description says not.
        sort: see ``Section``; a key without a column keeps the order of the rows.
        more: the other attributes of the section.
    """
    columns = [each for each in columns_of(kind, rows, raised, **(names or {})) if each.title]
    columns = [
        each for each in columns if any(cell not in (None, "") and cell == cell for cell in map(each.cell, rows))
    ]
    own = {each.name for each in fields(kind)}
    drawn = [name for name in ("histogram", "map") if name in own]
    section = Section(
        id,
        title,
        file,
        tuple(map(PageColumn.of, columns)),
        [[each.cell(row) for each in columns] for row in rows],
        [{name: getattr(row, name) for name in drawn} for row in rows] if drawn else (),
        filters=tuple(key for key in filters if any(each.key == key for each in columns)),
        sort=sort if any(each.key == sort for each in columns) else "",
        **more,
    )
    return [section] if rows else []
