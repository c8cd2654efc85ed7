"""Ctrl-C and SIGTERM in every stage of a run; then the same command until it ends.

    python -m benchmarks.reliability stop --times 30 --seed 1 --json FILE

The moments are spread evenly over the stages of an undisturbed run; within a stage the step is drawn. A run that is
stopped has to end with exit code 130 and leave a report that is read again. A recipe in that report has to hold on all
inputs given in plain ONNX Runtime, without its optimisations. The same command then has to end like the undisturbed
run.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections import Counter
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.answer.judge import cosine, infer, read_samples, session
from benchmarks.reliability.forked import import_everything, run
from benchmarks.reliability.subjects import Undisturbed, subjects, tell, undisturbed
from trt_bisect import Report
from trt_bisect.report.parts import UNMEASURED
from trt_bisect.runs.progress_file import INTERRUPTED, Heartbeat

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def measure(*, times: int = 10, seed: int = 1, small: bool = False, json: Path | None = None) -> int:
    """Stops so many runs of each subject; ``small``: of a small network, as the tests have it."""
    import_everything()
    random = Random(seed)
    counted: Counter[str] = Counter()
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="stop-") as work:
        for name, arguments in subjects(Path(work), small=small).items():
            # With no input held out, a recipe has to hold on all of the file.
            reference, events = _watched(name, [*arguments, "--validation", "0"], Path(work) / name)
            stages = [list(group) for _, group in groupby(range(len(events)), key=events.__getitem__)]
            for number in range(times):
                at = random.choice(stages[(2 * number + 1) * len(stages) // (2 * times)])
                work_folder = Path(work) / "stopped"
                counts, faults = stopped_and_resumed(reference, at, _SIGNALS[number % 2], work_folder)
                counted.update({"runs": 1, **counts})
                broken += [f"{name}, stopped in '{events[at]}': {fault}" for fault in faults]
                shutil.rmtree(work_folder)
    return tell({"seed": seed, **dict(sorted(counted.items()))}, broken, json)


def _watched(name: str, arguments: list[str], work_folder: Path) -> tuple[Undisturbed, list[str]]:
    """Returns the undisturbed run, and the stage of each of its stages and steps, in their order."""
    work_folder.mkdir(parents=True)
    log = work_folder / "stages.txt"

    def note(_: int, title: str) -> None:
        with log.open("a") as file:
            file.write(f"{title}\n")

    reference = undisturbed(name, arguments, work_folder / "whole", lambda: _at_events(note))
    return reference, log.read_text().splitlines()


def _at_events(call: Any) -> None:
    """Has ``call`` called with the number and the title of the stage at each stage and step of this process."""
    events: list[str] = []
    stage, step = Heartbeat.stage, Heartbeat.step

    def told_stage(self: Heartbeat, title: str, total: int | None) -> None:
        stage(self, title, total)
        events.append(title)
        call(len(events) - 1, title)

    def told_step(self: Heartbeat, what: str, size: int = 1) -> None:
        step(self, what, size)
        events.append(events[-1] if events else "")
        call(len(events) - 1, events[-1])

    Heartbeat.stage, Heartbeat.step = told_stage, told_step  # type: ignore[method-assign]


def stopped_and_resumed(
    reference: Undisturbed, at: int, stop: signal.Signals, work_folder: Path
) -> tuple[Counter[str], list[str]]:
    """Stops a run at a stage or step, then starts it again; returns counts and faults."""
    work_folder.mkdir(parents=True)
    folder, arguments = work_folder / "run", reference.into(work_folder / "run")

    def stopping() -> None:
        _at_events(lambda number, _: os.kill(os.getpid(), stop) if number == at else None)

    ended = run(arguments, work_folder, stopping)
    counts: Counter[str] = Counter()
    faults = [] if ended.code == 130 and "Traceback" not in ended.err else [f"exit code {ended.code}: {ended.err}"]
    if not (folder / "report.json").is_file():
        return counts, [*faults, f"no report: {ended.err.strip()[-300:]}"]
    report = Report.load(folder)
    counts["reports left"] += 1
    counts["with full INT8 measured"] += report.verdict != UNMEASURED
    if report.state != INTERRUPTED or "STOPPED" not in report.summary:
        faults.append(f"the report says it is {report.state}: {report.summary}")
    if report.recipe.meets and report.recipe.high:
        data = Path(arguments[arguments.index("--calibration") + 1])
        worst = worst_figure(data, report, folder / "recipe" / "network.qdq.onnx")
        counts["with a recipe that holds in plain ONNX Runtime"] += worst >= report.threshold
        if worst < report.threshold:
            faults.append(f"the recipe measures {worst}")
    again = run(arguments, work_folder)
    other = reference.faults(again, folder)
    counts["equal in the end"] += not other
    return counts, [*faults, *other]


def worst_figure(data: Path, report: Report, network: Path) -> float:
    """Returns the worst figure of a network in plain ONNX Runtime on all samples of the run's calibration data."""
    fp32, quantized = session(Path(report.model), "off"), session(network, "off")
    figures = []
    for feeds in read_samples(data, fp32):
        outputs = infer(quantized, feeds)
        for name, exact in infer(fp32, feeds).items():
            if report.metric == "cosine":
                figures.append(cosine(exact, outputs[name]))
            else:
                error = exact.astype(np.float64) - outputs[name]
                signal, noise = np.sum(exact.astype(np.float64) ** 2), np.sum(error**2)
                figures.append(10 * np.log10(signal / noise) if noise else np.inf)
    return float(min(figures))
