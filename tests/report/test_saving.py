"""The files of results: every value of the JSON is in the CSV, and the table has the same rows."""

import csv
import json

import pytest

from trt_bisect import BadInput
from trt_bisect.analyzer.structure.findings import KINDS, found
from trt_bisect.report.structure import CheckReport


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("count", [0, 3])
def test_a_table_has_its_columns_without_rows_too(count, tmp_path):
    findings = tuple(found(next(iter(KINDS)), f"layer, {k}", 'a "quoted"\ntext') for k in range(count))
    report = CheckReport("m", 17, 5, 0, findings)
    report.save(tmp_path)
    rows = rows_of(tmp_path / "check.csv")
    assert [row["layer"] for row in rows] == [f"layer, {k}" for k in range(count)]
    assert all(row["what"] == 'a "quoted"\ntext' for row in rows)
    findings = json.loads((tmp_path / "check.json").read_text())["findings"]
    assert [{"layers": [row.pop("layer")], **row} for row in rows] == findings
    columns = (tmp_path / "check.csv").read_text().splitlines()[0].split(",")
    assert columns == ["severity", "kind", "layer", "what", "why", "remedy"] == list(report.table().columns)


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("kept")
    with pytest.raises(BadInput, match="out"):
        CheckReport("m", 17, 5, 0, ()).save(tmp_path / "out")
    assert (tmp_path / "out").read_text() == "kept"
