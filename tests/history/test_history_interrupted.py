"""The history of runs that are interrupted, go on, or are recorded by several processes at once."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import pytest

import trt_bisect
from tests.support import networks
from tests.support.progress_doubles import Said, Stops
from tests.support.run_states import running
from trt_bisect import BadInput, History
from trt_bisect.history.store import HISTORY, recorded

QUICK = {"strategy": "exhaustive", "calibrator": "minmax", "explain": "none", "effort": "quick"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> tuple[Path, dict]:
    """A network with the culprit ``conv1``, and samples."""
    return networks.given(
        networks.planted(networks.chain(3), ("conv0", "conv1")), tmp_path_factory.mktemp("planted"), 4
    )


def test_a_run_that_goes_on_is_recorded_as_running(kept, night):
    run = night("run", answered=False)
    running(run)
    kept.record(run, "net")
    (before,) = kept.past()
    kept.record(night("run", again=True))
    (after,) = kept.past()
    assert [row.report.state for row in (before, after)] == ["running", "finished"]
    assert (after.id, after.label) == (before.id, "net")


def trials_of_the_first_fingerprint(folder: Path) -> int:
    whole = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    records = [json.loads(line) for line in whole if line.endswith(b"\n")]
    first = [record for record in records if "trial" in record and record["run"] == records[0]["run"]]
    return len({record["trial"]["plan"] for record in first})


def test_a_run_in_a_copy_of_its_folder_goes_on(planted, tmp_path):
    """The copy is taken while the run goes on, in the middle of a line of the journal too."""

    class Copies(Stops):
        def step(self, what, size=1):
            try:
                super().step(what, size)
            except KeyboardInterrupt:
                shutil.copytree(tmp_path / "run", tmp_path / "copy")

    whole = trt_bisect.run(*planted, **QUICK, output=tmp_path / "run", progress=Copies())
    journal = tmp_path / "copy/journal.jsonl"
    before = journal.read_bytes()
    journal.write_bytes(before[:-20])
    known = trials_of_the_first_fingerprint(tmp_path / "copy")
    said = Said()
    again = trt_bisect.run(*planted, **QUICK, output=tmp_path / "copy", progress=said)
    assert any(f"{known} trials" in line for line in said.lines)
    assert all(json.loads(line) for line in journal.read_text().splitlines())
    assert (again.culprits, again.similarity) == (whole.culprits, whole.similarity)
    assert [row.similarity for row in again.layers] == [row.similarity for row in whole.layers]


def broken_histories(folder: Path) -> dict[str, Path]:
    """Files that cannot be a history, by what is said of them."""
    (folder / "text").write_text("no history\n" * 1000)
    (folder / "other").write_text('{"kind": "songs", "schema": 1}\n')
    (folder / "lines").write_text('{"kind": "trt-bisect history", "schema": 4}\n{"run": 3}\n')
    (folder / "newer").write_text('{"kind": "trt-bisect history", "schema": 999}\n')
    (folder / "folder").mkdir()
    return {
        "is damaged, or not a history": folder / "text",
        "not of the kind": folder / "other",
        "is damaged, or not a history: Expected `str`": folder / "lines",
        "schema 999": folder / "newer",
        "Is a directory": folder / "folder",
        "No such file or directory": folder / "nowhere" / "x",
    }


def test_what_cannot_be_a_history_is_said_and_left_untouched(finished, tmp_path):
    for said, file in broken_histories(tmp_path).items():
        before = file.read_bytes() if file.is_file() else None
        if file.name != "lines":  # recording looks at the first line only
            with pytest.raises(BadInput, match=said):
                History(file).record(finished)
        if file.is_file():
            with pytest.raises(BadInput, match=said):
                History(file).past()
            assert file.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"text", "other", "lines", "newer", "folder"}


def test_no_history_breaks_a_run(finished, tmp_path, monkeypatch):
    """Neither does an error that nobody foresaw."""

    def said_of(file):
        said = []
        with recorded(finished, file, said.append):
            pass
        return said

    (line,) = said_of(broken_histories(tmp_path)["schema 999"])
    assert "schema 999" in line
    assert "\n" not in line

    def fails(*_):
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("trt_bisect.history.store.entries_in", fails)
    (line,) = said_of(tmp_path / "all.jsonl")
    assert "ZeroDivisionError: of all things" in line


def test_a_run_that_fails_leaves_its_error_and_what_was_there(finished, lenet, tmp_path, kept, night):
    run = night("run", 1)
    with pytest.raises(BadInput, match="missing"):
        trt_bisect.run(lenet / "lenet_planted.onnx", tmp_path / "missing.npz", output=run)
    assert [row.report.state for row in kept.past()] == ["finished"]


def test_a_held_file_is_waited_for_and_then_given_up(finished, tmp_path, monkeypatch, kept):
    monkeypatch.setattr("trt_bisect.history.store.LOCK_TIMEOUT", 0.2)
    with (tmp_path / HISTORY).open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(BadInput, match="locked"):
            kept.record(finished)
        assert kept.past() == []  # readers do not wait
    kept.record(finished)
    assert len(kept.past()) == 1


def test_a_run_folder_in_disorder(tmp_path, kept, night):
    with pytest.raises(BadInput, match=r"no run|no Report"):
        kept.record(tmp_path)
    for name, content in (("report.json", "{"), ("run.json", "[1]"), ("journal.jsonl", "\x00\n{}\n[]\n{")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(content)
        with pytest.raises(BadInput, match=r"no run|no Report"):
            kept.record(folder)
    damaged = night("damaged", 1, similarity={"int8": "good"})
    odd = night("odd", 1)
    record = json.loads((odd / "report.json").read_text())
    (odd / "report.json").write_text(json.dumps(record | {"started": 1e300}))
    with pytest.raises(BadInput, match=r"no run|no Report"):
        kept.record(damaged)
    kept.record(odd)
    (row,) = kept.past()
    assert (row.folder, row.started.year) == (str(odd), 1970)


def test_a_run_without_its_journal_is_known_by_its_folder(kept, night):
    run = night("run", 1)
    (run / "journal.jsonl").write_text("damaged\n")
    for _ in range(2):
        kept.record(run)
    (entry,) = kept.past()
    assert str(run) in entry.run
    assert entry.report.made_of["engine"] == "onnxruntime"
