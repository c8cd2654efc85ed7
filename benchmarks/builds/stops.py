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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.builds.__main__ import run
from benchmarks.builds.networks import STANDINS, SUBJECTS, Files, Subject
from benchmarks.builds.standin import Build, Difference, StandIn
from benchmarks.measure import command_line
from benchmarks.reliability.forked import import_everything, start_function
from trt_bisect.report.model import Report

KILLED = "SIGKILL"
BY = (KILLED, "Ctrl-C")
Answer = tuple[str, tuple[str, ...], tuple[str, ...]]
"""The verdict, the culprits, and the layers kept high."""


@dataclass(frozen=True)
class Sitting:
    """A run in a process of its own, on a stand-in.

    Attributes:
        folder: for the run folder, and ``builds.txt`` with a line for each build of all sittings.
        at: the number of the build at which it is stopped, from 1; 0 for none.
        by: one of ``BY``.
    """

    subject: Subject
    files: Files
    difference: Difference
    folder: Path
    at: int = 0
    by: str = KILLED

    def run(self) -> None:
        """Runs it until it ends."""
        (self.folder / "said").mkdir(parents=True, exist_ok=True)
        start_function(self._work, self.folder / "said").ended()

    def builds(self) -> list[str]:
        """The keys of the builds of all sittings in the folder, in their order."""
        log = self.folder / "builds.txt"
        return log.read_text().split() if log.exists() else []

    def answer(self) -> Answer | None:
        """Returns the words of the report in the folder; None without one."""
        try:
            report = Report.load(self.folder / "run")
        except FileNotFoundError:
            return None
        return report.verdict, report.culprits, report.recipe.high

    def _work(self) -> None:
        count = 0

        def note(build: Build) -> None:
            nonlocal count
            count += 1
            with (self.folder / "builds.txt").open("a") as log:
                log.write(f"{build.key}\n")
            if count == self.at:
                if self.by == KILLED:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise KeyboardInterrupt

        with StandIn(self.difference, note).installed():
            run(self.subject, self.files, self.folder / "run")


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
    whole = Sitting(subject, files, difference, folder)
    whole.run()
    answer, count = whole.answer(), len(whole.builds())
    shutil.rmtree(folder)
    for at in [max(1, count - 1)] if last else range(1, count + 1):
        for by in BY:
            first = Sitting(subject, files, difference, folder, at, by)
            first.run()
            before = first.builds()
            second = Sitting(subject, files, difference, folder)
            second.run()
            yield {
                "stopped at": at,
                "of": count,
                "by": by,
                "builds": len(second.builds()),
                "twice": built_twice(before, second.builds()),
                "same": answer is not None and second.answer() == answer,
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
