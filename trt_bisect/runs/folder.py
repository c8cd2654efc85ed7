"""What a run folder keeps beside the journal: the ranges and the inputs, each under the key of what made it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data import Feeds
from trt_bisect.runs.journal import unwritable

RANGES = "ranges.json"
INPUTS = "inputs.npz"
INPUTS_ABOUT = "inputs.json"


def fingerprint(parts: Mapping[str, Any]) -> str:
    """SHA-256 over ``parts``, whatever their order."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def make_folder(folder: Path, option: str = "--output") -> Path:
    """The folder that ``option`` names, made if need be.

    Raises:
        BadInput: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unwritable(folder, error, option) from error
    return folder


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file such that a stop leaves the old one or the new one.

    Raises:
        BadInput: it cannot be written.
    """
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        raise unwritable(path.parent, error) from error


def save_ranges(folder: Path, key: str, ranges: Ranges) -> None:
    """Keeps the ranges of the calibration that ``key`` stands for."""
    record = {
        "key": key,
        "origin": ranges.origin,
        "scales": {name: np.float32(scale).tobytes().hex() for name, scale in ranges.scales.items()},
        "unusable": dict(ranges.unusable),
    }
    write_whole(folder / RANGES, json.dumps(record, indent=1).encode())


def load_ranges(folder: Path, key: str) -> Ranges | None:
    """The ranges kept under ``key``, their bits as they were, or None."""
    record = _record(folder / RANGES, key)
    if record is None:
        return None
    scales = {name: np.frombuffer(bytes.fromhex(bits), np.float32)[0] for name, bits in record["scales"].items()}
    return Ranges(scales, record["unusable"], record["origin"])


def save_inputs(folder: Path, key: str, inputs: Sequence[Feeds], about: Mapping[str, Any]) -> None:
    """Keeps the inputs that are judged: ``inputs.npz`` can be given as ``--input`` where all have one shape."""
    path = folder / INPUTS
    beside = folder / f".{os.getpid()}-{INPUTS}"
    inputs = [{name: _without_objects(array) for name, array in feeds.items()} for feeds in inputs]
    names = list(inputs[0])
    alike = all(len({feeds[name].shape for feeds in inputs}) == 1 for name in names)
    if alike:
        arrays = {name: np.stack([feeds[name] for feeds in inputs]) for name in names}
    else:
        arrays = {f"{name}.{place}": feeds[name] for place, feeds in enumerate(inputs) for name in names}
    try:
        with beside.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        beside.replace(path)
    except OSError as error:
        raise unwritable(folder, error) from error
    write_whole(
        folder / INPUTS_ABOUT,
        json.dumps({"key": key, "count": len(inputs), "stacked": alike, **about}, indent=1).encode(),
    )


def _without_objects(array: np.ndarray) -> np.ndarray:
    return array.astype(np.str_) if array.dtype.hasobject else array


def load_inputs(folder: Path, key: str) -> tuple[list[Feeds], dict[str, Any]] | None:
    """The inputs kept under ``key`` and what was noted of them, or None."""
    about = _record(folder / INPUTS_ABOUT, key)
    if about is None:
        return None
    try:
        with np.load(folder / INPUTS, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError):
        return None
    count = int(about.pop("count"))
    if about.pop("stacked"):
        return [{name: array[place] for name, array in arrays.items()} for place in range(count)], about
    feeds: list[Feeds] = [{} for _ in range(count)]
    for label, array in arrays.items():
        name, _, place = label.rpartition(".")
        feeds[int(place)][name] = array
    return feeds, about


def _record(path: Path, key: str) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.pop("key", None) != key:
        return None
    return record
