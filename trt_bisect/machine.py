"""What the machine gives: processors, memory."""

from __future__ import annotations

import os
import re
import resource
import sys
from pathlib import Path


def cores() -> int:
    """The processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
