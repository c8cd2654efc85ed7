"""The JSON Schemas of the documentation: real files of each kind validate, and hold no key that is not described."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import trt_bisect
from tests.support import networks
from tests.support.recorded import RUNS, results
from tests.support.records import record_of
from tools import make_schemas
from tools.make_schemas import FILES
from trt_bisect import Report
from trt_bisect.support.codec import read


def test_the_page_is_that_of_the_dataclasses_now() -> None:
    """python tools/make_schemas.py"""
    assert make_schemas.PAGE.read_text(encoding="utf-8") == make_schemas.page()


def test_every_key_has_a_description_of_its_own_or_its_name_says_it() -> None:
    bare = [line for line in make_schemas.page().splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert len(bare) <= 20, "metrics, and accuracies by plan"


@pytest.fixture(scope="module")
def file_of(recorded: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a real file by its name."""
    runs = {"pictures.json": "pictured"}

    def find(name: str) -> Path:
        run = runs.get(name, "odd")
        folder = recorded(run) / "runs" / run
        return folder / name if (folder / name).exists() else results(tmp_path_factory) / name

    return find


def closed(schema: Any) -> Any:
    """The schema with no other keys allowed than those that it describes."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(each) for name, each in schema.items()}
    return {**inner, "additionalProperties": False} if "properties" in schema else inner


def validate(schema: dict[str, Any], *records: Any) -> None:
    Draft202012Validator.check_schema(schema)
    found = (error for record in records for error in Draft202012Validator(schema).iter_errors(record))
    assert [f"{error.json_path}: {error.message[:200]}" for error in found] == []


@pytest.mark.parametrize("file", [name for name in FILES if name.endswith(".json")])
def test_a_real_file_validates_and_every_key_of_it_is_described(file_of: Callable[[str], Path], file: str) -> None:
    schema = make_schemas.schema(file)
    record = read(dict, file_of(file))
    assert record
    validate(closed(schema), record)


@pytest.mark.parametrize("run", RUNS)
def test_the_report_of_every_kind_of_run_validates(recorded: Callable[[str], Path], run: str) -> None:
    report = Report.load(recorded(run) / "runs" / run)
    validate(closed(make_schemas.schema("report.json")), record_of(report))


def test_every_line_of_a_real_journal_validates(file_of: Callable[[str], Path]) -> None:
    schema = make_schemas.schema("journal.jsonl")
    lines = [json.loads(line) for line in file_of("journal.jsonl").read_text().splitlines()]
    assert any("trial" in line for line in lines)
    validate(closed(schema), *lines)


def test_a_report_of_a_bisection_without_folder_and_explanation_validates(tmp_path: Path) -> None:
    """Some keys are then left out, or null."""
    path, feeds = networks.given(networks.detector(), tmp_path, 4)
    how = {"strategy": "bisect", "explain": "none", "calibrator": "minmax", "effort": "quick"}
    report = trt_bisect.run(path, feeds, feeds, **how)
    assert report.strategy == "bisect"
    validate(closed(make_schemas.schema("report.json")), record_of(report))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"schema": "two"}, "$.schema"),
        ({"layers": [{"index": 0}]}, "$.layers[0]"),
        ({"culprits": [3]}, "$.culprits[0]"),
        ({"similarity": {"int8": "much"}}, "$.similarity.int8"),
    ],
)
def test_a_spoiled_report_does_not_validate(file_of: Callable[[str], Path], change: dict[str, Any], path: str) -> None:
    schema = make_schemas.schema("report.json")
    spoiled = {**(read(dict, file_of("report.json")) or {}), **change}
    assert path in {error.json_path for error in Draft202012Validator(schema).iter_errors(spoiled)}
