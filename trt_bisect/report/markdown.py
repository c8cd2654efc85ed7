"""Markdown with tables, out of texts that may be a stranger's."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_MARKS = re.compile(r"([\\`*_{}\[\]()#+\-.!|])")
_OF_GITHUB = re.compile(r"[~$@]|:(?=[A-Za-z+/_-])")
"""Struck out, formulas, people, emojis and addresses."""


def literal(text: str) -> str:
    """A text that is shown as it is: no tag, no mark and no line of it means anything."""
    marked = _MARKS.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
    return _OF_GITHUB.sub(lambda mark: f"&#{ord(mark[0])};", marked)


def listed(sentences: Iterable[str]) -> str:
    """A list, a sentence each."""
    return "\n".join(f"- {literal(sentence)}" for sentence in sentences)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, figures to six digits; nothing for None."""
    lines = [header, ["---"] * len(header), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return literal(f"{value:.6g}" if isinstance(value, float) else str(value))
