"""Records a check's expectations and figures on disk as soon as they are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trt_bisect.support.codec import encode
from trt_bisect.support.files import write_whole

PASSED, FAILED, CRASHED, TIMED_OUT = "passed", "failed", "crashed", "timed out"
REACHED = "reached the driver"
NEEDS_GPU, NOT_HERE, NO_TIME = "needs a GPU", "not here", "no time left"


@dataclass
class Experiment:
    """The place of one check: its engine, a folder for its files, and what it has recorded so far.

    Attributes:
        engine: ``tensorrt`` or ``tensorrt-rtx``.
        folder: empty when the check begins.
        results: the file that is written anew after each record, so that a crash loses nothing.
        gpu: there is one.
    """

    engine: str
    folder: Path
    results: Path
    gpu: bool
    expectations: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def expect(self, what: str, holds: bool, said: object = "") -> None:
        """Records whether ``what`` holds, and the figure behind it."""
        self.expectations.append({"what": what, "holds": bool(holds), "said": str(said)})
        self._write()

    def figure(self, name: str, value: Any) -> None:
        """Records a number, a text, a list of rows, or the like, in JSON's types."""
        self.figures[name] = json.loads(encode(value))
        self._write()

    def _write(self) -> None:
        write_json(self.results, {"expectations": self.expectations, "figures": self.figures})


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        what: it shows, in a line.
        run: records on the bench that it is given.
        seconds: that it may take.
        needs_gpu: it cannot run at all without one.
        typings: of the engine for which it makes sense.
    """

    name: str
    what: str
    run: Callable[[Experiment], None]
    seconds: float
    needs_gpu: bool = True
    typings: tuple[str, ...] = ("weak", "strong")


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a file such that a stop leaves the old one or the new one."""
    write_whole(path, (json.dumps(record, indent=1) + "\n").encode())
