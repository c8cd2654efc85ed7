"""The runs that are broken, and the parts of two runs that must be equal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reliability.forked import Ended, run
from tests.support import networks
from trt_bisect.report.parts import REPORT

SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"
JOURNAL = "journal.jsonl"
_TIMES = ("started", "seconds", "builds", "peak_bytes", "command", "next")
_RECIPE = ("plan.json", "trtexec.flags", "calibration.cache", "network.qdq.onnx")
_FILES = ("layers.csv", "front.csv", *(f"recipe/{name}" for name in _RECIPE))


def subjects(folder: Path, *, small: bool = False) -> dict[str, list[str]]:
    """LeNet with its planted culprit and a small MobileNet with one, by every strategy, and with a goal.

    With ``small`` only a MobileNet of one block, whose run takes a third of the time.

    Returns:
        By name the arguments of a command, all but ``--output`` and the folder.
    """
    model, block = (networks.depthwise(1, 4), "block0") if small else (networks.depthwise(), "block1")
    networks.plant_between(model, f"{block}.depthwise", f"{block}.project")
    network = networks.save(model, folder)
    np.savez(folder / "data.npz", **networks.samples(model, 4 if small else 8))  # type: ignore[arg-type]
    mobile = ["run", str(network), "--calibration", str(folder / "data.npz"), "--metric", "sqnr"]
    exhaustive = ["--strategy", "exhaustive"]
    if small:
        return {"small MobileNet, exhaustive": [*mobile, *exhaustive, "--effort", "quick"]}
    with np.load(SAMPLES / "lenet/calibration.npz") as samples:  # of 200 samples 40: half the time
        np.savez(folder / "digits.npz", **{name: samples[name][:40] for name in samples.files})
    lenet = ["run", str(SAMPLES / "lenet/lenet_planted.onnx"), "--calibration", str(folder / "digits.npz")]
    return {
        "LeNet": lenet,
        "LeNet, exhaustive": [*lenet, *exhaustive],
        "LeNet, bisect": [*lenet, "--strategy", "bisect"],
        "MobileNet": mobile,
        "MobileNet, exhaustive": [*mobile, *exhaustive],
        "LeNet, front": [*lenet, "--budget", "5%", "--front"],
    }


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody stopped.

    Attributes:
        bytes: written into the journal, and into other files.
    """

    name: str
    arguments: list[str]
    code: int
    result: dict[str, Any]
    seconds: float
    journal_bytes: int
    file_bytes: int

    def into(self, folder: Path) -> list[str]:
        """The arguments with the folder."""
        return [*self.arguments, "--output", str(folder)]

    def faults(self, ended: Ended, folder: Path) -> list[str]:
        """Returns the differences of another run's end and results from these."""
        faults = [f"other results in {name}" for name in differences(result(folder), self.result)]
        if ended.code != self.code:
            faults.append(f"exit code {ended.code}: {ended.err.strip()[-300:]}")
        return faults


def undisturbed(name: str, arguments: list[str], folder: Path, before: Callable[[], None] | None = None) -> Undisturbed:
    """The run that the others must be equal to; ``before`` is done in its process first."""
    folder.mkdir(parents=True)
    ended = run([*arguments, "--output", str(folder / "run")], folder, before)
    files = [path for path in (folder / "run").rglob("*") if path.is_file()]
    journal = sum(path.stat().st_size for path in files if path.suffix == ".jsonl")
    others = sum(path.stat().st_size for path in files) - journal
    return Undisturbed(name, arguments, ended.code, result(folder / "run"), ended.seconds, journal, others)


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
    for name in _FILES:
        if (folder / name).exists():
            parts[name] = (folder / name).read_bytes()
    return parts


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
