"""The time of a kernel on a GPU, predicted without a GPU: the peaks of data sheets, and a few constants.

The kernels of an engine run one after another. Each takes a launch (a number of cycles) plus sqrt(arithmetic² +
bytes²), because computing and moving bytes overlap in part. Fit of the constants, errors, and what is not modelled:
docs/concepts/time.md.

**Bytes** are those of the tensors as stored, channels padded to the width of the format (24 to 32 in INT8). A kernel
that moves b bytes reads a share 1 - b / size from the second-level cache, at 10 bytes per cycle and
multiprocessor (SM); the rest from memory, at a share ``memory`` of the data sheet's bandwidth and no faster than the
cache.

**Products.** A convolution is a matrix product (implicit GEMM): batch x height x width of the output are the rows,
filters the columns, filter size x channels the depth.

- *Tiles.* A kernel computes tiles of 64 x 32 to 256 x 128 values, one on each SM at a time; incomplete waves and tiles
  take as long as full ones. Small tiles are slower, by 1 + ``tile`` (1/a + 1/b) for a x b values. The fastest tile
  counts.
- *Depth.* A tensor core takes 32 bytes of channels at a time: 32 channels in INT8, 16 in FP16, 8 in FP32 (TF32).
- *Pictures.* With four channels or fewer, tensor cores reach a share ``image`` of their peak. FP32 kernels, and INT8
  kernels that read a format four channels wide, use the CUDA cores, at a share ``scalar`` of their peak (INT8 at four
  times as much, DP4A).
- *INT8* reaches a share ``integer`` of its peak; on some GPUs less (``Gpu.integer``).
- *Depthwise* convolutions run at 1/4 of the CUDA cores' rate in FP32, 1/2 in FP16 and all of it in INT8, times
  ``scalar``.

**Other kernels** only move bytes. A change of a picture's format reaches a share ``narrow`` of ``memory``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from trt_bisect.errors import BadInput
from trt_bisect.precision import Precision

BYTES = {Precision.INT8: 1, Precision.FP8: 1, Precision.FP16: 2, Precision.BF16: 2, Precision.FP32: 4}
"""The bytes of a value in each precision."""

_TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (128, 64), (64, 128), (64, 64), (128, 32), (64, 32))
_STEP = 32  # Bytes of channels that a tensor core takes at a time.
PICTURE = 4
"""Tensors with at most this many channels are pictures: not padded, and slow to change in format."""


@dataclass(frozen=True)
class Gpu:
    """A GPU, by its data sheet.

    Attributes:
        processors: multiprocessors (SMs).
        clock: boost clock, in MHz.
        tera: dense peaks of the tensor cores by precision, in tera operations per second, two per multiply-add; FP32 is
            TF32.
        scalar: the FP32 peak of the CUDA cores, in the same unit.
        bandwidth: of the memory, in GB/s.
        cache: second-level cache, in MB.
        measured: true if predictions were compared with engines on this GPU.
        integer: a further factor on the rate of INT8, 1 for most GPUs.
    """

    name: str
    processors: int
    clock: float
    tera: Mapping[Precision, float]
    scalar: float
    bandwidth: float
    cache: float
    source: str
    measured: bool = False
    integer: float = 1.0

    def rate(self, precision: Precision) -> float:
        """The peak of multiply-adds per second in a precision; that of FP16, else FP32, if tensor cores lack it."""
        absent = self.scalar if precision is Precision.FP32 else self.tera.get(Precision.FP16, self.scalar)
        return self.tera.get(precision, absent) * 1e12 / 2


def _tera(
    int8: float, fp16: float, tf32: float | None, *, bf16: bool = True, fp8: bool = False
) -> dict[Precision, float]:
    peaks = {Precision.INT8: int8, Precision.FP16: fp16, Precision.FP32: tf32}
    peaks |= {Precision.BF16: fp16 if bf16 else None, Precision.FP8: int8 if fp8 else None}
    return {precision: peak for precision, peak in peaks.items() if peak}


_GA102, _ADA = "NVIDIA Ampere GA102 GPU Architecture whitepaper", "NVIDIA Ada GPU Architecture whitepaper"
_TURING, _BLACKWELL = "NVIDIA Turing GPU Architecture whitepaper", "NVIDIA RTX Blackwell GPU Architecture whitepaper"
_IN_FP16 = "FP16 with sums in FP16, as the kernels of the published FP16 engine have them"
# ``Gpu.integer`` of Blackwell GPUs, chosen by the times marked ``tuned`` in ``benchmarks/timed.csv``.
_ON_BLACKWELL = 0.4
_ORIN = "NVIDIA Jetson Orin technical brief and module data sheets"
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            "A100", 108, 1410, _tera(624, 312, 156), 19.5, 1555, 40,
            "NVIDIA A100 data sheet, SXM 40 GB", measured=True,
        ),
        Gpu("A100-80GB", 108, 1410, _tera(624, 312, 156), 19.5, 2039, 40, "NVIDIA A100 data sheet, SXM 80 GB"),
        Gpu(
            "H100", 132, 1980, _tera(1979, 989.5, 494.7, fp8=True), 67, 3350, 50,
            "NVIDIA H100 data sheet, half of sparse",
        ),
        Gpu(
            "H200", 132, 1980, _tera(1979, 989.5, 494.7, fp8=True), 67, 4800, 50,
            "NVIDIA H200 data sheet, half of sparse", measured=True,
        ),
        Gpu("L4", 58, 2040, _tera(242.5, 121, 60, fp8=True), 30.3, 300, 48, "NVIDIA L4 data sheet, half of sparse"),
        Gpu("T4", 40, 1590, _tera(130, 65, None, bf16=False), 8.1, 320, 4, "NVIDIA T4 data sheet; no TF32"),
        Gpu("RTX3090", 82, 1695, _tera(284, 142, 35.6), 35.6, 936, 6, f"{_GA102}; {_IN_FP16}"),
        Gpu("RTX2060", 30, 1680, _tera(103.2, 51.6, None, bf16=False), 6.45, 336, 3, f"{_TURING}; {_IN_FP16}; no TF32"),
        Gpu("RTX3060", 28, 1777, _tera(101.9, 51, 12.7), 12.7, 360, 3, f"{_GA102} for the SM; {_IN_FP16}; 12 GB"),
        Gpu("RTX3080", 68, 1710, _tera(238, 119, 29.8), 29.8, 760, 5, f"{_GA102}; {_IN_FP16}; 10 GB"),
        Gpu("RTX3080-12GB", 70, 1710, _tera(245, 122.6, 30.6), 30.6, 912, 6, f"{_GA102} for the SM; {_IN_FP16}"),
        Gpu("RTX4090", 128, 2520, _tera(660.6, 330.3, 82.6, fp8=True), 82.6, 1008, 72, f"{_ADA}; {_IN_FP16}"),
        Gpu(
            "RTX5070", 48, 2512, _tera(247, 123.5, 30.9, fp8=True), 30.9, 672, 48,
            f"{_BLACKWELL}; {_IN_FP16}", integer=_ON_BLACKWELL,
        ),
        Gpu(
            "RTXPRO6000", 188, 2617, _tera(1007.6, 503.8, 125, fp8=True), 126, 1792, 128,
            f"{_BLACKWELL}, PRO 6000", integer=_ON_BLACKWELL,
        ),
        Gpu("A10", 72, 1695, _tera(250, 125, 62.5), 31.2, 600, 6, "NVIDIA A10 data sheet"),
        Gpu(
            "DGXSpark", 48, 2418, _tera(237.7, 118.8, 29.7, fp8=True), 29.7, 273, 24,
            f"{_BLACKWELL} for the SM; GB10", integer=_ON_BLACKWELL,
        ),
        Gpu("OrinAGX", 16, 1300, _tera(85, 42.5, 21.2), 5.3, 204.8, 4, f"{_ORIN}: 64 GB, 170 sparse TOPS of the GPU"),
        Gpu(
            "OrinNX", 8, 918, _tera(30, 15, 7.5), 1.88, 102.4, 4,
            f"{_ORIN}: 16 GB, 918 MHz, 60 sparse TOPS of the GPU",
        ),
        Gpu("OrinNano", 8, 625, _tera(20, 10, 5), 1.28, 68, 2, f"{_ORIN}: 8 GB, 625 MHz, 40 sparse TOPS"),
        Gpu(
            "OrinNanoSuper", 8, 1020, _tera(33.4, 16.7, 8.36), 2.09, 102.4, 2,
            f"{_ORIN}: 8 GB, 1,020 MHz, 67 sparse TOPS",
        ),
        Gpu(
            "Thor", 20, 1570, _tera(517, 258.5, 129, fp8=True), 8.06, 273, 32,
            "NVIDIA Jetson T5000 data sheet: 1,035 sparse FP8 TFLOPS, halved by precision; INT8 as FP8",
            integer=_ON_BLACKWELL,
        ),
    )
}  # fmt: skip
"""The known GPUs by name; tests/model/test_gpu_time.py derives their peaks from SMs, clocks and units."""
# Words that mark GPUs with other peaks than the GPU of the same number.
_VARIANTS = frozenset({"ti", "super", "laptop", "mobile", "d"})


def gpu_named(name: str) -> Gpu:
    """Returns the GPU of a name in any spelling, such as ``rtx 3090`` or ``NVIDIA GeForce RTX 3090``.

    Raises BadInput for an unknown name, or an unknown variant (``Ti``, ``laptop``) of a known GPU.
    """
    words = set(_words(name))
    fitting = []
    for gpu in GPUS.values():
        own = set(_words(gpu.name))
        if own <= words and not (words - own) & _VARIANTS:
            fitting.append(gpu)
    if not fitting:
        raise BadInput(f"No peaks are known of the GPU '{name}'.", f"Give one of {', '.join(GPUS)}.")
    return max(fitting, key=lambda gpu: len(gpu.name))


_PEAKS = {
    **{str(precision): precision for precision in BYTES if precision is not Precision.FP32},
    "tf32": Precision.FP32,
}
_NEEDED = ("processors", "fp32", "bandwidth")
GPU_KEYS = ("name", *_NEEDED, "clock", "cache", *_PEAKS)
"""The keys of a file that describes a GPU, see docs/concepts/time.md."""


def gpu_of(described: Mapping[str, Any], name: str) -> Gpu:
    """Returns the GPU of a user's TOML file, as parsed; keys: docs/concepts/time.md. ``name`` replaces a missing name.

    Raises BadInput for a missing or impossible figure.
    """
    figures = {key: value for key, value in described.items() if key != "name"}
    for key in (*_NEEDED, *figures):
        value = figures.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            why = f"Give a number above 0; {', '.join(_NEEDED)} are needed."
            raise BadInput(f"The GPU '{name}' cannot have {key} = {value!r}.", why)
    if figures["processors"] < 1:
        raise BadInput(f"The GPU '{name}' cannot have {figures['processors']!r} processors.", "Give at least 1.")
    tera = {_PEAKS[key]: float(value) for key, value in figures.items() if key in _PEAKS}
    return Gpu(
        str(described.get("name", name)), int(figures["processors"]), figures.get("clock", GPUS["A100"].clock), tera,
        figures["fp32"], figures["bandwidth"], figures.get("cache", 0.0), "the user's file",
    )  # fmt: skip


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+|\d+", re.sub(r"([a-z])([A-Z][a-z]|AGX|NX)", r"\1 \2", name).lower())


@dataclass(frozen=True)
class Product:
    """The matrix product in a kernel.

    Attributes:
        rows, columns: the size of each group's result.
        channels: each result is a sum of ``channels`` x ``taps`` products.
        taps: the size of a convolution's filter.
        groups: the groups of a convolution, or the number of matrix products in a batch.
        by_fours: true if the kernel reads a format four channels wide.
    """

    rows: int
    columns: int
    channels: int
    taps: int
    precision: Precision
    groups: int = 1
    by_fours: bool = False

    @property
    def macs(self) -> int:
        """The number of multiply-adds."""
        return self.groups * self.rows * self.columns * self.channels * self.taps

    @property
    def is_depthwise(self) -> bool:
        """True for a convolution of each channel by itself."""
        return self.groups > 1 and self.columns == self.channels == 1

    @property
    def reads_picture(self) -> bool:
        """True for a convolution of too few channels to fill tensor cores."""
        return self.groups == 1 and self.channels <= PICTURE < self.columns and self.taps > 1


class Kind(str, Enum):
    """The work of a kernel: ``STREAM`` only moves bytes, ``REGION`` is an unknown operator."""

    PRODUCT = "product"
    STREAM = "stream"
    REFORMAT = "reformat"
    REGION = "region"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Kernel:
    """A kernel of an engine.

    Attributes:
        kind: ``NOTHING`` if it neither computes nor moves bytes, such as a Reshape.
        moved: the bytes read and written, weights included.
        is_narrow: true for a picture's change of format.
        layers: the indices of its layers; empty for a reformat, or if the kernel is known from an engine only.
    """

    name: str
    kind: Kind
    moved: int
    product: Product | None = None
    is_narrow: bool = False
    layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fit:
    """The fitted constants: ``tile``, the overhead of small tiles; ``launch``, in microseconds on an A100; all
    others, the shares of peaks that kernels reach.
    """

    launch: float
    tile: float
    integer: float
    memory: float
    scalar: float
    image: float
    narrow: float


FIT = Fit(launch=7.3, tile=25.5, integer=0.87, memory=0.93, scalar=0.75, image=0.298, narrow=0.247)
"""Fitted on four ResNet-18 engines that NVIDIA published: ``python -m benchmarks.time --fit``."""
_FLOW = 10  # Bytes per cycle that an SM gets from the cache; chosen among 7, 10, 14 and 16 by docs/evidence/engines.


def seconds(kernel: Kernel, gpu: Gpu, fit: Fit = FIT) -> float:
    """Returns the predicted time of a kernel, in seconds."""
    if kernel.kind is Kind.NOTHING:
        return 0.0
    computing = _computing(kernel.product, gpu, fit) if kernel.product else 0.0
    return start_of(kernel, gpu, fit) + math.hypot(_moving(kernel, gpu, fit), computing)


def start_of(kernel: Kernel, gpu: Gpu, fit: Fit = FIT) -> float:
    """Returns the seconds that launching a kernel takes."""
    if kernel.kind is Kind.NOTHING:
        return 0.0
    return 1e-6 * fit.launch * GPUS["A100"].clock / gpu.clock


def _moving(kernel: Kernel, gpu: Gpu, fit: Fit) -> float:
    from_cache = gpu.processors * gpu.clock * 1e6 * _FLOW
    from_memory = min(gpu.bandwidth * 1e9 * fit.memory, from_cache)
    cached = max(1.0 - kernel.moved / (gpu.cache * 1e6), 0.0) if gpu.cache else 0.0
    taken = kernel.moved * (cached / from_cache + (1.0 - cached) / from_memory)
    return taken / fit.narrow if kernel.is_narrow else taken


def _computing(product: Product, gpu: Gpu, fit: Fit) -> float:
    precision, scalar = product.precision, gpu.scalar * 1e12 / 2 * fit.scalar
    if product.is_depthwise:  # An SM reads 128 bytes a cycle from shared memory for 128 FP32 multiply-adds.
        return product.macs * BYTES[precision] / scalar
    filled = product.macs / product.channels * PICTURE
    if product.reads_picture and precision is Precision.FP32:
        return product.macs / scalar
    if product.reads_picture and product.by_fours and precision is Precision.INT8:
        return filled / (4 * scalar)
    if product.reads_picture:
        return filled / (gpu.rate(precision) * fit.image)
    step = max(_STEP // BYTES[precision], 1)
    depth = product.taps * math.ceil(product.channels / step) * step
    share = fit.integer if BYTES[precision] == 1 else 1.0
    if precision is Precision.INT8:
        share *= gpu.integer

    def macs_by_tiles_of(rows: int, columns: int) -> float:
        tiles = product.groups * math.ceil(product.rows / rows) * math.ceil(product.columns / columns)
        overhead = 1.0 + fit.tile * (1 / rows + 1 / columns)
        return math.ceil(tiles / gpu.processors) * (rows * columns) * depth * overhead

    return min(macs_by_tiles_of(*tile) for tile in _TILES) / (gpu.rate(precision) / gpu.processors * share)


# Factors of a prediction's range: on a measured GPU, on another one, and of a region (docs/concepts/time.md).
_SURE, _UNSURE, _REGION = 1.2, 1.5, 5.0


@dataclass(frozen=True)
class Predicted:
    """The predicted time of one inference, in milliseconds, with its range."""

    ms: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.ms:.3g} ms ({self.least:.3g} to {self.most:.3g})"


def predicted(kernels: Iterable[Kernel], gpu: Gpu, fit: Fit = FIT) -> Predicted:
    """Returns the predicted time of one inference of an engine of these kernels."""
    return ranged(((kernel.kind, seconds(kernel, gpu, fit)) for kernel in kernels), gpu)


def ranged(timed: Iterable[tuple[Kind, float]], gpu: Gpu) -> Predicted:
    """Returns the time of one inference, with its range, from the kind and seconds of each kernel."""
    times = [(kind, taken * 1e3) for kind, taken in timed]
    total = math.fsum(ms for _, ms in times)
    regions = math.fsum(ms for kind, ms in times if kind is Kind.REGION)
    factor = _SURE if gpu.measured else _UNSURE
    return Predicted(total, total / factor, (total - regions) * factor + regions * max(factor, _REGION))
