"""The history's file: older schemas, several at once, copies of all kinds, file systems that are in the way."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import trt_bisect
from tests.support.nights import at, night, trials_in
from tests.support.waiting import LIMIT
from trt_bisect import BadInput, History
from trt_bisect.history import connection as opening
from trt_bisect.history import schema
from trt_bisect.history.store import HISTORY

VERSION_1 = Path(__file__).parents[1] / "files" / "history-1.sql"


@pytest.fixture
def old(tmp_path) -> Path:
    """A history as version 1 wrote it."""
    with closing(sqlite3.connect(tmp_path / HISTORY)) as base:
        base.executescript(VERSION_1.read_text())
    return tmp_path / HISTORY


def state(file: Path) -> tuple[int, set[str], str]:
    """The version, the tables, and what SQLite says of the file's soundness."""
    with closing(sqlite3.connect(file)) as base:
        tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        (version,) = base.execute("PRAGMA user_version").fetchone()
        (sound,) = base.execute("PRAGMA integrity_check").fetchone()
        return version, tables - {"sqlite_sequence"}, sound


FIRST = {"fingerprints", "runs", "reports", "trials"}


def test_version_1_becomes_the_newest_and_keeps_all_it_has(old, finished):
    with closing(sqlite3.connect(old)) as base:
        before = [base.execute(f"SELECT * FROM {table}").fetchall() for table in sorted(FIRST)]
    assert state(old) == (1, FIRST, "ok")
    with History(old) as kept:
        first, second = kept.past()
        assert (first.label, first.int8, first.culprits) == ("lenet", 0.9973954367387516, ())
        assert (second.label, second.culprits, second.started.year) == ("lenet_planted", ("ip2",), 2026)
        assert kept.layers(first.id) == []
        kept.record(finished)
        assert len(kept.layers(kept.past()[-1].id)) == 6
    assert state(old) == (3, FIRST | {"layers", "home"}, "ok")
    with closing(sqlite3.connect(old)) as base:
        after = [base.execute(f"SELECT * FROM {table}").fetchall() for table in sorted(FIRST)]
    for was, now in zip(before, after, strict=True):  # later versions only add columns, at the end
        assert was
        assert set(was) <= {row[: len(was[0])] for row in now}


def test_a_migration_that_fails_leaves_the_old_file(old, monkeypatch):
    content = VERSION_1.read_text()
    broken = (*schema.MIGRATIONS, ("CREATE TABLE more (x)", "INSERT INTO more VALUES (1)", "CREATE NONSENSE"))
    for module in (schema, opening):
        monkeypatch.setattr(module, "MIGRATIONS", broken)
    with pytest.raises(BadInput, match=re.escape(f"'{old}'")):
        History(old)
    assert state(old) == (1, FIRST, "ok")
    with closing(sqlite3.connect(old)) as base:
        assert all(line in content for line in base.iterdump() if "sqlite_sequence" not in line)


def test_a_version_skipped_is_made_up_for(old, monkeypatch):
    """From 1 to 4 in one go, and from 3 to 4."""
    fourth = (*schema.MIGRATIONS, ("CREATE TABLE more (x)",))
    History(old.with_name("second")).close()
    for module in (schema, opening):
        monkeypatch.setattr(module, "MIGRATIONS", fourth)
    for file in (old, old.with_name("second")):
        History(file).close()
        assert state(file) == (4, FIRST | {"layers", "home", "more"}, "ok")


def open_at_once(file: Path, ready, go, found) -> None:
    ready.release()
    go.wait()
    with History(file) as kept:
        found.put(len(kept.past()))


def test_several_processes_open_an_old_file_at_once(old):
    context = multiprocessing.get_context("fork")
    ready, go, found = context.Semaphore(0), context.Event(), context.Queue()
    processes = [context.Process(target=open_at_once, args=(old, ready, go, found)) for _ in range(5)]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    go.set()
    assert [found.get(timeout=LIMIT) for _ in processes] == [2] * 5
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert state(old) == (3, FIRST | {"layers", "home"}, "ok")


def test_wal_and_nothing_beside_the_file_when_nobody_has_it_open(finished, tmp_path):
    with History(tmp_path / HISTORY) as kept:
        kept.record(finished)
        assert (tmp_path / f"{HISTORY}-wal").stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == [HISTORY]
    with closing(sqlite3.connect(tmp_path / HISTORY)) as base:
        assert base.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_file_system_of_a_folder_is_found_by_its_device(tmp_path):
    device = tmp_path.stat().st_dev
    mine = f"{os.major(device)}:{os.minor(device)}"
    other = "22 28 0:21 / /proc rw,nosuid shared:12 - proc proc rw\n31 1 8:1 /a\\040b / rw - nfs4 server:/x rw\n"
    lines = "98 1 {} / /mnt/all rw,relatime shared:45 - {} server:/export rw,vers=4.2\n"
    assert opening.network_of(tmp_path, other + lines.format(mine, "nfs4")) == "nfs4"
    assert opening.network_of(tmp_path, lines.format(mine, "ext4") + other) == ""
    assert opening.network_of(tmp_path, other.replace("8:1 ", "8:200 ")) == ""


def record_all(file: Path, folders: list[Path]) -> None:
    for folder in folders:
        with History(file) as kept:
            kept.record(folder)


def test_on_a_network_it_does_without_wal_says_so_once_and_works(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "network_of", lambda *_: "nfs4")
    said: list[str] = []
    for place in range(2):
        with History(tmp_path / HISTORY, say=said.append) as kept:
            kept.record(night(finished, tmp_path / str(place), at("2026-11-01") + place))
    assert len(said) == 1
    assert "nfs4" in said[0]
    with closing(sqlite3.connect(tmp_path / HISTORY)) as base:
        assert base.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    context = multiprocessing.get_context("fork")
    more = [[night(finished, tmp_path / f"{w}-{n}", at("2026-11-02") + n) for n in range(4)] for w in range(3)]
    writers = [context.Process(target=record_all, args=(tmp_path / HISTORY, folders)) for folders in more]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
        assert process.exitcode == 0
    with History(tmp_path / HISTORY) as kept:
        assert len(kept.past()) == 14


def whole_runs(file: Path, trials: int) -> int:
    """Returns the number of whole runs in a history: each with its report, its trials and its six layers."""
    with closing(sqlite3.connect(file)) as base:
        assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert base.execute("PRAGMA foreign_key_check").fetchall() == []
        counts = base.execute(
            "SELECT (SELECT count(*) FROM reports WHERE run = runs.id),"
            " (SELECT count(*) FROM trials WHERE run = runs.id),"
            " (SELECT count(*) FROM layers JOIN reports ON report = reports.id WHERE run = runs.id) FROM runs"
        ).fetchall()
    assert set(counts) <= {(1, trials, 6)}
    return len(counts)


def test_a_copy_is_sound_while_others_record(finished, tmp_path):
    trials = len(trials_in(finished))
    folders = [[night(finished, tmp_path / f"{w}-{n}", at("2026-11-01") + n) for n in range(12)] for w in range(2)]
    History(tmp_path / HISTORY).close()
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=record_all, args=(tmp_path / HISTORY, each)) for each in folders]
    for process in writers:
        process.start()
    seen = []
    while any(process.is_alive() for process in writers) or not seen:
        with History(tmp_path / HISTORY) as kept:
            recorded = whole_runs(tmp_path / HISTORY, trials)
            kept.copy(tmp_path / "copy.sqlite")
        seen.append(whole_runs(tmp_path / "copy.sqlite", trials))
        assert seen[-1] >= recorded
        assert not list(tmp_path.glob(".copy*"))
    for process in writers:
        process.join()
        assert process.exitcode == 0
    assert seen == sorted(seen)
    assert whole_runs(tmp_path / HISTORY, trials) == 24
    shutil.copy(tmp_path / "copy.sqlite", tmp_path / "again.sqlite")
    with History(tmp_path / "again.sqlite") as copied:  # a copy can be gone on with
        copied.record(finished)


def test_a_plain_copy_during_a_run_has_all_that_was_recorded(finished, lenet, tmp_path):
    """Nothing is open as long as a run measures, so that the file alone is whole."""
    trials = len(trials_in(finished))
    with History(tmp_path / HISTORY) as kept:
        kept.record(night(finished, tmp_path / "before", at("2026-11-01")))
    copies = []

    class Copying(trt_bisect.support.progress.Silent):
        def step(self, what, size=1):
            copies.append(shutil.copy(tmp_path / HISTORY, tmp_path / f"copy-{len(copies)}"))
            assert not (tmp_path / f"{HISTORY}-wal").exists()

    trt_bisect.run(
        lenet / "lenet.onnx",
        lenet / "calibration.npz",
        output=tmp_path / "run",
        calibrator="minmax",
        explain="none",
        progress=Copying(),
    )
    assert {whole_runs(copy, trials) for copy in copies} == {1}


def test_a_plain_copy_while_a_recorder_has_the_file_open(finished, tmp_path):
    """The newest records stand in ``-wal``: a copy with it has all, a copy without it has the older ones."""
    trials = len(trials_in(finished))
    with History(tmp_path / HISTORY) as kept:
        kept.record(night(finished, tmp_path / "a", at("2026-11-01")))
    for name in ("alone", "both"):
        (tmp_path / name).mkdir()
    with History(tmp_path / HISTORY) as kept:
        kept.record(night(finished, tmp_path / "b", at("2026-11-02")))
        shutil.copy(tmp_path / HISTORY, tmp_path / "alone")
        shutil.copy(tmp_path / HISTORY, tmp_path / "both")
        shutil.copy(tmp_path / f"{HISTORY}-wal", tmp_path / "both")
        open_write = sqlite3.connect(tmp_path / HISTORY, isolation_level=None)
        open_write.execute("BEGIN IMMEDIATE")
        open_write.execute("DELETE FROM layers")
        (tmp_path / "within").mkdir()
        shutil.copy(tmp_path / HISTORY, tmp_path / "within")
        shutil.copy(tmp_path / f"{HISTORY}-wal", tmp_path / "within")
        open_write.execute("ROLLBACK")
        open_write.close()
    found = {name: whole_runs(tmp_path / name / HISTORY, trials) for name in ("alone", "both", "within")}
    assert found == {"alone": 1, "both": 2, "within": 2}


def test_a_torn_copy_is_found_when_it_is_opened(finished, tmp_path):
    """Pages of two moments, as where a file is copied in the milliseconds in which it changes."""
    with History(tmp_path / HISTORY) as kept:
        kept.record(night(finished, tmp_path / "0", at("2026-11-01")))
    early = (tmp_path / HISTORY).read_bytes()
    with History(tmp_path / HISTORY) as kept:
        for place in range(1, 40):
            kept.record(night(finished, tmp_path / str(place), at("2026-11-01") + place))
    late = (tmp_path / HISTORY).read_bytes()
    page = int.from_bytes(late[16:18], "big")
    for pages in (2, 5, 9):
        torn = tmp_path / f"torn-{pages}"
        torn.write_bytes(early[: pages * page] + late[pages * page :])
        for reading in (False, True):
            with pytest.raises(BadInput, match="damaged"):
                History(torn, reading=reading)


def test_it_is_read_where_nothing_can_be_written(finished, tmp_path, monkeypatch):
    with History(tmp_path / HISTORY) as kept:
        kept.record(finished)
    old_content = (tmp_path / HISTORY).read_bytes()
    monkeypatch.setattr("trt_bisect.history.connection.os.access", lambda *_: False)
    (tmp_path / HISTORY).chmod(0o444)
    with History(tmp_path / HISTORY, reading=True) as kept:
        assert len(kept.past()) == 1
        kept.copy(tmp_path / "copy.sqlite")
        assert {path.name for path in tmp_path.iterdir()} == {HISTORY, "copy.sqlite"}
        with pytest.raises(BadInput, match="readonly"):
            kept.record(finished)
    assert (tmp_path / HISTORY).read_bytes() == old_content
    with pytest.raises(BadInput, match=r"nowhere\.sqlite"):
        History(tmp_path / "nowhere.sqlite", reading=True)


def test_an_old_file_that_cannot_be_written_says_so(old, monkeypatch):
    monkeypatch.setattr("trt_bisect.history.connection.os.access", lambda *_: False)
    with pytest.raises(BadInput, match="older version"):
        History(old, reading=True)


def test_a_full_disk_costs_the_recording_and_nothing_else(forks, finished, lenet, tmp_path):
    """Files cannot grow beyond 120 kB, which a history of a few runs has and one of thirty has not."""
    trials = len(trials_in(finished))
    for place in range(30):
        night(finished, tmp_path / str(place), at("2026-11-01") + place)
    code = f"""
import resource, signal
from pathlib import Path
from trt_bisect.history.record_on_exit import recorded
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))
for place in range(30):
    with recorded(Path({str(tmp_path)!r}) / str(place), "beside", print):
        pass
"""
    found = forks.run(code=code)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert 0 < len(lines) < 30
    assert all(line.startswith("Not recorded") for line in lines)
    assert 0 < whole_runs(tmp_path / HISTORY, trials) <= 30 - len(lines)


def test_a_copy_never_replaces_the_history_itself(finished, tmp_path):
    with History(tmp_path / HISTORY) as kept:
        kept.record(finished)
        with pytest.raises(BadInput, match="itself"):
            kept.copy(tmp_path / HISTORY)
        with pytest.raises(BadInput, match="cannot be"):
            kept.copy(tmp_path / "nowhere" / "copy.sqlite")
        (tmp_path / "taken").write_text("an older copy")
        kept.copy(tmp_path / "taken")
    assert state(tmp_path / "taken")[2] == "ok"
