"""Runs a week of nights on a wrong clock, and checks the history, the nights and the baselines afterwards.

    python -m benchmarks.reliability week --json FILE

Each night is the real ``trt-bisect regress`` in a forked process (see ``forked``), its clock set by time-machine.
Tuesday's is killed in the middle and started again an hour later, on Wednesday the clock goes back an hour, on Thursday
it begins in 1970, as on a board without a battery, and on Friday and Saturday one network is another one, with a
culprit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import time_machine

from benchmarks.reliability.forked import Process, import_everything, start
from benchmarks.reliability.subjects import SAMPLES, save_digits
from tests.support import networks
from trt_bisect import History
from trt_bisect.history.queries import HistoryEntry, HistoryFilter
from trt_bisect.history.store import HISTORY

_MONDAY = datetime(2026, 10, 19, 1, 30, tzinfo=timezone.utc)
_SUITE = """
[defaults]
strategy = "bisect"
explain = "none"

[[network]]
name = "steady"
model = "steady.onnx"
calibration = "steady.npz"

[[network]]
name = "digits"
model = "digits.onnx"
calibration = "digits.npz"
"""
_GOOD, _BAD = "lenet.onnx", "lenet_planted.onnx"


@dataclass(frozen=True)
class NightlyRun:
    """One night: its clock, the network that ``digits`` is, and the results that it must have."""

    day: str
    clock: datetime
    digits: str
    code: int
    baseline: int | None
    is_killed: bool = False


def nights() -> list[NightlyRun]:
    """The week; ``baseline`` is the number of the night that it is compared with."""
    clocks = [_MONDAY + timedelta(days=day) for day in range(7)]
    clocks[2] -= timedelta(hours=1)
    clocks[3] = datetime(1970, 1, 1, 0, 5, tzinfo=timezone.utc)
    found = [
        NightlyRun("Monday", clocks[0], _GOOD, 0, None),
        NightlyRun("Tuesday", clocks[1], _GOOD, 0, 1, is_killed=True),
        NightlyRun("Wednesday", clocks[2], _GOOD, 0, 2),
        NightlyRun("Thursday", clocks[3], _GOOD, 0, 3),
        NightlyRun("Friday", clocks[4], _BAD, 1, 4),
        NightlyRun("Saturday", clocks[5], _BAD, 1, 4),
        NightlyRun("Sunday", clocks[6], _GOOD, 0, 4),
    ]
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="of nothing here: a week has no chance in it")
    parser.add_argument("--small", action="store_true", help="without Saturday, a second night with the culprit")


def measure(asked: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    import_everything()
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="week-") as work:
        folder = Path(work)
        _make_suite(folder)
        week = [night for night in nights() if not (asked.small and night.day == "Saturday")]
        codes = [_sleep_through(folder, night) for night in week]
        broken += [
            f"{night.day}: exit code {code}, not {night.code}"
            for night, code in zip(week, codes, strict=True)
            if code != night.code
        ]
        broken += _faults_of_nights(folder / "nightly", week)
        reports, faults = _faults_of_history(folder / "nightly" / HISTORY, week)
        broken += faults
    return {"nights": len(week), "exit codes": codes, "reports": reports}, broken


def _make_suite(folder: Path) -> None:
    model = networks.chain(depth=3)
    networks.save(model, folder, "steady.onnx")
    np.savez(folder / "steady.npz", **networks.samples(model))  # type: ignore[arg-type]
    save_digits(folder, 8)
    (folder / "trt-bisect.toml").write_text(_SUITE)


def _sleep_through(folder: Path, night: NightlyRun) -> int:
    """Runs a night, or kills it in the middle and resumes it an hour later; returns its exit code."""
    shutil.copy(SAMPLES / "lenet" / night.digits, folder / "digits.onnx")
    began = night.clock
    if night.is_killed:
        _kill_in_the_middle(folder, began)
        began += timedelta(hours=1)
    return _regress(folder, began).ended().code


def _kill_in_the_middle(folder: Path, began: datetime) -> None:
    """Ends the night when it has begun with the second network; what it has measured is in journals then."""
    known = set(folder.glob("nightly/*/runs/digits/journal.jsonl"))
    process = _regress(folder, began)
    while set(folder.glob("nightly/*/runs/digits/journal.jsonl")) == known:
        time.sleep(0.01)
    process.kill()
    process.ended()


def _regress(folder: Path, clock: datetime) -> Process:
    """Starts the suite's night in ``folder``, at another time."""

    def before() -> None:
        os.chdir(folder)
        os.environ.pop("GITHUB_STEP_SUMMARY", None)
        time_machine.travel(clock, tick=True).start()

    return start(["regress", "--config", "trt-bisect.toml"], folder, before)


def _faults_of_nights(folder: Path, week: Sequence[NightlyRun]) -> list[str]:
    records = sorted((json.loads(path.read_bytes()) for path in folder.glob("*/night.json")), key=_number)
    faults = [] if len(records) == len(week) else [f"{len(records)} nights, not {len(week)}"]
    for night, record in zip(week, records, strict=False):
        regression = json.loads((folder / _name(night) / "regression.json").read_bytes())
        against = f"nightly run {night.baseline} " if night.baseline else ""
        if not regression["baseline"].startswith(against) or bool(against) != bool(regression["baseline"]):
            faults.append(f"{night.day} was compared with {regression['baseline'] or 'nothing'!r}, not {against!r}")
        if record["status"] == "running" or record["is_baseline"] != (night.code == 0):
            faults.append(f"{night.day}: {record}")
    return faults


def _number(record: dict[str, Any]) -> int:
    return int(record["number"])


def _name(night: NightlyRun) -> str:
    return night.clock.strftime("%Y-%m-%dT%H%M%SZ")


def _faults_of_history(file: Path, week: Sequence[NightlyRun]) -> tuple[int, list[str]]:
    """Returns the number of reports, and the faults in them."""
    faults = []
    with History(file) as kept:
        entries, sunday = kept.past(), kept.past(HistoryFilter(since=week[-1].clock))
        halves = [entry.folder for entry in entries if not kept.report(entry.id).layers]
    for label, culprits in (("steady", [()] * len(week)), ("digits", _culprits(week))):
        first = [entry for entry in entries if entry.label == label and Path(entry.folder).parts[-2] == "runs"]
        if [entry.report.culprits for entry in first] != culprits:
            faults.append(f"{label}: culprits {[entry.report.culprits for entry in first]}, not {culprits}")
        if len(first) == len(week):
            faults += [
                f"{label}, {night.day}: began {entry.started}, the clock said {_last_start(night)}"
                for night, entry in zip(week, first, strict=True)
                if not _is_of(night, entry)
            ]
    if {entry.folder for entry in sunday} != {entry.folder for entry in entries if _name(week[-1]) in entry.folder}:
        faults.append(f"--since gives {[entry.folder for entry in sunday]}")
    if any(entry.report.state != "finished" for entry in entries):
        faults.append(f"states {Counter(entry.report.state for entry in entries)}")
    if halves:
        faults.append(f"reports without layers: {halves}")
    double = [run for run, count in Counter(entry.run for entry in entries).items() if count > 1]
    if double:
        faults.append(f"{len(double)} runs are there twice")
    with sqlite3.connect(file) as base:
        (sound,) = base.execute("PRAGMA integrity_check").fetchone()
    if sound != "ok":
        faults.append(f"integrity: {sound}")
    return len(entries), faults


def _culprits(week: Sequence[NightlyRun]) -> list[tuple[str, ...]]:
    return [("ip2",) if night.digits == _BAD else () for night in week]


def _last_start(night: NightlyRun) -> datetime:
    return night.clock + timedelta(hours=1) if night.is_killed else night.clock


def _is_of(night: NightlyRun, entry: HistoryEntry) -> bool:
    """Returns True if an entry is in the night's folder and began within minutes of a start by the night's clock."""
    starts = {night.clock, _last_start(night)}
    late = min(abs(entry.started - start) for start in starts)
    return _name(night) in entry.folder and late < timedelta(minutes=10)
