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
from trt_bisect.analyzer.tensors import Spread
from trt_bisect.errors import BadInput
from trt_bisect.report.comparison import INDEX, Comparison
from trt_bisect.report.profile import Profile
from trt_bisect.report.screen.layout import with_columns_that_fit
from trt_bisect.support.plain_json import shape_text

ADVICE_UP_TO = 20


def print_comparison(
    found: Comparison, console: Console, *, sort: str = INDEX, top: int = 0, columns: Sequence[str] = ()
) -> None:
    """Prints tensors, weights, advice and notes; ``top`` rows of each table, all for 0.

    Args:
        found: the comparison.
        console: to print on; tables have the columns that fit.
        sort: the column to sort by.
        top: the number of rows of each table.
        columns: the columns of the CSV files, to show instead of the usual ones.

    Raises:
        BadInput: rows cannot be sorted by ``sort``, or there is no such column.
    """
    tensors = found.sorted_by(sort)
    both = f"'{found.other}' against '{found.model}'" if found.other else f"{found.low.upper()} against FP32"
    tensors_of = both if found.other else f"{found.low.upper()} ({found.arithmetic}) against FP32"
    console.print(Text(f"Tensors of {tensors_of}, {_samples(found.samples)}:"))
    console.print(_fitted(_first(tensors, top), _TENSORS, columns, console))
    _print_hidden(console, len(tensors), top)
    if found.weights:
        weights = found.sorted_by(sort, weights=True)
        console.print()
        console.print(Text(f"Weights, {both}:"))
        console.print(_fitted(_first(weights, top), _WEIGHTS, columns, console))
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


def print_profile(found: Profile, console: Console, *, top: int = 0, columns: Sequence[str] = ()) -> None:
    """Prints the tensors of the selected layers, and the notes; ``top`` rows, all for 0.

    Raises:
        BadInput: there is no such column as one of ``columns``.
    """
    if found.samples:
        console.print(Text(f"{_samples(found.samples)} of {found.source}:"))
    console.print(_fitted(found.tensors[:top] if top else found.tensors, _PROFILED, columns, console))
    _print_hidden(console, len(found.tensors), top)
    _print_notes(console, found.notes)


def _fitted(rows: Sequence[Any], usual: Sequence[_Column], names: Sequence[str], console: Console) -> Table:
    """Returns rows as a table with the usual columns that fit, or with the columns named; a low cosine in red.

    Raises:
        BadInput: there is no such column.
    """
    columns = [_named(name, rows) for name in names] or usual
    table = _table(columns)
    for row in rows:
        low = isinstance(row, Compared) and row.figures.cosine < LEAST_COSINE
        table.add_row(*(Text(column.text(row)) for column in columns), style="bold red" if low else "")
    droppable = sorted((column for column in columns if column.rank), key=lambda column: -column.rank)
    return table if names else with_columns_that_fit(table, console, [column.title for column in droppable])


def _named(name: str, rows: Sequence[Any]) -> _Column:
    """A column of the CSV file."""
    known = list(rows[0].record()) if rows else [name]
    if name not in known:
        raise BadInput(f"There is no column '{name}'.", f"Use some of {', '.join(known)}.")
    is_text = any(isinstance(row.record()[name], (str, tuple)) for row in rows)
    return _Column(name, lambda row: _cell(row.record()[name]), number=not is_text)


def _cell(value: Any) -> str:
    if isinstance(value, tuple):
        return shape_text(value)
    return _number(value) if isinstance(value, float) else "" if value is None else str(value)


@dataclass(frozen=True)
class _Column:
    """A column of a table.

    Attributes:
        number: it is at the right.
        rank: if there is no room for all columns, columns of the highest rank are left out first; those of rank 0 stay.
    """

    title: str
    text: Callable[[Any], str]
    number: bool = True
    rank: int = 0


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{100 * value:.3f}"


def _range(spread: Spread | None) -> str:
    return "" if spread is None or math.isnan(spread.min) else f"{spread.min:.4g} to {spread.max:.4g}"


def _of(part: str, name: str, text: Callable[[float | None], str] = _number) -> Callable[[Any], str]:
    """Returns a function that writes ``row.<part>.<name>``; empty where there is no such part."""
    return lambda row: text(getattr(getattr(row, part), name, None))


_NAMES = (
    _Column("#", lambda row: "" if row.origin.index is None else str(row.origin.index)),
    _Column("Layer", lambda row: row.origin.layer or row.origin.tensor, number=False),
    _Column("Tensor", lambda row: row.origin.tensor, number=False, rank=14),
    _Column("Op", lambda row: row.origin.int8_op_type, number=False, rank=9),
    _Column("Shape", lambda row: shape_text(row.shape), number=False, rank=3),
    _Column("Rounded", lambda row: row.quantized_dtype, number=False, rank=1),
    _Column("Scale", lambda row: _number(row.scale), rank=6),
)
_FIGURES = (
    _Column("Cosine%", _of("figures", "cosine", _percent)),
    _Column("SQNR dB", _of("figures", "sqnr"), rank=2),
    _Column("MSE", _of("figures", "mse")),
)
_MORE = (
    _Column("L1", _of("figures", "l1"), rank=12),
    _Column("KL", _of("figures", "kl"), rank=11),
    _Column("Atol", _of("figures", "atol"), rank=10),
    _Column("Rtol", _of("figures", "rtol"), rank=13),
    _Column("Rounding dB", _of("rounding", "sqnr"), rank=8),
    _Column("Clipped%", _of("rounding", "clipped", _percent), rank=7),
)
_TENSORS = (
    *_NAMES,
    *_FIGURES,
    _Column("FP32 min", _of("fp32", "min"), rank=4),
    _Column("FP32 max", _of("fp32", "max"), rank=4),
    _Column("Low min", _of("int8", "min"), rank=5),
    _Column("Low max", _of("int8", "max"), rank=5),
    *_MORE,
)
_WEIGHTS = (
    *_NAMES,
    *_FIGURES,
    _Column("Min", _of("fp32", "min"), rank=5),
    _Column("Max", _of("fp32", "max"), rank=5),
    _Column("Mean", _of("fp32", "mean"), rank=4),
    _Column("Std", _of("fp32", "std"), rank=4),
    _Column("Variance", _of("fp32", "variance"), rank=4),
    *_MORE,
)
_PROFILED = (
    _Column("#", lambda row: str(row.index)),
    _Column("Layer", lambda row: row.layer, number=False),
    _Column("Op", lambda row: row.op_type, number=False, rank=5),
    _Column("Role", lambda row: row.role, number=False),
    _Column("Tensor", lambda row: row.tensor, number=False, rank=7),
    _Column("DType", lambda row: row.dtype, number=False, rank=6),
    _Column("Rounded", lambda row: row.quantized_dtype, number=False, rank=4),
    _Column("Shape", lambda row: shape_text(row.shape), number=False, rank=1),
    _Column("Scale", lambda row: _number(row.scale), rank=3),
    _Column("Min", _of("spread", "min")),
    _Column("Max", _of("spread", "max")),
    _Column("Mean", _of("spread", "mean")),
    _Column("Std", _of("spread", "std"), rank=8),
    _Column("Variance", _of("spread", "variance"), rank=2),
    _Column("Clipped%", _of("rounding", "clipped", _percent), rank=3),
    _Column("After rounding", lambda row: _range(row.rounded), rank=9),
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
