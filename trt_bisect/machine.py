"""What the machine gives: processors, memory."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import sys
from pathlib import Path

MEMORY = 512 << 20
"""Bytes of a network's tensors that are held at once, unless the user says otherwise."""
_VECTORS = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "asimddp", "i8mm", "sve")

_most: int | None = None


def use_at_most(processors: int) -> None:
    """Has this process take no more for its threads, where it shares a machine with others of its kind."""
    global _most
    _most = processors


def session_threads() -> int | None:
    """The threads of an ONNX Runtime session that is given none; None leaves ONNX Runtime's own."""
    return _most


def cores() -> int:
    """The processors that this process may run on."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(there, _most or there)


def processor() -> str:
    """The architecture, and those vector extensions by which kernels are chosen: float sums depend on them.

    Source: the line ``flags`` (x86) or ``Features`` (ARM) of ``/proc/cpuinfo``, see proc(5).
    """
    file = Path("/proc/cpuinfo")
    found = re.search(r"^(?:flags|Features)\s*: (.*)$", file.read_text(), re.MULTILINE) if file.is_file() else None
    flags = found[1].split() if found else []
    return " ".join([platform.machine(), *(name for name in _VECTORS if name in flags)])


def give_back_memory() -> None:
    """Gives what was freed back to the system, where the C library keeps it: ``malloc_trim(3)`` of glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def peak_bytes() -> int:
    """The most memory that this process has held.

    Source: VmHWM in proc(5), in KiB. getrusage(2) serves where there is no such file: on Linux its figure includes what
    the parent held when it started this process; macOS counts in bytes.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
