"""Measures the stages of a command: seconds, of the processor too, inferences, and peak memory of each.

    python -m benchmarks.stages run samples/ocr/network.onnx --calibration samples/ocr/calibration.npz \\
        --input samples/ocr/inputs.npz --samples 1 --threshold 0.95 --explain none -o /tmp/ocr

A stage is one that the command's progress display names; the first one here is all before that, from the start of the
process: imports and reading. The peak of each stage is the kernel's; it is reset after each, so that the report of the
run has that of its last one.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.builder.onnxruntime import OnnxRuntimeEngine, SwitchSession
from trt_bisect.cli import main as command
from trt_bisect.support.machine import peak_bytes
from trt_bisect.support.progress import RichProgress, Silent

_RESET = Path("/proc/self/clear_refs")
"""A 5 resets the peak, see proc(5)."""


class Stages:
    """The seconds and the inferences of each stage, in order; those of the curve count too."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))
        self.inferences: Counter[str] = Counter()
        self.peaks: defaultdict[str, int] = defaultdict(int)
        self._stage, self._began = "start: imports, reading", np.array([time.perf_counter() - _running(), 0.0])

    def begin(self, stage: str) -> None:
        """Ends the stage before and begins another."""
        now = np.array([time.perf_counter(), time.process_time()])
        self.seconds[self._stage] += now - self._began
        self.peaks[self._stage] = max(self.peaks[self._stage], peak_bytes())
        if _RESET.exists():
            _RESET.write_text("5")
        self._stage, self._began = stage, now

    def counting(self, infer: Callable[..., Any]) -> Callable[..., Any]:
        """Returns ``infer``, counted under the stage in which it is called."""

        def counted(*given: Any, **named: Any) -> Any:
            self.inferences[self._stage] += 1
            return infer(*given, **named)

        return counted

    def telling(self, stage: Callable[..., None]) -> Callable[..., None]:
        """Returns the method ``stage`` of a progress display, which tells this object too."""

        def told(display: Any, title: str, total: int | None) -> None:
            self.begin(title)
            stage(display, title, total)

        return told

    def table(self) -> str:
        """Returns the stages as a table, and their sum."""
        rows = [(name, *self.seconds[name], self.inferences[name], self.peaks[name]) for name in self.seconds]
        rows.append(
            ("all", *np.sum([*self.seconds.values()], axis=0), self.inferences.total(), max(self.peaks.values()))
        )
        lines = [f"| {name} | {s:.2f} | {cpu:.2f} | {count} | {peak >> 20} |" for name, s, cpu, count, peak in rows]
        head = ["| stage | s | processor, s | inferences | peak, MiB |", "| --- | --- | --- | --- | --- |"]
        return "\n".join([*head, *lines])


def _running() -> float:
    """Returns the seconds since this process began: field 22 of ``/proc/self/stat`` in proc(5)."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Runs the command in this process and prints its stages."""
    stages = Stages()
    for display in (RichProgress, Silent):
        display.stage = stages.telling(display.stage)  # type: ignore[method-assign]
    for engine in (OnnxRuntimeEngine, SwitchSession):
        engine.infer = stages.counting(engine.infer)  # type: ignore[method-assign]
    sys.argv[0] = "trt-bisect"
    try:
        command()
    except SystemExit as end:
        if end.code not in (0, 1, None):
            raise
    stages.begin("")
    print(stages.table())


if __name__ == "__main__":
    main()
