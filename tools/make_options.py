"""Writes the tables of options on the pages docs/commands.

python tools/make_options.py

Each command has a page ``docs/commands/<command>.md``. Its options stand between two comments; all else on the page is
written by hand. A page that is missing is begun; it needs a line in ``mkdocs.yml``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from trt_bisect.cli.app import COMMANDS, function_of
from trt_bisect.options import PANELS
from trt_bisect.options.commands import COMMANDS as IN_PYTHON
from trt_bisect.options.declare import Option, declared

PAGES = Path(__file__).resolve().parent.parent / "docs" / "commands"

_MAIN = "run"
_HEAD = ("| option | Python, TOML | default | |", "| --- | --- | --- | --- |")
_BEGIN = "<!-- options: made by tools/make_options.py -->"
_END = "<!-- end of options -->"
_BLOCK = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)


def pages() -> dict[Path, str]:
    """The content of each command's page, with its options as they are declared now."""
    return {page: _with_options(page, page.stem) for page in (PAGES / f"{name}.md" for name in COMMANDS)}


def _with_options(page: Path, command: str) -> str:
    begun = f"# {command}\n\n## Options\n\n{_BEGIN}\n{_END}\n"
    text = page.read_text(encoding="utf-8") if page.exists() else begun
    return _BLOCK.sub(lambda _: f"{_BEGIN}\n\n{tables(command)}\n{_END}", text)


def tables(command: str) -> str:
    """The options of a command by panel, in the order of its help; those of ``--help-all`` are marked.

    Options that mean the same in ``run`` are described there and only listed here.
    """
    described = set()
    if command != _MAIN:
        described = {_meaning(row) for rows in _rows_by_panel(_MAIN).values() for row in rows}
    lines: list[str] = []
    shared: list[str] = []
    for panel, rows in _rows_by_panel(command).items():
        own = [row for row in rows if _meaning(row) not in described]
        shared += [_name(row) for row in rows if _meaning(row) in described]
        if own:
            lines += [f"**{panel}**", "", *_HEAD, *own, ""]
    if shared:
        lines += [f"As for [`run`](run.md#options): {', '.join(shared)}.", ""]
    return "\n".join(lines)


def _meaning(row: str) -> tuple[str, ...]:
    """Returns the cells of a row without that of the names in Python and TOML."""
    flags, _, *others = row.split(" | ")
    return flags, *others


def _name(row: str) -> str:
    """Returns the first flag of a row, or the keyword of an option that only Python has."""
    flags, keyword, *_ = row.removeprefix("| ").split(" | ")
    return f"{keyword} (in Python)" if flags == "-" else flags.split(",")[0].split(" ")[0]


def _rows_by_panel(command: str) -> dict[str, list[str]]:
    in_python = {option.keyword for option in declared(IN_PYTHON[command])} if command in IN_PYTHON else set()
    everything = declared(function_of(command))
    options = [option for option in everything if not option.is_argument or option.keyword in in_python]
    panels = {panel: [option for option in options if option.panel == panel] for panel in PANELS}
    return {panel: _rows(in_panel, in_python) for panel, in_panel in panels.items()}


def _rows(options: Sequence[Option], in_python: set[str]) -> list[str]:
    lines = []
    for option in options:
        names = option.flags or ([option.keyword.upper()] if option.is_argument else [])
        cells = [", ".join(f"`{name}`" for name in names) or "-"]
        if option.expert:
            cells[0] += " (`--help-all`)"
        if option.keyword in in_python or not option.flags:
            cells.append(f"`{option.keyword}`")
        else:
            cells.append(f"`{option.keys[-1]}` (TOML)")
        default = option.shown_default
        cells.append(option.without or (f"`{default}`" if default else ""))
        cells.append(option.with_facts(option.effect, option.kind.choices).strip().replace("|", "\\|"))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Writes the pages."""
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
