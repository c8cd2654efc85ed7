"""Markdown with tables, made of texts that may come from strangers, and a run's report in it, for a merge request."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence

from trt_bisect.analyzer.metrics import loss_text
from trt_bisect.report.answer import AnswerFacts
from trt_bisect.report.model import LayerRow, Report
from trt_bisect.report.screen.run import calibrator_cells, held_cells, sets_of_inputs

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


def markdown(report: Report) -> str:
    """Returns the verdict, the next command, the culprits, the calibrators, the inputs and the notes."""
    return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: Report) -> Iterator[str]:
    yield f"# {literal(report.model)} in INT8"
    yield bullets(line.text for line in report.lines)
    if report.next is not None:
        command = f"\n\n```\n{report.next.command}\n```" if report.next.command else ""
        yield f"Next: {literal(report.next.what)}{command}"
    main, weak = report.ranked_culprits
    if main:
        yield "## Culprits"
        yield _culprits(report, main)
    if weak:
        yield "## Weak culprits"
        yield "Taken back, they miss the threshold by less than the noise, or miss only the margin."
        yield _culprits(report, weak)
    if report.answer is not None:
        yield from _answer(report, report.answer)
    if report.notes:
        yield "## Notes"
        yield bullets(note.text for note in report.notes)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield literal(f"{report.engine} ({report.arithmetic}), {report.plans} plans, {versions}")


def _culprits(report: Report, rows: Iterable[LayerRow]) -> str:
    return table(
        ("culprit", "op", f"if put back in {report.low.upper()}", "loss here", "fixed alone", "rounds"),
        (
            (
                row.name,
                row.op_type,
                report.text(row.taken_back),
                loss_text(report.metric, row.drop),
                loss_text(report.metric, row.gain),
                ", ".join(rounded.tensor for rounded in row.rounds),
            )
            for row in rows
        ),
    )


def _answer(report: Report, answer: AnswerFacts) -> Iterator[str]:
    sets = sets_of_inputs(answer)
    if sets:
        yield "## Inputs"
        yield table(
            ("recipe on", "passes", "mean", "5th percentile", "worst", "which"),
            (held_cells(report, name, held) for name, held in sets),
        )
    if len(answer.calibrators) > 1:
        yield "## Calibrators"
        yield table(
            (
                "calibrator",
                f"full {report.low.upper()}, worst",
                "inputs",
                "passes",
                "first recipe",
                "layers",
                "mean loss",
                "",
            ),
            (calibrator_cells(report, row) for row in answer.calibrators),
        )
