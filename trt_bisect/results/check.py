"""The report of a structure check."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.structure.findings import ERROR, SEVERITIES, Finding
from trt_bisect.support.files import make_folder, write_whole

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
CHECK_JSON, CHECK_CSV = "check.json", "check.csv"


@dataclass(frozen=True)
class CheckReport:
    """What a structure check found.

    Attributes:
        model: the file.
        opset: of the ONNX operators.
        nodes: in the file's main graph.
        pairs: Q/DQ pairs among them.
        findings: errors first.
    """

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
        """How many findings there are of each severity."""
        seen = Counter(finding.severity for finding in self.findings)
        return {severity: seen[severity] for severity in SEVERITIES}

    @property
    def summary(self) -> str:
        """One sentence."""
        said = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in self.counts.items())
        held = f"{self.nodes} nodes, opset {self.opset}, {self.pairs or 'no'} Q/DQ pairs"
        return f"{self.model} ({held}): {said}."

    def table(self) -> pd.DataFrame:
        """The findings as a pandas table, one row each."""
        import pandas as pd

        table: pd.DataFrame = pd.DataFrame([asdict(finding) for finding in self.findings], columns=_columns())
        return table

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "opset": self.opset,
            "nodes": self.nodes,
            "pairs": self.pairs,
            "counts": dict(self.counts),
            "findings": [asdict(finding) for finding in self.findings],
        }

    def to_csv(self) -> str:
        """The findings, one row each."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _columns(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(finding) for finding in self.findings)
        return text.getvalue()

    def save(self, folder: str | Path) -> None:
        """Writes ``check.json`` and ``check.csv`` into a folder.

        Raises:
            BadInput: it cannot be written.
        """
        made = make_folder(Path(folder))
        write_whole(made / CHECK_JSON, (json.dumps(self.to_json(), indent=1) + "\n").encode())
        write_whole(made / CHECK_CSV, self.to_csv().encode())


def _columns() -> list[str]:
    return [column.name for column in fields(Finding)]
