"""The NVIDIA GPUs of this machine, as the CUDA driver's own library lists them."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass

from trt_bisect.errors import EngineUnavailable

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_REMEDY = "Run on a machine with an NVIDIA GPU and its driver; 'nvidia-smi' must list the GPU."


@dataclass(frozen=True)
class Gpu:
    """The first GPU that the driver names.

    Attributes:
        name: the driver's name for it.
        capability: its compute capability, such as ``9.0``.
        cuda: the newest CUDA version that the driver supports, such as ``12.4``.
    """

    name: str
    capability: str
    cuda: str

    @property
    def number(self) -> int:
        """The compute capability as NVIDIA's compilers write it: 90 for ``9.0``."""
        return int(self.capability.replace(".", ""))

    def __str__(self) -> str:
        return f"{self.name} (compute capability {self.capability}, driver for CUDA {self.cuda})"


def find_gpu() -> Gpu:
    """Returns the first GPU, in the order of ``CUDA_VISIBLE_DEVICES``.

    Raises:
        EngineUnavailable: there is no driver or no GPU; the message names the call that failed.
    """
    try:
        cuda = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise EngineUnavailable(f"No NVIDIA GPU answers: {error}", _REMEDY) from error
    count, device, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    _call(cuda, "cuInit", 0)
    _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    if count.value == 0:
        raise EngineUnavailable("No NVIDIA GPU answers: cuDeviceGetCount says there is none.", _REMEDY)
    _call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    _call(cuda, "cuDeviceGetName", name, len(name), device)
    _call(cuda, "cuDriverGetVersion", ctypes.byref(version))
    return Gpu(
        name.value.decode(errors="replace"),
        f"{_attribute(cuda, device, _CAPABILITY_MAJOR)}.{_attribute(cuda, device, _CAPABILITY_MINOR)}",
        f"{version.value // 1000}.{version.value % 1000 // 10}",
    )


def visible_gpus() -> tuple[str, ...]:
    """Returns the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them; none if no driver answers.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables": a name that is invalid hides those after it.
    """
    try:
        cuda = ctypes.CDLL(_LIBRARY)
        count = ctypes.c_int()
        _call(cuda, "cuInit", 0)
        _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    except (OSError, EngineUnavailable):
        return ()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(named[: count.value] or map(str, range(count.value)))


def _attribute(cuda: ctypes.CDLL, device: ctypes.c_int, attribute: int) -> int:
    value = ctypes.c_int()
    _call(cuda, "cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
    return value.value


def _call(cuda: ctypes.CDLL, function: str, *arguments: object) -> None:
    code = getattr(cuda, function)(*arguments)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(text))
        named = text.value.decode() if text.value else "unknown"
        raise EngineUnavailable(f"No NVIDIA GPU answers: {function} returned {code} ({named}).", _REMEDY)
