"""A week of nightly runs with the clock moved: what the history says of it must be what happened.

    python -m benchmarks.reliability week --json FILE

Seven nights of the real ``regress`` on LeNet. In two of them the network is the one with the planted culprit, one is
killed with ``kill -9`` and started again, and before one the clock is set back by two days and a half.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import time_machine

from benchmarks.reliability.forked import import_everything, run, start
from benchmarks.reliability.subjects import SAMPLES, whole_lines
from trt_bisect.runs.history import HISTORY, History
from trt_bisect.runs.past import PastReport
from trt_bisect.runs.reading import Wanted

MONDAY = datetime(2026, 3, 2, 2, tzinfo=timezone.utc)
_SOUND, _PLANTED = "lenet.onnx", "lenet_planted.onnx"


@dataclass(frozen=True)
class Night:
    """When a night begins by the clock, with which network, and whether it is killed once."""

    when: datetime
    network: str
    killed: bool = False

    @property
    def expected(self) -> tuple[int, tuple[str, ...]]:
        """Exit code and culprits."""
        return (1, ("ip2",)) if self.network == _PLANTED else (0, ())


WEEK = (
    Night(MONDAY, _SOUND),
    Night(MONDAY + timedelta(days=1), _SOUND),
    Night(MONDAY + timedelta(days=2), _PLANTED),
    Night(MONDAY + timedelta(days=3), _PLANTED),
    Night(MONDAY + timedelta(days=4), _SOUND, killed=True),
    Night(MONDAY + timedelta(days=2, hours=12), _SOUND),
    Night(MONDAY + timedelta(days=6), _SOUND),
)


def add_arguments(_: argparse.ArgumentParser) -> None:
    """None."""


def measure(_: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    import_everything()
    with tempfile.TemporaryDirectory(prefix="week-") as work:
        codes = [_lived(night, Path(work)) for night in WEEK]
        with History(Path(work) / "nightly" / HISTORY, reading=True) as history:
            past = [report for report in history.past() if Path(report.folder).parent.name == "runs"]
            late = history.past(Wanted(since=MONDAY + timedelta(days=3, hours=-1)))
        faults = [
            f"night {number}: {fault}"
            for number, (night, code, report) in enumerate(zip(WEEK, codes, past, strict=False), 1)
            for fault in _faults(night, code, report)
        ]
    if len(past) != len(WEEK):
        faults.append(f"{len(past)} nights are in the history, {len(WEEK)} were lived")
    since = sum(report in late for report in past)
    wanted = sum(night.when >= MONDAY + timedelta(days=3) for night in WEEK)
    if since != wanted:
        faults.append(f"--since gives {since} nights, not {wanted}")
    figures = {"nights": len(WEEK), "in the history": len(past), "as they were": len(past) - len(faults)}
    return {**figures, "exit codes": codes}, faults


def _lived(night: Night, work: Path) -> int:
    """One night; the exit code of its last start."""
    shutil.copy(SAMPLES / "lenet" / night.network, work / "network.onnx")
    data = {name: str(SAMPLES / "lenet" / f"{name}.npz") for name in ("calibration", "digits")}
    keys = {"name": "lenet", "model": "network.onnx", "calibration": data["calibration"], "input": data["digits"]}
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    config = work / "trt-bisect.toml"
    config.write_text(f'output = "nightly"\n[defaults]\nrepeats = 1\nstrategy = "exhaustive"\n[[network]]\n{text}\n')
    arguments = ["regress", "--config", str(config)]
    if night.killed:
        known = {path for path in (work / "nightly").iterdir() if path.is_dir()}
        process = start(arguments, work, _at(night.when))
        while not _trials_since(work, known) and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        process.ended()
    ended = run(arguments, work, _at(night.when + timedelta(minutes=10 * night.killed)))
    return ended.code


def _at(when: datetime) -> Callable[[], None]:
    def move_clock() -> None:
        time_machine.travel(when, tick=True).start()

    return move_clock


def _trials_since(work: Path, known: set[Path]) -> int:
    nights = {path for path in (work / "nightly").iterdir() if path.is_dir()} - known
    return sum(max(0, len(whole_lines(night / "runs" / "lenet")) - 1) for night in nights)


def _faults(night: Night, code: int, report: PastReport) -> list[str]:
    wanted, culprits = night.expected
    faults = [] if code == wanted else [f"exit code {code}, not {wanted}"]
    if report.culprits != culprits or report.state != "finished" or report.label != "lenet":
        faults.append(f"in the history: {report.label}, {report.state}, culprits {report.culprits}")
    if not timedelta(0) <= report.started - night.when < timedelta(hours=1):
        faults.append(f"in the history it began {report.started}, it did {night.when}")
    return faults
