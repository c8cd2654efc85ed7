"""``trt-bisect compare``: every tensor in FP32 and in low precision, and which layers are abnormal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trt_bisect.cli.display import DISPLAY, WIDE, Columns, Configured, Display, Top, console, listed
from trt_bisect.jobs.options.commands import CompareOptions
from trt_bisect.jobs.options.declare import FLAT
from trt_bisect.jobs.options.kinds import FILE


def compare_command(
    model: Annotated[Path | None, DISPLAY(FILE)] = None,
    other: Annotated[Path | None, DISPLAY(FILE)] = None,
    /,
    *,
    options: Annotated[CompareOptions, FLAT] = CompareOptions(),
    sort: Annotated[str, DISPLAY()] = "index",
    top: Top = 50,
    columns: Columns = "",
    display: Display = Configured(),
) -> None:
    """Compare every tensor and weight of a network in FP32 and low precision, of two networks, or of two saved runs.

    Args:
        model: The ONNX network; not needed for two saved runs.
        other: A second network, such as the quantized network or yesterday's export.
        sort: Sort by this column: index, or, worst first, cosine, sqnr, mse, l1, kl, max_abs, max_rel or another
            column.
    """
    from trt_bisect.jobs.compare import compare_with
    from trt_bisect.report.comparison import sort_column
    from trt_bisect.report.screen.tensors import print_comparison

    sort_column(sort)
    found = compare_with(model, replace(options, other=other, progress=display.progress()))
    if display.json:
        display.print_json(found)
        return
    print_comparison(found, console(WIDE), sort=sort, top=top, columns=listed(columns))
