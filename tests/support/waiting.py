"""Waits for conditions, never for a time: the limits here only end a test that would hang."""

import time
from pathlib import Path

LIMIT = 600.0
"""Seconds; far more than any of it takes on the busiest machine."""


def wait_until(condition, seconds=LIMIT):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def is_running(pid):
    """Returns True if a process runs. A dead one stays a zombie until its parent has asked for its end.

    Source: the third field of ``/proc/PID/stat``, proc(5).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
