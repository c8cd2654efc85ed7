"""Shared by the peers' scripts: the job from the command line, the feeds, the similarity, the JSON line at the end.

It runs in each peer's own environment, so it needs NumPy and the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

THREADS = 2
OP_TYPES = ("Conv", "ConvTranspose", "Gemm", "MatMul", "MaxPool", "AveragePool", "GlobalAveragePool", "Add", "Concat")
"""The operators that TensorRT runs in INT8 from Q/DQ on their inputs, for the peers that can be told."""
NAMED = 5

Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class Preparation:
    """The network and the data of one run of a peer.

    Attributes:
        limit: at most that many layers are tried; None for all.
        evaluate: on how many samples the final outputs are compared. All samples calibrate.
    """

    network: Path
    data: Path
    limit: int | None
    evaluate: int

    def feeds(self) -> list[Feed]:
        """One feed a sample, each with a batch of one."""
        with np.load(self.data) as file:
            arrays = {name: file[name] for name in file.files}
        count = len(next(iter(arrays.values())))
        return [{name: values[k : k + 1] for name, values in arrays.items()} for k in range(count)]


def read_job() -> Preparation:
    """The job that the command line describes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("network", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--limit", type=int, default=None, help="try at most that many layers")
    parser.add_argument("--evaluate", type=int, default=1, help="samples on which the final outputs are compared")
    arguments = parser.parse_args()
    return Preparation(arguments.network.resolve(), arguments.data.resolve(), arguments.limit, arguments.evaluate)


class Clock:
    """Wall seconds of a ``with`` block."""

    seconds = 0.0

    def __enter__(self) -> Clock:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start


def similarity(reference: Sequence[Sequence[np.ndarray]], outputs: Sequence[Sequence[np.ndarray]]) -> float:
    """The mean cosine of the outputs, one list of arrays a sample."""
    values = [
        _cosine(a, b) for one, other in zip(reference, outputs, strict=True) for a, b in zip(one, other, strict=True)
    ]
    return float(np.mean(values))


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    left, right = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    norms = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / norms if norms else float(np.array_equal(left, right))


def report(
    job: Preparation,
    peer: str,
    package: str,
    method: str,
    worst_first: Sequence[str],
    seconds: float,
    calibration: float | None,
) -> None:
    """Prints the result as one JSON line, the last of stdout."""
    layers = len(worst_first)
    line = {
        "peer": peer,
        "version": version(package),
        "network": job.network.stem,
        "method": f"{method}; only the first {layers} layers tried" if layers == job.limit else method,
        "layers": layers,
        "seconds": round(seconds, 3),
        "calibration_seconds": None if calibration is None else round(calibration, 3),
        "seconds_per_layer": round(seconds / layers, 4) if layers else None,
        "peak_mb": round(_peak_mb(), 1),
        "named": list(worst_first[:NAMED]),
        "ranking": list(worst_first),
    }
    sys.stdout.flush()
    print(json.dumps(line), flush=True)


def ordered(scores: Mapping[str, float], *, worst_is_low: bool) -> list[str]:
    """The layers, worst first; equal ones stay in the order in which they were tried."""
    return sorted(scores, key=lambda name: scores[name] if worst_is_low else -scores[name])


def _peak_mb() -> float:
    """Peak resident memory of this process: Linux's own mark, which a parent's memory does not blur, or getrusage's."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)
