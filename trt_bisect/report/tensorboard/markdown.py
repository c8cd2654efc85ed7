"""Texts for TensorBoard's text page, which takes Markdown with tables."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from trt_bisect.report.tensorboard.writer import LogRun

_MARKS = re.compile(r"([\\`*_{}\[\]()#+\-.!|])")


def literal(text: str) -> str:
    """A text that may be a stranger's, to be shown as it is: no tag, no mark and no line of it means anything."""
    return _MARKS.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))


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


def write_texts(run: LogRun, **texts: str) -> None:
    """Writes the texts that are not empty, each under its name."""
    for tag, text in texts.items():
        if text:
            run.text(tag, text)
