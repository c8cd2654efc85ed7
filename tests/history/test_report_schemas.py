"""Reports of schema 1 in the history, beside those of today. Version 0.1.0 wrote ``tests/files/report-1``."""

import json
import shutil
from pathlib import Path

from tests.support.records import record_of, report_from
from trt_bisect import History
from trt_bisect.history.queries import changes
from trt_bisect.history.store import HISTORY

OLD = Path(__file__).parents[1] / "files" / "report-1"


def test_a_report_of_schema_1_is_recorded_and_what_a_newer_one_counts_is_told(finished, tmp_path):
    shutil.copytree(OLD, tmp_path / "lenet")
    shutil.copytree(finished, tmp_path / "newer")
    with History(tmp_path / HISTORY) as kept:
        kept.record(tmp_path / "lenet")
        kept.record(tmp_path / "newer")
        before, after = (entry.report for entry in kept.past())
    stored = json.loads((OLD / "report.json").read_text())
    assert (before.schema, after.schema) == (1, 3)
    assert before.culprits == tuple(stored["culprits"])
    assert before.similarity.int8 == stored["similarity"]["int8"]
    told = [change for change in changes(before, after) if "culprits are" in change]
    assert len(told) == 1
    assert "suspects →" in told[0]
    assert not [change for change in changes(after, after) if "culprits are" in change]


def test_a_report_of_schema_1_is_read_with_its_figures():
    stored = json.loads((OLD / "report.json").read_text())
    report = report_from(stored)
    assert (report.schema, report.answer, report.next, report.summary) == (1, None, None, stored["summary"])
    read = record_of(report)
    same = ("model", "threshold", "versions", "culprits", "similarity", "outputs", "plans", "fingerprint")
    assert {name: read[name] for name in same} == {name: stored[name] for name in same}
    for row, old in zip(read["layers"], stored["layers"], strict=True):
        assert {name: row[name] for name in old if name in row} == {name: old[name] for name in old if name in row}
