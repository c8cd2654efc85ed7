"""A run on an engine that compiles layers into one region: what the report says, and what it does not say."""

import json

import numpy as np
import pytest

import trt_bisect
from tests.support.records import record_of, report_from, texts


@pytest.fixture
def regional(foreign):
    """Networks run on an engine that runs the layers from ``ip1`` on in one region."""
    foreign(tells=lambda ran: {**ran, "ip1": "region", "ip2": "region"})


@pytest.fixture
def data(lenet):
    return lenet / "calibration.npz", {"data": np.load(lenet / "digits.npz")["data"][:6]}


@pytest.fixture
def report(regional, lenet, data, tmp_path):
    how = {"strategy": "bisect", "explain": "none", "calibrator": "minmax", "output": tmp_path / "run"}
    return trt_bisect.run(lenet / "lenet_planted.onnx", *data, **how)


def test_a_culprit_in_a_region_is_named_and_said_to_be_unproven(report, tmp_path):
    assert report.culprits == ("ip2",)
    rows = {row.name: row for row in report.layers}
    assert (rows["ip2"].ran, rows["ip2"].obeyed) == ("region", None)
    assert (rows["conv1"].ran, rows["conv1"].obeyed) in [("int8", True), ("", None)]
    about = [note for note in texts(report.notes) if "unproven" in note]
    assert len(about) == 2
    assert "'ip1' and 'ip2'" in about[0]
    assert "'ip2'" in about[1]
    assert not any("did not obey" in note for note in texts(report.notes))
    assert "unproven" in rows["ip2"].verdict
    assert report_from(record_of(report)).layers == report.layers
    trials = [
        json.loads(line).get("trial", {}) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()
    ]
    of_engines = [trial for trial in trials if trial.get("apart") is not None]
    assert of_engines
    assert all("region" in json.dumps(trial["ran"]) for trial in of_engines), "the journal has what engines say"


def test_a_front_and_a_budget_leave_said_which_layers_are_unproven(regional, lenet, data, tmp_path):
    how = {
        "budget": 0.5,
        "front": True,
        "explain": "none",
        "calibrator": "minmax",
        "effort": "quick",
        "output": tmp_path / "within",
    }
    found = trt_bisect.run(lenet / "lenet_planted.onnx", *data, **how)
    about = [note for note in texts(found.notes) if "unproven" in note]
    assert "'ip1' and 'ip2'" in about[0]
    assert not any("did not obey" in note for note in texts(found.notes))
