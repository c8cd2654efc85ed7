"""Two runs on one folder, and the traces of runs that were killed.

    python -m benchmarks.reliability locks --times 20 --seed 1 --json FILE

A second run is started at a random moment of a first one. It has to be refused at once, with exit code 2 and a line
that names the folder, and to leave the folder and the first run's progress as they are; the first one has to end with
the result of an undisturbed run. Then a run is killed, and its lock and its progress have to be seen through.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.reliability.forked import import_everything, run, start
from benchmarks.reliability.kill import Undisturbed, undisturbed
from benchmarks.reliability.subjects import differences, result, subjects, unfinished
from trt_bisect.runs.progress_file import INTERRUPTED
from trt_bisect.view.run_folder import RunFolder

PROGRESS = "progress.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="only a small network, as the tests have it")


def measure(asked: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    import_everything()
    random = Random(asked.seed)
    counted: Counter[str] = Counter()
    broken: list[str] = []
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="locks-") as work:
        whole = undisturbed(subjects(Path(work), small=asked.small)[0], Path(work) / "whole")
        for number in range(asked.times):
            place = Path(work) / str(number)
            refused, seconds, faults = False, 0.0, list[str]()
            while not (refused or faults):
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir()
                refused, seconds, faults = second_run(whole, random.uniform(0.05, 0.8), place)
            counted["second runs refused"] += refused
            slowest = max(slowest, seconds)
            faults += seen_through(whole, random.uniform(0.3, 0.9), place)
            counted["killed runs seen through"] += not faults
            broken += [f"run {number}: {fault}" for fault in faults]
    return {"seed": asked.seed, "runs": asked.times, **counted, "slowest refusal in s": round(slowest, 2)}, broken


def second_run(whole: Undisturbed, share: float, place: Path) -> tuple[bool, float, list[str]]:
    """Starts a second run when ``share`` of the first one's time is over.

    Returns:
        Whether it was refused, after how many seconds, and the faults. A second run that comes when the first one has
        ended is neither refused nor a fault.
    """
    folder, beside = place / "run", place / "second"
    beside.mkdir()
    first = start(whole.subject.into(folder), place)
    while not (folder / PROGRESS).exists() and first.poll() is None:
        time.sleep(0.005)
    time.sleep(share * whole.seconds)
    second = run(whole.subject.into(folder), beside)
    still_there = _pid_in(folder / PROGRESS) == first.pid or (folder / "report.json").exists()
    ended = first.poll()
    faults = []
    refused = second.code == 2 and "Another run" in second.err and str(folder) in second.err
    if ended is None:
        if not refused:
            faults.append(f"the second run was not refused: {second.code}, {second.err.strip()[-200:]}")
        if not still_there:
            faults.append("the first run's progress was taken away")
        ended = first.ended()
    if ended.code != whole.code or differences(result(folder), whole.result):
        faults.append(f"the first run was disturbed: exit code {ended.code}, {ended.err.strip()[-200:]}")
    return refused, second.seconds, faults


def seen_through(whole: Undisturbed, share: float, place: Path) -> list[str]:
    """Kills a run: its progress file stays, the run counts as interrupted, and a next run may start."""
    folder = place / "killed"
    killed = start(whole.subject.into(folder), place)
    while not (folder / PROGRESS).exists() and killed.poll() is None:
        time.sleep(0.005)
    time.sleep(share * whole.seconds)
    killed.kill()
    faults = []
    ended_by = killed.ended().code
    unfinished_run = (folder / "run.json").exists() and not (folder / "report.json").exists()
    if ended_by == -signal.SIGKILL and unfinished_run:
        faults += [f"seen as {status}: {told}" for told, status in _told(folder) if status != INTERRUPTED]
    ended = run(whole.subject.into(folder), place)
    if ended.code != whole.code or differences(result(folder), whole.result) or unfinished(folder):
        faults.append(f"the folder of a killed run: exit code {ended.code}, {ended.err.strip()[-200:]}")
    return faults


def _told(folder: Path) -> list[tuple[str, str]]:
    """Returns the run's status in ``view`` for the progress file as it was left, and for some that look alive."""
    path = folder / PROGRESS
    if not path.exists():
        return []
    left = json.loads(path.read_bytes())
    told = [("as it was left", RunFolder(folder).snapshot().status)]
    path.write_text(json.dumps({**left, "pid": os.getpid()}))
    told.append(("its pid was given to another process", RunFolder(folder).snapshot().status))
    path.write_text(json.dumps({**left, "host": f"not-{socket.gethostname()}"}))
    long_ago = time.time() - 60.0
    os.utime(path, (long_ago, long_ago))
    told.append(("another machine's, silent for a minute", RunFolder(folder).snapshot().status))
    return told


def _pid_in(path: Path) -> int:
    try:
        return int(json.loads(path.read_bytes())["pid"])
    except (OSError, ValueError, KeyError):
        return 0
