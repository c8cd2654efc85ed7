"""One description of a column on its field: CSV, the screen and the page have what it says."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated

import pytest
from rich.console import Console

from tools import make_tables
from trt_bisect.errors import BadInput
from trt_bisect.report.result import Result
from trt_bisect.report.screen.layout import fitted
from trt_bisect.support import codec
from trt_bisect.support.table import NAME, PERCENT, Column, NestedColumns, columns_of, csv_of


@dataclass(frozen=True)
class Ends:
    least: Annotated[float | None, Column("Least", rank=0)]
    most: Annotated[float | None, Column("Most", rank=0)]
    count: int


@dataclass(frozen=True)
class Row:
    layer: Annotated[str, Column("Layer", "Of {net}", NAME, rank=0, empty="{0.tensor}")]
    tensor: Annotated[str, Column("Tensor", rank=9)]
    share: Annotated[float | None, Column("Share", kind=PERCENT, rank=1)]
    shape: Annotated[tuple[int, ...], Column("Shape")]
    readers: Annotated[tuple[str, ...], Column("Readers", rank=5)]
    before: Annotated[Ends, NestedColumns("before_", "{net}")]
    after: Annotated[Ends | None, NestedColumns("after_", "After", rank=3, shown=("most",))]
    metrics: Annotated[Mapping[str, float], NestedColumns()]
    sides: Annotated[Mapping[str, float], Column("")]
    hidden: tuple[int, ...] = ()

    @property
    def width(self) -> Annotated[float, Column("Width", rank=2)]:
        return (self.before.most or 0.0) - (self.before.least or 0.0)


ROWS = (
    Row(
        "a, b", "x", 0.25, (1, 3), ("=b", "c d"), Ends(-1.0, 2.0, 7), Ends(0.0, 1.0, 6), {"cosine": 0.5}, {"with": 1.5}
    ),
    Row("", "y", None, (), (), Ends(math.nan, None, 0), None, {"a{b}": 2.0}, {}),
)
KEYS = (
    "layer tensor share shape readers before_least before_most before_count after_least after_most after_count cosine "
    "a{b} sides width"
).split()


def screen(width: int, **given: object) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(fitted(Row, ROWS, console, names={"net": "N1"}, **given))
    return console.file.getvalue().splitlines()


def test_msgspec_does_not_see_the_description():
    assert codec.decode(Row, codec.encode(ROWS[0])) == ROWS[0]


def test_the_csv_file_has_nested_fields_with_a_prefix_and_a_column_for_each_metric():
    first, second = csv.DictReader(io.StringIO(csv_of(Row, ROWS)))
    assert list(first) == KEYS
    assert [first[key] for key in ("layer", "shape", "readers", "before_most", "cosine", "a{b}", "sides", "width")] == [
        "a, b", "1x3", "'=b, c d", "2.0", "0.5", "", "with:1.5", "3.0",
    ]  # fmt: skip
    assert [second[key] for key in ("layer", "share", "shape", "before_least", "after_most", "a{b}")] == [
        "", "", "scalar", "", "", "2.0",
    ]  # fmt: skip


def test_the_screen_has_the_ranked_columns_and_leaves_out_the_highest_rank_first():
    wide = screen(200)
    assert wide[0].split("  ")[0] == "Layer"
    titles = [title.strip() for title in wide[0].split("  ") if title.strip()]
    assert titles == ["Layer", "Tensor", "Share", "Readers", "N1 least", "N1 most", "After most", "Width"]
    assert wide[1].split() == ["a,", "b", "x", "25%", "=b,", "c", "d", "-1", "2", "1", "3"]
    assert wide[2].split()[:2] == ["y", "y"], "a layer without a name has that of its tensor"
    seen = []
    for width in range(len(wide[0]) + 1, 20, -1):
        line = screen(width)[0]
        seen.append({title for title in titles if title in line})
    gone = [one - other for one, other in itertools.pairwise(seen)]
    assert [title for each in gone for title in sorted(each)][:4] == ["Tensor", "Readers", "After most", "Width"]
    assert all(len(each) <= 1 for each in gone[:30])


def test_columns_by_name():
    assert screen(40, only=["before_count", "cosine"])[0].split() == ["before_count", "cosine"]
    with pytest.raises(BadInput, match="beauty"):
        screen(40, only=["beauty"])


def sections(rows):
    result = SimpleNamespace(names={"net": "N1"}, tables=lambda: {"rows.csv": (Row, rows)})
    return Result.section(result, "rows", "Rows", "rows.csv", filters=("tensor", "hidden"))


def test_the_page_has_the_described_columns_that_have_a_value():
    (section,) = sections(ROWS)
    assert [each.key for each in section.columns] == [key for key in KEYS if not key.endswith(("_count", "sides"))]
    about = {each.key: each for each in section.columns}
    assert (about["layer"].help, about["layer"].kind, about["a{b}"].title) == ("Of N1", "name", "a{b}")
    assert [each.key for each in section.columns if each.phone] == ["layer", "before_least", "before_most"]
    assert {each.key for each in section.columns if not each.paper} == {
        "tensor", "shape", "readers", "after_least", "cosine", "a{b}",
    }  # fmt: skip
    assert section.rows[1][0] == "y"
    assert section.filters == ("tensor",)
    assert sections(()) == []


def test_raised_columns_are_shown():
    ranks = {each.key: each.rank for each in columns_of(Row, ROWS, ("cosine", "layer"))}
    assert (ranks["cosine"], ranks["layer"], ranks["a{b}"]) == (1, 0, None)


def test_the_page_of_columns_is_up_to_date():
    """python -m tools.make_tables"""
    assert make_tables.PAGE.read_text(encoding="utf-8") == make_tables.page()
