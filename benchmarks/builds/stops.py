"""Runs that are stopped at each of their builds, by Ctrl-C and by SIGKILL, and then go on: no plan is built twice.

    python -m benchmarks.builds.stops
    python -m benchmarks.builds.stops --network resnet-two --standin wrong-kernel --json

Over both sittings only the build that was under way may be built again, and the answer is that of a run that nobody
stopped. Builds are counted by the file that the engine is built from, which a stand-in notes before it builds.
"""

from __future__ import annotations

import json as to_json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.builds.__main__ import run
from benchmarks.builds.networks import STANDINS, SUBJECTS, Files, Subject
from benchmarks.builds.standin import Build, Difference, StandIn
from benchmarks.measure import command_line
from benchmarks.reliability.forked import import_everything, start_function
from trt_bisect.report.model import Report
from trt_bisect.report.parts import REPORT

KILLED = "SIGKILL"
BY = (KILLED, "Ctrl-C")
Answer = tuple[str, tuple[str, ...], tuple[str, ...]]
"""The verdict, the culprits, and the layers kept high."""


def sitting(
    subject: Subject, files: Files, difference: Difference, folder: Path, at: int = 0, by: str = KILLED
) -> tuple[Answer | None, list[str]]:
    """Does a run in a process of its own, on a stand-in.

    Args:
        subject: the network.
        files: its files.
        difference: the stand-in's.
        folder: for the run folder, and ``builds.txt`` with a line for each build of all sittings.
        at: the number of the build at which it is stopped, from 1; 0 for none.
        by: one of ``BY``.

    Returns:
        The words of the report, None without one; and the keys of the builds of all sittings in the folder.
    """
    log, count = folder / "builds.txt", 0

    def note(build: Build) -> None:
        nonlocal count
        count += 1
        with log.open("a") as file:
            file.write(f"{build.key}\n")
        if count == at:
            if by == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt

    def work() -> None:
        with StandIn(difference, note).installed():
            run(subject, files, folder / "run")

    (folder / "said").mkdir(parents=True, exist_ok=True)
    start_function(work, folder / "said").ended()
    answer = None
    if (folder / "run" / REPORT).exists():
        report = Report.load(folder / "run")
        answer = report.verdict, report.culprits, report.recipe.high
    return answer, log.read_text().split() if log.exists() else []


def measure(
    *,
    network: tuple[str, ...] = ("lenet", "transformer"),
    standin: tuple[str, ...] = ("same", "wrong-kernel", "no-int8-build"),
    last: bool = False,
    json: bool = False,
) -> int:
    """Stops runs of each network on each stand-in; returns 1 if a plan was built twice or an answer is another one.

    Args:
        last: Stop only at the last build but one.
        json: Print the rows as JSON.
    """
    import_everything()
    told, rows = Console(stderr=True, soft_wrap=True), list[dict[str, Any]]()
    for subject in SUBJECTS:
        if subject.name not in network:
            continue
        with tempfile.TemporaryDirectory() as folder:
            files = subject.make(Path(folder))
            for name in standin:
                difference = STANDINS[name](subject)
                if difference is None:
                    continue
                for row in _stopped(subject, files, difference, Path(folder) / "sittings", last=last):
                    rows.append({"network": subject.name, "standin": name, **row})
                    told.print(to_json.dumps(rows[-1]))
    if json:
        print(to_json.dumps(rows, indent=1))
    wrong = sum(bool(row["twice"]) or not row["same"] for row in rows)
    told.print(f"{len(rows)} runs stopped; {wrong} of them built a plan twice or gave another answer")
    return int(bool(wrong))


def _stopped(
    subject: Subject, files: Files, difference: Difference, folder: Path, *, last: bool
) -> Iterator[dict[str, Any]]:
    answer, builds = sitting(subject, files, difference, folder)
    count = len(builds)
    shutil.rmtree(folder)
    for at in [max(1, count - 1)] if last else range(1, count + 1):
        for by in BY:
            _, before = sitting(subject, files, difference, folder, at, by)
            resumed, everything = sitting(subject, files, difference, folder)
            yield {
                "stopped at": at,
                "of": count,
                "by": by,
                "builds": len(everything),
                "twice": built_twice(before, everything),
                "same": answer is not None and resumed == answer,
            }
            shutil.rmtree(folder)


def built_twice(before: list[str], everything: list[str]) -> int:
    """Returns the number of builds of a plan that was built before; the one under way may be built once more.

    Args:
        before: the builds until the stop; the last one was under way.
        everything: those and the builds after it.
    """
    times = Counter(everything)
    if before:
        times[before[-1]] -= 1
    return sum(max(0, count - 1) for count in times.values())


def main() -> None:
    """Calls ``measure`` as the command line asks."""
    sys.exit(command_line(__doc__, measure))


if __name__ == "__main__":
    main()
