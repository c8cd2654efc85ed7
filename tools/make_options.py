"""Writes what follows from the declared options: ``docs/options.md`` and ``trt_bisect/jobs/options/keywords.py``.

python tools/make_options.py
"""

from __future__ import annotations

from pathlib import Path

from trt_bisect.jobs.options.commands import COMMANDS, OF_THE_COMMAND_LINE
from trt_bisect.jobs.options.declare import OptionInfo, Options
from trt_bisect.jobs.options.signatures import described

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "options.md"
KEYWORDS = ROOT / "trt_bisect" / "jobs" / "options" / "keywords.py"

_HEAD = """# Options

Made by `python tools/make_options.py` from the declarations in `trt_bisect/jobs/options/`. The same option has the same
name on the command line (`--class-axis`), in Python (`class_axis=`), and in TOML (`class_axis =`, in a suite and in a
file for `--config`), and the same unit. Where the flag is another than the name, the table shows both.
"""
_MODULE = '''"""The keywords of the Python functions, for type checkers. Made by tools/make_options.py: do not edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from trt_bisect.data.staged import StagedFile
from trt_bisect.support.progress import Progress
'''


def document() -> str:
    """The content of ``docs/options.md``."""
    return "\n".join(
        [_HEAD, *(_section(name, options) for name, options in {**COMMANDS, **OF_THE_COMMAND_LINE}.items())]
    )


def _section(command: str, options: type[Options]) -> str:
    lines = [f"## {command}", ""]
    panel = ""
    for info in options.declared():
        if info.panel != panel:
            panel = info.panel
            lines += [f"{panel}", "", "| option | Python, TOML | default | |", "| --- | --- | --- | --- |"]
        lines.append(_row(info))
        following = options.declared()
        at = following.index(info) + 1
        if at == len(following) or following[at].panel != panel:
            lines.append("")
    return "\n".join(lines)


def _row(info: OptionInfo) -> str:
    flags = ", ".join(f"`{flag}`" for flag in info.flags) or "-"
    default = info.otherwise or ("" if info.default in (None, ()) else f"`{info.default}`")
    words = described(info).replace(f"default: {info.otherwise}", "") if info.otherwise else described(info)
    words = words.replace(" ()", "").replace("; )", ")").replace("|", "\\|")
    return f"| {flags} | `{info.name}` | {default} | {words} |"


def keywords() -> str:
    """The content of ``keywords.py``."""
    classes = [_keywords(name, options) for name, options in COMMANDS.items()]
    return "\n\n".join([_MODULE, *classes])


def _keywords(command: str, options: type[Options]) -> str:
    lines = [f"class {command.title()}Keywords(TypedDict, total=False):", f'    """Of ``trt_bisect.{command}``."""', ""]
    positional = getattr(options, "POSITIONAL", ())
    lines += [f"    {info.name}: {info.annotation}" for info in options.declared() if info.name not in positional]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes both files."""
    DOCUMENT.write_text(document(), encoding="utf-8")
    KEYWORDS.write_text(keywords(), encoding="utf-8")


if __name__ == "__main__":
    main()
