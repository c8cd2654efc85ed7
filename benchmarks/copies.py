"""Counts the plain copies of the history's file that are broken because others record meanwhile.

    python -m benchmarks.copies --seconds 60

Two processes record a run after another, far more often than any job does; meanwhile the file is copied again and
again, alone, with its ``-wal``, and by ``History.copy``. A copy is whole if it can be opened and each of its reports is
there with all of its layers; one that is not is either told when it is opened, or not noticed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from trt_bisect.errors import BadInput
from trt_bisect.history.queries import HistoryEntry
from trt_bisect.history.run_folders import entries_in
from trt_bisect.history.store import HISTORY, History

SAMPLES = Path(__file__).resolve().parent.parent / "samples" / "lenet"
WRITERS = 2
LAYERS = 500
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


def _taken(folder: Path) -> HistoryEntry:
    """A run of many layers, so that it is written on many pages."""
    import trt_bisect

    run = folder / "run"
    trt_bisect.run(SAMPLES / "lenet_planted.onnx", SAMPLES / "calibration.npz", output=run, history="none")
    (entry,) = entries_in(run)
    rows = tuple(replace(entry.report.layers[0], index=place, name=uuid4().hex) for place in range(LAYERS))
    return replace(entry, report=replace(entry.report, layers=rows))


def _record(file: Path, taken: HistoryEntry, until: float) -> None:
    """A file opened and closed for every run, as runs do it."""
    while time.monotonic() < until:
        with History(file) as kept:
            kept.write([replace(taken, run=uuid4().hex)])


def _copies(folder: Path, taken: HistoryEntry, way: str, seconds: float) -> Counter[str]:
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
        found[_judged(place / HISTORY)] += 1
    for process in writers:
        process.join()
    return found


def _judged(copy: Path) -> str:
    try:
        with History(copy, reading=True) as kept:
            entries = kept.past()
            layers = {len(kept.report(entry.id).layers) for entry in entries}
    except BadInput:
        return TOLD
    return WHOLE if layers <= {LAYERS} and len({entry.run for entry in entries}) == len(entries) else UNNOTICED


if __name__ == "__main__":
    main()
