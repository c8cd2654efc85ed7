"""The machine: processors, memory and threads, and its NVIDIA GPUs, as the CUDA driver's library lists them."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import thread_time
from typing import Any, TypeVar

from trt_bisect.errors import EngineUnavailable

MEMORY = 512 << 20  # the default limit of the bytes of a network's tensors
_VECTORS = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "asimddp", "i8mm", "sve")

_WORTH_A_THREAD = 0.0005  # seconds; shorter calls cost less than their way to another thread and back
_Result = TypeVar("_Result")


def cores() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """Returns the architecture and vector extensions, by which libraries choose kernels and the order of float sums."""
    # Source: the line ``flags`` (x86) or ``Features`` (ARM) of ``/proc/cpuinfo``, see proc(5).
    file = Path("/proc/cpuinfo")
    line = re.search(r"^(?:flags|Features)\s*: (.*)$", file.read_text(), re.MULTILINE) if file.is_file() else None
    flags = line[1].split() if line else []
    return " ".join([platform.machine(), *(name for name in _VECTORS if name in flags)])


def peak_bytes() -> int:
    """Returns the peak memory of this process in bytes."""
    # Source: VmHWM in proc(5), in KiB; else getrusage(2), in bytes on macOS and in KiB elsewhere, which on Linux
    # includes the parent's memory at the start.
    status = Path("/proc/self/status")
    if status.is_file():
        peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if peak:
            return int(peak[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class InThisThread(Executor):
    """An executor that runs calls in the calling thread: an engine on a GPU must run in the thread that made it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Calls ``fn`` at once, and returns a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class ThreadsIfLong(Executor):
    """An executor that runs calls in at most ``threads`` threads, or in the calling thread if they are short.

    Calls are short if those so far took under half a millisecond on average.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._here = InThisThread()
        # with one thread, calls run in the order of submission
        self._last: Future[Any] | None = None
        self._calls = 0
        self._seconds = 0.0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Calls ``fn``, here or in a thread; returns its future."""
        is_short = self._seconds <= _WORTH_A_THREAD * self._calls
        if is_short and (self._last is None or self._last.done()):
            return self._here.submit(self._timed, fn, *args, **kwargs)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads)
        self._last = self._pool.submit(self._timed, fn, *args, **kwargs)
        return self._last

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads, if any."""
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _timed(self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> _Result:
        began = thread_time()
        try:
            return fn(*args, **kwargs)
        finally:
            self._calls += 1
            self._seconds += thread_time() - began


_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_REMEDY = "Run on a machine with an NVIDIA GPU and its driver; 'nvidia-smi' must list the GPU."


@dataclass(frozen=True)
class InstalledGpu:
    """The first GPU that the driver names.

    Attributes:
        capability: compute capability, such as ``9.0``.
        cuda: newest CUDA version of the driver, such as ``12.4``.
    """

    name: str
    capability: str
    cuda: str

    @property
    def number(self) -> int:
        """The compute capability as compilers write it: 90 for ``9.0``."""
        return int(self.capability.replace(".", ""))

    def __str__(self) -> str:
        return f"{self.name} (compute capability {self.capability}, driver for CUDA {self.cuda})"


def find_gpu() -> InstalledGpu:
    """Returns the first visible GPU; raises EngineUnavailable, which names the call that failed."""
    cuda, count = _driver()
    if count == 0:
        raise EngineUnavailable("No NVIDIA GPU answers: cuDeviceGetCount says there is none.", _REMEDY)
    device, version, major, minor = (ctypes.c_int() for _ in range(4))
    name = ctypes.create_string_buffer(256)
    _call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    _call(cuda, "cuDeviceGetName", name, len(name), device)
    _call(cuda, "cuDriverGetVersion", ctypes.byref(version))
    _call(cuda, "cuDeviceGetAttribute", ctypes.byref(major), _CAPABILITY_MAJOR, device)
    _call(cuda, "cuDeviceGetAttribute", ctypes.byref(minor), _CAPABILITY_MINOR, device)
    supported = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return InstalledGpu(name.value.decode(errors="replace"), f"{major.value}.{minor.value}", supported)


def visible_gpus() -> tuple[str, ...]:
    """Returns the GPUs of this process, as ``CUDA_VISIBLE_DEVICES`` names them; empty if no driver answers."""
    try:
        _, count = _driver()
    except EngineUnavailable:
        return ()
    # Source: CUDA C++ Programming Guide, "CUDA Environment Variables": an invalid name hides those after it.
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(names[:count] or map(str, range(count)))


def _driver() -> tuple[ctypes.CDLL, int]:
    # the driver's library, and the number of GPUs
    try:
        cuda = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise EngineUnavailable(f"No NVIDIA GPU answers: {error}", _REMEDY) from error
    count = ctypes.c_int()
    _call(cuda, "cuInit", 0)
    _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    return cuda, count.value


def _call(cuda: ctypes.CDLL, function: str, *arguments: object) -> None:
    code = getattr(cuda, function)(*arguments)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(text))
        word = text.value.decode() if text.value else "unknown"
        raise EngineUnavailable(f"No NVIDIA GPU answers: {function} returned {code} ({word}).", _REMEDY)
