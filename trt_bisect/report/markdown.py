"""Markdown with tables, made of texts that may come from strangers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_MARKS = re.compile(r"([\\`*_{}\[\]()#+\-.!|])")
_OF_GITHUB = re.compile(r"[~$@]|:(?=[A-Za-z+/_-])")
"""Marks that GitHub adds: strikethrough, formulas, mentions, emojis and addresses."""


def literal(text: str) -> str:
    """Returns a text escaped so that no tag, mark or line break in it has an effect."""
    marked = _MARKS.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
    return _OF_GITHUB.sub(lambda mark: f"&#{ord(mark[0])};", marked)


def bullets(sentences: Iterable[str]) -> str:
    """Returns a list with one sentence an item."""
    return "\n".join(f"- {literal(sentence)}" for sentence in sentences)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table: figures with six digits, an empty cell for None."""
    lines = [header, ["---"] * len(header), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return literal(f"{value:.6g}" if isinstance(value, float) else str(value))
