"""TensorRT's calibration cache: read, written, and matched to a network whose tensors have other names.

The format: a first line ``TRT-<version>-<calibrator>``, then for each tensor ``name: 3c008912``, the big-endian bits of
the float32 scale (absmax / 127). Other writers put ``0x`` before the digits, or write little-endian bits. ONNX
Runtime's ``write_calibration_table`` writes no first line, and lines ``name 2.008338`` with the largest magnitude.
Source: TensorRT's sampleINT8 and NVIDIA's ``polygraphy``. TensorRT ignores a cache of another version
(NVIDIA/Deep-Learning-Accelerator-SW issue 26).

Tensors of another export, or of a simplified network, get their scales in this order:

    name    the same name
    alike   the only name that is the same without case and punctuation
    folded  the entry of a BatchNormalization that was folded into the layer, which kept its name
    moved   the scale of a tensor with the same values: before or after a Reshape, a Transpose, an Identity and so on;
            TensorRT itself gives a MaxPool's output the scale of its input
    values  of several possible entries, the only one near the scale that a calibrator finds on inputs
    order   both files list tensors in execution order: between two tensors with a scale, operators and values leave one
            assignment of entries to tensors. Only where entries found by name are in that order, and none is missing.

The same name is not always the same tensor (docs/commands/migrate.md): entries of no tensor, directly after a
convolution's, show that the convolution has absorbed layers. A tensor with several possible scales gets none; an entry
with two different scales, or with a truncated scale, belongs to no tensor.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx

from trt_bisect.calibration.ranges import Ranges, ranges_from_scales
from trt_bisect.data.feeds import match_names
from trt_bisect.errors import BadInput
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import Scales
from trt_bisect.support.table import NAME, Column
from trt_bisect.support.text import counted


@dataclass(frozen=True)
class TensorRTVersion:
    """The version of TensorRT or TensorRT-RTX that files are written for.

    Attributes:
        number: major, minor and patch; zeros for any version of TensorRT-RTX.
        why: the reason for this version, shown to the user.
    """

    number: tuple[int, int, int]
    why: str
    rtx: bool = False

    @property
    def weak(self) -> bool:
        """True if the version has weak typing: TensorRT up to 10."""
        return not self.rtx and self.number < (11, 0, 0)

    @property
    def strong(self) -> bool:
        """True if the version has strong typing: TensorRT 10 and later, and TensorRT-RTX."""
        return self.rtx or self.number >= (10, 0, 0)

    @property
    def title(self) -> str:
        """The name for people: ``TensorRT 10.3.0``."""
        return str(self).replace("rtx", "TensorRT-RTX") if self.rtx else f"TensorRT {self}"

    @property
    def header(self) -> str:
        """The first line of a cache for this version; without weak typing, for TensorRT 10.3."""
        if not self.weak:
            return DEFAULT_HEADER
        major, minor, patch = self.number  # as NV_TENSORRT_VERSION in NvInferRuntimeBase.h: 8601, 100300
        return f"TRT-{major * (1000 if major < 10 else 10000) + minor * 100 + patch}-EntropyCalibration2"

    def __str__(self) -> str:
        """Returns the version in the form of ``--trt-version``: ``10.3.0``, ``rtx``, ``rtx 1.7.1``."""
        number = ".".join(map(str, self.number)) if any(self.number) else ""
        return f"{'rtx ' if self.rtx else ''}{number}".strip()


# The version that a calibration cache without a recipe is written for: JetPack 6.2's.
DEFAULT_VERSION = TensorRTVersion((10, 3, 0), "the default, as no TensorRT with calibration caches is in use here")

# The version that a recipe is written for if no TensorRT is in use.
NEWEST_VERSION = TensorRTVersion((11, 4, 0), "the newest, as no TensorRT is in use here")
# The version that a recipe for the DLA is written for; its network is strongly typed.
DLA_VERSION = TensorRTVersion((11, 4, 1), "the DLA of the AGX Orin")

DEFAULT_HEADER = DEFAULT_VERSION.header
_VERSION = re.compile(r"(\d{1,2})\.(\d{1,2})(?:\.(\d{1,2}))?(?:\.\w+)*")
_RTX = re.compile(r"(?i)^(?:tensorrt-)?rtx[- ]?")
_KNOWN = range(5, 12)
_HEADER = re.compile(r"TRT-\w+-\w+")
_BITS = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})")
_MAGNITUDE = re.compile(r"(\S.*) ([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|inf|nan))")
_USUAL_SCALES = (1e-9, 1e6)  # scales other than 0; only a fifth of all bit patterns in the wrong byte order lie between
_DIGITS = 8
_FEWEST_SCALES = 3  # the fewest from which the byte order is recognised


@dataclass(frozen=True)
class CalibrationCache:
    """The content of a calibration cache.

    Attributes:
        header: the first line, such as ``TRT-8600-EntropyCalibration2``; for ONNX Runtime's cache, a description.
        scales: the scales by entry name, in the order of the file.
        little_endian: true if the bits are little-endian, unlike TensorRT's.
        doubtful: by entry, the reason why its scale cannot be used.
    """

    header: str
    scales: Scales
    little_endian: bool = False
    doubtful: Mapping[str, str] = field(default_factory=dict)


def parse_version(text: str) -> TensorRTVersion:
    """Parses ``--trt-version``: ``10.3``, ``10.3.0.26``, ``11``, ``rtx``, ``rtx 1.4``; else raises BadInput."""
    why, number = "as --trt-version asked", _RTX.sub("", text.strip(), count=1)
    rtx = number != text.strip()
    version = _VERSION.fullmatch(f"{number}.0" if number == str(_KNOWN[-1]) else number)
    if rtx and not number:
        return TensorRTVersion((0, 0, 0), why, rtx=True)
    if not version or not (rtx or int(version[1]) in _KNOWN):
        remedy = f"Write it as TensorRT does: --trt-version 10.3.0, from {_KNOWN[0]}.0 to {_KNOWN[-1]}.x; or rtx."
        raise BadInput(f"'{text}' is no version of TensorRT.", remedy)
    return TensorRTVersion(_number(version), why, rtx)


def version_of_engine(text: str, *, rtx: bool = False) -> TensorRTVersion | None:
    """Parses the version that TensorRT (``rtx``: TensorRT-RTX) reports, ``10.3.0.26``; None for any other text."""
    version = _VERSION.match(text)
    if not version:
        return None
    return TensorRTVersion(_number(version), "the one in use", rtx)


def _number(version: re.Match[str]) -> tuple[int, int, int]:
    return int(version[1]), int(version[2]), int(version[3] or 0)


def is_cache_path(source: object) -> bool:
    """Returns true if ``source`` is the path of a file that begins as TensorRT's calibration caches do."""
    if not isinstance(source, (str, Path)) or not Path(source).is_file():
        return False
    try:
        with Path(source).open("rb") as file:
            return file.read(4) == b"TRT-"
    except OSError:
        return False


def is_data(calibration: object) -> bool:
    """Returns true for data to run a network on: ``calibration`` is neither None nor ranges nor the path of a cache."""
    return not (calibration is None or isinstance(calibration, Ranges) or is_cache_path(calibration))


def parse_cache(text: str, source: str) -> CalibrationCache:
    """Parses the text of a cache; raises BadInput, about the file ``source``, for any other format."""
    lines = text.splitlines()
    magnitudes = [_MAGNITUDE.fullmatch(line.strip()) for line in lines if line.strip()]
    if magnitudes and all(magnitudes):
        table = [(line[1], np.float32(line[2]) / np.float32(127)) for line in magnitudes if line]
        return CalibrationCache("ONNX Runtime's table", dict(table), doubtful=_with_other_scales(table))
    if not lines or not _HEADER.match(lines[0]):
        raise BadInput(
            f"'{source}' is not a TensorRT calibration cache: it does not begin with 'TRT-<version>-<calibrator>'.",
            "Give the cache that TensorRT's calibrator wrote, or data (.npz) to calibrate with.",
        )
    names: list[str] = []
    bits: list[str] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        name, _, digits = line.rpartition(":")
        hexadecimal = _BITS.fullmatch(digits.strip())
        if not name or not hexadecimal:
            remedy = "A line is 'tensor: 3c008912': a tensor and the bits of its scale in hex. Write the cache again."
            raise BadInput(f"Line {number} of the calibration cache '{source}' cannot be read: {line[:80]!r}.", remedy)
        names.append(name.strip())
        bits.append(hexadecimal[1])
    if not bits:
        raise BadInput(f"The calibration cache '{source}' holds no tensor.", "Write the cache again.")
    all_bytes = b"".join(bytes.fromhex(digits.zfill(_DIGITS)) for digits in bits)
    big, little = np.frombuffer(all_bytes, ">f4"), np.frombuffer(all_bytes, "<f4")
    reverse = len(set(names)) >= _FEWEST_SCALES and bool(_ordinary(little).mean() > 0.9 and _ordinary(big).mean() < 0.5)
    scales = (little if reverse else big).astype(np.float32)
    # A writer may leave zeros away at the front, as in '0'. A scale that was cut at its end is none of a calibrator's.
    short = {
        name: f"its scale in the cache has {len(digits)} of {_DIGITS} digits"
        for name, digits, ordinary in zip(names, bits, _ordinary(scales), strict=True)
        if len(digits) < _DIGITS and not ordinary
    }
    entries = list(zip(names, scales, strict=True))
    return CalibrationCache(lines[0].strip(), dict(entries), reverse, _with_other_scales(entries) | short)


def _with_other_scales(entries: Sequence[tuple[str, np.float32]]) -> dict[str, str]:
    all_bits: dict[str, set[bytes]] = {}
    for name, scale in entries:
        all_bits.setdefault(name, set()).add(scale.tobytes())
    return {name: f"the cache has {len(bits)} scales for it" for name, bits in all_bits.items() if len(bits) > 1}


def _ordinary(scales: np.ndarray) -> np.ndarray:
    least, most = _USUAL_SCALES
    return np.asarray((scales == 0) | ((scales >= least) & (scales <= most)))


def open_cache(path: Path) -> CalibrationCache:
    """Reads a calibration cache; raises BadInput if the file cannot be read or has another format."""
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The calibration cache '{path}' cannot be read: {error}", "Check the file.") from error
    return parse_cache(text, str(path))


def read_cache(path: Path, tensors: tuple[str, ...]) -> Ranges:
    """Reads the ranges in a calibration cache, for a network that rounds ``tensors``.

    Raises BadInput if the file is no cache, or lacks more than half of these tensors.
    """
    cache = open_cache(path)
    refuse_of_another_network(path, cache, cache.scales, tensors)
    return ranges_from_scales(cache.scales, f"cache {path.name}", cache.doubtful)


def refuse_of_another_network(path: Path, cache: CalibrationCache, scales: Scales, tensors: tuple[str, ...]) -> None:
    """Raises BadInput if the ``scales`` found in a cache lack more than half of the ``tensors`` that a network
    rounds.
    """
    missing = [name for name in tensors if name not in scales and name not in cache.doubtful]
    if 2 * len(missing) > len(tensors):
        first = next(iter(cache.scales))
        numbers = "" if missing[0] not in cache.scales else " Names that are numbers begin anew with each export."
        raise BadInput(
            f"The calibration cache '{path}' is of another network: it lacks {len(missing)} of the {len(tensors)} "
            f"tensors that this one rounds, '{missing[0]}' among them; its first is '{first}'.{numbers}",
            "Give the cache of this network, the network of the cache, or data (.npz) to calibrate with.",
        )


def format_cache(scales: Scales, header: str = DEFAULT_HEADER) -> str:
    """Returns the text of a calibration cache; leaves out names with line breaks."""
    lines = [f"{name}: {struct.pack('>f', scales[name]).hex()}" for name in scales if len(name.splitlines()) == 1]
    return "\n".join([header, *lines]) + "\n"


BY_NAME, ALIKE, FOLDED, MOVED, BY_VALUES, BY_ORDER = "name", "alike", "folded", "moved", "values", "order"
_KEEPS_VALUES = frozenset(
    ("Identity", "Dropout", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "MaxPool", "Expand")
)
# Matches names of tensors that TensorRT's parser made, such as constants.
OF_THE_PARSER = re.compile(r"\(Unnamed Layer\*|ONNXTRT_|.*_output$")
# by family of operators, the words in names of their tensors
_WORDS = {
    "Conv": "conv|conv_?transpose",
    "Product": "gemm|mat_?mul|linear|dense",
    "BatchNormalization": "batch_?norm(?:alization)?",
    "LayerNormalization": "layer_?norm(?:alization)?",
    "Relu": "relu|leaky_?relu|p_?relu|clip",
    "Sigmoid": "sigmoid",
    "HardSigmoid": "hard_?sigmoid",
    "HardSwish": "hard_?swish",
    "Softmax": "softmax",
    "Pool": "(?:global_?|adaptive_?)?(?:average_?|avg_?|max_?)?pool|(?:reduce_?)?mean",
    "Concat": "concat|cat",
    "Resize": "resize|upsample|interpolate",
    "Part": "split|slice|chunk",
    "Add": "add|plus|sub",
    "Mul": "mul|div",
}
_KIND = re.compile("|".join(f"(?<![a-z])(?P<{kind}>{words})(?![a-z])" for kind, words in _WORDS.items()))
# PyTorch's tensor names contain the operator
_EXPORTED = re.compile(r"(?:.*/)?([A-Z][A-Za-z]+)(?:_\d+)?_output_\d+")
_BATCH_NORM = "BatchNormalization"
# the families that a convolution or a product can absorb; empty is unknown
_TAKEN_IN = frozenset((_BATCH_NORM, "Add", "Mul", ""))
# The reasons why a tensor's entry is unsure.
SEVERAL = "the cache is of the network before a change, or of another one, and several entries may be of it"
MISSING = "the cache lacks entries, and order may give it that of another tensor"
_CLOSE_SCALES = float(np.log(1.5))  # log of a ratio; scales of wrong tensors rarely differ by less
# log of a ratio; scales that differ by more are of different tensors, with any calibrator and inputs
_FAR_SCALES = float(np.log(16.0))
_ENOUGH_FOUND = 8  # the fewest tensors found by name that show how near the cache is to a calibrator


@dataclass(frozen=True)
class TensorScale:
    """The scale of an activation, with its entry in the cache.

    Attributes:
        way: the rule that found the entry: ``name``, ``alike``, ``folded``, ``moved``, ``values`` or ``order``, which
            the module explains.
        scale: float32, bit for bit.
    """

    tensor: Annotated[str, Column("Tensor", kind=NAME, rank=1)]
    entry: Annotated[str, Column("Entry of the cache", "The name in the cache", NAME, rank=3)]
    way: Annotated[
        str, Column("Found by", "How the entry was found: name, alike, folded, moved, values or order", rank=2)
    ]
    scale: Annotated[float, Column("Scale", "Largest magnitude / 127", rank=4)]


@dataclass(frozen=True)
class CacheScales:
    """The scales that a cache has for a network.

    Attributes:
        found: the scales, in execution order.
        unsure: by tensor without a sure entry, the reason.
        far: the found tensors whose scale is more than a factor of 16 off the scale measured on inputs.
    """

    found: tuple[TensorScale, ...]
    unsure: Mapping[str, str] = field(default_factory=dict)
    far: tuple[str, ...] = ()

    @property
    def scales(self) -> dict[str, np.float32]:
        """The scales by tensor."""
        return {scale.tensor: np.float32(scale.scale) for scale in self.found}


def scales_for(network: Network, cache: CalibrationCache, measured: Sequence[Scales] = ()) -> CacheScales:
    """Finds the scales that a cache has for a network's activations, by names, equal values and execution order.

    ``measured`` holds, for each calibrator, the scales that it finds on inputs, to decide where names do
    not; empty without inputs.
    """
    matching = _Matching(network, cache, measured)
    for _ in range(1 + bool(measured)):  # what order gives in the first pass tells how near values are in the second
        matching.pass_over()
    return matching.result()


class _Matching:
    def __init__(self, network: Network, cache: CalibrationCache, measured: Sequence[Scales]) -> None:
        self._network, self._cache, self._measured = network, cache, measured
        self._tensors = list(network.activations)
        named = match_names(self._tensors, [name for name in cache.scales if not name.startswith("(Unnamed Layer*")])
        # Numeric names count only if nothing shows other numbers, or values on inputs agree.
        if _renumbered(set(self._tensors), cache.scales) and _Values(cache, measured, named).limit > _CLOSE_SCALES:
            named = {tensor: entry for tensor, entry in named.items() if not tensor.isdecimal()}
        self._named, self._taken = named, set(named.values())
        self._entries = [name for name in cache.scales if name in self._taken or not OF_THE_PARSER.match(name)]
        self._anchors = _anchors(self._tensors, self._entries, named)
        self._may_be = _taken_in(network, self._entries, named) if self._anchors else {}
        self._norms = {} if self._anchors else _doubted(network, self._entries, named)
        self._sure = {name: entry for name, entry in named.items() if name not in self._may_be | self._norms}
        norms = any(_kind(entry) == _BATCH_NORM for entry in self._entries)
        self._folded = norms and all(layer.op_type != _BATCH_NORM for layer in network.layers)
        self._chosen = {name: (entry, BY_NAME if name == entry else ALIKE) for name, entry in named.items()}
        self._unsure: dict[str, str] = {}
        self._guessed: dict[str, str] = {}
        self._values = _Values(cache, measured, self._sure)

    def pass_over(self) -> None:
        for tensor, several in self._may_be.items():
            self._choose(tensor, several, (BY_NAME, BY_VALUES))
        for tensor, several in self._norms.items():
            if self._values.near(tensor, several) != several[:1]:
                self._leave_out(tensor, SEVERAL)
        _spread(self._network, self._chosen)
        # A tensor that is only moved has its scale already, and no entry that is left over belongs to it.
        self._taken.update(*self._may_be.values(), (entry for entry, _ in self._chosen.values()))
        self._choose_in_order()
        found = {tensor: entry for tensor, (entry, way) in self._chosen.items() if way == BY_ORDER}
        self._values = _Values(self._cache, self._measured, self._sure, self._guessed | found)
        for tensor in [name for name, entry in found.items() if not self._values.near(name, [entry])]:
            self._leave_out(tensor, SEVERAL)
            del found[tensor]
        self._anchors = _anchors(self._tensors, self._entries, self._named | found)

    def _choose_in_order(self) -> None:
        gaps = []
        for (start, first), (end, last) in pairwise(self._anchors):
            here = [name for name in self._tensors[start + 1 : end] if name not in self._chosen]
            there = [name for name in self._entries[first + 1 : last] if name not in self._taken]
            gaps.append((there, *_in_order(self._network, here, there)))
        complete = all(only_moved_lack for *_, only_moved_lack in gaps)
        for there, pairs, _ in gaps:
            for name, several in pairs.items():
                if complete and not self._may_lack_norm(name, several):
                    self._choose(name, several, (BY_ORDER, BY_VALUES))
                    continue
                fitting = [entry for k, entry in enumerate(there) if _fits(self._network, name, there, k)]
                entry = self._values.only_one(name, fitting)
                if entry in several:
                    self._chosen[name] = entry, BY_VALUES
                    continue
                self._leave_out(name, MISSING)
                if len(several) == 1:
                    self._guessed[name] = several[0]

    def _may_lack_norm(self, tensor: str, several: tuple[str, ...]) -> bool:
        layer = self._network.producers.get(tensor)
        return self._folded and layer is not None and layer.has_weight and len(several) == 1

    def _choose(self, tensor: str, several: tuple[str, ...], ways: Sequence[str]) -> None:
        near = self._values.near(tensor, several)
        if len({self._cache.scales[entry].tobytes() for entry in near}) == 1:
            self._chosen[tensor] = near[0], ways[near[0] != several[0]]
        elif several[-1] in near and all(_kind(entry) == _BATCH_NORM for entry in several[1:]):
            self._chosen[tensor] = several[-1], FOLDED
        else:
            self._leave_out(tensor, SEVERAL)

    def _leave_out(self, tensor: str, why: str) -> None:
        self._chosen.pop(tensor, None)
        self._unsure[tensor] = why

    def result(self) -> CacheScales:
        scales, doubtful = self._cache.scales, self._cache.doubtful
        _spread(self._network, self._chosen)
        for tensor, (entry, _) in list(self._chosen.items()):
            if entry in doubtful:
                self._leave_out(tensor, doubtful[entry])
        ways = [(name, *self._chosen[name]) for name in self._tensors if name in self._chosen]
        found = tuple(TensorScale(name, entry, way, float(scales[entry])) for name, entry, way in ways)
        unsure = {tensor: why for tensor, why in self._unsure.items() if tensor not in self._chosen}
        far = tuple(name for name, entry, _ in ways if self._values.off(name, scales[entry]) > _FAR_SCALES)
        return CacheScales(found, unsure, far)


def ranges_of_cache(path: Path, network: Network) -> Ranges:
    """Reads a cache's ranges for a network that may have changed since calibration.

    Raises BadInput if the file is no cache, or is of another network.
    """
    cache = open_cache(path)
    matched = scales_for(network, cache)
    known = {*network.activations, *cache.doubtful}
    others = {name: scale for name, scale in cache.scales.items() if name not in known}
    scales = others | matched.scales
    refuse_of_another_network(path, cache, scales, network.rounded_activations)
    guessed = sum(scale.way not in (BY_NAME, MOVED) for scale in matched.found)
    origin = f"cache {path.name}" + (f", {counted(guessed, 'scale')} found otherwise than by name" if guessed else "")
    return ranges_from_scales(scales, origin, matched.unsure)


def _spread(network: Network, entries: dict[str, tuple[str, str]]) -> None:
    movers = [layer for layer in network.layers if layer.op_type in _KEEPS_VALUES and layer.inputs]
    moves = [(layer.inputs[0], layer.outputs[0]) for layer in movers]
    for source, target in (*moves, *((after, before) for before, after in reversed(moves))):
        if source in entries and target not in entries:
            entries[target] = entries[source][0], MOVED


def _anchors(tensors: Sequence[str], entries: Sequence[str], named: Mapping[str, str]) -> list[tuple[int, int]]:
    # Index pairs (tensor, entry) of the same name, with one pair before all and one after all. Empty if a tenth is out
    # of order, or if names tell nothing.
    positions = {entry: k for k, entry in enumerate(entries)}
    at = [(k, positions[named[tensor]]) for k, tensor in enumerate(tensors) if tensor in named]
    if 2 * len(at) < len(tensors) and 2 * sum(_kind(entry) != "" for entry in entries) < len(entries):
        return []
    ends: list[int] = []
    chains: list[list[int]] = []
    for k, (_, entry) in enumerate(at):
        length = bisect_left(ends, entry)
        ends[length : length + 1] = [entry]
        chains[length : length + 1] = [[*(chains[length - 1] if length else ()), k]]
    longest = [at[k] for k in chains[-1]] if chains else []
    in_order = 10 * len(longest) >= 9 * len(at)
    return [(-1, -1), *longest, (len(tensors), len(entries))] if in_order else []


def _renumbered(tensors: set[str], entries: Iterable[str]) -> bool:
    # A simplified network lacks the numbers of removed tensors, few of them among the last, and has no new numbers.
    gone = [entry not in tensors for entry in entries if entry.isdecimal()]
    last = max((k for k, is_gone in enumerate(gone) if not is_gone), default=0)
    new = any(name.isdecimal() for name in tensors.difference(entries))
    return any(gone) and (new or 2 * sum(gone[last:]) >= sum(gone))


def _taken_in(network: Network, entries: Sequence[str], named: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    # by output of a layer with weights: its own entry, and the next ones if it may have absorbed their layers
    taken, positions = set(named.values()), {entry: k for k, entry in enumerate(entries)}
    may_be, others = {}, 0
    for layer in reversed(network.layers):
        tensor = layer.outputs[0]
        if tensor not in named:
            others += layer.op_type not in _KEEPS_VALUES
            continue
        several = [named[tensor]]
        if layer.has_weight:
            following = entries[positions[several[0]] + 1 :]
            several += takewhile(lambda entry: entry not in taken and _kind(entry) in _TAKEN_IN, following)
        if len(several) > 1 + others:
            may_be[tensor] = tuple(several)
        others = 0
    return may_be


def _doubted(network: Network, entries: Sequence[str], named: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    # for a cache whose order tells nothing: by output of a layer with weights, all possible entries
    taken = set(named.values())
    norms = [entry for entry in entries if entry not in taken and _kind(entry) == _BATCH_NORM]
    made = [layer.outputs[0] for layer in network.layers if layer.has_weight] if norms else []
    return {tensor: (named[tensor], *norms) for tensor in made if tensor in named}


# PyTorch's onnx::Conv_7 tells the reader.
def _kind(name: str) -> str:
    if name.startswith("onnx::"):
        return ""
    exported = _EXPORTED.fullmatch(name)
    if exported and onnx.defs.has(exported[1]):
        name = exported[1]
        if not _KIND.search(_in_words(name)):
            return name
    *_, last = (None, *_KIND.finditer(_in_words(name.rpartition("/")[2])))
    return str(last.lastgroup) if last else ""


def _in_words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class _Values:
    # The cache's scales, compared with those of the calibrator that agrees best on tensors with a known entry.
    def __init__(
        self,
        cache: CalibrationCache,
        measured: Sequence[Scales],
        sure: Mapping[str, str],
        guessed: Mapping[str, str] = {},
    ) -> None:
        self._scales = cache.scales
        self._measured: Scales = {}
        self._centre, self.limit = 0.0, np.inf
        known = {tensor: entry for tensor, entry in {**guessed, **sure}.items() if entry not in cache.doubtful}
        for scales in measured:
            all_logs = [_log(cache.scales[entry], scales.get(tensor)) for tensor, entry in known.items()]
            logs = [log for log in all_logs if np.isfinite(log)]
            if len(logs) >= _ENOUGH_FOUND:
                centre = float(np.median(logs))
                share, factor = (0.75, 2.5) if guessed else (0.95, 1.5)
                limit = factor * float(np.quantile(np.abs(np.array(logs) - centre), share)) + 0.02
                if limit < self.limit:
                    self._measured, self._centre, self.limit = scales, centre, limit

    def near(self, tensor: str, entries: Sequence[str]) -> tuple[str, ...]:
        if tensor not in self._measured:
            return tuple(entries)
        off = {entry: self.off(tensor, self._scales[entry]) for entry in entries}
        is_one = any(log <= min(self.limit, _CLOSE_SCALES) for log in off.values())
        return tuple(entry for entry, log in off.items() if is_one and log <= 2 * self.limit)

    def only_one(self, tensor: str, entries: Sequence[str]) -> str | None:
        near = self.near(tensor, entries) if tensor in self._measured else ()
        return near[0] if len({self._scales[entry].tobytes() for entry in near}) == 1 else None

    def off(self, tensor: str, scale: np.float32) -> float:
        # the absolute log of the ratio, less the usual one; 0 if nothing was measured
        return abs(_log(scale, self._measured[tensor]) - self._centre) if tensor in self._measured else 0.0


def _log(scale: np.float32, reference: np.float32 | None) -> float:
    return float(np.log(scale / reference)) if reference and scale > 0 and np.isfinite(scale) else np.nan


def _in_order(
    network: Network, tensors: Sequence[str], entries: Sequence[str]
) -> tuple[dict[str, tuple[str, ...]], bool]:
    # The tensors in every longest assignment in the order of both files, with their possible entries; true if only
    # tensors with moved values are missing. Empty if a tenth of the shorter list finds no partner.
    fits = np.zeros((len(tensors), len(entries)), bool)
    for row, tensor in enumerate(tensors):
        fits[row] = [_fits(network, tensor, entries, position) for position in range(len(entries))]

    def longest(pairs: np.ndarray) -> np.ndarray:
        lengths = np.zeros((len(pairs) + 1, pairs.shape[1] + 1), int)
        for k, row in enumerate(pairs):
            lengths[k + 1, 1:] = np.maximum.accumulate(np.maximum(lengths[k, 1:], lengths[k, :-1] + row))
        return lengths

    before, after = longest(fits), longest(fits[::-1, ::-1])[::-1, ::-1]
    most = int(before[-1, -1])
    if 10 * most < 9 * min(fits.shape):
        return {}, False
    in_longest = fits & (before[:-1, :-1] + 1 + after[1:, 1:] == most)
    without = (before[:-1] + after[1:] == most).any(axis=1)
    pairs = {
        tensor: tuple(entry for entry, fit in zip(entries, row, strict=True) if fit)
        for tensor, row, free in zip(tensors, in_longest, without, strict=True)
        if not free
    }
    lacking = [network.producers.get(tensor) for tensor in tensors if tensor not in pairs]
    return pairs, all(layer is not None and layer.op_type in _KEEPS_VALUES for layer in lacking)


def _fits(network: Network, tensor: str, entries: Sequence[str], position: int) -> bool:
    layer, kind = network.producers.get(tensor), _kind(entries[position])
    if layer is None:
        return not kind
    own = _kind(layer.op_type) or layer.op_type
    if layer.has_weight and kind in _TAKEN_IN:
        before = [_kind(entries[k]) for k in range(position, -1, -1)]
        last = next((found for found in before if found not in _TAKEN_IN), "")
        return last in ("", own)
    return kind in ("", own)
