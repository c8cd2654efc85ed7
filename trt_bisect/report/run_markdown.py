"""A run's report as Markdown, for a merge request or an issue."""

from __future__ import annotations

from collections.abc import Iterator

from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.markdown import bullets, literal, table
from trt_bisect.report.model import AnswerFacts, Report
from trt_bisect.report.screen.run import calibrator_cells, drop_text, held_cells


def markdown(report: Report) -> str:
    """Returns the verdict, the next command, the culprits, the calibrators, the inputs and the notes."""
    return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: Report) -> Iterator[str]:
    yield f"# {literal(report.model)} in INT8"
    yield bullets(line.text for line in report.lines)
    if report.next is not None:
        command = f"\n\n```\n{report.next.command}\n```" if report.next.command else ""
        yield f"Next: {literal(report.next.what)}{command}"
    culprits = [row for row in report.layers if row.culprit]
    if culprits:
        yield "## Culprits"
        yield table(
            ("culprit", "op", "drop", "gain", "taken back", "rounds"),
            (
                (
                    row.name,
                    row.op_type,
                    _drop(report, row.drop),
                    _drop(report, row.gain),
                    figure_text(report.metric, row.taken_back),
                    ", ".join(rounded.tensor for rounded in row.rounds),
                )
                for row in culprits
            ),
        )
    if report.answer is not None:
        yield from _answer(report, report.answer)
    if report.notes:
        yield "## Notes"
        yield bullets(note.text for note in report.notes)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield literal(f"{report.engine} ({report.arithmetic}), {report.plans} plans, {versions}")


def _answer(report: Report, answer: AnswerFacts) -> Iterator[str]:
    sets = [(name, held) for name, held in (("given", answer.given), ("unseen", answer.unseen)) if held is not None]
    if sets:
        yield "## Inputs"
        yield table(
            ("recipe on", "holds", "mean", "5th percentile", "worst", "which"),
            (held_cells(report.metric, name, held) for name, held in sets),
        )
    if len(answer.calibrators) > 1:
        yield "## Calibrators"
        yield table(
            ("calibrator", "full INT8, worst", "inputs", "meets", "first recipe", "layers", "mean loss", ""),
            (calibrator_cells(report, row) for row in answer.calibrators),
        )


def _drop(report: Report, drop: float | None) -> str:
    return "-" if drop is None else drop_text(report.metric, drop)
