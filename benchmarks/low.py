"""The strategies ``branch`` and ``exhaustive`` in each low precision: engines, CPU seconds, and their ratio.

python -m benchmarks.low FOLDER NETWORK DATA [--low int8 fp16 bf16 fp8]
python -m benchmarks.low FOLDER NAME         NAME is one of benchmarks.networks, such as MobileNetV2 or ResNet-50

CPU seconds of the whole command, not wall time: they hold on a busy machine too. INT8 and FP8 take their ranges from a
calibration cache, so that no calibration is counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.networks import CASES, write

_STRATEGIES = ("exhaustive", "branch")


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(command: list[str], folder: Path) -> tuple[float, dict[str, object]]:
    shutil.rmtree(folder, ignore_errors=True)
    before = _cpu_seconds()
    done = subprocess.run([*command, "--output", str(folder)], check=False, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr}")
    return _cpu_seconds() - before, json.loads((folder / "report.json").read_text())


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("network")
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--low", nargs="*", default=["int8", "fp16", "bf16", "fp8"])
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    cases = {case.name: case for case in CASES}
    if given.data is None:
        network, data = write(cases[given.network], given.folder)
    else:
        network, data = Path(given.network), given.data
    sample, cache = given.folder / "sample.npz", given.folder / "ranges.cache"
    with np.load(data) as arrays:
        np.savez(sample, **{name: values[:1] for name, values in arrays.items()})
    command = str(Path(sys.executable).with_name("trt-bisect"))
    calibrate = ["calibrate", str(network), "--calibration", str(data), "--calibrator", "minmax", "-o", str(cache)]
    subprocess.run([command, *calibrate], check=True, capture_output=True)
    print("| `--low` | layers in question | loop: engines, CPU s | `branch`: engines, CPU s | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for low in given.low:
        ranges = ["--calibration", str(cache)] if low in ("int8", "fp8") else []
        asked = [command, "run", str(network), *ranges, "--input", str(sample), "--low", low, "--explain", "none"]
        asked += ["--engine", "onnxruntime", "--history", "none"]
        cells, times, layers = [], [], 0
        for strategy in _STRATEGIES:
            seconds, report = _run([*asked, "--strategy", strategy], given.folder / "run")
            rows = report["layers"]
            assert isinstance(rows, list)
            layers = sum(row["quantizable"] for row in rows)
            cells.append(f"{report['builds']}, {seconds:.1f}")
            times.append(seconds)
        print(f"| `{low}` | {layers} | {cells[0]} | {cells[1]} | {times[0] / times[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
