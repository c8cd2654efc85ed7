"""Export of the history's tables to CSV and Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trt_bisect.errors import BadInput

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
    _write(path, "--csv", lambda beside: texts.to_csv(beside, index=False, date_format="%Y-%m-%dT%H:%M:%S.%f%z"))


def write_table_parquet(table: pd.DataFrame, path: Path) -> None:
    """Writes a table as Parquet: times in UTC, names as lists, the parts of fingerprints as JSON.

    Raises:
        BadInput: PyArrow is not installed, or the file cannot be written.
    """
    texts = _as_json(table, _RECORDS)
    try:
        _write(path, "--parquet", lambda beside: texts.to_parquet(beside, engine="pyarrow", index=False))
    except ImportError as error:
        raise BadInput("The package 'pyarrow' is not installed.", "pip install 'trt-bisect[history]'") from error


def _as_json(table: pd.DataFrame, names: tuple[str, ...]) -> pd.DataFrame:
    changed: pd.DataFrame = table.copy()
    for name in names:
        if name in changed:
            changed[name] = [json.dumps(value) for value in changed[name]]
    return changed


def _write(path: Path, option: str, write: Callable[[Path], None]) -> None:
    """Writes a temporary file and renames it, so that a stop leaves either the old file or the new one."""
    beside = path.absolute().with_name(f".{path.name}-{os.getpid()}")
    try:
        write(beside)
        beside.replace(path)
    except OSError as error:
        raise BadInput(
            f"The file '{path}' cannot be written: {error.strerror or error}.", f"Choose another with {option}."
        ) from error
    finally:
        beside.unlink(missing_ok=True)
