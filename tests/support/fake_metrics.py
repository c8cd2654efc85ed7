"""Metrics for runs on a cluster that stop in the middle."""

import json
import os
import time
from pathlib import Path

import numpy as np

_seen = []


def cosine_that_waits(reference, output):
    """The cosine; in the middle of a run it waits while a folder lacks ``go on``.

    That is after some calls in a process, 12 if nothing is said, or with ``TRT_BISECT_TEST_FOLDER`` as soon as the
    journal of that run folder has three trials of the curve.
    """
    _seen.append(None)
    meeting = Path(os.environ["TRT_BISECT_TEST_MEETING"])
    if _is_in_the_middle() and not (meeting / "go on").exists():
        (meeting / str(os.getpid())).touch()
        while not (meeting / "go on").exists():
            time.sleep(0.02)
    return float(np.sum(reference * output) / np.sqrt(np.sum(reference**2) * np.sum(output**2)))


def _is_in_the_middle():
    folder = os.environ.get("TRT_BISECT_TEST_FOLDER")
    if folder is None:
        return len(_seen) > 12
    journal = Path(folder) / "journal.jsonl"
    records = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    return sum("trial" in record and " " not in record["trial"]["plan"] for record in records) >= 3
