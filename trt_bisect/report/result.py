"""Base classes of results: their short form, tables, files and page."""

from __future__ import annotations

import io
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_bisect.analyzer.metrics import metric_texts
from trt_bisect.errors import BadInput, first_line
from trt_bisect.support import codec
from trt_bisect.support.files import make_folder, write_whole
from trt_bisect.support.table import (
    FLAG,
    NAME,
    PAPER,
    SHAPE,
    TEXT,
    TableColumn,
    cell_text,
    columns_of,
    csv_of,
    table_of,
)
from trt_bisect.support.voices import in_python

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

LINES, _WIDTH = 20, 100
_ROWS = 20


@dataclass(frozen=True)
class Overview:
    """A result in short, for the prompt and notebooks.

    Attributes:
        titles, rows: a table's titles and cells, the most important columns and rows first.
        lines: sentences that text shows instead of ``headline``; commands are indented.
        methods: by method of the result, a description of its value.
        plans: the plans' figures, as one text.
    """

    headline: str
    facts: str = ""
    colour: str = ""
    titles: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    lines: Sequence[str] = ()
    notes: Sequence[str] = ()
    methods: Mapping[str, str] = field(default_factory=dict)
    plans: str = ""


class Shown:
    """Base of results that ``print``, the prompt and a notebook show in short."""

    __slots__ = ()

    @property
    @abstractmethod
    def overview(self) -> Overview:
        """The result in short."""

    def __str__(self) -> str:
        """Returns the result in at most 20 lines."""
        overview = _in_python(self.overview)
        lines: list[str] = []
        for line in overview.lines or [overview.headline]:
            wrapped = textwrap.wrap(line, _WIDTH, break_long_words=False, break_on_hyphens=False)
            lines += [line] if line.startswith(" ") else wrapped or [""]
        if len(lines) >= LINES:
            return "\n".join([*lines[: LINES - 1], "..."])
        lines += [textwrap.shorten(overview.facts, _WIDTH, placeholder=" ...")] if overview.facts else []
        return "\n".join([*lines, *_rows(overview, LINES - len(lines) - 2)][:LINES])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from trt_bisect.report.html import environment

        shown, template = _in_python(self.overview), environment().get_template("notebook.html.j2")
        return template.render(shown=shown, rows=shown.rows[:_ROWS], more=max(0, len(shown.rows) - _ROWS))


def _in_python(shown: Overview) -> Overview:
    lines = [line if line.startswith(" ") else in_python(line) for line in shown.lines]
    notes = [*map(in_python, shown.notes)]
    return replace(shown, headline=in_python(shown.headline), lines=lines, notes=notes)


def _rows(shown: Overview, room: int) -> Iterator[str]:
    from trt_bisect.report.screen.layout import with_columns_that_fit

    if room < 2 or not shown.rows:
        return
    most = len(shown.rows) if len(shown.rows) <= room else room - 1
    table = Table(box=None, pad_edge=False)
    for title in shown.titles:
        table.add_column(Text(title), no_wrap=True, overflow="ellipsis")
    for cells in shown.rows[:most]:
        table.add_row(*map(Text, cells))
    console = Console(file=io.StringIO(), width=_WIDTH, force_jupyter=False, color_system=None)
    with console.capture() as printed:
        console.print(with_columns_that_fit(table, console, [*reversed(shown.titles[1:])]))
    yield ""
    yield from (line.rstrip() for line in printed.get().splitlines())
    if len(shown.rows) > most:
        yield f"... and {len(shown.rows) - most} more"


PANELS, RANGES, DISTRIBUTION = "panels", "ranges", "distribution"


@dataclass(frozen=True)
class Plot:
    """A plot below a table.

    Attributes:
        kind: ``panels``: each column over the rows' positions. ``ranges``: each row's range in both runs.
            ``distribution``: a histogram of one column.
        split: the column whose values have colours in panels.
        column: the column that a distribution shows at first.
    """

    kind: str
    title: str
    columns: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    split: str = ""
    column: str = ""


@dataclass(frozen=True)
class PageColumn:
    """A column of a page's table; ``phone``: shown on narrow screens too; ``paper``: printed too."""

    key: str
    title: str
    help: str
    kind: str
    phone: bool
    paper: bool

    @classmethod
    def of(cls, column: TableColumn) -> PageColumn:
        """Returns a table's column as a page's column."""
        rank = math.inf if column.rank is None else column.rank
        return cls(column.key, column.title, column.help, column.kind, rank == 0, rank <= PAPER)


@dataclass(frozen=True)
class Section:
    """A table with its plots.

    Attributes:
        columns: the columns with a value; exactly one is of the kind ``name``.
        pictures: the ``histogram`` and ``map`` of each row; empty if rows have none.
        filters: the columns by whose values the reader selects rows.
        sort: the column to sort by at first; empty for the rows' order.
        red: ``(key, value)``: rows with this value in this column are red.
    """

    id: str
    title: str
    file: str
    columns: tuple[PageColumn, ...]
    rows: Sequence[Sequence[Any]]
    pictures: Sequence[Mapping[str, Any]]
    plots: tuple[Plot, ...] = ()
    filters: tuple[str, ...] = ()
    sort: str = ""
    descending: bool = False
    red: tuple[str, Any] = ("", None)
    words: str = ""


@dataclass(frozen=True)
class TablePage:
    """The content of a page of tables; ``facts`` are texts by title."""

    command: str
    model: str
    headline: str
    sections: Sequence[Section]
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    low: str = "int8"
    metric: str = ""


SCHEMA = 3
_WORDS = (NAME, TEXT, SHAPE, FLAG)


@dataclass(frozen=True, repr=False)
class Result(Shown, ABC):
    """Base of results that are tables; ``COMMAND`` names the command, its JSON file and its page."""

    COMMAND: ClassVar[str]

    schema: int = field(default=SCHEMA, kw_only=True)

    @abstractmethod
    def tables(self) -> Mapping[str, tuple[type, Sequence[Any]]]:
        """Returns by CSV file name the dataclass of its rows, and the rows; the main table first."""

    @abstractmethod
    def page(self) -> TablePage:
        """Returns the content of the command's HTML page."""

    def section(
        self,
        id: str,
        title: str,
        file: str,
        rows: Sequence[Any] | None = None,
        *,
        filters: tuple[str, ...] = (),
        raised: Collection[str] = (),
        sort: str = "",
        **more: Any,
    ) -> list[Section]:
        """Returns the section of a page on a table, as a list of one; empty without rows.

        Args:
            file: a key of ``tables``.
            rows: the rows on the page; None for all.
            filters, sort: columns to select rows by, and to sort by; those without a value are left out.
            raised: columns to show although they are hidden by default.
            more: other fields of ``Section``.
        """
        tables = self.tables()
        if file not in tables:
            return []
        kind, every = tables[file]
        rows = every if rows is None else rows
        columns = [
            column
            for column in columns_of(kind, rows, raised, **self.names)
            if column.title and any(cell not in (None, "") and cell == cell for cell in map(column.cell, rows))
        ]
        keys = {column.key for column in columns}
        names_of_fields = {declared.name for declared in fields(kind)}
        drawn = [name for name in ("histogram", "map") if name in names_of_fields]
        section = Section(
            id,
            title,
            file,
            tuple(map(PageColumn.of, columns)),
            [[column.cell(row) for column in columns] for row in rows],
            [{name: getattr(row, name) for name in drawn} for row in rows] if drawn else (),
            filters=tuple(key for key in filters if key in keys),
            sort=sort if sort in keys else "",
            **more,
        )
        return [section] if rows else []

    @property
    def names(self) -> Mapping[str, str]:
        """The texts for placeholders, such as ``{low}``, in the titles of columns."""
        return {}

    @property
    def overview(self) -> Overview:
        """The page's headline and facts, and the first table as on a narrow screen."""
        page = self.page()
        facts = " · ".join([page.model, *(f"{title} {text}" for title, text in page.facts.items() if text)])
        methods = {".table()": "all rows as a pandas table", ".save(folder)": f"the page, {self.COMMAND}.html"}
        section = self.in_short(page)
        if section is None:
            return Overview(page.headline, facts, notes=page.notes, methods=methods)
        shown = [k for k, column in enumerate(section.columns) if column.phone]
        rows = section.rows
        if section.sort:
            by = [column.key for column in section.columns].index(section.sort)
            measured = [row for row in rows if row[by] is not None and row[by] == row[by]]
            rows = sorted(measured, key=lambda row: row[by], reverse=section.descending)

        texts = _texts(section, page.metric)
        cells = [tuple(texts[k](row[k]) for k in shown) for row in rows]
        titles = [section.columns[k].title for k in shown]
        return Overview(page.headline, facts, titles=titles, rows=cells, notes=page.notes, methods=methods)

    def in_short(self, page: TablePage) -> Section | None:
        """Returns the section whose rows summarise the result; None for a page without sections."""
        return next(iter(page.sections), None)

    def table(self) -> pd.DataFrame:
        """Returns the main table as a pandas table."""
        return table_of(*next(iter(self.tables().values())))

    def to_csv(self) -> str:
        """Returns the main table as CSV."""
        return csv_of(*next(iter(self.tables().values())))

    def save(self, folder: str | Path) -> Path:
        """Writes the result as CSV, JSON, text and a page into a folder, made if missing, and returns its path.

        Raises:
            BadInput: the folder cannot be written.
        """
        from trt_bisect.report.html import render_tables

        path = make_folder(Path(folder))
        for name, (kind, rows) in self.tables().items():
            write_whole(path / name, csv_of(kind, rows).encode())
        codec.write(path / f"{self.COMMAND}.json", self)
        page = self.page()
        write_whole(path / f"{self.COMMAND}.txt", self._text(page).encode())
        write_whole(path / f"{self.COMMAND}.html", render_tables(page).encode())
        return path

    def _text(self, page: TablePage) -> str:
        parts = [page.headline, *(f"{title}: {text}" for title, text in page.facts.items() if text), *page.notes]
        for section in page.sections:
            lines = [""] * (len(section.rows) + 1)
            for place, text in enumerate(_texts(section, page.metric)):
                column = section.columns[place]
                cells = [column.title, *(text(row[place]) for row in section.rows)]
                width = max(map(len, cells))
                for k, cell in enumerate(cells):
                    lines[k] += f"{cell.ljust(width) if column.kind in _WORDS else cell.rjust(width)}  "
            parts += ["", f"{section.title}:", *map(str.rstrip, lines)]
        return "\n".join((*parts, ""))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Returns the result that ``save`` wrote into a folder, or in its JSON file.

        Raises:
            BadInput: there is no such result, or it is of another version.
        """
        return loaded(cls, file_in(folder, f"{cls.COMMAND}.json"), SCHEMA, cls.COMMAND)


def _texts(section: Section, metric: str) -> list[Callable[[Any], str]]:
    texts = metric_texts(metric)
    return [texts.get(column.kind) or partial(cell_text, column.kind) for column in section.columns]


def loaded(kind: type[codec.Kind], path: Path, schema: int, command: str) -> codec.Kind:
    """Returns ``command``'s result in a JSON file; raises BadInput if it holds none, or one of another schema."""
    again = f"Run 'trt-bisect {command}' again."
    try:
        text = path.read_bytes()
        found = codec.decode(codec.FileHead, text).schema
        if found != schema:
            raise BadInput(f"'{path}' is of schema {found}, and this version reads schema {schema}.", again)
        return codec.decode(kind, text)
    except OSError as error:
        raise BadInput(
            f"'{path}' cannot be read as a {kind.__name__}: {error.strerror}",
            "Give the folder that was the --output of the command.",
        ) from error
    except (codec.Malformed, RecursionError) as error:
        raise BadInput(f"'{path}' is no {kind.__name__}: {first_line(error)}", again) from error


def file_in(path: str | Path, name: str) -> Path:
    """Returns ``name`` in a folder, or the path itself if it is a file."""
    return Path(path) if Path(path).is_file() else Path(path) / name
