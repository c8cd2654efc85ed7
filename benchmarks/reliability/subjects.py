"""The runs that are broken, and the parts of two runs that must be equal."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import networks
from trt_bisect.report.parts import REPORT

SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"
JOURNAL = "journal.jsonl"
_TIMES = ("started", "seconds", "builds", "peak_bytes", "command", "next")
_RECIPE = ("plan.json", "trtexec.flags", "calibration.cache", "network.qdq.onnx")


@dataclass(frozen=True)
class TrialSpec:
    """A command that works in a folder.

    Attributes:
        arguments: all but ``--output`` and the folder.
    """

    name: str
    arguments: tuple[str, ...]

    def into(self, folder: Path) -> list[str]:
        """The arguments with the folder."""
        return [*self.arguments, "--output", str(folder)]


def subjects(folder: Path, *, small: bool = False) -> list[TrialSpec]:
    """LeNet with its planted culprit and a small MobileNet with one, by every strategy, and with a goal.

    With ``small`` only a MobileNet of one block, whose run takes a third of the time.
    """
    model, block = (networks.depthwise(1, 4), "block0") if small else (networks.depthwise(), "block1")
    networks.plant_between(model, f"{block}.depthwise", f"{block}.project")
    network = networks.save(model, folder)
    np.savez(folder / "data.npz", **networks.samples(model, 4 if small else 8))  # type: ignore[arg-type]
    mobile = (str(network), "--calibration", str(folder / "data.npz"), "--metric", "sqnr")
    if small:
        few = ("--strategy", "exhaustive", "--effort", "quick")
        return [TrialSpec("small MobileNet, exhaustive", ("run", *mobile, *few))]
    with np.load(SAMPLES / "lenet/calibration.npz") as samples:  # of 200 samples 40: half the time
        np.savez(folder / "digits.npz", **{name: samples[name][:40] for name in samples.files})
    lenet = (str(SAMPLES / "lenet/lenet_planted.onnx"), "--calibration", str(folder / "digits.npz"))
    return [
        TrialSpec("LeNet", ("run", *lenet)),
        TrialSpec("LeNet, exhaustive", ("run", *lenet, "--strategy", "exhaustive")),
        TrialSpec("LeNet, bisect", ("run", *lenet, "--strategy", "bisect")),
        TrialSpec("MobileNet", ("run", *mobile)),
        TrialSpec("MobileNet, exhaustive", ("run", *mobile, "--strategy", "exhaustive")),
        TrialSpec("LeNet, front", ("run", *lenet, "--budget", "5%", "--front")),
    ]


def tell(figures: dict[str, Any], broken: list[str], path: Path | None) -> int:
    """Prints the figures, and writes them to a file where there is a path; returns 1 if a promise is broken."""
    print(json.dumps(figures, indent=1))
    if path is not None:
        path.write_text(json.dumps({"command": sys.argv[1:], **figures, "broken": broken}, indent=1) + "\n")
    for promise in broken:
        print(f"BROKEN: {promise}", file=sys.stderr)
    return int(bool(broken))


def result(folder: Path) -> dict[str, Any]:
    """Returns the parts of a run's results that must be equal to another run's: all but times and counts."""
    parts: dict[str, Any] = {}
    if (folder / REPORT).exists():
        record = json.loads((folder / REPORT).read_bytes())
        parts[REPORT] = {key: value for key, value in record.items() if key not in _TIMES}
    recipe = {name: folder / "recipe" / name for name in _RECIPE}
    parts |= {name: path.read_bytes() for name, path in recipe.items() if path.exists()}
    tables = {name: folder / name for name in ("layers.csv", "front.csv")}
    return parts | {
        name: list(csv.reader(io.StringIO(path.read_text()))) for name, path in tables.items() if path.exists()
    }


def differences(result_a: dict[str, Any], result_b: dict[str, Any]) -> list[str]:
    """The names of the files in which two results differ."""
    return sorted(name for name in {*result_a, *result_b} if result_a.get(name) != result_b.get(name))


def whole_lines(folder: Path) -> list[bytes]:
    """The journal's lines that end."""
    content = (folder / JOURNAL).read_bytes() if (folder / JOURNAL).exists() else b""
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def twice(lines: Iterable[bytes]) -> int:
    """The number of trials that were measured again: the same plan under the same fingerprint.

    A trial on many inputs stands in the journal again each time that it was run on more of them. It was measured again
    if a line adds no input, or if there were more inferences than inputs.
    """
    inputs_of: dict[tuple[str, str], set[str]] = {}
    count = 0
    for record in map(json.loads, lines):
        if "trial" in record:
            trial = record["trial"]
            key, inputs = (record["run"], trial["plan"]), set(trial.get("losses", ()))
            again = key in inputs_of and not inputs_of[key] < inputs
            count += again or (bool(inputs) and trial["inferences"] > len(inputs))
            inputs_of[key] = inputs
    return count


def unfinished(folder: Path) -> list[str]:
    """Returns the hidden files in a folder: a writer that was stopped leaves them."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))
