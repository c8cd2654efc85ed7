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
from trt_bisect.options.commands import COMMANDS as IN_PYTHON
from trt_bisect.options.concerns import PANELS
from trt_bisect.options.declare import Option, declared

PAGES = Path(__file__).resolve().parent.parent / "docs" / "commands"

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
    """The options of a command by panel, in the order of its help; those of ``--help-all`` are marked."""
    options = [option for option in declared(function_of(command)) if not option.is_argument]
    in_python = {option.keyword for option in declared(IN_PYTHON[command])} if command in IN_PYTHON else set()
    lines: list[str] = []
    for panel in PANELS:
        in_panel = [option for option in options if option.panel == panel]
        if in_panel:
            lines += [f"**{panel}**", "", *_table(in_panel, in_python), ""]
    return "\n".join(lines)


def _table(options: Sequence[Option], in_python: set[str]) -> list[str]:
    lines = ["| option | Python, TOML | default | |", "| --- | --- | --- | --- |"]
    for option in options:
        flags = ", ".join(f"`{flag}`" for flag in option.flags) or "-"
        expert = " (`--help-all`)" if option.expert else ""
        name = (
            f"`{option.keyword}`" if option.keyword in in_python or not option.flags else f"`{option.keys[-1]}` (TOML)"
        )
        default = option.shown_default
        without = option.without or (f"`{default}`" if default else "")
        text = re.sub(
            rf"(; |\()default: {re.escape(default)}\)$", lambda match: ")" * (match[1] == "; "), option.described
        )
        lines.append(" | ".join((f"| {flags}{expert}", name, without, text.strip().replace("|", "\\|") + " |")))
    return lines


def main() -> None:
    """Writes the pages."""
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
