"""The tables of ``compare`` and ``profile`` on the screen. Names are printed as they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_bisect.analyzer.advisor import LEAST_COSINE, LOW_SIMILARITY
from trt_bisect.analyzer.compared import Compared
from trt_bisect.results.comparison import INDEX, Comparison
from trt_bisect.results.profile import Profile, ProfiledTensor
from trt_bisect.support.plain_json import shape_text

ADVICE_UP_TO = 20
WIDE = 150
"""Below this width, in characters, the tables have fewer columns."""


def print_comparison(found: Comparison, console: Console, *, sort: str = INDEX, top: int = 0) -> None:
    """Prints tensors, weights, advice and notes; ``top`` rows of each table, all for 0.

    Raises:
        BadInput: rows cannot be sorted by ``sort``.
    """
    tensors, wide = found.sorted_by(sort), console.width >= WIDE
    both = f"'{found.other}' against '{found.model}'" if found.other else f"{found.low.upper()} against FP32"
    tensors_of = both if found.other else f"{found.low.upper()} ({found.arithmetic}) against FP32"
    console.print(Text(f"Tensors of {tensors_of}, {_samples(found.samples)}:"))
    console.print(compared_table(_first(tensors, top), wide=wide))
    _print_hidden(console, len(tensors), top)
    if found.weights:
        weights = found.sorted_by(sort, weights=True)
        console.print()
        console.print(Text(f"Weights, {both}:"))
        console.print(compared_table(_first(weights, top), wide=wide))
        _print_hidden(console, len(weights), top)
    console.print()
    if not found.advice:
        console.print(Text("No layer is abnormal.", style="bold green"))
    causes_first = sorted(found.advice, key=lambda advice: advice.reason == LOW_SIMILARITY)
    for advice in causes_first[:ADVICE_UP_TO]:
        place = ", ".join(f"'{name}'" for name in advice.layers) or "The network"
        console.print(Text(f"{place}: {advice.reason} ({advice.kind} '{advice.tensor}'): {advice.words}"))
    if len(found.advice) > ADVICE_UP_TO:
        more = len(found.advice) - ADVICE_UP_TO
        console.print(Text(f"{more} more findings; --output FOLDER keeps all.", style="dim"))
    _print_notes(console, found.notes)


def print_profile(found: Profile, console: Console, *, top: int = 0) -> None:
    """Prints the tensors of the selected layers, and the notes; ``top`` rows, all for 0."""
    if found.samples:
        console.print(Text(f"{_samples(found.samples)} of {found.source}:"))
    console.print(profile_table(found.tensors[:top] if top else found.tensors, wide=console.width >= WIDE))
    _print_hidden(console, len(found.tensors), top)
    _print_notes(console, found.notes)


def compared_table(rows: Sequence[Compared], *, wide: bool = True) -> Table:
    """Returns the tensors or weights, one a row, a low cosine in red; with fewer columns if not ``wide``."""
    columns = [column for column in _COMPARED if wide or not column.wide]
    table = _table(columns)
    for row in rows:
        low = row.figures.cosine < LEAST_COSINE
        table.add_row(*(Text(column.text(row)) for column in columns), style="bold red" if low else "")
    return table


def profile_table(rows: Sequence[ProfiledTensor], *, wide: bool = True) -> Table:
    """Returns the tensors of the layers, one a row; with fewer columns if not ``wide``."""
    columns = [column for column in _PROFILED if wide or not column.wide]
    table = _table(columns)
    for row in rows:
        table.add_row(*(Text(column.text(row)) for column in columns))
    return table


@dataclass(frozen=True)
class _Column:
    title: str
    text: Callable[[Any], str]
    number: bool = True
    wide: bool = False


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{100 * value:.3f}"


def _of(part: str, name: str, text: Callable[[float | None], str] = _number) -> Callable[[Any], str]:
    """Returns a function that writes ``row.<part>.<name>``; empty where there is no such part."""
    return lambda row: text(getattr(getattr(row, part), name, None))


_SHAPE = _Column("Shape", lambda row: shape_text(row.shape), number=False)
_SCALE = _Column("Scale", lambda row: _number(row.scale), wide=True)
_COMPARED = (
    _Column("#", lambda row: "" if row.origin.index is None else str(row.origin.index)),
    _Column("Layer", lambda row: row.origin.layer or row.origin.tensor, number=False),
    _Column("Tensor", lambda row: row.origin.tensor, number=False, wide=True),
    _Column("Op", lambda row: row.origin.int8_op_type, number=False, wide=True),
    _SHAPE,
    _Column("Rounded", lambda row: row.origin.quantized_dtype, number=False),
    _SCALE,
    _Column("Cosine%", _of("figures", "cosine", _percent)),
    _Column("SQNR dB", _of("figures", "sqnr")),
    _Column("MSE", _of("figures", "mse")),
    _Column("L1", _of("figures", "l1"), wide=True),
    _Column("KL", _of("figures", "kl"), wide=True),
    _Column("Atol", _of("figures", "atol"), wide=True),
    _Column("Rtol", _of("figures", "rtol"), wide=True),
    _Column("Rounding dB", _of("rounding", "sqnr"), wide=True),
    _Column("Clipped%", _of("rounding", "clipped", _percent), wide=True),
)
_PROFILED = (
    _Column("#", lambda row: str(row.index)),
    _Column("Layer", lambda row: row.layer, number=False),
    _Column("Op", lambda row: row.op_type, number=False, wide=True),
    _Column("Role", lambda row: row.role, number=False),
    _Column("Tensor", lambda row: row.tensor, number=False, wide=True),
    _Column("DType", lambda row: row.dtype, number=False, wide=True),
    _SHAPE,
    _SCALE,
    _Column("Min", _of("spread", "min")),
    _Column("Max", _of("spread", "max")),
    _Column("Mean", _of("spread", "mean")),
    _Column("Variance", _of("spread", "variance")),
)


def _table(columns: Sequence[_Column]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        options: dict[str, Any] = {"justify": "right", "no_wrap": True} if column.number else {"overflow": "fold"}
        table.add_column(column.title, **options)
    return table


def _first(rows: Sequence[Compared], top: int) -> Sequence[Compared]:
    return rows[:top] if top else rows


def _print_hidden(console: Console, count: int, top: int) -> None:
    if top and count > top:
        console.print(Text(f"{count - top} more rows; --top 0 prints all, --output FOLDER keeps all.", style="dim"))


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(Text(f"Note: {note}", style="yellow"))


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"
