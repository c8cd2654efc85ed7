"""Reads and writes TensorRT's calibration cache.

The format, as TensorRT's calibrators write it: a first line ``TRT-<version>-<calibrator>``, then a line for each
tensor, ``name: 3c008912``, where the eight hex digits are the big-endian bits of the float32 scale (absmax / 127).
Other writers have ``0x`` before the digits, or little-endian bits. The ``calibration.cache`` of ONNX Runtime's
``write_calibration_table`` has no first line, and lines ``name 2.008338`` with the largest magnitude.
Source: the cache of TensorRT's sampleINT8 and the code of ``IInt8Calibrator`` users, e.g. NVIDIA's ``polygraphy``.
The version is ``NV_TENSORRT_VERSION`` in NvInferRuntimeBase.h: 8.6.1 is 8601, 10.3.0 is 100300. TensorRT skips a cache
of another version and calibrates; without data it then fails ("bound to nullptr", NVIDIA/Deep-Learning-Accelerator-SW
issue 26).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trt_bisect.calibration.ranges import Ranges, ranges_from_scales
from trt_bisect.errors import BadInput


@dataclass(frozen=True)
class TensorRTVersion:
    """A version of TensorRT or TensorRT-RTX that files are written for.

    Attributes:
        number: major, minor and patch; zeros for any TensorRT-RTX.
        why: the reason for this version, shown to the user.
        rtx: true for TensorRT-RTX.
    """

    number: tuple[int, int, int]
    why: str
    rtx: bool = False

    @property
    def weak(self) -> bool:
        """True if it has weak typing: TensorRT up to 10."""
        return not self.rtx and self.number < (11, 0, 0)

    @property
    def strong(self) -> bool:
        """True if it has strong typing: TensorRT from 10 on, and TensorRT-RTX."""
        return self.rtx or self.number >= (10, 0, 0)

    @property
    def title(self) -> str:
        """Its name for people: ``TensorRT 10.3.0``."""
        return str(self).replace("rtx", "TensorRT-RTX") if self.rtx else f"TensorRT {self}"

    @property
    def header(self) -> str:
        """The first line of a cache for this version; for a version without weak typing, of the default's caches."""
        if not self.weak:
            return DEFAULT_HEADER
        major, minor, patch = self.number
        return f"TRT-{major * (1000 if major < 10 else 10000) + minor * 100 + patch}-EntropyCalibration2"

    def __str__(self) -> str:
        """Returns the version as ``--trt-version`` takes it: ``10.3.0``, ``rtx``, ``rtx 1.7.1``."""
        number = ".".join(map(str, self.number)) if any(self.number) else ""
        return f"{'rtx ' if self.rtx else ''}{number}".strip()


DEFAULT_VERSION = TensorRTVersion((10, 3, 0), "the default, as no TensorRT with calibration caches is in use here")
"""The version in JetPack 6.2, for a calibration cache alone."""

NEWEST_VERSION = TensorRTVersion((11, 4, 0), "the newest, as no TensorRT is in use here")
"""The version that a recipe is for where no TensorRT is in use."""
DLA_VERSION = TensorRTVersion((11, 4, 1), "the DLA of the AGX Orin")
"""The same for a recipe for the DLA, whose network is strongly typed."""

DEFAULT_HEADER = DEFAULT_VERSION.header
_VERSION = re.compile(r"(\d{1,2})\.(\d{1,2})(?:\.(\d{1,2}))?(?:\.\w+)*")
_RTX = re.compile(r"(?i)(?:tensorrt-)?rtx[- ]?")
_KNOWN = range(5, 12)
"""The major versions of TensorRT."""
_HEADER = re.compile(r"TRT-\w+-\w+")
_BITS = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})")
_MAGNITUDE = re.compile(r"(\S.*) ([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|inf|nan))")
_OF_ONNXRUNTIME = "ONNX Runtime's table"
_ORDINARY = (1e-9, 1e6)
"""The scales that a calibrator finds are in this range, or 0. A fifth of all bits are, read in the wrong order."""
_FEWEST = 3
"""The fewest scales of which the order of their bits is told."""


@dataclass(frozen=True)
class CalibrationCache:
    """The content of a calibration cache.

    Attributes:
        header: the first line, such as ``TRT-8600-EntropyCalibration2``; for ONNX Runtime's, words.
        scales: by tensor, in the order of the file, the float32 scale, bit for bit.
        little_endian: the bits are in the order that TensorRT does not write.
    """

    header: str
    scales: Mapping[str, np.float32]
    little_endian: bool = False


def parse_version(text: str) -> TensorRTVersion:
    """Parses the option ``--trt-version``: ``10.3``, ``10.3.0``, ``10.3.0.26``, ``11``, ``rtx`` or ``rtx 1.4``.

    Raises:
        BadInput: the text is no version of TensorRT.
    """
    why = "as --trt-version asked"
    rtx = _RTX.match(text.strip())
    rest = text.strip()[rtx.end() :] if rtx else text.strip()
    version = _VERSION.fullmatch(f"{rest}.0" if rest == str(_KNOWN[-1]) else rest)
    if rtx and not rest:
        return TensorRTVersion((0, 0, 0), why, rtx=True)
    if not version or not (rtx or int(version[1]) in _KNOWN):
        raise BadInput(
            f"'{text}' is no version of TensorRT.",
            f"Write it as TensorRT does: --trt-version 10.3.0, from {_KNOWN[0]}.0 to {_KNOWN[-1]}.x; or rtx.",
        )
    return TensorRTVersion((int(version[1]), int(version[2]), int(version[3] or 0)), why, rtx=bool(rtx))


def version_of_engine(text: str, *, rtx: bool = False) -> TensorRTVersion | None:
    """Parses the version that TensorRT or TensorRT-RTX reports, such as ``10.3.0.26``; returns None if it is none."""
    version = _VERSION.match(text)
    if not version:
        return None
    return TensorRTVersion((int(version[1]), int(version[2]), int(version[3] or 0)), "the one in use", rtx)


def is_cache_path(source: object) -> bool:
    """Returns true if ``source`` is the path of a calibration cache."""
    if not isinstance(source, (str, Path)) or not Path(source).is_file():
        return False
    try:
        with Path(source).open("rb") as file:
            return file.read(4) == b"TRT-"
    except OSError:
        return False


def parse_cache(text: str, source: str) -> CalibrationCache:
    """Parses the text of a cache.

    Raises:
        BadInput: the text is no calibration cache, or one of its lines cannot be read.
    """
    lines = text.splitlines()
    magnitudes = [_MAGNITUDE.fullmatch(line.strip()) for line in lines if line.strip()]
    if magnitudes and all(magnitudes):
        scales = {each[1]: np.float32(each[2]) / np.float32(127) for each in magnitudes if each}
        return CalibrationCache(_OF_ONNXRUNTIME, scales)
    if not lines or not _HEADER.match(lines[0]):
        raise BadInput(
            f"'{source}' is not a TensorRT calibration cache: it does not begin with 'TRT-<version>-<calibrator>'.",
            "Give the cache that TensorRT's calibrator wrote, or data (.npz) to calibrate with.",
        )
    bits: dict[str, bytes] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        name, colon, digits = line.rpartition(":")
        found = _BITS.fullmatch(digits.strip())
        if not colon or not name or not found:
            raise BadInput(
                f"Line {number} of the calibration cache '{source}' cannot be read: {line[:80]!r}.",
                "A line is 'tensor: 3c008912': a tensor and the bits of its scale in hex. Write the cache again.",
            )
        bits[name.strip()] = bytes.fromhex(found.group(1).zfill(8))
    if not bits:
        raise BadInput(f"The calibration cache '{source}' holds no tensor.", "Write the cache again.")
    big, little = (
        {name: np.float32(struct.unpack(f"{order}f", four)[0]) for name, four in bits.items()} for order in "><"
    )
    reverse = len(bits) >= _FEWEST and _ordinary(little) > 0.9 and _ordinary(big) < 0.5
    return CalibrationCache(lines[0].strip(), little if reverse else big, reverse)


def _ordinary(scales: Mapping[str, np.float32]) -> float:
    """Returns the share of scales in ``_ORDINARY``."""
    least, most = _ORDINARY
    return sum(bool(scale == 0 or least <= scale <= most) for scale in scales.values()) / len(scales)


def open_cache(path: Path) -> CalibrationCache:
    """Reads the file of a calibration cache; raises BadInput if it cannot be read, or is none."""
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The calibration cache '{path}' cannot be read: {error}", "Check the file.") from error
    return parse_cache(text, str(path))


def read_cache(path: Path, tensors: tuple[str, ...]) -> Ranges:
    """Reads the ranges in a calibration cache.

    Args:
        path: the cache.
        tensors: the activations that the network rounds.

    Raises:
        BadInput: the file is no cache, or lacks more than half of the tensors: it belongs to another network.
    """
    scales = open_cache(path).scales
    refuse_of_another_network(path, scales, scales, tensors)
    return ranges_from_scales(scales, f"cache {path.name}")


def refuse_of_another_network(
    path: Path, cache: Mapping[str, np.float32], scales: Mapping[str, np.float32], tensors: tuple[str, ...]
) -> None:
    """Raises BadInput if the scales found in a cache lack more than half of the tensors that a network rounds."""
    missing = [name for name in tensors if name not in scales]
    if 2 * len(missing) > len(tensors):
        numbers = "" if missing[0] not in cache else " Names that are numbers begin anew with each export."
        raise BadInput(
            f"The calibration cache '{path}' is of another network: it lacks {len(missing)} of the {len(tensors)} "
            f"tensors that this one rounds, '{missing[0]}' among them; its first is '{next(iter(cache))}'.{numbers}",
            "Give the cache of this network, the network of the cache, or data (.npz) to calibrate with.",
        )


def format_cache(scales: Mapping[str, np.float32], header: str = DEFAULT_HEADER) -> str:
    """Returns the text of a calibration cache. Names with line breaks, which it cannot hold, are left out."""
    writable = (name for name in scales if len(name.splitlines()) == 1)
    lines = [f"{name}: {struct.pack('>f', scales[name]).hex()}" for name in writable]
    return "\n".join([header, *lines]) + "\n"
