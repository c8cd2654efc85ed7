"""Temporary folders: removed when they are closed, and after their process was killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.waiting import LIMIT
from trt_bisect.support import files as module
from trt_bisect.support.files import ScratchFolder, temporary_on_disk

ROOT = Path(__file__).parents[2]
HOLDS_ONE = """
import sys
sys.path.insert(0, sys.argv[1])
from trt_bisect.support.files import ScratchFolder
scratch = ScratchFolder()
(scratch.open() / "file").write_text("x")
print(scratch.path, flush=True)
sys.stdin.read()
"""
"""A process with a scratch folder, until its standard input ends."""


@pytest.fixture
def parent(tmp_path, monkeypatch):
    """The folder for temporary files, here and in processes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def holder(parent):
    """A process that holds a scratch folder, and the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_ONE, str(ROOT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_folder_is_empty_at_the_same_path_each_time_and_gone_between(parent):
    scratch = ScratchFolder()
    assert list(parent.iterdir()) == []
    for _ in range(2):
        with scratch as folder:
            assert folder == scratch.path
            assert list(folder.iterdir()) == []
            (folder / "file").write_text("x")
        assert list(parent.iterdir()) == []


def test_a_folder_goes_with_its_process(holder):
    process, folder = holder
    assert (folder / "file").exists()
    process.communicate(timeout=LIMIT)
    assert not folder.exists()


def test_the_next_one_removes_those_of_killed_processes_and_no_other(parent, holder):
    process, folder = holder
    run_folder = parent / "trt-bisect-lenet"
    run_folder.mkdir()
    with ScratchFolder() as other:
        assert folder.exists()
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT)
        assert (folder / "file").exists()
        with ScratchFolder():
            assert not folder.exists()
            assert other.exists()
    assert list(parent.iterdir()) == [run_folder]


def test_a_process_that_was_forked_does_not_remove_it(parent):
    scratch = ScratchFolder()
    with scratch as folder:
        child = os.fork()
        if child == 0:
            scratch.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert folder.exists()


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        ("/ ext4", "files here"),
        ("/ ext4, {parent} tmpfs", None),
        ("/ ext4, {parent}/files\\040here tmpfs", "disk"),
        ("/ ext4, {parent}/files\\040here ramfs, {parent}/disk tmpfs", None),
        ("/ tmpfs, {parent}/files\\040here xfs", "files here"),
        ("/ ext4, {parent}/files tmpfs", "files here"),
        (None, "files here"),
    ],
)
def test_large_files_are_not_in_a_folder_that_is_in_memory(tmp_path, monkeypatch, mounts, found):
    """Some systems have their folder for temporary files in memory. The innermost mount counts."""
    for name in ("files here", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "files here"))
    monkeypatch.setattr(module, "_ON_DISK", tmp_path / "disk")
    monkeypatch.setattr(module, "_MOUNTS", tmp_path / "mounts")
    if mounts is not None:
        lines = [f"device {mount} rw,relatime 0 0" for mount in mounts.format(parent=tmp_path).split(", ")]
        (tmp_path / "mounts").write_text("\n".join(lines) + "\n")
    assert temporary_on_disk() == (found and tmp_path / found)
