"""The history of finished runs: rows, nights, labels, fingerprints."""

from __future__ import annotations

import json
import os
import shutil
from datetime import datetime, timezone

import trt_bisect
from tests.support.networks import chain, samples, save
from trt_bisect.history.store import HISTORY


def test_what_is_recorded_again_is_not_there_twice(finished, kept):
    kept.record(finished)
    before = kept.past()
    kept.record(finished)
    assert kept.past() == before != []


def test_a_folder_that_was_moved_or_copied_is_the_same_run(finished, tmp_path, kept):
    shutil.copytree(finished, tmp_path / "elsewhere")
    kept.record(finished)
    kept.record(tmp_path / "elsewhere")
    (entry,) = kept.past()
    assert entry.folder == str(tmp_path / "elsewhere")


def test_every_night_is_an_entry_of_its_run_or_of_another_in_a_new_folder_at_the_same_path(tmp_path, kept, night):
    for day in range(3):
        kept.record(night("run", day + 1, again=day > 0))
    shutil.rmtree(tmp_path / "run")
    kept.record(night("run", 4))
    entries = kept.past()
    assert [f"{entry.started:%d}" for entry in entries] == ["01", "02", "03", "04"]
    assert len({entry.run for entry in entries[:3]}) == 1
    assert entries[3].run != entries[0].run


def test_an_interrupted_night_becomes_the_finished_one_in_its_place(finished, kept, night):
    run = night("run", 1, answered=False)
    kept.record(run)
    (cut,) = kept.past()
    told = (cut.report.state, cut.report.similarity.int8, cut.report.verdict, cut.report.culprits)
    assert told == ("interrupted", None, "not measured", ())
    kept.record(night("other", 2))
    kept.record(night(run, 3, again=True))
    first, second = kept.past()
    assert (first.id, first.report.state, f"{first.started:%d}") == (cut.id, "finished", "03")
    assert (first.report.culprits, first.report.verdict) == (("ip2",), "fails")
    assert f"{second.started:%d}" == "02"


def test_a_night_interrupted_after_a_finished_one_leaves_that_alone(finished, kept, night):
    run = night("run", 1)
    night(run, 2, answered=False, again=True)
    kept.record(run)
    told = [(f"{row.started:%d}", row.report.state) for row in kept.past()]
    assert told == [("01", "finished"), ("02", "interrupted")]
    (run / "report.json").unlink()
    night(run, 1, answered=False, again=True)
    kept.record(run)
    assert kept.past()[0].report.state == "finished"  # what was known is not forgotten


def test_another_question_on_the_same_trials_is_a_report_of_its_own(finished, kept, night):
    run = night("run", 1, answered=False)
    kept.record(run)
    kept.record(night(run, 2, again=True, threshold=0.2))
    told = [(row.report.threshold, row.report.state) for row in kept.past()]
    assert told == [(0.99, "interrupted"), (0.2, "finished")]


def test_the_order_is_that_of_recording_whatever_the_clock_says(kept, night):
    for day in (2, 1, 3):
        kept.record(night(str(day), day))
    assert [f"{row.started:%d}" for row in kept.past()] == ["02", "01", "03"]
    since = datetime(2026, 11, 2, tzinfo=timezone.utc)
    assert [f"{row.started:%d}" for row in kept.past(since=since)] == ["02", "03"]
    assert len(kept.past(since=since.replace(tzinfo=None))) == 2


def test_labels(finished, kept):
    kept.record(finished)
    assert kept.past()[0].label == "lenet_planted"
    kept.record(finished, "digits")
    kept.record(finished)
    (row,) = kept.past(label="digits")
    assert row.label == "digits"
    assert kept.past(label="lenet_planted") == []
    for model in ("lenet_planted", "lenet_planted.onnx", row.report.model):
        assert len(kept.past(model=model)) == 1
    assert kept.past(model="lenet") == []


def test_a_fingerprint_is_found_by_its_beginning(finished, kept, night):
    digest = "ab" * 32
    kept.record(finished)
    kept.record(night("run", 1, fingerprint=digest))
    for start in (digest, "ab", "ABABA"):
        assert [row.report.fingerprint for row in kept.past(fingerprint=start)] == [digest]
    assert kept.past(fingerprint="abb") == []
    assert len(kept.past(fingerprint="")) == 2


def test_where_it_is_recorded(tmp_path, monkeypatch):
    """Also that a loaded network is labelled by its file, and that a run without a folder leaves nothing."""
    network = trt_bisect.load_network(save(chain(2), tmp_path, "chain.onnx"))
    place = tmp_path / "here"
    (place / "kept").mkdir(parents=True)
    monkeypatch.chdir(place)
    how = {"calibrator": "minmax", "explain": "none", "effort": "quick"}
    expected = {"none": set(), place / "kept/all.jsonl": {"kept/all.jsonl"}, "beside": {"kept/all.jsonl", HISTORY}}
    for history, files in expected.items():
        trt_bisect.run(network, samples(chain(2), 2), output=place / "run", history=history, **how)
        found = {str(path.relative_to(place)) for path in place.rglob("*.jsonl") if path.name != "journal.jsonl"}
        assert found == files
    for file in files:
        assert [row.label for row in trt_bisect.History(place / file).past()] == ["chain"]
    shutil.rmtree(place / "run")
    before = set(place.rglob("*"))
    trt_bisect.run(network, samples(chain(2), 2), **how)
    assert set(place.rglob("*")) == before


def test_names_that_are_no_text(kept, night):
    nasty = "x', [bold]\x00é"
    folder = night(os.fsdecode(b"run-\xff"), 1, model=f"/{nasty}.onnx")
    report = json.loads((folder / "report.json").read_text())
    report["layers"][0]["name"] = nasty
    report["culprits"] = [nasty]
    (folder / "report.json").write_text(json.dumps(report))
    kept.record(folder, nasty)
    (row,) = kept.past(label=nasty)
    assert (row.label, row.report.culprits) == (nasty, (nasty,))
    assert kept.past(label="\udcff") == []
    assert row.folder.endswith("run-\\udcff")
