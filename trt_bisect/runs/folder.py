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
from trt_bisect.data import DAMAGED, Feeds, digest_of_feeds, read_archive
from trt_bisect.runs.journal import unwritable
from trt_bisect.runs.record import read_record

RANGES = "ranges.json"
INPUTS = "inputs.npz"
INPUTS_ABOUT = "inputs.json"
_ODD = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What a record that somebody altered raises."""


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
    try:
        scales = {name: np.frombuffer(bytes.fromhex(bits), np.float32)[0] for name, bits in record["scales"].items()}
        return Ranges(scales, {str(name): str(why) for name, why in record["unusable"].items()}, str(record["origin"]))
    except _ODD:
        return None


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
        json.dumps(
            {"key": key, "count": len(inputs), "stacked": alike, "digest": _digest(inputs), **about}, indent=1
        ).encode(),
    )


def _without_objects(array: np.ndarray) -> np.ndarray:
    return array.astype(np.str_) if array.dtype.hasobject else array


def load_inputs(folder: Path, key: str) -> tuple[list[Feeds], dict[str, Any]] | None:
    """The inputs kept under ``key`` and what was noted of them, or None."""
    about = _record(folder / INPUTS_ABOUT, key)
    if about is None:
        return None
    try:
        digest, count, stacked = about.pop("digest"), about.pop("count"), about.pop("stacked")
        feeds = _feeds(read_archive(folder / INPUTS), count, stacked)
    except (*DAMAGED, *_ODD):
        return None
    return (feeds, about) if _digest(feeds) == digest else None


def _feeds(arrays: Feeds, count: int, stacked: bool) -> list[Feeds]:
    if stacked:
        return [{name: array[place] for name, array in arrays.items()} for place in range(count)]
    feeds: list[Feeds] = [{} for _ in range(count)]
    for label, array in arrays.items():
        name, _, place = label.rpartition(".")
        feeds[int(place)][name] = array
    return feeds


def _digest(inputs: Sequence[Feeds]) -> str:
    """Tells inputs from those that a run which was stopped had written over them."""
    return fingerprint({str(place): digest_of_feeds(feeds) for place, feeds in enumerate(inputs)})


def _record(path: Path, key: str) -> dict[str, Any] | None:
    record = read_record(path)
    return None if record is None or record.pop("key", None) != key else record
