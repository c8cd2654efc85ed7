"""Rows that were read from files are checked against the declared types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from trt_bisect.support.type_checks import checked


@dataclass(frozen=True)
class Row:
    name: str = "a"
    count: int = 1
    share: float | None = 0.5
    flag: bool | None = True
    names: tuple[str, ...] = ("b",)
    figures: Mapping[str, float | None] = None  # type: ignore[assignment]
    anything: Any = None


GOOD = {"figures": {"x": 1.0, "y": None, "z": 2}}


@pytest.mark.parametrize(
    "more",
    [{}, {"share": 2}, {"share": None}, {"flag": None}, {"names": ()}, {"figures": {}}, {"anything": [object()]}],
)
def test_fitting_rows_are_returned(more):
    row = Row(**{**GOOD, **more})
    assert checked(row) is row


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 1),
        ("name", None),
        ("count", 1.5),
        ("count", True),
        ("share", "0.5"),
        ("share", True),
        ("flag", 1),
        ("names", ["b"]),
        ("names", ("b", 1)),
        ("figures", [("x", 1.0)]),
        ("figures", {1: 1.0}),
        ("figures", {"x": "1.0"}),
        ("figures", {"x": False}),
    ],
)
def test_others_are_refused_by_the_name_of_the_field(field, value):
    with pytest.raises(TypeError, match=f"'{field}'"):
        checked(Row(**{**GOOD, field: value}))
