"""The history's file: older schemas, several at once, copies of all kinds, file systems that are in the way."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import trt_bisect
from tests.support.nights import at, night
from trt_bisect import BadInput, History
from trt_bisect.history.store import HISTORY


def state(file: Path) -> tuple[int, set[str], str]:
    """The version, the tables, and what SQLite says of the file's soundness."""
    with closing(sqlite3.connect(file)) as base:
        tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        (version,) = base.execute("PRAGMA user_version").fetchone()
        (sound,) = base.execute("PRAGMA integrity_check").fetchone()
        return version, tables - {"sqlite_sequence"}, sound


TABLES = {"entries", "home"}


def record_all(file: Path, folders: list[Path]) -> None:
    for folder in folders:
        with History(file) as kept:
            kept.record(folder)


def started(target, *rows: tuple) -> list:
    """Processes that call a function, each with its own arguments."""
    processes = [multiprocessing.get_context("fork").Process(target=target, args=row) for row in rows]
    for process in processes:
        process.start()
    return processes


def ended(processes: list) -> None:
    for process in processes:
        process.join()
        assert process.exitcode == 0


def test_nothing_is_beside_the_file(finished, tmp_path):
    with History(tmp_path / HISTORY) as kept:
        kept.record(finished)
        assert [path.name for path in tmp_path.iterdir()] == [HISTORY]


def test_a_file_in_wal_mode_becomes_one_file(finished, tmp_path):
    with History(tmp_path / HISTORY) as kept:
        kept.record(night(finished, tmp_path / "a", at("2026-11-01")))
    with closing(sqlite3.connect(tmp_path / HISTORY)) as base:
        assert base.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    with History(tmp_path / HISTORY) as kept:
        kept.record(night(finished, tmp_path / "b", at("2026-11-02")))
    with closing(sqlite3.connect(tmp_path / HISTORY)) as base:
        assert base.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert whole_runs(tmp_path / HISTORY) == 2


def whole_runs(file: Path) -> int:
    """Returns the number of runs in a history, each with a whole report of nine layers."""
    with closing(sqlite3.connect(file)) as base:
        assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with History(file) as kept:
        entries = kept.past()
        assert all(len(kept.report(entry.id).layers) == 9 for entry in entries)
    assert len(entries) == len({entry.run for entry in entries})
    return len(entries)


def test_a_copy_is_sound_while_others_record(finished, tmp_path):
    folders = [[night(finished, tmp_path / f"{w}-{n}", at("2026-11-01") + n) for n in range(12)] for w in range(2)]
    History(tmp_path / HISTORY).close()
    writers = started(record_all, *((tmp_path / HISTORY, each) for each in folders))
    seen = []
    while any(process.is_alive() for process in writers) or not seen:
        with History(tmp_path / HISTORY) as kept:
            recorded = whole_runs(tmp_path / HISTORY)
            kept.copy(tmp_path / "copy.sqlite")
        seen.append(whole_runs(tmp_path / "copy.sqlite"))
        assert seen[-1] >= recorded
        assert not list(tmp_path.glob(".copy*"))
    ended(writers)
    assert seen == sorted(seen)
    assert whole_runs(tmp_path / HISTORY) == 24
    shutil.copy(tmp_path / "copy.sqlite", tmp_path / "again.sqlite")
    with History(tmp_path / "again.sqlite") as copied:  # a copy can be gone on with
        copied.record(finished)


def test_a_plain_copy_during_a_run_has_all_that_was_recorded(finished, lenet, tmp_path):
    """Nothing is open as long as a run measures, so that the file alone is whole."""
    with History(tmp_path / HISTORY) as kept:
        kept.record(night(finished, tmp_path / "before", at("2026-11-01")))
    copies = []

    class Copying(trt_bisect.support.progress.Silent):
        def step(self, what, size=1):
            copies.append(shutil.copy(tmp_path / HISTORY, tmp_path / f"copy-{len(copies)}"))
            assert not list(tmp_path.glob(f"{HISTORY}-*"))

    how = {"output": tmp_path / "run", "calibrator": "minmax", "explain": "none", "progress": Copying()}
    trt_bisect.run(lenet / "lenet.onnx", lenet / "calibration.npz", **how)
    assert {whole_runs(copy) for copy in copies} == {1}


def test_a_plain_copy_while_a_recorder_has_the_file_open(finished, tmp_path):
    """A copy has all that was recorded, also while a transaction is open."""
    with History(tmp_path / HISTORY) as kept:
        kept.record(night(finished, tmp_path / "a", at("2026-11-01")))
    for name in ("open", "within"):
        (tmp_path / name).mkdir()
    with History(tmp_path / HISTORY) as kept:
        kept.record(night(finished, tmp_path / "b", at("2026-11-02")))
        shutil.copy(tmp_path / HISTORY, tmp_path / "open")
        open_write = sqlite3.connect(tmp_path / HISTORY, isolation_level=None)
        open_write.execute("BEGIN IMMEDIATE")
        open_write.execute("DELETE FROM entries")
        shutil.copy(tmp_path / HISTORY, tmp_path / "within")
        open_write.execute("ROLLBACK")
        open_write.close()
    found = {name: whole_runs(tmp_path / name / HISTORY) for name in ("open", "within")}
    assert found == {"open": 2, "within": 2}


def test_a_torn_copy_is_found_when_it_is_opened_or_holds_one_of_the_two_moments(finished, tmp_path):
    """Pages of two moments, as where a file is copied in the milliseconds in which it changes."""
    for runs in (range(20), range(20, 60)):
        early = (tmp_path / HISTORY).read_bytes() if runs.start else b""
        with History(tmp_path / HISTORY) as kept:
            for place in runs:
                kept.record(night(finished, tmp_path / str(place), at("2026-11-01") + place))
            late_entries = kept.past()
    late = (tmp_path / HISTORY).read_bytes()
    page = int.from_bytes(late[16:18], "big")
    refused = []
    for pages in range(1, len(early) // page, 9):
        torn = tmp_path / f"torn-{pages}"
        torn.write_bytes(early[: pages * page] + late[pages * page :])
        for reading in (False, True):
            try:
                with History(torn, reading=reading) as read:
                    assert read.past() in (late_entries[-20:], late_entries[:20], late_entries)
            except BadInput as error:
                refused.append(error.problem)
    assert refused
    assert all("damaged" in problem for problem in refused)


def test_it_is_read_where_nothing_can_be_written(finished, tmp_path, monkeypatch):
    with History(tmp_path / HISTORY) as kept:
        kept.record(finished)
    old_content = (tmp_path / HISTORY).read_bytes()
    monkeypatch.setattr("trt_bisect.history.store.os.access", lambda *_: False)
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


def test_a_full_disk_costs_the_recording_and_nothing_else(forks, finished, lenet, tmp_path):
    """Files cannot grow beyond 120 kB, which a history of a few runs has and one of thirty has not."""
    for place in range(30):
        night(finished, tmp_path / str(place), at("2026-11-01") + place)
    code = f"""
import resource, signal
from pathlib import Path
from trt_bisect.history.store import recorded
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
    assert 0 < whole_runs(tmp_path / HISTORY) <= 30 - len(lines)


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
