"""Writes what follows from the declared options: the tables of docs/commands, and trt_bisect/jobs/options/keywords.py.

python tools/make_options.py

Each command has a page ``docs/commands/<command>.md``. Its options stand between two comments; all else on the page is
written by hand. A page that is missing is begun; it needs a line in ``mkdocs.yml``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.main import get_command

from trt_bisect.cli.app import application
from trt_bisect.jobs.options.commands import COMMANDS, OF_THE_COMMAND_LINE
from trt_bisect.jobs.options.declare import Options
from trt_bisect.jobs.options.option_info import OptionInfo
from trt_bisect.jobs.options.signatures import described

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "commands"
KEYWORDS = ROOT / "trt_bisect" / "jobs" / "options" / "keywords.py"

_WORTH_A_BASE = 4
"""Keywords that the same commands take get a base class from this number on."""
_BEGIN = "<!-- options: made by tools/make_options.py -->"
_END = "<!-- end of options -->"
_BLOCK = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
_MODULE = '''"""The keywords of the Python functions, for type checkers. Made by tools/make_options.py: do not edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from trt_bisect.data.named import StagedFile
from trt_bisect.model.network import Network
from trt_bisect.support.progress import Progress
'''

_LINE = 120


def pages() -> dict[Path, str]:
    """The content of each command's page, with its options as they are declared now."""
    declared = {**COMMANDS, **OF_THE_COMMAND_LINE}
    commands: dict[str, Any] = get_command(application()).commands  # type: ignore[attr-defined]
    return {
        PAGES / f"{name}.md": _with_options(PAGES / f"{name}.md", name, _tables(command, declared.get(name)))
        for name, command in commands.items()
    }


def _with_options(page: Path, command: str, tables: str) -> str:
    begun = f"# {command}\n\n## Options\n\n{_BEGIN}\n{_END}\n"
    text = page.read_text(encoding="utf-8") if page.exists() else begun
    return _BLOCK.sub(lambda _: f"{_BEGIN}\n\n{tables}\n{_END}", text)


def _tables(command: Any, options: type[Options] | None) -> str:
    """The declared options by panel, then those of the command line alone."""
    declared = options.declared() if options else ()
    lines: list[str] = []
    for panel in dict.fromkeys(info.panel for info in declared):
        lines += [f"**{panel}**", "", "| option | Python, TOML | default | |", "| --- | --- | --- | --- |"]
        lines += [_row(info) for info in declared if info.panel == panel] + [""]
    names = {info.name for info in declared}
    others = [each for each in command.params if each.name not in names and each.param_type_name == "option"]
    title = ["**Command line alone**", ""] if declared else []
    table = [*title, "| option | default | |", "| --- | --- | --- |", *(_plain_row(each) for each in others)]
    return "\n".join([*lines, *(table if others else [])]) + "\n" if declared or others else "None.\n"


def _row(info: OptionInfo) -> str:
    flags = ", ".join(f"`{flag}`" for flag in info.flags) or "-"
    default = info.otherwise or ("" if info.default in (None, ()) else f"`{info.default}`")
    words = described(info).replace(f"default: {info.otherwise}", "") if info.otherwise else described(info)
    words = words.replace(" ()", "").replace("; )", ")").replace("|", "\\|")
    return f"| {flags} | `{info.name}` | {default} | {words} |"


def _plain_row(parameter: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
    has_default = parameter.show_default is not False and parameter.default not in (None, False, "", [])
    default = f"`{parameter.default}`" if has_default else ""
    return f"| {flags} | {default} | {(parameter.help or '').replace('|', chr(92) + '|')} |"


def keywords() -> str:
    """The content of ``keywords.py``: a class for each command, with a base for the keywords of the same commands."""
    takers: dict[tuple[str, str], list[str]] = {}
    for command, options in COMMANDS.items():
        for info in options.declared():
            if info.name not in options.POSITIONAL:
                takers.setdefault((info.name, info.annotation), []).append(command)
    by_commands: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for keyword, commands in takers.items():
        by_commands.setdefault(tuple(commands), []).append(keyword)
    shared = {who: found for who, found in by_commands.items() if len(who) > 1 and len(found) >= _WORTH_A_BASE}
    bases = [_typed_dict(_base(who), (), f"The keywords of {', '.join(who)}.", found) for who, found in shared.items()]
    return "\n\n".join([_MODULE, *bases, *(_keywords_of(command, takers, shared) for command in COMMANDS)])


def _keywords_of(
    command: str,
    takers: Mapping[tuple[str, str], Sequence[str]],
    shared: Mapping[tuple[str, ...], Sequence[tuple[str, str]]],
) -> str:
    own = [keyword for keyword, who in takers.items() if command in who and tuple(who) not in shared]
    bases = [_base(who) for who in shared if command in who]
    return _typed_dict(f"{command.title()}Keywords", bases, f"The keywords of ``trt_bisect.{command}``.", own)


def _base(commands: Sequence[str]) -> str:
    """``_RunRecover`` for the keywords that ``run`` and ``recover`` share; ``_All`` for those of every command."""
    return "_All" if len(commands) == len(COMMANDS) else f"_{''.join(map(str.title, commands))}"


def _typed_dict(name: str, bases: Sequence[str], words: str, keys: Sequence[tuple[str, str]]) -> str:
    given = [*(bases or ["TypedDict"]), "total=False"]
    head = f"class {name}({', '.join(given)}):"
    if len(head) > _LINE:
        head = "\n    ".join([f"class {name}(", *(f"{each}," for each in given)]) + "\n):"
    lines = ["", *(f"    {key}: {annotation}" for key, annotation in keys)] if keys else []
    return "\n".join([head, f'    """{words}"""', *lines]) + "\n"


def main() -> None:
    """Writes the pages and the keywords."""
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
    KEYWORDS.write_text(keywords(), encoding="utf-8")


if __name__ == "__main__":
    main()
