"""The engines that a run builds on stand-ins for TensorRT, and the judgement of its answers.

    python -m benchmarks.builds
    python -m benchmarks.builds --network resnet ocr --standin same wrong-kernel --show
    python -m benchmarks.builds --json > rows.json

Each stand-in computes otherwise than the emulation in one way (``benchmarks.builds.networks``). A row is one run:
builds, distinct files among them, verdict, culprits, and whether the answer is right (``benchmarks.builds.judge``).
"""

from __future__ import annotations

import json as to_json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import trt_bisect
from benchmarks.builds.judge import Bench, faults
from benchmarks.builds.networks import STANDINS, SUBJECTS, Files, Subject
from benchmarks.builds.standin import Build, Difference, StandIn
from benchmarks.measure import command_line
from trt_bisect.errors import TrtBisectError
from trt_bisect.report.answer import BASE_MISSES, DIFFUSE, ENGINE_PASSES, KERNEL, NOT_NEEDED, SCALES_DIFFER
from trt_bisect.report.model import Report
from trt_bisect.report.parts import UNMEASURED
from trt_bisect.support.progress import Silent

BESIDE_CULPRITS, MOST_WITH_WRONG_KERNEL = 3, 16
"""The most builds: base, full INT8, recipe and each culprit put back, and all in FP16 where that is timed; and with a
kernel that has to be found."""
CONTRADICTIONS = {BASE_MISSES, DIFFUSE, ENGINE_PASSES, KERNEL, NOT_NEEDED, SCALES_DIFFER}
"""The kinds of lines on which engine and emulation differ."""
Row = dict[str, Any]


def measure(
    *, network: tuple[str, ...] = (), standin: tuple[str, ...] = (), json: bool = False, show: bool = False
) -> int:
    """Runs each network on each stand-in, and returns 1 if an answer is wrong, or a run builds too many engines.

    Args:
        network: Only these networks.
        standin: Only these stand-ins.
        json: Print the rows as JSON.
        show: Say what each run built, in its order, and what contradicted the emulation.
    """
    names = [subject.name for subject in SUBJECTS]
    if unknown := (set(network) - set(names)) | (set(standin) - set(STANDINS)):
        there = f"networks {', '.join(names)}; stand-ins {', '.join(STANDINS)}"
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}; there are {there}.")
    told, rows, is_good = Console(stderr=True, soft_wrap=True, highlight=False), list[Row](), True
    for subject in SUBJECTS:
        if network and subject.name not in network:
            continue
        with tempfile.TemporaryDirectory() as folder:
            files = subject.make(Path(folder))
            for name, difference_on in STANDINS.items():
                difference = difference_on(subject)
                if difference is None or (standin and name not in standin):
                    continue
                shown = told if show else None
                row, problems = measured(subject, files, name, difference, Path(folder) / name, shown)
                rows.append(row)
                is_good &= not problems
                told.print(f"{subject.name}, {name}: {row['builds']} builds, {row['verdict']}", *problems, sep="; ")
    if json:
        print(to_json.dumps(rows, indent=1))
    else:
        Console(width=200).print(table(rows), "x: the answer is wrong", sep="\n")
    return 0 if is_good else 1


def measured(
    subject: Subject, files: Files, name: str, difference: Difference, folder: Path, told: Console | None = None
) -> tuple[Row, list[str]]:
    """Runs a network on a stand-in; returns its row, and what is wrong with the answer or the number of builds."""
    engine = StandIn(difference)
    report: Report | None = None
    with engine.installed():
        try:
            report = run(subject, files, folder)
        except TrtBisectError as error:
            print(f"{subject.name}, {name}: {error}", file=sys.stderr)
    if told is not None:
        for number, build in enumerate(engine.builds, 1):
            told.print(f"  {number} {build.key[:6]} {build.text}{', refused' if build.refused else ''}")
        for line in () if report is None else report.lines:
            if line.kind in CONTRADICTIONS:
                told.print(f"  {line.text}")
    wrong = list(faults(Bench(subject, files, difference), report, folder))
    row = {
        "network": subject.name,
        "standin": name,
        "builds": len(engine.builds),
        "distinct": engine.distinct,
        "verdict": UNMEASURED if report is None else report.verdict,
        "culprits": [] if report is None else list(report.culprits),
        "right": not wrong,
    }
    dropped = report is not None and any(line.kind == NOT_NEEDED for line in report.lines)
    return row, [*wrong, *too_many(row, engine.builds, dropped=dropped)]


def too_many(row: Row, builds: Sequence[Build], *, dropped: bool = False) -> list[str]:
    """Returns texts on builds that a run need not have made.

    Args:
        dropped: the emulation proposed layers that the engine does not need: these are no culprits, and cost builds.
    """
    timed = sum(build.text.startswith("all in fp16") for build in builds)
    beside = BESIDE_CULPRITS + len(row["culprits"]) + timed
    bounds = {"wrong-kernel": MOST_WITH_WRONG_KERNEL}
    if not dropped:
        bounds |= {"same": beside, "noise": beside}
    most = bounds.get(row["standin"], row["builds"])
    texts = []
    if row["builds"] > most:
        texts.append(f"more than {most} builds")
    if again := row["builds"] - row["distinct"]:
        texts.append(f"{again} builds of a plan that was built before")
    return texts


def run(subject: Subject, files: Files, folder: Path) -> Report:
    """Runs a network on the engine that is there under TensorRT's name; no sample is held out."""
    network, calibration, inputs = files
    return trt_bisect.run(
        network,
        str(calibration),
        str(inputs),
        engine="tensorrt",
        threshold=subject.threshold,
        validation="0",
        explain="none",
        history="none",
        output=str(folder),
        progress=Silent(),
    )


def table(rows: Sequence[Row]) -> Table:
    """The builds of each network on each stand-in."""
    cells = {(row["network"], row["standin"]): f"{row['builds']}{' ' if row['right'] else 'x'}" for row in rows}
    standins = [name for name in STANDINS if any(row["standin"] == name for row in rows)]
    result = Table("network", *standins, box=None)
    for network in dict.fromkeys(row["network"] for row in rows):
        result.add_row(network, *(cells.get((network, name), "-") for name in standins))
    return result


if __name__ == "__main__":
    sys.exit(command_line(__doc__, measure))
