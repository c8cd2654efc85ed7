"""Lays out a screen: drops parts and columns of tables that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from trt_bisect.analyzer.metrics import metric_texts
from trt_bisect.errors import BadInput
from trt_bisect.support.table import TableColumn, columns_of

_PROSE = 14


@dataclass(frozen=True)
class ScreenPart:
    """A part of a screen, such as a table.

    Attributes:
        name: the name in the list of parts left out.
        rank: lower ranks come first if not all fit.
        versions: from full to short; the first that fits is shown.
    """

    name: str
    rank: int
    versions: Sequence[RenderableType]


def height(content: RenderableType, console: Console) -> int:
    """Returns the number of lines that a text or table takes."""
    return len(console.render_lines(content, pad=False))


def fitting(parts: Sequence[ScreenPart], console: Console, room: int) -> dict[int, int]:
    """Returns the parts that fit into ``room`` lines: by index in ``parts``, the index of the longest version that
    fits.
    """
    chosen: dict[int, int] = {}
    for index in sorted(range(len(parts)), key=lambda index: parts[index].rank):
        heights = [height(version, console) for version in parts[index].versions]
        version = next((number for number, lines in enumerate(heights) if lines <= room), None)
        if version is not None:
            chosen[index] = version
            room -= heights[version]
    return chosen


def spaced(content: RenderableType) -> Group:
    """Returns the content with a blank line above it."""
    return Group(Text(""), content)


def titled(*titles: str) -> Table:
    """Returns an empty table; a title that ends in ``>`` (not shown) makes a column of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        is_number = title.endswith(">")
        justify: Literal["right", "left"] = "right" if is_number else "left"
        table.add_column(Text(title.removesuffix(">")), justify=justify, no_wrap=is_number, overflow="fold")
    return table


def fitted(
    kind: type,
    rows: Sequence[Any],
    console: Console,
    *,
    names: Mapping[str, str] | None = None,
    only: Sequence[str] = (),
    raised: Collection[str] = (),
    without: Collection[str] = (),
    style: Callable[[Any], str] = lambda _: "",
    texts: Mapping[str, Callable[[Any], str]] | None = None,
) -> Table:
    """Returns rows as a table; columns without a rank or a value, and those that do not fit, are left out.

    Args:
        kind: the dataclass of the rows, with its columns.
        names: the texts for placeholders, such as ``{low}``, in titles.
        only: the only columns to show, even if they do not fit; empty for all.
        raised: columns to leave out last.
        style: returns Rich's style of a row.
        texts: by kind of column, the function that writes a value.

    Raises:
        BadInput: there is no column of ``only``.
    """
    by_key = {column.key: column for column in columns_of(kind, rows, raised, **(names or {}))}
    if unknown := [name for name in only if name not in by_key]:
        raise BadInput(f"There is no column '{unknown[0]}'.", f"Use some of {', '.join(by_key)}.")
    columns = [by_key[name] for name in only] or [
        column for column in by_key.values() if column.rank is not None and column.key not in without
    ]
    texts = metric_texts((names or {}).get("metric", "")) if texts is None else texts
    cells = {column.key: [_text(column, row, texts) for row in rows] for column in columns}
    shown = [column for column in columns if only or not rows or any(cells[column.key])]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        options: dict[str, Any] = {"justify": "right", "no_wrap": True} if column.is_number else {"overflow": "fold"}
        table.add_column(Text(column.header), **options)
    for k, row in enumerate(rows):
        table.add_row(*(Text(cells[column.key][k]) for column in shown), style=style(row))
    droppable = sorted((column for column in reversed(shown) if column.rank), key=lambda column: -(column.rank or 0))
    return table if only else with_columns_that_fit(table, console, [column.header for column in droppable])


def _text(column: TableColumn, row: Any, texts: Mapping[str, Callable[[Any], str]]) -> str:
    if column.kind not in texts:
        return column.text(row)
    value = column.value(row)
    return "" if value is None else texts[column.kind](value)


def with_columns_that_fit(
    table: Table, console: Console, droppable: Iterable[str], prose: Collection[str] = ()
) -> Table:
    """Drops the ``droppable`` columns, in this order, until the table fits on the console.

    ``droppable`` and ``prose`` (columns whose text may wrap) are titles.
    """
    columns = list(table.columns)
    for header in droppable:
        if _width(columns, prose) <= console.width:
            break
        columns = [column for column in columns if str(column.header) != header]
    narrow = Table(*columns, box=table.box, pad_edge=table.pad_edge, header_style=table.header_style)
    narrow.rows = table.rows
    return narrow


def _width(columns: Sequence[Column], prose: Collection[str]) -> int:
    widths = [min(_natural(column), _PROSE if str(column.header) in prose else _natural(column)) for column in columns]
    return sum(widths) + 2 * (len(widths) - 1)


def _natural(column: Column) -> int:
    return max(cell_len(str(cell)) for cell in (column.header, *column.cells))
