"""The history of finished runs: rows, nights, labels, fingerprints."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest

import trt_bisect
from tests.support.networks import chain
from tests.support.nights import at, night, trial_keys, trials_in
from trt_bisect import History
from trt_bisect.history.queries import HistoryFilter
from trt_bisect.history.store import HISTORY

DAY = 86400.0


def rows(file: Path, table: str) -> list[tuple]:
    with closing(sqlite3.connect(file)) as base:
        return base.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall()


def everything(file: Path) -> list[list[tuple]]:
    return [rows(file, f'"{table}"') for table in ("fingerprints", "runs", "reports", "trials", "layers")]


def test_a_run_is_recorded_beside_its_folder_as_its_files_have_it(finished):
    report = json.loads((finished / "report.json").read_text())
    tried = trials_in(finished)
    with History(finished.parent / HISTORY) as kept:
        (row,) = kept.past()
        layers = kept.layers(row.id)
        trials = kept.trials()
        assert trial_keys(kept) == list(tried)
    assert (row.label, row.state, row.folder) == ("lenet_planted", "finished", str(finished))
    assert report["started"] == json.loads((finished / "run.json").read_text())["started"]
    assert row.started.timestamp() == pytest.approx(report["started"], abs=1e-6)
    assert (row.int8, row.recipe) == (report["similarity"]["int8"], report["similarity"]["recipe"])
    assert row.culprits == ("ip2",) == row.high
    assert (row.exit_code, row.meets, row.threshold, row.strategy) == (1, True, 0.99, "exhaustive")
    assert (row.made_of, row.fingerprint) == (report["made_of"], report["fingerprint"])
    assert row.total_seconds == report["seconds"]["total"]
    assert (row.plans, row.builds, row.inferences) == (report["plans"], report["builds"], report["inferences"])
    judged = [(layer["name"], layer["similarity"], layer["drop"]) for layer in report["layers"] if layer["quantizable"]]
    assert [(layer.name, layer.similarity, layer.drop) for layer in layers] == judged
    assert [layer.name for layer in layers if layer.culprit] == ["ip2"]
    assert list(trials["figure"]) == [trial["outputs"]["prob"]["values"]["cosine"] for trial in tried.values()]
    assert list(trials["build_seconds"]) == [trial["build_seconds"] for trial in tried.values()]
    assert set(trials["run"]) == {row.run}


def test_what_is_recorded_again_is_not_there_twice(finished, tmp_path):
    with History(tmp_path / HISTORY) as kept:
        kept.record(finished)
        before = everything(tmp_path / HISTORY)
        kept.record(finished)
    assert everything(tmp_path / HISTORY) == before


def test_a_folder_that_was_moved_or_copied_is_the_same_run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "elsewhere")
    with History(tmp_path / HISTORY) as kept:
        kept.record(finished)
        kept.record(tmp_path / "elsewhere")
        (row,) = kept.past()
    assert row.folder == str(tmp_path / "elsewhere")


def test_every_night_in_one_folder_is_a_row_and_its_trials_are_there_once(finished, tmp_path):
    with History(tmp_path / HISTORY) as kept:
        for day in range(3):
            kept.record(night(finished, tmp_path / "run", at("2026-11-01") + day * DAY, again=day > 0))
        assert [f"{row.started:%d}" for row in kept.past()] == ["01", "02", "03"]
        assert len(kept.trials()) == len(trials_in(finished))


def test_a_night_in_a_new_folder_at_the_same_path_has_trials_of_its_own(finished, tmp_path):
    with History(tmp_path / HISTORY) as kept:
        for day in range(2):
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            kept.record(night(finished, tmp_path / "run", at("2026-11-01") + day * DAY))
        assert kept.trials().groupby("run").size().nunique() == 1
        assert kept.trials()["run"].nunique() == len(kept.past()) == 2


def test_an_interrupted_night_becomes_the_finished_one_in_its_place(finished, tmp_path):
    with History(tmp_path / HISTORY) as kept:
        run = night(finished, tmp_path / "run", at("2026-11-01"), answered=False)
        kept.record(run)
        (row,) = kept.past()
        assert (row.state, row.int8, row.exit_code, row.culprits) == ("interrupted", None, None, ())
        assert kept.layers(row.id) == []
        kept.record(night(finished, tmp_path / "other", at("2026-11-02")))
        kept.record(night(finished, run, at("2026-11-03"), again=True))
        first, second = kept.past()
    assert (first.id, first.state, first.culprits, f"{first.started:%d}") == (row.id, "finished", ("ip2",), "03")
    assert f"{second.started:%d}" == "02"


def test_a_night_interrupted_after_a_finished_one_leaves_that_alone(finished, tmp_path):
    run = night(finished, tmp_path / "run", at("2026-11-01"))
    night(finished, run, at("2026-11-02"), answered=False, again=True)
    with History(tmp_path / HISTORY) as kept:
        kept.record(run)
        assert [(f"{row.started:%d}", row.state) for row in kept.past()] == [("01", "finished"), ("02", "interrupted")]
        (run / "report.json").unlink()
        night(finished, run, at("2026-11-01"), answered=False, again=True)
        kept.record(run)
        assert kept.past()[0].state == "finished"  # what was known is not forgotten


def test_another_question_on_the_same_trials_is_a_report_of_its_own(finished, tmp_path):
    run = night(finished, tmp_path / "run", at("2026-11-01"), answered=False)
    with History(tmp_path / HISTORY) as kept:
        kept.record(run)
        kept.record(night(finished, run, at("2026-11-02"), again=True, threshold=0.2))
        assert [(row.threshold, row.state) for row in kept.past()] == [(0.99, "interrupted"), (0.2, "finished")]


def test_the_order_is_that_of_recording_whatever_the_clock_says(finished, tmp_path):
    days = ["2026-11-02T02:00", "2026-11-01T02:00", "2026-11-03T02:00"]
    with History(tmp_path / HISTORY) as kept:
        for place, day in enumerate(days):
            kept.record(night(finished, tmp_path / str(place), at(day)))
        assert [f"{row.started:%Y-%m-%dT%H:%M}" for row in kept.past()] == days
        since = datetime(2026, 11, 2, 2, tzinfo=timezone.utc)
        assert [f"{row.started:%d}" for row in kept.past(HistoryFilter(since=since))] == ["02", "03"]
        assert len(kept.past(HistoryFilter(since=since.replace(tzinfo=None)))) == 2
        assert kept.trials(HistoryFilter(since=since))["run"].nunique() == 2


def test_labels(finished, tmp_path):
    with History(tmp_path / HISTORY) as kept:
        kept.record(finished)
        assert kept.past()[0].label == "lenet_planted"
        kept.record(finished, "digits")
        kept.record(finished)
        (row,) = kept.past(HistoryFilter(label="digits"))
        assert (row.label, set(kept.trials(HistoryFilter(label="digits"))["label"])) == ("digits", {"digits"})
        assert kept.past(HistoryFilter(label="lenet_planted")) == []
        for model in ("lenet_planted", "lenet_planted.onnx", row.model):
            assert len(kept.past(HistoryFilter(model=model))) == 1
            assert len(kept.trials(HistoryFilter(model=model))) > 0
        assert kept.past(HistoryFilter(model="lenet")) == []


def test_a_fingerprint_is_found_by_its_beginning(finished, tmp_path):
    digest = "ab" * 32
    with History(tmp_path / HISTORY) as kept:
        kept.record(finished)
        kept.record(night(finished, tmp_path / "run", at("2026-11-01"), fingerprint=digest))
        for start in (digest, "ab", "ABABA"):
            assert [row.fingerprint for row in kept.past(HistoryFilter(fingerprint=start))] == [digest]
            assert set(kept.trials(HistoryFilter(fingerprint=start))["fingerprint"]) == {digest}
        assert kept.past(HistoryFilter(fingerprint="abb")) == []
        assert len(kept.past(HistoryFilter(fingerprint=""))) == 2
        assert kept.trials(HistoryFilter(fingerprint="abb")).empty


def test_the_indices_are_used(finished):
    with closing(sqlite3.connect(finished.parent / HISTORY)) as base:

        def plan(query):
            return " ".join(row[3] for row in base.execute(f"EXPLAIN QUERY PLAN {query}"))

        assert "reports_by_label" in plan("SELECT * FROM reports WHERE label = 'x' AND started >= 1")
        assert "reports_by_time" in plan("SELECT * FROM reports WHERE started >= 1")
        assert "reports_by_fingerprint" in plan("SELECT * FROM reports WHERE fingerprint = 1")
        assert "trials_by_fingerprint" in plan("SELECT * FROM trials WHERE fingerprint = 1")


def test_recover_is_recorded_and_kept_apart(lenet, tmp_path):
    found = trt_bisect.recover(
        lenet / "lenet_planted.onnx", lenet / "calibration.npz", output=tmp_path / "run", remedies=False
    )
    with History(tmp_path / HISTORY) as kept:
        (row,) = kept.past()
        assert (row.strategy, row.exit_code, row.label) == ("recover", 0, "lenet_planted")
        assert (row.int8, row.recipe) == (found.measured.int8, found.measured.recipe)
        assert row.high == tuple(left.layer for left in found.high)
        about = json.loads((tmp_path / "run/journal.jsonl").read_text().splitlines()[0])["about"]
        assert row.made_of == about
        assert row.started.timestamp() == pytest.approx(found.started, abs=1e-6)
        assert kept.past(HistoryFilter(since=row.started)) == [row]
        assert len(kept.trials()) == found.plans
        kept.record(tmp_path / "run")
        assert len(kept.past()) == 1


def test_trials_judged_by_an_accuracy_have_that_figure(lenet, tmp_path):
    trt_bisect.recover(
        lenet / "lenet_planted.onnx",
        lenet / "calibration.npz",
        output=tmp_path / "run",
        remedies=False,
        accuracy=lambda infer: 0.25,
        target=0.2,
    )
    with History(tmp_path / HISTORY) as kept:
        trials = kept.trials()
    accurate = trials[trials["metric"] == "accuracy"]
    assert set(accurate["figure"]) == {0.25}
    assert set(trials["metric"]) == {"accuracy", "cosine"}


@pytest.mark.parametrize("history", ["none", "file", "beside"])
def test_where_it_is_recorded(lenet, tmp_path, history):
    given = tmp_path / "kept" / "all.sqlite" if history == "file" else history
    (tmp_path / "kept").mkdir()
    trt_bisect.run(
        lenet / "lenet.onnx", lenet / "calibration.npz", output=tmp_path / "run", explain="none", history=given
    )
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.sqlite*")}
    assert found == {"none": set(), "file": {"kept/all.sqlite"}, "beside": {HISTORY}}[history]


def test_a_run_without_a_folder_leaves_nothing(lenet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trt_bisect.run(lenet / "lenet.onnx", lenet / "calibration.npz", explain="none")
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_no_text_and_names_that_look_like_sql(finished, tmp_path):
    nasty = "x'); DROP TABLE reports; --[bold]\x00é"
    folder = night(finished, tmp_path / os.fsdecode(b"run-\xff"), at("2026-11-01"), model=f"/{nasty}.onnx")
    report = json.loads((folder / "report.json").read_text())
    report["layers"][0]["name"] = nasty
    report["culprits"] = [nasty, "\ud800"]
    (folder / "report.json").write_text(json.dumps(report))
    with History(tmp_path / HISTORY) as kept:
        kept.record(folder, nasty)
        (row,) = kept.past(HistoryFilter(label=nasty))
        assert (row.label, row.culprits) == (nasty, (nasty, "\\ud800"))
        assert kept.layers(row.id)[0].name == nasty
        assert kept.past(HistoryFilter(label="\udcff")) == []
        assert kept.trials(HistoryFilter(label="\udcff")).empty
        assert row.folder.endswith("run-\\udcff")


def test_a_loaded_network_is_labelled_by_its_file(tmp_path):
    import numpy as np
    import onnx

    onnx.save(chain(3), tmp_path / "chain.onnx")
    data = [{"x": np.random.default_rng(k).normal(size=(1, 3, 16, 16)).astype(np.float32)} for k in range(2)]
    network = trt_bisect.load_network(tmp_path / "chain.onnx")
    trt_bisect.run(network, data, output=tmp_path / "run", explain="none")
    with History(tmp_path / HISTORY) as kept:
        assert [row.label for row in kept.past()] == ["chain"]
