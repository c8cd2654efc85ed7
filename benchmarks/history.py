"""Times the history: recording one run, and queries of a whole year.

    python -m benchmarks.history
    python -m benchmarks.history --nights 30 --networks 5 --repeat 3

A run of the sample text detector is measured without a history and recorded afterwards, into a new file and into one of
a year: the ratio is of the two times of one run. The year is invented: each night every network has a run of its own,
with a report and figures that move a little.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np

SAMPLES = Path(__file__).resolve().parent.parent / "samples" / "ocr"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5, help="how often each is measured; the median counts")
    asked = parser.parse_args()
    figures: dict[str, float] = {"repeat": asked.repeat}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        year = folder / "year.sqlite"
        template = folder / "template"
        _run(template)
        began = time.perf_counter()
        _fill(year, template, asked.nights, asked.networks, asked.layers)
        figures["filling the year, s"] = time.perf_counter() - began
        figures |= _recording(folder, year, asked.repeat)
        figures |= _asking(year, asked.repeat)
    for title, value in figures.items():
        print(f"{title}: {value:.4g}")


def _run(folder: Path) -> float:
    """Seconds of the run that a user starts, without a history."""
    import trt_bisect

    return _seconds(
        lambda: trt_bisect.run(
            SAMPLES / "network.onnx",
            SAMPLES / "calibration.npz",
            SAMPLES / "inputs.npz",
            samples=1,
            threshold=0.95,
            output=folder,
            history="none",
        )
    )


def _fill(year: Path, template: Path, nights: int, networks: int, layers: int) -> None:
    from trt_bisect.history.store import History, entries_in
    from trt_bisect.report.model import ByPlan

    (entry,), random = entries_in(template), np.random.default_rng(0)
    row = replace(entry.report.layers[0], quantizable=True, outcome="measured")
    names = [f"/backbone/stage{place // 9}/block{place % 9}/conv/Conv" for place in range(layers)]
    rows = tuple(replace(row, index=place, name=name, similarity=0.99) for place, name in enumerate(names))
    with History(year) as kept:
        for night in range(nights):
            entries = []
            for network in range(networks):
                similarity: ByPlan[float | None] = ByPlan(0.97 + 0.01 * random.random(), 0.99)
                report = replace(entry.report, layers=rows, similarity=similarity, model=f"network{network}.onnx")
                started = entry.started + timedelta(days=night, seconds=network)
                entries.append(replace(entry, run=f"{night}-{network}", started=started, report=report))
            kept.write(entries)


def _recording(folder: Path, year: Path, repeat: int) -> dict[str, float]:
    from trt_bisect.history.store import History

    def record(file: Path, run: Path) -> float:
        def work() -> None:
            with History(file) as kept:
                kept.record(run)

        return _seconds(work)

    run, new, old = [], [], []
    for place in range(repeat):
        here = folder / f"run{place}"
        run.append(_run(here))
        new.append(record(folder / f"new{place}.sqlite", here))
        old.append(record(year, here))
    return {
        "a run, s": statistics.median(run),
        "recording it in a new file, share of the run": statistics.median(n / r for n, r in zip(new, run, strict=True)),
        "recording it in the year, share of the run": statistics.median(o / r for o, r in zip(old, run, strict=True)),
    }


def _asking(year: Path, repeat: int) -> dict[str, float]:
    from rich.console import Console

    from trt_bisect.history.queries import HistoryFilter, trends
    from trt_bisect.history.screen import trend_table
    from trt_bisect.history.store import History

    def every(work: Callable[[History], object]) -> float:
        def opened() -> None:
            with History(year, reading=True) as kept:
                work(kept)

        return statistics.median(_seconds(opened) for _ in range(repeat))

    with History(year, reading=True) as kept:
        reports, last = len(kept.past()), kept.past()[-2].id
    return {
        "MB": year.stat().st_size / 1e6,
        "reports": reports,
        "the overview, s": every(lambda kept: trend_table(trends(kept.past()), Console())),
        "one network, s": every(lambda kept: kept.past(HistoryFilter(label="network3"))),
        "the table of reports, s": every(lambda kept: kept.reports()),
        "a whole report, s": every(lambda kept: kept.report(last)),
        "a copy, s": every(lambda kept: kept.copy(year.with_name("copy.sqlite"))),
    }


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
