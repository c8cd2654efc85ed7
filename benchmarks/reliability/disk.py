"""A disk that is full at every stage of a run: a small tmpfs, of every size at which another file finds no room.

    python -m benchmarks.reliability disk --json FILE       # as root: it mounts

Each run has to end with exit code 2 and one or two lines that name the file, with a sound journal and nothing left
half written. Then the tmpfs is made larger, and the same command has to end with the result of an undisturbed run.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.reliability.forked import import_everything, run
from benchmarks.reliability.subjects import (
    JOURNAL,
    Undisturbed,
    subjects,
    tell,
    twice,
    undisturbed,
    unfinished,
    whole_lines,
)
from trt_bisect.report.model import read_report
from trt_bisect.report.parts import REPORT

PAGE = 4
"""KiB: a tmpfs has whole pages."""

_ENOUGH = 64 << 10
_SUBJECTS = ("LeNet", "LeNet, front", "MobileNet, exhaustive")


def measure(
    *,
    step: int = PAGE,
    pieces: int = 16,
    only: tuple[str, ...] = _SUBJECTS,
    small: bool = False,
    json: Path | None = None,
) -> int:
    """Tries sizes of at least ``step`` KiB apart; ``small``: a small network, as the tests have it."""
    if not can_mount():
        return tell({"skipped": "nothing can be mounted here: it takes root"}, [], json)
    import_everything()
    figures: dict[str, Any] = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="disk-") as work:
        for name, arguments in subjects(Path(work), small=small).items():
            if not small and name not in only:
                continue
            reference = undisturbed(name, arguments, Path(work) / f"whole {name}")
            full_at, without, faults = filled(reference, Path(work), step, pieces)
            figures[name] = {
                "sizes": full_at.total(),
                "without a report": dict(without),
                "equal after room was made": full_at.total() - len(faults),
                "full at": dict(full_at),
            }
            broken += [f"{name}: {fault}" for fault in faults]
        broken += _elsewhere(reference, Path(work))
    return tell(figures, broken, json)


def can_mount() -> bool:
    """Returns True if a tmpfs can be mounted here."""
    with tempfile.TemporaryDirectory() as mount:
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mount], capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", mount], check=True)
        return True


@contextmanager
def small_disk(mount: Path, kib: int) -> Iterator[Path]:
    """Mounts a tmpfs of ``kib`` KiB."""
    mount.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(mount)], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def filled(reference: Undisturbed, work: Path, step: int, pieces: int) -> tuple[Counter[str], Counter[str], list[str]]:
    """Runs on disks of many sizes; returns the files that there was no room for, those without a report, and faults.

    The sizes from a page to more than enough are cut into ``pieces``, and each piece is halved as long as a run ends at
    another file at its upper end than at its lower end.
    """
    ends: dict[int, str] = {}
    without: Counter[str] = Counter()
    faults: list[str] = []

    def end_at(size: int) -> str:
        if size not in ends:
            with small_disk(work / "small", size) as disk:
                ends[size], has_report, size_faults = _one_size(reference, disk, work)
            without[ends[size]] += not has_report
            faults.extend(f"{size} KiB: {fault}" for fault in size_faults)
        return ends[size]

    most = 2 * (reference.journal_bytes + reference.file_bytes >> 10)
    marks = [PAGE + (most - PAGE) * k // pieces // PAGE * PAGE for k in range(pieces + 1)]
    waiting = list(itertools.pairwise(marks))
    while waiting:
        low, high = waiting.pop(0)
        if high - low > step and end_at(low) != end_at(high):
            middle = (low + high) // 2 // PAGE * PAGE
            waiting += [(low, middle), (middle, high)]
    return Counter(name for name in ends.values() if name), +without, faults


def _one_size(reference: Undisturbed, disk: Path, work: Path) -> tuple[str, bool, list[str]]:
    """Returns the file that there was no room for (empty without one), True if a report is left, and the faults."""
    folder, faults = disk / "run", []
    arguments = reference.into(folder)
    ended = run(arguments, work)
    if ended.code == reference.code and not ended.err.count("trt-bisect:"):
        return "", True, reference.faults(ended, folder)
    message = ended.err[ended.err.find("trt-bisect:") :].strip()
    lines, quoted = message.splitlines(), message.split("'")
    is_clear = 1 <= len(lines) <= 2 and "No space left" in lines[0] and str(disk) in lines[0]
    if ended.code != 2 or not is_clear:
        faults.append(f"exit code {ended.code} and no clear message: {ended.err.strip()[-300:]}")
    path = Path(quoted[1]) if len(quoted) > 1 else folder
    full = str(path.relative_to(folder)) if path != folder else "the folder"
    report = read_report(folder / REPORT)
    before = whole_lines(folder)
    faults += [f"a line of the journal is spoiled: {line[:80]!r}" for line in before if not _is_json(line)]
    faults += [f"left behind: {name}" for name in unfinished(folder)]
    subprocess.run(["mount", "-o", f"remount,size={_ENOUGH}k", str(disk)], check=True)
    again = run(arguments, work)
    after = whole_lines(folder)
    faults += [f"{fault}, after room was made" for fault in reference.faults(again, folder)]
    if twice(after) or not set(before) <= set(after) or b"".join(after) != (folder / JOURNAL).read_bytes():
        faults.append("the journal lost a trial, or has it twice")
    return full, report is not None, faults


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _elsewhere(reference: Undisturbed, work: Path) -> list[str]:
    """Returns the faults of a run with a full temporary folder, and of one whose standard output is a full disk."""
    faults = []
    with small_disk(work / "temporary", PAGE) as disk:
        (disk / "filling").write_bytes(bytes(PAGE << 10))

        def in_full_place() -> None:
            os.environ["TMPDIR"] = str(disk)
            tempfile.tempdir = None

        ended = run(reference.into(work / "beside"), work, in_full_place)
    faults += [f"a full TMPDIR: {fault}" for fault in reference.faults(ended, work / "beside")]
    shutil.rmtree(work / "beside")
    unprinted = run(reference.into(work / "beside"), work, _print_on_a_full_disk)
    if unprinted.code != 2 or "Traceback" in unprinted.err or "No space left" not in unprinted.err:
        faults.append(f"a full standard output: exit code {unprinted.code}, {unprinted.err.strip()[-300:]}")
    return faults


def _print_on_a_full_disk() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    os.close(full)
