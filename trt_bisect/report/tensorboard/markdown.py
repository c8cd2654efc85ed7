"""Texts for TensorBoard's text page, which takes Markdown with tables."""

from __future__ import annotations

from trt_bisect.report.tensorboard.writer import LogRun


def write_texts(run: LogRun, **texts: str) -> None:
    """Writes the texts that are not empty, each under its name."""
    for tag, text in texts.items():
        if text:
            run.text(tag, text)
