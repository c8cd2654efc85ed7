"""The history's file: several at once, copies of all kinds, file systems that are in the way."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from trt_bisect import BadInput, History
from trt_bisect.history.store import HISTORY


def record_all(file: Path, folders: list[Path]) -> None:
    for folder in folders:
        kept = History(file)
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


def whole_runs(file: Path) -> int:
    """Returns the number of runs in a history."""
    entries = History(file).past()
    assert len(entries) == len({entry.run for entry in entries})
    return len(entries)


def test_a_copy_is_sound_while_others_record(finished, tmp_path, kept, night):
    """The first of several processes makes the file. All record one common run, too."""
    common = night("common", 2)
    folders = [[night(f"{w}-{n}", 1 + n) for n in range(8)] for w in range(3)]
    writers = started(record_all, *((tmp_path / HISTORY, [*each, common]) for each in folders))
    wait_until((tmp_path / HISTORY).exists)
    seen = []
    while any(process.is_alive() for process in writers) or not seen:
        recorded = whole_runs(tmp_path / HISTORY)
        kept.copy(tmp_path / "copy.jsonl")
        seen.append(whole_runs(tmp_path / "copy.jsonl"))
        assert seen[-1] >= recorded
        assert not list(tmp_path.glob(".copy*"))
    ended(writers)
    assert seen == sorted(seen)
    assert whole_runs(tmp_path / HISTORY) == 25
    shutil.copy(tmp_path / "copy.jsonl", tmp_path / "again.jsonl")
    History(tmp_path / "again.jsonl").record(finished)  # a copy can be gone on with


def test_a_line_that_was_cut_off_is_lost_and_no_other(tmp_path, kept, night):
    """The process was killed while it wrote, or the file was copied in that moment."""
    for day in (1, 2):
        kept.record(night(str(day), day))
    whole = (tmp_path / HISTORY).read_bytes()
    (tmp_path / HISTORY).write_bytes(whole[:-100])
    assert [f"{entry.started:%d}" for entry in kept.past()] == ["01"]
    kept.record(night("3", 3))
    assert [f"{entry.started:%d}" for entry in kept.past()] == ["01", "03"]


def test_it_is_read_where_nothing_can_be_written(finished, tmp_path, kept):
    kept.record(finished)
    before = (tmp_path / HISTORY).read_bytes()
    (tmp_path / HISTORY).chmod(0o444)
    assert len(kept.past()) == 1
    kept.copy(tmp_path / "copy.jsonl")
    assert {path.name for path in tmp_path.iterdir()} == {HISTORY, "copy.jsonl"}
    if not os.access(tmp_path / HISTORY, os.W_OK):  # root may write
        with pytest.raises(BadInput, match="cannot be written"):
            kept.record(finished)
    assert (tmp_path / HISTORY).read_bytes() == before
    with pytest.raises(BadInput, match=r"nowhere\.jsonl"):
        History(tmp_path / "nowhere.jsonl").past()


def test_without_the_file_the_run_folders_are_read(tmp_path, kept, night):
    for day in (1, 2):
        kept.record(night(f"runs/{day}", day))
    recorded = [(entry.run, entry.label, entry.folder, entry.report) for entry in kept.past()]
    (tmp_path / HISTORY).unlink()
    read = History(tmp_path).past()
    assert [(entry.run, entry.label, entry.folder, entry.report) for entry in read] == recorded != []
    assert not (tmp_path / HISTORY).exists()


def test_a_full_disk_costs_the_recording_and_nothing_else(forks, lenet, tmp_path, night):
    """Files cannot grow beyond 60 kB, which a history of a few runs has and one of thirty has not."""
    for place in range(30):
        night(str(place), 1 + place)
    code = f"""
import resource, signal
from pathlib import Path
from trt_bisect.history.store import recorded
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
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


def test_a_copy_never_replaces_the_history_itself(finished, tmp_path, kept):
    kept.record(finished)
    with pytest.raises(BadInput, match="itself"):
        kept.copy(tmp_path / HISTORY)
    with pytest.raises(BadInput, match="cannot be"):
        kept.copy(tmp_path / "nowhere" / "copy.jsonl")
    (tmp_path / "taken").write_text("an older copy")
    kept.copy(tmp_path / "taken")
    assert len(History(tmp_path / "taken").past()) == 1
