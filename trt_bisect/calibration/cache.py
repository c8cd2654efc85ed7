"""TensorRT's calibration cache, read and written.

The format, as TensorRT's calibrators write it: a first line ``TRT-<version>-<calibrator>``, then a line a tensor,
``name: 3c008912``, where the eight hex digits are the big-endian bits of the float32 scale (absmax / 127).
Source: the cache of TensorRT's sampleINT8 and the code of ``IInt8Calibrator`` users, e.g. NVIDIA's ``polygraphy``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trt_bisect.calibration.ranges import Ranges, ranges_from_scales
from trt_bisect.errors import BadInput

DEFAULT_HEADER = "TRT-8600-EntropyCalibration2"
_HEADER = re.compile(r"TRT-\d+-\w+")
_BITS = re.compile(r"[0-9a-fA-F]{1,8}")


def is_cache(path: Path) -> bool:
    """Whether a file begins as a calibration cache does."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"TRT-"
    except OSError:
        return False


def names_cache(source: object) -> bool:
    """Whether ``source`` is the path of a calibration cache."""
    return isinstance(source, (str, Path)) and Path(source).is_file() and is_cache(Path(source))


def parse_cache(text: str, source: str) -> dict[str, np.float32]:
    """The scales in a cache by tensor name, their bits as they stand in it.

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
    """The ranges in a calibration cache for a network that rounds the activations ``tensors``.

    Raises:
        BadInput: the file is no cache, or the cache of another network: it lacks most of the tensors.
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
    """The text of a calibration cache with these scales; names with line breaks, which it cannot hold, are left out."""
    sayable = (name for name in scales if len(name.splitlines()) == 1)
    lines = [f"{name}: {struct.pack('>f', scales[name]).hex()}" for name in sayable]
    return "\n".join([header, *lines]) + "\n"
