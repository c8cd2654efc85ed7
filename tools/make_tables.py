"""Writes docs/reference/tables.md, the columns of the tables, from their descriptions on the dataclasses' fields.

python -m tools.make_tables
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trt_bisect.analyzer.blame import Advice
from trt_bisect.analyzer.compared import ComparedChannel, ComparedTensor
from trt_bisect.analyzer.structure.findings import Finding
from trt_bisect.analyzer.structure.graph import DroppedNode
from trt_bisect.analyzer.structure.qdq import TensorRounding
from trt_bisect.builder.debug_tensors import EngineTensor
from trt_bisect.report.answer import FrontPoint
from trt_bisect.report.comparison import (
    ADVICE,
    CHANNELS,
    MATCHED,
    PROFILED,
    TENSORS,
    WEIGHTS,
    MatchedLayer,
    ProfiledTensor,
)
from trt_bisect.report.losses import LAYERS, WORST_CSV, JudgedSample, SensitiveOp
from trt_bisect.report.parts import FRONT, LAYERS as RUN_LAYERS, LayerRow
from trt_bisect.report.structure import CHECK_CSV, DROPPED_CSV, TENSORS_CSV
from trt_bisect.report.verification import DIFFERENT_CSV, ENGINE_CSV, VERIFY_CSV, DifferentLayer, Tried
from trt_bisect.support.table import columns_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "tables.md"
_TABLES: Mapping[str, tuple[str, type]] = {
    RUN_LAYERS: ("run", LayerRow),
    FRONT: ("run --front", FrontPoint),
    f"{TENSORS}, {WEIGHTS}": ("compare", ComparedTensor),
    CHANNELS: ("compare", ComparedChannel),
    ADVICE: ("compare", Advice),
    MATCHED: ("compare", MatchedLayer),
    PROFILED: ("profile", ProfiledTensor),
    LAYERS: ("sensitivity", SensitiveOp),
    WORST_CSV: ("worst", JudgedSample),
    CHECK_CSV: ("check", Finding),
    TENSORS_CSV: ("check", TensorRounding),
    DROPPED_CSV: ("check", DroppedNode),
    VERIFY_CSV: ("verify", Tried),
    ENGINE_CSV: ("verify", EngineTensor),
    DIFFERENT_CSV: ("verify", DifferentLayer),
}
_HEAD = """# Columns of tables

Made by `python -m tools.make_tables`. The first column is the name in the CSV file, and what `--columns` and `--sort`
take; the second is the title on the screen and on the page. A column without a title is in the CSV file alone. Shares
are from 0 to 1; the screen and the page write per cent.
"""


def page() -> str:
    """Returns the page."""
    return _HEAD + "".join(_table(file, command, kind) for file, (command, kind) in _TABLES.items())


def _table(file: str, command: str, kind: type) -> str:
    """Returns the table of the columns of a file."""
    rows = [
        f"| `{column.key}` | {column.title} | {column.help} |"
        for column in columns_of(kind, high="FP32", low="INT8", metric="the metric")
    ]
    return "\n".join(
        [f"\n## {file}\n", f"Written by `{command}`.\n", "| column | title | |", "| --- | --- | --- |", *rows, ""]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
