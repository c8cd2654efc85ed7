"""A metric for runs that stop in the middle."""

import json
import os
import time
from pathlib import Path

import numpy as np


def cosine_that_waits(reference, output):
    """The cosine. It waits while the folder ``TRT_BISECT_TEST_MEETING`` lacks ``go on``, from the moment when the
    journal of the run folder ``TRT_BISECT_TEST_FOLDER`` has three trials of the curve.
    """
    meeting = Path(os.environ["TRT_BISECT_TEST_MEETING"])
    if _is_in_the_middle() and not (meeting / "go on").exists():
        (meeting / str(os.getpid())).touch()
        while not (meeting / "go on").exists():
            time.sleep(0.02)
    return float(np.sum(reference * output) / np.sqrt(np.sum(reference**2) * np.sum(output**2)))


def _is_in_the_middle():
    journal = Path(os.environ["TRT_BISECT_TEST_FOLDER"]) / "journal.jsonl"
    records = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    return sum("trial" in record and " " not in record["trial"]["plan"] for record in records) >= 3
