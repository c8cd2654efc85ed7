"""The changes from one report to another, as text."""

from __future__ import annotations

from trt_bisect.analyzer.changes import NEUTRAL
from trt_bisect.report.regression.text import made_of_text, sentence
from trt_bisect.results.run_changes import RunChanges

__all__ = ["text"]


def text(found: RunChanges) -> str:
    """Returns a sentence for each change, the worse ones first, and what else is different."""
    others = [change for change in found.changes if change not in found.worse]
    words = {NEUTRAL: "changed"}
    said = [
        f"{words.get(change.effect, change.effect)}: {sentence(change, found.metric)}"
        for change in (*found.worse, *others)
    ]
    return "\n".join([*(said or ["Nothing changed."]), f"different: {made_of_text(found.differs)}"])
