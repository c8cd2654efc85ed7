"""The runs that are broken, and the parts of two runs that must be equal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import networks
from trt_bisect.report.model import REPORT

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
    if small:
        return [_of_one_block(folder)]
    model = networks.depthwise()
    networks.plant_between(model, "block1.depthwise", "block1.project")
    network = networks.save(model, folder)
    np.savez(folder / "data.npz", **networks.samples(model))  # type: ignore[arg-type]
    lenet = (str(SAMPLES / "lenet/lenet_planted.onnx"), "--calibration", str(save_digits(folder)))
    mobile = (str(network), "--calibration", str(folder / "data.npz"), "--metric", "sqnr")
    return [
        TrialSpec("LeNet, branch", ("run", *lenet)),
        TrialSpec("LeNet, exhaustive", ("run", *lenet, "--strategy", "exhaustive")),
        TrialSpec("LeNet, bisect", ("run", *lenet, "--strategy", "bisect")),
        TrialSpec("MobileNet, branch", ("run", *mobile)),
        TrialSpec("MobileNet, exhaustive", ("run", *mobile, "--strategy", "exhaustive")),
        TrialSpec("LeNet, front", ("run", *lenet, "--budget", "5%", "--front")),
    ]


def _of_one_block(folder: Path) -> TrialSpec:
    model = networks.depthwise(1, 4)
    networks.plant_between(model, "block0.depthwise", "block0.project")
    network = networks.save(model, folder, "small.onnx")
    np.savez(folder / "small.npz", **networks.samples(model, 4))  # type: ignore[arg-type]
    run = ("run", str(network), "--calibration", str(folder / "small.npz"), "--metric", "sqnr")
    return TrialSpec("small MobileNet, exhaustive", (*run, "--strategy", "exhaustive"))


def save_digits(folder: Path, count: int = 40) -> Path:
    """Writes the first of LeNet's 200 calibration samples: a run on 40 takes half the time."""
    path = folder / "digits.npz"
    with np.load(SAMPLES / "lenet/calibration.npz") as samples:
        np.savez(path, **{name: samples[name][:count] for name in samples.files})
    return path


def result(folder: Path) -> dict[str, Any]:
    """Returns the parts of a run's results that must be equal to another run's: all but times and counts."""
    found: dict[str, Any] = {}
    if (folder / REPORT).exists():
        record = json.loads((folder / REPORT).read_bytes())
        found[REPORT] = {key: value for key, value in record.items() if key not in _TIMES}
    for name in _RECIPE:
        if (folder / "recipe" / name).exists():
            found[name] = (folder / "recipe" / name).read_bytes()
    for name in ("layers.csv", "front.csv"):
        if (folder / name).exists():
            found[name] = list(csv.reader(io.StringIO((folder / name).read_text())))
    return found


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names of the files in which two results differ."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def whole_lines(folder: Path) -> list[bytes]:
    """The journal's lines that end."""
    path = folder / JOURNAL
    return (
        [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")] if path.exists() else []
    )


def twice(lines: Iterable[bytes]) -> int:
    """The number of trials that were measured again: the same plan under the same fingerprint.

    A trial on many inputs stands in the journal again each time that it was run on more of them. It was measured again
    if a line adds no input, or if there were more inferences than inputs.
    """
    known: dict[tuple[str, str], set[str]] = {}
    count = 0
    for record in map(json.loads, lines):
        if "trial" in record:
            trial = record["trial"]
            key, inputs = (record["run"], trial["plan"]), set(trial.get("losses", ()))
            again = key in known and not known[key] < inputs
            count += again or (bool(inputs) and trial["inferences"] > len(inputs))
            known[key] = inputs
    return count


def unfinished(folder: Path) -> list[str]:
    """Returns the hidden files in a folder: a writer that was stopped leaves them."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))
