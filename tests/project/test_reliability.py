"""Small editions of ``benchmarks.reliability``, and what it judges by."""

import json
from pathlib import Path

import pytest

from benchmarks.reliability import disk
from benchmarks.reliability.forked import Ended
from benchmarks.reliability.fuzz import fault_of
from benchmarks.reliability.subjects import twice, whole_lines
from tests.support.editions import edition

ROOT = Path(__file__).parents[2]
TIMES = edition(2, 10)


@pytest.fixture
def figures(forks, tmp_path):
    """Returns a function that runs ``python -m benchmarks.reliability`` and gives its figures; no promise is broken."""

    def call(*arguments):
        path = tmp_path / "figures.json"
        code = "from benchmarks.reliability.__main__ import main; main()"
        done = forks.run(*arguments, "--json", path, code=code, folder=ROOT)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(path.read_text())

    return call


@pytest.mark.slow
@pytest.mark.subprocess
def test_runs_that_are_killed_end_with_the_same_report(figures):
    found = figures("kill", "--small", "--times", "1", "--seed", "5")
    assert found["reports equal"] == found["runs"] == 1
    assert found["kills"] >= 1
    assert found["trials that were known when a run went on"] > 0
    assert found["trials lost"] == found["trials done twice"] == 0


@pytest.mark.slow
@pytest.mark.subprocess
def test_runs_that_are_stopped_leave_a_report_and_go_on(figures):
    found = figures("stop", "--small", "--times", str(TIMES), "--seed", "1")
    assert found["reports left"] == found["equal in the end"] == found["runs"] == TIMES
    assert 1 <= found["with a recipe that holds in plain ONNX Runtime"] <= found["with full INT8 measured"] <= TIMES


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_disk_that_is_full_is_told_and_the_run_goes_on_when_there_is_room(figures):
    if not disk.can_mount():
        pytest.skip("nothing can be mounted here: it takes root")
    found = figures("disk", "--small", "--pieces", "2", "--step", "1000")
    (found,) = (value for value in found.values() if isinstance(value, dict))
    assert found["equal after room was made"] == found["sizes"] >= 2
    assert {"magnitudes.npz", "ranges.json"} & set(found["full at"]), "a file of the calibration, at the start"
    assert not {"report.html", "explanation.json"} & set(found["without a report"])
    last = {"explanation.json", "layers.csv", "report.json", "report.html"}
    assert last & set(found["full at"]), "a file of the report, at the end"


@pytest.mark.slow
@pytest.mark.subprocess
def test_spoiled_inputs_are_refused_in_words(figures, tmp_path):
    found = figures("fuzz", "--count", "6", "--seed", "3", "--keep", str(tmp_path / "kept"))
    assert found["inputs"] == 6
    assert found["findings"] == 0
    refused = sum(count for kind, count in found["by_kind"].items() if kind.endswith("exit 2"))
    assert refused >= 3


def trial(plan, run="r", inputs="", inferences=1):
    record = {"plan": plan, "inferences": inferences, "losses": dict.fromkeys(inputs, 0.5)}
    return json.dumps({"run": run, "trial": record}).encode() + b"\n"


def test_trials_that_stand_twice_are_counted(tmp_path):
    lines = [b'{"run": "r", "about": {}}\n', trial("a"), trial("b"), trial("a", "other")]
    assert twice(lines) == 0
    assert twice([*lines, trial("a"), trial("a")]) == 2
    grown = [trial("c", inputs="12", inferences=2), trial("c", inputs="123", inferences=3)]
    assert twice(grown) == 0
    assert twice([*grown, grown[-1]]) == 1
    assert twice([grown[0], trial("c", inputs="123", inferences=5)]) == 1
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines) + b'{"run": "r", "tri')
    assert whole_lines(tmp_path) == lines


BAD = "trt-bisect: 'x' is no network.\nGive one.\n"


@pytest.mark.parametrize(
    ("ended", "fault"),
    [
        (Ended(0, "", "", 1.0, 100), ""),
        (Ended(2, "", BAD, 1.0, 100), ""),
        (Ended(2, "", "Usage: trt-bisect run\nNo such option", 1.0, 100), ""),
        (Ended(3, "nothing could be measured", "", 1.0, 100), ""),
        (Ended(2, "", "", 1.0, 100), "message"),
        (Ended(2, "", BAD + "more\n", 1.0, 100), "3 lines"),
        (Ended(3, "", "trt-bisect: an error of trt-bisect itself, KeyError at a.py:1: 'x'", 1.0, 100), "KeyError"),
        (Ended(-11, "", "", 1.0, 100), "exit code -11"),
        (Ended(1, "", "Traceback (most recent call last)\nKeyError: 1", 1.0, 100), "KeyError: 1"),
        (Ended(-9, "", "", 31.0, 100, "time"), "30 s"),
        (Ended(0, "", "", 1.0, 2049), "2049 MiB"),
    ],
)
def test_what_the_fuzzer_allows(ended, fault):
    assert fault in fault_of(ended)
    assert bool(fault) == bool(fault_of(ended))
