"""Writes docs/reference/tables.md and tools.md from the code's descriptions of columns, and of other tools' files.

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
from trt_bisect.recipe.dialects import DIALECTS
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
TOOLS = PAGE.with_name("tools.md")
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

Made by `python -m tools.make_tables`. The first column is the name in the CSV file, for `--columns` and `--sort`; the
second is the title on the screen and on the page. A column without a title is in the CSV file only. Shares are from
0 to 1; the screen and the page print per cent.
"""

_TOOLS_HEAD = """# Files for other tools

Made by `python -m tools.make_tables`. A recipe has these files, next to those of [trtexec and Polygraphy](files.md),
where the tool can be told the recipe. Those with modules need a network that PyTorch exported; those of TAO Deploy,
DeepStream and the DLA need weak typing (`--trt-version 10.3.0`). `recipe/README.md` lists the files that are there.

`report.quant_cfg()` returns the content of `modelopt_quant_cfg.json`; with `as_dictionary=True` it is the dictionary
that older ModelOpt takes, not a list.

*Round trip*: `python -m benchmarks.dialects` at commit d13d242c gives the file to the tool, reads which layers the tool
left unquantized, and judges the network that the tool made. *Unproven*: the tests read the file as the tool's source
does; the tool itself was not run.

| tool | file | read from | use | proof |
| --- | --- | --- | --- | --- |
"""


def tools_page() -> str:
    """Returns the page of other tools' files."""
    rows = [f"| {each.tool} | `{each.file}` | {each.source} | `{each.use}` | {each.proof} |\n" for each in DIALECTS]
    return _TOOLS_HEAD + "".join(rows)


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
    TOOLS.write_text(tools_page(), encoding="utf-8")
