"""Metrics for runs on a cluster that stop in the middle."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

_seen = []


def cosine_that_waits(reference, output):
    """The cosine; after some calls in a process, five if nothing is said, it waits while a folder lacks ``go on``."""
    _seen.append(None)
    meeting = Path(os.environ["TRT_BISECT_TEST_MEETING"])
    if len(_seen) > int(os.environ.get("TRT_BISECT_TEST_CALLS", "5")) and not (meeting / "go on").exists():
        (meeting / str(os.getpid())).touch()
        while not (meeting / "go on").exists():
            time.sleep(0.02)
    return float(np.sum(reference * output) / np.sqrt(np.sum(reference**2) * np.sum(output**2)))
