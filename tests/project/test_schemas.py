"""The JSON Schemas of the documentation: real files of each kind validate, and hold no key that is not described."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import trt_bisect
from tests.support import networks
from tests.support.records import record_of
from tools import make_schemas
from tools.make_schemas import FILES
from trt_bisect.report.answer import Move
from trt_bisect.support.codec import read

ROOT = Path(__file__).resolve().parents[2]
LENET = ROOT / "samples/lenet/lenet_planted.onnx"
CALIBRATION = ROOT / "samples/lenet/calibration.npz"


def test_the_page_is_that_of_the_dataclasses_now() -> None:
    """python tools/make_schemas.py"""
    assert make_schemas.PAGE.read_text(encoding="utf-8") == make_schemas.page()


def test_every_key_has_a_description_of_its_own_or_its_name_says_it() -> None:
    bare = [line for line in make_schemas.page().splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert len(bare) <= 20, "metrics, and accuracies by plan"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each kind that has a schema."""
    place = tmp_path_factory.mktemp("files")
    with np.load(CALIBRATION) as data:
        few = {"data": data["data"][:8]}
    np.savez(place / "few.npz", **few)
    run = {"calibration": few, "engine": "onnxruntime", "output": place, "history": "none"}
    trt_bisect.run(LENET, **run, samples=2, explain="remedies", front=True)
    trt_bisect.sensitivity(LENET, calibration=few, output=place)
    trt_bisect.worst(LENET, few, few, engine="onnxruntime").save(place)
    trt_bisect.compare(LENET, calibration=few).save(place)
    trt_bisect.profile(LENET, few).save(place)
    trt_bisect.check(LENET).save(place)
    suite = place / "suite.toml"
    suite.write_text(
        f'[[network]]\nname = "planted"\nmodel = "{LENET}"\ncalibration = "few.npz"\nengine = "onnxruntime"\n'
        "repeats = 1\ntarget = 0.9\n"
    )
    trt_bisect.regress(suite).save(place)
    sketch = networks.Sketch(3)  # four classes for each pixel
    sketch.conv(sketch.conv("x", "first", 3, 8), "last", 8, 4)
    sketch.nodes[-1].output[0] = "y"
    segments = networks.save(sketch.model({"x": [1, 3, 16, 16]}, {"y": [1, 4, 16, 16]}), place)
    images = {"x": np.random.default_rng(0).normal(size=(4, 3, 16, 16)).astype(np.float32)}
    trt_bisect.run(segments, images, engine="onnxruntime", output=place / "run", history="none", task="segment")
    (place / "run" / "pictures.json").rename(place / "pictures.json")
    return place


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
def test_a_real_file_validates_and_every_key_of_it_is_described(folder: Path, file: str) -> None:
    schema = make_schemas.schema(file)
    record = read(dict, folder / file)
    assert record
    validate(schema, record)
    validate(closed(schema), record)


def test_a_report_with_a_goal_and_a_front_validates(tmp_path: Path) -> None:
    """An accuracy decides; without a scale of another calibrator one is put in."""
    with np.load(ROOT / "samples/lenet/digits.npz") as data:
        digits = {name: data[name][:10] for name in data.files}
    labels = np.load(ROOT / "samples/lenet/labels.npy")[:10]
    how = {"engine": "onnxruntime", "explain": "none", "front": True, "cost": "macs", "drop": 0.5}
    report = trt_bisect.run(LENET, CALIBRATION, dataset=digits, labels=labels, **how)
    assert report.goal.drop == "0.5"
    assert report.accuracy is not None
    assert report.accuracy.least is not None
    assert len(report.front) >= 3
    moved = replace(report, moves=(Move("x", "minmax", 0.5, 0.25),))
    validate(closed(make_schemas.schema("report.json")), record_of(moved))


def test_every_line_of_a_real_journal_validates(folder: Path) -> None:
    schema = make_schemas.schema("journal.jsonl")
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert any("trial" in line for line in lines)
    validate(closed(schema), *lines)


def test_a_report_of_a_bisection_without_folder_and_explanation_validates(tmp_path: Path) -> None:
    """Some keys are then left out, or null."""
    path, feeds = networks.given(networks.detector(), tmp_path, 4)
    report = trt_bisect.run(path, feeds, feeds, engine="onnxruntime", strategy="bisect", explain="none")
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
def test_a_spoiled_report_does_not_validate(folder: Path, change: dict[str, Any], path: str) -> None:
    schema = make_schemas.schema("report.json")
    spoiled = {**(read(dict, folder / "report.json") or {}), **change}
    assert path in {error.json_path for error in Draft202012Validator(schema).iter_errors(spoiled)}
