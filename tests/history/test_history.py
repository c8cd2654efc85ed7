"""The history: what is recorded, by whom, and that nothing of it is lost or there twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest

import trt_bisect
from tests.support.networks import chain
from tests.support.nights import at, night, trials_in
from trt_bisect import BadInput, History
from trt_bisect.history.queries import HistoryFilter
from trt_bisect.history.store import HISTORY
from trt_bisect.support.progress import Silent

DAY = 86400.0


def rows(file: Path, table: str) -> list[tuple]:
    with closing(sqlite3.connect(file)) as base:
        return base.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall()


def everything(file: Path) -> list[list[tuple]]:
    return [rows(file, f'"{table}"') for table in ("fingerprints", "runs", "reports", "trials", "layers")]


def trial_keys(kept: History) -> list[tuple[str, str]]:
    """The fingerprint and the plan of all trials in a history."""
    trials = kept.trials()
    return list(zip(trials["fingerprint"], trials["plan"], strict=True))


class Said(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


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
        assert (row.int8, row.recipe) == (found.measured["int8"], found.measured["recipe"])
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


class Stops(Said):
    """Presses Ctrl-C once, in the fourth step of the curve."""

    def __init__(self):
        super().__init__()
        self.left = None

    def stage(self, title, total):
        if title.startswith("Measuring ") and title.endswith(" plans") and self.left is None:
            self.left = 4

    def step(self, what, size=1):
        if self.left:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def test_a_run_that_is_interrupted_is_recorded_and_so_is_the_rest(lenet, tmp_path):
    arguments = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    more = {"output": tmp_path / "run", "strategy": "exhaustive", "explain": "none"}
    with pytest.raises(KeyboardInterrupt):
        trt_bisect.run(*arguments, **more, progress=Stops())
    with History(tmp_path / HISTORY) as kept:
        (cut,), tried = kept.past(), trial_keys(kept)
    assert (cut.state, cut.int8) == ("interrupted", None)
    assert tried == list(trials_in(tmp_path / "run"))
    trt_bisect.run(*arguments, **more)
    with History(tmp_path / HISTORY) as kept:
        (whole,), after = kept.past(), trial_keys(kept)
    assert (whole.id, whole.state, whole.culprits) == (cut.id, "finished", ("ip2",))
    assert set(after) > set(tried)
    assert len(after) == len(set(after))


def test_a_run_that_goes_on_is_recorded_as_running(lenet, tmp_path):
    seen = []

    class Looks(Stops):
        def step(self, what, size=1):
            try:
                super().step(what, size)
            except KeyboardInterrupt:
                with History(tmp_path / HISTORY) as kept:
                    kept.record(tmp_path / "run", "net")
                    seen.extend(kept.past())

    more = {"output": tmp_path / "run", "strategy": "exhaustive", "explain": "none", "progress": Looks()}
    trt_bisect.run(lenet / "lenet_planted.onnx", lenet / "calibration.npz", **more)
    with History(tmp_path / HISTORY) as kept:
        (after,) = kept.past()
    assert [(row.id, row.state) for row in (*seen, after)] == [(after.id, "running"), (after.id, "finished")]
    assert after.label == "net"


def trials_of_the_first_fingerprint(folder: Path) -> int:
    whole = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    records = [json.loads(line) for line in whole if line.endswith(b"\n")]
    return len(
        {record["trial"]["plan"] for record in records if "trial" in record and record["run"] == records[0]["run"]}
    )


def test_a_run_in_a_copy_of_its_folder_goes_on(lenet, tmp_path):
    """The copy is taken while the run goes on, in the middle of a line of the journal too."""
    arguments = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    more = {"strategy": "exhaustive", "explain": "none"}

    class Copies(Stops):
        def step(self, what, size=1):
            try:
                super().step(what, size)
            except KeyboardInterrupt:
                shutil.copytree(tmp_path / "run", tmp_path / "copy")

    whole = trt_bisect.run(*arguments, **more, output=tmp_path / "run", progress=Copies())
    journal = tmp_path / "copy/journal.jsonl"
    before = journal.read_bytes()
    journal.write_bytes(before[:-20])
    known = trials_of_the_first_fingerprint(tmp_path / "copy")
    said = Said()
    again = trt_bisect.run(*arguments, **more, output=tmp_path / "copy", progress=said)
    assert any(f"Going on with {known} trials" in line for line in said.lines)
    assert (again.culprits, again.similarity) == (whole.culprits, whole.similarity)
    assert [row.similarity for row in again.layers] == [row.similarity for row in whole.layers]


def broken_histories(folder: Path) -> dict[str, Path]:
    """Files that cannot be a history, by what is said of them."""
    (folder / "text.sqlite").write_text("no database " * 1000)
    (folder / "folder.sqlite").mkdir()
    with closing(sqlite3.connect(folder / "foreign.sqlite")) as base:
        base.execute("CREATE TABLE songs (name TEXT)")
    History(folder / "newer.sqlite").close()
    with closing(sqlite3.connect(folder / "newer.sqlite")) as base:
        base.execute("PRAGMA user_version=999")
    return {
        "is damaged, or not a history": folder / "text.sqlite",
        "cannot be used": folder / "folder.sqlite",
        "unable to open": folder / "nowhere" / "x.sqlite",
        "is the database of another program": folder / "foreign.sqlite",
        "has schema 999; this version of trt-bisect knows 3": folder / "newer.sqlite",
    }


def test_what_cannot_be_a_history_is_said_and_left_untouched(finished, tmp_path):
    for said, file in broken_histories(tmp_path).items():
        before = file.read_bytes() if file.is_file() else None
        for reading in (False, True) if file.is_file() else (False,):
            with pytest.raises(BadInput, match=said):
                History(file, reading=reading)
        assert (file.read_bytes() if file.is_file() else None) == before
    assert {path.name for path in tmp_path.iterdir()} == {
        "text.sqlite", "folder.sqlite", "foreign.sqlite", "newer.sqlite",
    }  # fmt: skip


def test_no_history_breaks_a_run(lenet, tmp_path):
    for place, (text, file) in enumerate(broken_histories(tmp_path).items()):
        said = Said()
        report = trt_bisect.run(
            lenet / "lenet_planted.onnx",
            lenet / "calibration.npz",
            output=tmp_path / f"run{place}",
            explain="none",
            history=file,
            progress=said,
        )
        assert report.culprits == ("ip2",)
        (line,) = [line for line in said.lines if "history" in line]
        assert text in line
        assert "\n" not in line


def test_an_error_that_nobody_foresaw_breaks_no_run(lenet, tmp_path, monkeypatch):
    def fails(*_):
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("trt_bisect.history.store.read_run_folder", fails)
    said = Said()
    trt_bisect.run(
        lenet / "lenet.onnx", lenet / "calibration.npz", output=tmp_path / "run", explain="none", progress=said
    )
    assert "ZeroDivisionError: of all things" in said.lines[-1]


def test_a_run_that_fails_leaves_its_error_and_what_was_there(finished, lenet, tmp_path):
    run = night(finished, tmp_path / "run", at("2026-11-01"))
    with pytest.raises(BadInput, match="missing"):
        trt_bisect.run(lenet / "lenet.onnx", tmp_path / "missing.npz", output=run)
    with History(tmp_path / HISTORY) as kept:
        assert [row.state for row in kept.past()] == ["finished"]


def test_a_held_file_is_waited_for_and_then_given_up(finished, tmp_path, monkeypatch):
    History(tmp_path / HISTORY).close()
    monkeypatch.setattr("trt_bisect.history.connection.LOCK_TIMEOUT", 0.2)
    with closing(sqlite3.connect(tmp_path / HISTORY, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with History(tmp_path / HISTORY) as kept:
            with pytest.raises(BadInput, match="locked"):
                kept.record(finished)
            assert kept.past() == []  # readers do not wait
            holder.execute("ROLLBACK")
            kept.record(finished)
            assert len(kept.past()) == 1


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


def test_a_run_folder_in_disorder(finished, tmp_path):
    with History(tmp_path / HISTORY) as kept:
        with pytest.raises(BadInput, match="no run"):
            kept.record(tmp_path)
        for name, content in (("report.json", "{"), ("run.json", "[1]"), ("journal.jsonl", "\x00\n{}\n[]\n{")):
            folder = tmp_path / name
            folder.mkdir()
            (folder / name).write_text(content)
            if name != "journal.jsonl":
                with pytest.raises(BadInput, match="no run"):
                    kept.record(folder)
        damaged = night(finished, tmp_path / "damaged", at("2026-11-01"), similarity={"int8": "good"})
        odd = night(finished, tmp_path / "odd", at("2026-11-01"))
        record = json.loads((odd / "report.json").read_text())
        (odd / "report.json").write_text(json.dumps(record | {"started": 1e300}))
        for folder in (damaged, odd):
            (folder / "run.json").unlink()
            kept.record(folder)
        (row,) = kept.past()
        assert (row.folder, row.started.year) == (str(odd), 1970)


def test_a_journal_without_its_first_line_loses_no_trial(finished, tmp_path):
    run = night(finished, tmp_path / "run", at("2026-11-01"))
    lines = (run / "journal.jsonl").read_text().splitlines(keepends=True)
    (run / "journal.jsonl").write_text("damaged\n" + "".join(lines[1:]))
    for name in ("run.json", "report.json"):
        (run / name).rename(run / f"old-{name}")
    with History(tmp_path / HISTORY) as kept:
        kept.record(run)
        assert (len(kept.trials()), kept.past()) == (len(trials_in(finished)), [])
        for name in ("run.json", "report.json"):
            (run / f"old-{name}").rename(run / name)
        kept.record(run)
        (row,) = kept.past()
        assert row.made_of["engine"] == "onnxruntime"
        assert len(kept.trials()) == len(trials_in(finished))


def record_often(file: Path, folders: list[Path], ready, go) -> None:
    ready.release()
    go.wait()
    for folder in folders:
        with History(file) as kept:
            kept.record(folder)


def test_several_processes_record_at_once(finished, tmp_path):
    """Each opens the file anew for every run; the first of them make it. All record one common run, too."""
    count, each = 6, 5
    common = night(finished, tmp_path / "common", at("2026-11-01"))
    context = multiprocessing.get_context("fork")
    ready, go = context.Semaphore(0), context.Event()
    writers = []
    for writer in range(count):
        own = [night(finished, tmp_path / f"{writer}-{n}", at("2026-11-02") + n) for n in range(each)]
        folders = [own[0], common, *own[1:]]
        writers.append(context.Process(target=record_often, args=(tmp_path / HISTORY, folders, ready, go)))
    for process in writers:
        process.start()
    for _ in writers:
        ready.acquire()
    go.set()
    for process in writers:
        process.join()
        assert process.exitcode == 0
    with History(tmp_path / HISTORY) as kept:
        folders = [row.folder for row in kept.past()]
        trials = kept.trials().groupby("run").size()
    assert len(folders) == len(set(folders)) == count * each + 1
    assert len(trials) == count * each + 1
    assert set(trials) == {len(trials_in(finished))}


def test_a_loaded_network_is_labelled_by_its_file(tmp_path):
    import numpy as np
    import onnx

    onnx.save(chain(3), tmp_path / "chain.onnx")
    data = [{"x": np.random.default_rng(k).normal(size=(1, 3, 16, 16)).astype(np.float32)} for k in range(2)]
    network = trt_bisect.load_network(tmp_path / "chain.onnx")
    trt_bisect.run(network, data, output=tmp_path / "run", explain="none")
    with History(tmp_path / HISTORY) as kept:
        assert [row.label for row in kept.past()] == ["chain"]
