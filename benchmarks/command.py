"""Times the stages of a whole ``trt-bisect run``: the seconds that pass and those of the processor.

    python -m benchmarks.command                          # ResNet-50, three runs, the medians
    python -m benchmarks.command --only MobileNetV2 --repeat 5 -- --explain basic

Stages do not overlap: a stage inside another one is taken out of it. The goal: all that is neither calibration, nor
measuring, nor explaining takes under a quarter of measuring, or under 0.6 s. The first run is not counted: it compiles
the modules, as an installation does.
"""

from __future__ import annotations

import argparse
import importlib._bootstrap as bootstrap
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORK = HERE.parent / ".bench" / "networks"
MEASURED = ("calibrating", "measuring", "explaining")
STAGES = {
    "reading the network": [("trt_bisect.model.network", "load_network")],
    "FP32 reference": [
        ("trt_bisect.jobs.preparation", "Preparation._reference"),
        ("trt_bisect.jobs.answer.inputs", "_references"),
    ],
    "comparing with the file": [("trt_bisect.model.reading", "compare_with_file")],
    "calibrating": [("trt_bisect.jobs.given_data", "GivenData.ranges")],
    "measuring": [
        ("trt_bisect.jobs.run.search", "search"),
        ("trt_bisect.jobs.answer.plans", "AnswerPlans.__post_init__"),
        ("trt_bisect.jobs.answer.answer", "AnswerSearch.choose_ranges"),
        ("trt_bisect.jobs.answer.answer", "AnswerSearch.finish"),
        ("trt_bisect.evaluator.speed", "measure_latencies"),
    ],
    "explaining": [("trt_bisect.jobs.run.explain", "explained")],
    "writing the report": [
        ("trt_bisect.report.model", "Report.save"),
        ("trt_bisect.jobs.run.live", "Live.keep"),
    ],
    "the history": [("trt_bisect.history.store", "_record")],
    "the screen": [("trt_bisect.report.screen.run", "print_report")],
}
RUN = "import sys; from benchmarks.command import run_timed; run_timed(sys.argv[1:])"
IMPORTS, OTHER = "imports", "the rest"


@dataclass
class Stages:
    """The seconds of each stage, wall and processor, without those of stages inside it."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    inside: list[tuple[str, list[float]]] = field(default_factory=list)

    def timed(self, stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            began, self.inside = _now(), [*self.inside, (stage, [0.0, 0.0])]
            try:
                return work(*given, **named)
            finally:
                took = [now - then for now, then in zip(_now(), began, strict=True)]
                (_, nested), self.inside = self.inside[-1], self.inside[:-1]
                _add(self.seconds.setdefault(stage, [0.0, 0.0]), [t - n for t, n in zip(took, nested, strict=True)])
                if self.inside:
                    _add(self.inside[-1][1], took)

        return timed


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _add(total: list[float], more: list[float]) -> None:
    total[:] = [t + m for t, m in zip(total, more, strict=True)]


def run_timed(options: list[str]) -> None:
    """Runs the command in this process and prints the seconds of its stages as the last line, on stderr."""
    began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + _started()
    stages = Stages()
    load = stages.timed(IMPORTS, bootstrap._load_unlocked)  # type: ignore[attr-defined]
    targets = {module: [] for each in STAGES.values() for module, _ in each}  # type: dict[str, list[tuple[str, str]]]
    for stage, each in STAGES.items():
        for module, name in each:
            targets[module].append((stage, name))

    def loaded(spec: Any) -> Any:
        module = load(spec)
        for stage, name in targets.get(spec.name, ()):
            *classes, last = name.split(".")
            holder = module
            for inner in classes:
                holder = getattr(holder, inner)
            setattr(holder, last, stages.timed(stage, getattr(holder, last)))
        return module

    bootstrap._load_unlocked = loaded  # type: ignore[attr-defined]
    sys.argv = ["trt-bisect", "run", *options]
    try:
        from trt_bisect.cli import main

        main()
    except SystemExit as end:
        if end.code not in (0, 1, None):
            raise
    whole = [time.time() - began, time.process_time()]
    known = [sum(seconds) for seconds in zip(*stages.seconds.values(), strict=True)]
    stages.seconds[OTHER] = [w - k for w, k in zip(whole, known, strict=True)]
    print(json.dumps(stages.seconds), file=sys.stderr)


def _started() -> float:
    """The start of this process, in seconds after the machine's own."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Runs the command several times, each in a process of its own, and prints the medians of its stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["ResNet-50"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("options", nargs="*", default=["--explain", "none"], help="of the command, after --")
    asked = parser.parse_args()
    from benchmarks.networks import CASES, write

    for case in CASES:
        if case.name in asked.only:
            network, data = write(case, WORK)
            _one_run(network, data, asked.options)
            runs = [_one_run(network, data, asked.options) for _ in range(asked.repeat)]
            print_table(case.name, runs)


def _one_run(network: Path, data: Path, options: list[str]) -> dict[str, list[float]]:
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        sample, cache = Path(folder) / "input.npz", network.with_suffix(".cache")
        np.savez(sample, x=np.load(data)["x"][:1])
        if not cache.exists():
            command = ["calibrate", str(network), "--calibration", str(data), "--calibrator", "minmax"]
            subprocess.run([sys.executable, "-m", "trt_bisect", *command, "-o", str(cache)], check=True)
        given = [str(network), "--calibration", str(cache), "--input", str(sample), "-o", str(Path(folder) / "run")]
        done = subprocess.run(
            [sys.executable, "-c", RUN, *given, *options],
            check=True,
            capture_output=True,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        )
    return dict(json.loads(done.stderr.splitlines()[-1]))


def print_table(name: str, runs: list[dict[str, list[float]]]) -> None:
    """Prints the median seconds of each stage; and of all that is neither calibrating, measuring nor explaining."""
    print(f"| {name} | s | processor, s |\n| --- | --- | --- |")
    rows = {stage: runs for stage in (IMPORTS, *STAGES, OTHER) if any(stage in run for run in runs)}
    for stage in rows:
        _print_row(stage, [run.get(stage, [0.0, 0.0]) for run in runs])
    _print_row("all", [_sum(run, list(run)) for run in runs])
    overhead = [_sum(run, [stage for stage in run if stage not in MEASURED]) for run in runs]
    _print_row("all but calibrating, measuring, explaining", overhead)
    shares = [
        [part / all_ for part, all_ in zip(o, r["measuring"], strict=True)] for o, r in zip(overhead, runs, strict=True)
    ]
    _print_row("– as a share of measuring", shares)


def _sum(run: dict[str, list[float]], stages: list[str]) -> list[float]:
    return [sum(run[stage][place] for stage in stages) for place in (0, 1)]


def _print_row(label: str, figures: list[list[float]]) -> None:
    print(
        f"| {label} | " + " | ".join(f"{statistics.median(values):.2f}" for values in zip(*figures, strict=True)) + " |"
    )


if __name__ == "__main__":
    main()
