"""The machine: processors and memory."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from pathlib import Path

MEMORY = 512 << 20
"""The default limit of the bytes of a network's tensors that are held at once."""
_VECTORS = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "asimddp", "i8mm", "sve")

_limit: int | None = None


def use_at_most(processors: int) -> None:
    """Limits the threads of this process, for one of several workers on a machine."""
    global _limit
    _limit = processors


def session_threads() -> int | None:
    """Returns the default number of threads of a session; None for ONNX Runtime's own default."""
    return _limit


def cores() -> int:
    """Returns the number of processors that this process may use."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, _limit or available)


def processor() -> str:
    """Returns the architecture and the vector extensions that libraries choose kernels by: float sums depend on them.

    Source: the line ``flags`` (x86) or ``Features`` (ARM) of ``/proc/cpuinfo``, see proc(5).
    """
    file = Path("/proc/cpuinfo")
    found = re.search(r"^(?:flags|Features)\s*: (.*)$", file.read_text(), re.MULTILINE) if file.is_file() else None
    flags = found[1].split() if found else []
    return " ".join([platform.machine(), *(name for name in _VECTORS if name in flags)])


def peak_bytes() -> int:
    """Returns the peak memory of this process in bytes.

    Source: VmHWM in proc(5), in KiB; without that file, getrusage(2), in bytes on macOS and in KiB elsewhere. On Linux
    the latter includes the memory of the parent when it started this process.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
