"""Annotations for GitHub Actions: workflow commands that GitHub shows in a job and a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from trt_bisect.analyzer.structure.findings import ERROR, NOTE, WARNING
from trt_bisect.report import nightly
from trt_bisect.report.changes import sentence
from trt_bisect.report.structure import CheckReport
from trt_bisect.support.text import listed

_COMMANDS = {ERROR: "error", WARNING: "warning", NOTE: "notice"}
_ENDINGS = {nightly.FAILED: "failed", nightly.ERROR: "not measured"}
_MOST = 5


def of_night(regression: nightly.Regression) -> list[str]:
    """Returns an annotation, one line of text, for each network that failed or could not be measured."""
    lines = []
    for result in regression.networks:
        if result.status == nightly.PASSED:
            continue
        texts = [result.message]
        if result.tonight is not None:
            texts = [sentence(change, result.tonight.metric) for change in result.failures]
        lines.append(_annotation(ERROR, f"INT8 of {result.name}: {_ENDINGS[result.status]}", texts))
    return lines


def of_check(report: CheckReport) -> list[str]:
    """Returns an annotation, one line of text, for each kind of finding, the errors first."""
    # By kind, because GitHub shows at most 10 annotations of each severity in a step.
    texts: dict[str, list[str]] = {}
    for finding in report.findings:
        where = f"{listed(finding.layers, _MOST)}: " if finding.layers else ""
        texts.setdefault(finding.kind, []).append(f"{where}{finding.what}")
    first = {finding.kind: finding for finding in reversed(report.findings)}
    return [
        _annotation(first[kind].severity, f"{report.model}: {kind}", found, first[kind].remedy)
        for kind, found in texts.items()
    ]


def _annotation(severity: str, title: str, texts: Sequence[str], end: str = "") -> str:
    lines = [*texts[:_MOST]]
    if len(texts) > _MOST:
        lines.append(f"and {len(texts) - _MOST} more")
    if end:
        lines.append(end)
    name, message = _escaped(title).replace(":", "%3A").replace(",", "%2C"), _escaped("\n".join(lines))
    return f"::{_COMMANDS[severity]} title={name}::{message}"


def _escaped(text: str) -> str:
    # As in GitHub's actions/toolkit.
    plain = "".join(letter if letter.isprintable() or letter in "\r\n" else "?" for letter in text)
    return plain.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
