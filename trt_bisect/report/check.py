"""The report of a structure check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from trt_bisect.analyzer.structure.findings import ERROR, SEVERITIES, Finding
from trt_bisect.analyzer.structure.kernels import EngineFacts
from trt_bisect.analyzer.structure.roundings import TensorRounding
from trt_bisect.report.saving import SCHEMA, WithTablePage
from trt_bisect.support.plain_json import csv_text

CHECK_JSON, CHECK_CSV, TENSORS_CSV = "check.json", "check.csv", "quantization.csv"


@dataclass(frozen=True)
class CheckReport(WithTablePage):
    """The findings of a structure check.

    Attributes:
        model: the file.
        opset: the opset of the ONNX operators.
        nodes: the number of nodes in the main graph.
        pairs: the number of Q/DQ pairs among them.
        findings: errors first.
        tensors: the quantization of each tensor of each layer, in execution order.
        unread: the reason why there are no ``tensors``: ``run`` cannot read the file; empty where it can.
        engine: the kernels of a real engine; None if none was asked for, or it was not built.
    """

    JSON = CHECK_JSON
    CSV = CHECK_CSV
    COLUMNS = ("severity", "kind", "layer", "what", "why", "remedy")

    model: str
    opset: int
    nodes: int
    pairs: int
    findings: tuple[Finding, ...]
    tensors: tuple[TensorRounding, ...] = ()
    unread: str = ""
    engine: EngineFacts | None = None

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
        """Returns the findings, a row for each layer; the name of the layer is empty for the network as a whole."""
        rows = [{"layer": layer, **vars(finding)} for finding in self.findings for layer in finding.layers or ("",)]
        return [{name: row[name] for name in self.COLUMNS} for row in rows]

    def to_json(self) -> dict[str, Any]:
        """Returns the content of ``check.json``, in JSON's types."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "opset": self.opset,
            "nodes": self.nodes,
            "pairs": self.pairs,
            "counts": dict(self.counts),
            "findings": [asdict(finding) for finding in self.findings],
            "tensors": [asdict(row) for row in self.tensors],
            "unread": self.unread,
            "engine": None if self.engine is None else asdict(self.engine),
        }

    def csv_files(self) -> Mapping[str, str]:
        """Returns the findings and the quantization of the layers as CSV, by the files' names."""
        columns = tuple(column.name for column in fields(TensorRounding))
        return {**super().csv_files(), TENSORS_CSV: csv_text([asdict(row) for row in self.tensors], columns)}
