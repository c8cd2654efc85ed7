"""The results that a run folder stores next to the journal, each under a key: histograms, ranges, inputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from trt_bisect.calibration.collect import Magnitudes
from trt_bisect.calibration.histogram import BINS, AbsHistogram, Calibrator
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import digest_of_feeds
from trt_bisect.data.feeds import DAMAGED, Feeds, load_samples, read_archive, save_samples
from trt_bisect.errors import BadInput
from trt_bisect.support.files import whole_file, write_whole

_INPUTS, _INPUTS_ABOUT = "inputs", "inputs.json"
_MAGNITUDES = "magnitudes.npz"
Value = TypeVar("Value")


@dataclass(frozen=True)
class Form(Generic[Value]):
    """The form in which a run folder stores a result in ``file``: functions that save and load it under a key.

    ``load`` returns None if the file has no result under the key, or was changed.
    """

    file: str
    save: Callable[[Path, str, Value], None]
    load: Callable[[Path, str], Value | None]


def kept(folder: Path | None, form: Form[Value], key: str, compute: Callable[[], Value]) -> Value:
    """Returns the result that a folder stores under ``key``; if there is none, calls ``compute`` and stores its result.

    The key is a digest of everything that decides the result. ``folder`` None: nothing is stored.
    """
    if folder is None:
        return compute()
    stored = form.load(folder, key)
    if stored is None:
        stored = compute()
        form.save(folder, key, stored)
    return stored


def fingerprint(parts: Any) -> str:
    """Returns the SHA-256 of ``parts`` as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _as_json(file: str, record_of: Callable[[Value], Any], from_record: Callable[[Any], Value]) -> Form[Value]:
    def load(folder: Path, key: str) -> Value | None:
        record = _load(folder / file, key)
        return None if record is None else from_record(record)

    return Form(file, lambda folder, key, value: _store(folder / file, key, record_of(value)), load)


def _ranges_record(ranges: Ranges) -> dict[str, Any]:
    return {
        "origin": ranges.origin,
        "calibrator": None if ranges.calibrator is None else asdict(ranges.calibrator),
        "scales": {name: np.float32(scale).tobytes().hex() for name, scale in ranges.scales.items()},
        "unusable": dict(ranges.unusable),
    }


def _recorded_ranges(record: Mapping[str, Any]) -> Ranges:
    scales = {name: np.frombuffer(bytes.fromhex(bits), np.float32)[0] for name, bits in record["scales"].items()}
    calibrator = record["calibrator"] and Calibrator(**record["calibrator"])
    return Ranges(scales, record["unusable"], record["origin"], calibrator)


def _save_magnitudes(folder: Path, key: str, seen: Magnitudes) -> None:
    histograms = seen.histograms.values()
    empty = np.zeros(BINS, np.int64)
    counts = [empty if histogram.counts is None else histogram.counts for histogram in histograms]
    with whole_file(folder / _MAGNITUDES) as file:
        np.savez_compressed(
            file,
            key=np.array(key),
            names=np.array(list(seen.histograms), np.str_),
            counts=np.array(counts, np.int64),
            floats=np.array([(histogram.absmax, histogram.width) for histogram in histograms], np.float64),
            numbers=np.array([(histogram.nonfinite, histogram.values) for histogram in histograms], np.int64),
            earlier_names=np.array(list(seen.earlier), np.str_),
            earlier=np.array(list(seen.earlier.values()), np.float64),
        )


def _load_magnitudes(folder: Path, key: str) -> Magnitudes | None:
    try:
        stored = read_archive(folder / _MAGNITUDES)
        if str(stored["key"]) != key:
            return None
        rows = zip(stored["names"], stored["counts"], stored["floats"], stored["numbers"], strict=True)
        return Magnitudes(
            {
                str(name): AbsHistogram(
                    float(absmax), float(width), int(nonfinite), int(values), counts if width else None
                )
                for name, counts, (absmax, width), (nonfinite, values) in rows
            },
            {str(name): float(value) for name, value in zip(stored["earlier_names"], stored["earlier"], strict=True)},
        )
    except DAMAGED:
        return None


MAGNITUDES = Form(_MAGNITUDES, _save_magnitudes, _load_magnitudes)  # the histograms of a calibration
RANGES = _as_json("ranges.json", _ranges_record, _recorded_ranges)  # the ranges of one calibrator
# the ranges of several calibrators
CANDIDATES: Form[tuple[Ranges, ...]] = _as_json(
    "candidates.json",
    lambda candidates: [_ranges_record(ranges) for ranges in candidates],
    lambda records: tuple(map(_recorded_ranges, records)),
)


def save_inputs(folder: Path, key: str, inputs: Sequence[Feeds], about: Mapping[str, Any]) -> None:
    """Stores the judged inputs under ``key``, with facts ``about`` them in JSON types."""
    save_samples(folder, _INPUTS, inputs)
    samples = list(map(digest_of_feeds, load_samples(folder, _INPUTS)))
    _store(folder / _INPUTS_ABOUT, key, {"samples": samples, "about": dict(about)})


def load_inputs(folder: Path, key: str) -> tuple[list[Feeds], dict[str, Any]] | None:
    """Returns the inputs stored under ``key`` and the facts about them; None if there are none or they were changed."""
    record = _load(folder / _INPUTS_ABOUT, key)
    if record is None:
        return None
    try:
        inputs = load_samples(folder, _INPUTS)
    except (BadInput, TypeError, IndexError):
        return None
    return (inputs, record["about"]) if list(map(digest_of_feeds, inputs)) == record["samples"] else None


def _store(path: Path, key: str, record: Any) -> None:
    write_whole(path, json.dumps({"key": key, "digest": fingerprint(record), "kept": record}, indent=1).encode())


def _load(path: Path, key: str) -> Any:
    try:
        file = json.loads(path.read_bytes())
        return file["kept"] if file["key"] == key and file["digest"] == fingerprint(file["kept"]) else None
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
