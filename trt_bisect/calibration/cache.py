"""Reads and writes TensorRT's calibration cache.

The format, as TensorRT's calibrators write it: a first line ``TRT-<version>-<calibrator>``, then a line for each
tensor, ``name: 3c008912``, where the eight hex digits are the big-endian bits of the float32 scale (absmax / 127).
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
    """The version of TensorRT that a cache is written for.

    Attributes:
        number: major, minor and patch.
        why: the reason for this version, shown to the user.
    """

    number: tuple[int, int, int]
    why: str

    @property
    def header(self) -> str:
        """The first line of a cache for this version."""
        major, minor, patch = self.number
        return f"TRT-{major * (1000 if major < 10 else 10000) + minor * 100 + patch}-EntropyCalibration2"

    def __str__(self) -> str:
        return ".".join(map(str, self.number))


DEFAULT_VERSION = TensorRTVersion((10, 3, 0), "the default, as no TensorRT with calibration caches is in use here")
"""The version in JetPack 6.2."""

DEFAULT_HEADER = DEFAULT_VERSION.header
_VERSION = re.compile(r"(\d{1,2})\.(\d{1,2})(?:\.(\d{1,2}))?(?:\.\w+)*")
_WITH_CACHES = range(5, 11)
"""The major versions that calibrate: TensorRT 11 has only explicit quantization."""
_HEADER = re.compile(r"TRT-\d+-\w+")
_BITS = re.compile(r"[0-9a-fA-F]{1,8}")


def parse_version(text: str) -> TensorRTVersion:
    """Parses the option ``--trt-version``: ``10.3``, ``10.3.0`` or ``10.3.0.26``.

    Raises:
        BadInput: the text is no version, or a version that reads no calibration caches.
    """
    found = _VERSION.fullmatch(text.strip())
    if not found:
        raise BadInput(f"'{text}' is no version of TensorRT.", "Write it as TensorRT does: --trt-version 10.3.0.")
    if int(found[1]) not in _WITH_CACHES:
        raise BadInput(
            f"TensorRT {text} cannot read a calibration cache.",
            "Give --trt-version 5.0 to 10.x, or leave it out: the recipe's Q/DQ network works with any version.",
        )
    return TensorRTVersion((int(found[1]), int(found[2]), int(found[3] or 0)), "as --trt-version asked")


def version_of_engine(text: str) -> TensorRTVersion:
    """Parses the version that an engine reports, such as ``10.3.0.26``; returns the default if there is none."""
    found = _VERSION.match(text)
    if not found:
        return DEFAULT_VERSION
    return TensorRTVersion((int(found[1]), int(found[2]), int(found[3] or 0)), "the one in use")


def is_cache(path: Path) -> bool:
    """Returns true if a file begins like a calibration cache."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"TRT-"
    except OSError:
        return False


def is_cache_path(source: object) -> bool:
    """Returns true if ``source`` is the path of a calibration cache."""
    return isinstance(source, (str, Path)) and Path(source).is_file() and is_cache(Path(source))


def parse_cache(text: str, source: str) -> dict[str, np.float32]:
    """Parses the text of a cache; returns its scales by tensor name, bit for bit.

    Raises:
        BadInput: the text is no calibration cache, or one of its lines cannot be read.
    """
    lines = text.splitlines()
    if not lines or not _HEADER.match(lines[0]):
        raise BadInput(
            f"'{source}' is not a TensorRT calibration cache: it does not begin with 'TRT-<version>-<calibrator>'.",
            "Give the cache that TensorRT's calibrator wrote, or data (.npz) to calibrate with.",
        )
    scales: dict[str, np.float32] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        name, colon, bits = line.rpartition(":")
        if not colon or not name or not _BITS.fullmatch(bits.strip()):
            raise BadInput(
                f"Line {number} of the calibration cache '{source}' cannot be read: {line[:80]!r}.",
                "A line is 'tensor: 3c008912', the bits of its scale in hex; write the cache again.",
            )
        scales[name.strip()] = np.float32(struct.unpack(">f", bytes.fromhex(bits.strip().zfill(8)))[0])
    if not scales:
        raise BadInput(f"The calibration cache '{source}' holds no tensor.", "Write the cache again.")
    return scales


def read_cache(path: Path, tensors: tuple[str, ...], *, keep_masks: bool = False) -> Ranges:
    """Reads the ranges in a calibration cache.

    Args:
        path: the cache.
        tensors: the activations that the network rounds.
        keep_masks: see ``ranges_from_scales``.

    Raises:
        BadInput: the file is no cache, or lacks more than half of the tensors: it belongs to another network.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The calibration cache '{path}' cannot be read: {error}", "Check the file.") from error
    scales = parse_cache(text, str(path))
    missing = [name for name in tensors if name not in scales]
    if 2 * len(missing) > len(tensors):
        raise BadInput(
            f"The calibration cache '{path}' is of another network: it lacks {len(missing)} of the {len(tensors)} "
            f"tensors that this one rounds, '{missing[0]}' among them; its first is '{next(iter(scales))}'.",
            "Give the cache of this network, or data (.npz) to calibrate with.",
        )
    return ranges_from_scales(scales, f"cache {path.name}", keep_masks=keep_masks)


def format_cache(scales: Mapping[str, np.float32], header: str = DEFAULT_HEADER) -> str:
    """Returns the text of a calibration cache. Names with line breaks, which it cannot hold, are left out."""
    writable = (name for name in scales if len(name.splitlines()) == 1)
    lines = [f"{name}: {struct.pack('>f', scales[name]).hex()}" for name in writable]
    return "\n".join([header, *lines]) + "\n"
