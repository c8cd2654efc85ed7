"""Runs on workers: the parts of reports that do not depend on the number of workers."""

import json

from tests.support.records import record_of
from trt_bisect.runs.journal import JOURNAL


def without_times(report):
    """Returns a report's record without times and without the counts of plans that were measured ahead."""
    record = record_of(report)
    for counted in ("started", "seconds", "peak_bytes", "plans", "builds", "inferences", "command"):
        record.pop(counted, None)
    record["next"] = {**record["next"], "command": ""}
    return record


def journaled(folder):
    lines = (folder / JOURNAL).read_bytes().splitlines()
    return [json.loads(line)["trial"]["plan"] for line in lines if b'"trial"' in line]
