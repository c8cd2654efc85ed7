"""Export of the history's tables to CSV and Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from trt_bisect.errors import BadInput, install
from trt_bisect.support.files import whole_file

if TYPE_CHECKING:
    import pandas as pd

_LISTS = ("culprits", "high")
_RECORDS = ("made_of",)


def write_table_csv(table: pd.DataFrame, path: Path) -> None:
    """Writes a table as CSV: lists of names and the parts of fingerprints as JSON, times in ISO 8601.

    Raises:
        BadInput: the file cannot be written.
    """
    texts = _as_json(table, (*_LISTS, *_RECORDS))
    _write(path, "--csv", lambda file: texts.to_csv(file, index=False, date_format="%Y-%m-%dT%H:%M:%S.%f%z"))


def write_table_parquet(table: pd.DataFrame, path: Path) -> None:
    """Writes a table as Parquet: times in UTC, names as lists, the parts of fingerprints as JSON.

    Raises:
        BadInput: PyArrow is not installed, or the file cannot be written.
    """
    texts = _as_json(table, _RECORDS)
    try:
        _write(path, "--parquet", lambda file: texts.to_parquet(file, engine="pyarrow", index=False))
    except ImportError as error:
        raise BadInput("The package 'pyarrow' is not installed.", install("history")) from error


def _as_json(table: pd.DataFrame, names: tuple[str, ...]) -> pd.DataFrame:
    changed: pd.DataFrame = table.copy()
    for name in names:
        if name in changed:
            changed[name] = [json.dumps(value) for value in changed[name]]
    return changed


def _write(path: Path, option: str, write: Callable[[BinaryIO], None]) -> None:
    """Writes a file that a stop leaves as the old or the new one; a device or a pipe in place."""
    try:
        with whole_file(path) as file:
            write(file)
    except BadInput as error:
        raise BadInput(error.problem, f"Choose another with {option}.") from error
