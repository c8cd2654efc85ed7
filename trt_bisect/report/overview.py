"""Results in short: at most 20 lines as text, and a table with the same in a notebook.

A result says what is in its ``Overview``; the text and the HTML are made of it here, for all of them.
"""

from __future__ import annotations

import io
import textwrap
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

LINES, _WIDTH = 20, 100
_ROWS = 20
"""The most rows in a notebook."""


@dataclass(frozen=True)
class Overview:
    """A result in short.

    Attributes:
        headline: the result in a sentence.
        facts: a line on what it is of.
        colour: the CSS colour of the verdict; empty without one.
        titles: of the columns of the table, the most important first.
        rows: the cells of its rows, the most important first.
        lines: the result in sentences, which the text has in place of the headline. A command is indented, and stays
            in one line.
        notes: further remarks.
        methods: by method of the result, what it gives.
    """

    headline: str
    facts: str = ""
    colour: str = ""
    titles: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    lines: Sequence[str] = ()
    notes: Sequence[str] = ()
    methods: Mapping[str, str] = field(default_factory=dict)


class Shown:
    """Base of results that ``print``, the prompt and a notebook show in short."""

    __slots__ = ()

    @property
    @abstractmethod
    def overview(self) -> Overview:
        """The result in short."""

    def __str__(self) -> str:
        """Returns the result in at most 20 lines."""
        return "\n".join(_text(self.overview))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook shows; names are escaped."""
        from trt_bisect.report.page.render import environment

        shown = self.overview
        more = max(0, len(shown.rows) - _ROWS)
        return environment().get_template("notebook.html.j2").render(shown=shown, rows=shown.rows[:_ROWS], more=more)


def _text(shown: Overview) -> list[str]:
    said = [part for line in (shown.lines or [shown.headline]) for part in _wrapped(line)]
    if len(said) >= LINES:
        return [*said[: LINES - 1], "..."]
    said += [textwrap.shorten(shown.facts, _WIDTH, placeholder=" ...")] if shown.facts else []
    return [*said, *_rows(shown, LINES - len(said) - 2)][:LINES]


def _wrapped(line: str) -> list[str]:
    return (
        [line]
        if line.startswith(" ")
        else textwrap.wrap(line, _WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
    )


def _rows(shown: Overview, room: int) -> Iterator[str]:
    """Yields a blank line and the table, with a line on the rows for which there is no room."""
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
