"""Records a check's expectations and figures on disk as soon as they are known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PASSED, FAILED, CRASHED, TIMED_OUT = "passed", "failed", "crashed", "timed out"
REACHED = "reached the driver"
NEEDS_GPU, NOT_HERE, NO_TIME = "needs a GPU", "not here", "no time left"


@dataclass(frozen=True)
class Expectation:
    """An expectation, its result, and the figure behind it."""

    what: str
    holds: bool
    said: str = ""


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
    expectations: list[Expectation] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def expect(self, what: str, holds: bool, said: object = "") -> bool:
        """Records whether ``what`` holds, and says it again."""
        self.expectations.append(Expectation(what, bool(holds), str(said)))
        self._write()
        return bool(holds)

    def figure(self, name: str, value: Any) -> None:
        """Records a number, a text, a list of rows, or the like."""
        self.figures[name] = plain(value)
        self._write()

    def _write(self) -> None:
        record = {"expectations": [asdict(made) for made in self.expectations], "figures": self.figures}
        write_json(self.results, record)


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


def plain(value: Any) -> Any:
    """``value`` in JSON's types; what is not finite becomes a text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a file such that a stop leaves the old one or the new one."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    beside.replace(path)
