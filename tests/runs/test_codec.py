"""JSON of results: what msgspec writes is what Python's own parser reads, and wrong fields are named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from trt_bisect.support.codec import Malformed, decode, encode, encode_lines, read, write


@dataclass(frozen=True)
class _Row:
    name: str
    value: float | None
    shape: tuple[int | str | None, ...] | None = None


@dataclass(frozen=True)
class _Table:
    rows: tuple[_Row, ...]
    by_name: Mapping[str, float | None]


TABLE = _Table((_Row("a, b", 0.25, (1, "N", None)), _Row("<b>\n", None)), {"x": 1.0})


def test_a_value_returns_from_its_json() -> None:
    assert decode(_Table, encode(TABLE)) == decode(_Table, encode_lines(TABLE)) == TABLE


def test_python_reads_the_same_values() -> None:
    rows = [{"name": "a, b", "value": 0.25, "shape": [1, "N", None]}, {"name": "<b>\n", "value": None, "shape": None}]
    expected = {"rows": rows, "by_name": {"x": 1.0}}
    assert json.loads(encode_lines(TABLE)) == json.loads(encode(TABLE)) == expected


def test_each_field_and_each_element_has_a_line() -> None:
    assert encode_lines(TABLE).count(b"\n") == 7


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_floats_that_are_not_finite_are_null(value: float) -> None:
    assert json.loads(encode(_Row("a", value)))["value"] is None


def test_numbers_of_numpy_are_numbers() -> None:
    assert json.loads(encode([np.float32(0.5), np.int64(3), np.bool_(True), Path("a/b")])) == [0.5, 3, True, "a/b"]


def test_a_wrong_field_is_named_with_its_path() -> None:
    with pytest.raises(Malformed, match=r"\$\.rows\[0\]\.name"):
        decode(_Table, '{"rows": [{"name": 1, "value": 1}], "by_name": {}}')


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "null", '{"rows": ', '{"rows": NaN, "by_name": {}}', '{"a":' * 100_000]
)
def test_a_damaged_file_gives_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    assert read(_Table, tmp_path / "a.json") is None
    assert read(_Table, tmp_path / "missing.json") is None


def test_a_written_file_is_read_back_without_fields_that_are_not_known(tmp_path: Path) -> None:
    write(tmp_path / "a.json", TABLE)
    record = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps({**record, "new": 1}))
    assert read(_Table, tmp_path / "a.json") == TABLE


def test_bytes_that_are_no_text_are_escaped_when_written_and_refused_when_read(tmp_path: Path) -> None:
    """A path of bytes that are not UTF-8, as the file system gives it."""
    name = b"caf\xe9.onnx".decode("utf-8", "surrogateescape")
    assert json.loads(encode(_Row(name, float("nan")))) == {"name": "caf\\udce9.onnx", "value": None, "shape": None}
    assert b"udce9" in encode_lines(_Row(name, 1.0))
    (tmp_path / "a.json").write_bytes(b'{"name": "caf\xe9", "value": 1}')
    assert read(_Row, tmp_path / "a.json") is None
