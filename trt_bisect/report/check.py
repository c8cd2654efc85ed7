"""The report of a structure check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trt_bisect.analyzer.structure.findings import ERROR, SEVERITIES, Finding
from trt_bisect.analyzer.structure.graph import DroppedNode
from trt_bisect.analyzer.structure.kernels import EngineFacts
from trt_bisect.analyzer.structure.qdq import TensorRounding
from trt_bisect.report.page.tables import BarPlot, TablePage
from trt_bisect.report.result import Result
from trt_bisect.support.text import counted

CHECK_CSV, TENSORS_CSV, DROPPED_CSV = "check.csv", "quantization.csv", "dropped.csv"


@dataclass(frozen=True, repr=False)
class CheckReport(Result):
    """The findings of a structure check.

    Attributes:
        model: the file.
        opset: the opset of the ONNX operators.
        nodes: the number of nodes in the main graph.
        pairs: the number of Q/DQ pairs among them.
        findings: errors first.
        tensors: the quantization of each tensor of each layer, in execution order.
        dropped: the nodes that are no layers, in the order of the file.
        unread: the reason why there are no ``tensors``: ``run`` cannot read the file; empty where it can.
        engine: the kernels of a real engine; None if none was asked for, or it was not built.
    """

    COMMAND = "check"

    model: str
    opset: int
    nodes: int
    pairs: int
    findings: tuple[Finding, ...]
    tensors: tuple[TensorRounding, ...] = ()
    unread: str = ""
    dropped: tuple[DroppedNode, ...] = ()
    engine: EngineFacts | None = None

    @property
    def exit_code(self) -> int:
        """1 if any finding is an error, else 0."""
        return int(any(finding.severity == ERROR for finding in self.findings))

    @property
    def summary(self) -> str:
        """A sentence with the number of findings of each severity."""
        seen = Counter(finding.severity for finding in self.findings)
        counts = ", ".join(counted(seen[severity], severity) for severity in SEVERITIES)
        graph = f"{self.nodes} nodes, opset {self.opset}, {self.pairs or 'no'} Q/DQ pairs"
        return f"{self.model} ({graph}): {counts}."

    @property
    def rows(self) -> tuple[Finding, ...]:
        """The findings, one for each layer; that on the network as a whole has none."""
        return tuple(
            replace(finding, layers=finding.layers[place : place + 1])
            for finding in self.findings
            for place in range(max(1, len(finding.layers)))
        )

    def tables(self) -> Mapping[str, tuple[type, Sequence[Any]]]:
        """Returns the findings, the quantization of the layers, and the nodes that are no layers."""
        return {
            CHECK_CSV: (Finding, self.rows),
            TENSORS_CSV: (TensorRounding, self.tensors),
            DROPPED_CSV: (DroppedNode, self.dropped),
        }

    def page(self) -> TablePage:
        """Returns the page."""
        kinds, tensors = (
            BarPlot("Distribution of the findings", "kind"),
            BarPlot("Distribution of the tensors", "quantized"),
        )
        filters = ("role", "op_type", "quantized", "origin")
        red = ("severity", ERROR)
        return TablePage(
            command=self.COMMAND,
            model=self.model,
            headline=self.summary,
            facts={"Opset": str(self.opset), "Nodes": str(self.nodes), "Q/DQ pairs": str(self.pairs)},
            notes=self.remarks,
            sections=[
                *self.section("findings", "Findings", CHECK_CSV, filters=("severity", "kind"), plots=(kinds,), red=red),
                *self.section(
                    "quantization", "Quantization of each layer", TENSORS_CSV, filters=filters, plots=(tensors,)
                ),
                *self.section("dropped", "Nodes that are no layers", DROPPED_CSV, filters=("op_type", "why")),
            ],
        )

    @property
    def remarks(self) -> list[str]:
        """The reason why layers are not listed, and the sentence on the engine, where there are such."""
        unread = [f"The layers are not listed: {self.unread}"] if self.unread else []
        return [*unread, *([] if self.engine is None else [self.engine.summary])]
