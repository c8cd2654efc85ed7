"""The report of a structure check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from trt_bisect.analyzer.structure.findings import ERROR, SEVERITIES, Finding
from trt_bisect.results.saving import Tabular

SCHEMA = 1
CHECK_JSON, CHECK_CSV = "check.json", "check.csv"


@dataclass(frozen=True)
class CheckReport(Tabular):
    """The findings of a structure check.

    Attributes:
        model: the file.
        opset: of the ONNX operators.
        nodes: the number of nodes in the main graph.
        pairs: the number of Q/DQ pairs among them.
        findings: errors first.
    """

    JSON = CHECK_JSON
    CSV = CHECK_CSV
    COLUMNS = tuple(column.name for column in fields(Finding))

    model: str
    opset: int
    nodes: int
    pairs: int
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """1 if any finding is an error, else 0."""
        return int(any(finding.severity == ERROR for finding in self.findings))

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of findings of each severity."""
        seen = Counter(finding.severity for finding in self.findings)
        return {severity: seen[severity] for severity in SEVERITIES}

    @property
    def summary(self) -> str:
        """A sentence with the counts."""
        counts = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in self.counts.items())
        graph = f"{self.nodes} nodes, opset {self.opset}, {self.pairs or 'no'} Q/DQ pairs"
        return f"{self.model} ({graph}): {counts}."

    def records(self) -> list[dict[str, Any]]:
        """Returns the findings, one a row."""
        return [asdict(finding) for finding in self.findings]

    def to_json(self) -> dict[str, Any]:
        """Returns the content of ``check.json``, in JSON's types."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "opset": self.opset,
            "nodes": self.nodes,
            "pairs": self.pairs,
            "counts": dict(self.counts),
            "findings": self.records(),
        }
