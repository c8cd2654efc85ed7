"""Counts the plain copies of the history's file that are broken because others record meanwhile.

    python -m benchmarks.copies --seconds 60

Two processes record a run after another, far more often than any job does; meanwhile the file is copied again and
again, alone, with its ``-wal``, and by ``History.copy``. A copy is whole if it can be opened and each of its runs has
all of its trials and layers; one that is not is either told when it is opened, or not noticed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from trt_bisect.errors import BadInput
from trt_bisect.history.connection import open_to_write
from trt_bisect.history.run_folder_reader import StoredRun, read_run_folder
from trt_bisect.history.schema import transaction
from trt_bisect.history.store import HISTORY, History
from trt_bisect.history.writer import write

SAMPLES = Path(__file__).resolve().parent.parent / "samples" / "lenet"
WRITERS = 2
WHOLE, TOLD, UNNOTICED = "whole", "torn and told", "torn and not noticed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each way")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        taken = _taken(Path(name))
        for way in ("the file alone", "with -wal", "History.copy"):
            found = _copies(Path(name), taken, way, asked.seconds)
            print(f"{way}: {', '.join(f'{found[kind]} {kind}' for kind in (WHOLE, TOLD, UNNOTICED))}", flush=True)


def _taken(folder: Path) -> StoredRun:
    """A run of many trials, so that it is written on many pages."""
    import trt_bisect

    run = folder / "run"
    trt_bisect.run(SAMPLES / "lenet_planted.onnx", SAMPLES / "calibration.npz", output=run, history="none")
    taken = read_run_folder(run)
    first = taken.trials[0]
    trials = (replace(first, place=k, trial=replace(first.trial, plan=f"{first.trial.plan} {k}")) for k in range(200))
    return replace(taken, trials=tuple(trials))


def _record(file: Path, taken: StoredRun, until: float) -> None:
    """A file opened and closed for every run, as runs do it."""
    while time.monotonic() < until:
        with closing(open_to_write(file, print)) as base, transaction(base):
            write(base, replace(taken, journal=uuid4().hex), "")


def _copies(folder: Path, taken: StoredRun, way: str, seconds: float) -> Counter[str]:
    file, place = folder / way / HISTORY, folder / way / "copy"
    place.mkdir(parents=True)
    History(file).close()
    until = time.monotonic() + seconds
    writers = [multiprocessing.Process(target=_record, args=(file, taken, until)) for _ in range(WRITERS)]
    for process in writers:
        process.start()
    found: Counter[str] = Counter()
    while time.monotonic() < until:
        shutil.rmtree(place)
        place.mkdir()
        if way == "History.copy":
            with History(file) as kept:
                kept.copy(place / HISTORY)
        else:
            for name in (HISTORY, f"{HISTORY}-wal") if way == "with -wal" else (HISTORY,):
                with suppress(FileNotFoundError):
                    shutil.copy(file.with_name(name), place)
        found[_judged(place / HISTORY, taken)] += 1
    for process in writers:
        process.join()
    return found


def _judged(copy: Path, taken: StoredRun) -> str:
    try:
        History(copy, reading=True).close()
    except BadInput:
        return TOLD
    with closing(sqlite3.connect(copy)) as base:
        counts = base.execute(
            "SELECT (SELECT count(*) FROM reports WHERE run = runs.id),"
            " (SELECT count(*) FROM trials WHERE run = runs.id),"
            " (SELECT count(*) FROM layers JOIN reports ON report = reports.id WHERE run = runs.id) FROM runs"
        ).fetchall()
    layers = sum(layer.quantizable for layer in taken.reports[0].report.layers)
    return WHOLE if set(counts) <= {(1, len(taken.trials), layers)} else UNNOTICED


if __name__ == "__main__":
    main()
