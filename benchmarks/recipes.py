"""Compares the layers left high for one target by ``recover``, by ``run``, and by the peers' rankings.

    python -m benchmarks.recipes                       # the table of docs/benchmarks.md
    python -m benchmarks.recipes --only ocr --peers    # no other network; --peers none leaves the peers out

All have the same ranges (min-max), the same input and the same threshold: full INT8's SQNR and ``--more`` dB. A peer
ranks the layers in its own way, in an environment of its own; of its ranking the first layers are left high, as few as
meet the threshold, which is the best that can be made of it. Every set is measured on a whole engine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import trt_bisect
from benchmarks.networks import CASES, write
from benchmarks.peers.run import run_peer
from trt_bisect.builder.base import BuildOptions
from trt_bisect.model.cost import shares, times_by_macs
from trt_bisect.model.shapes import facts_for
from trt_bisect.precision import Precision, all_but
from trt_bisect.support.progress import Silent

HERE = Path(__file__).resolve().parent
WORK = HERE.parent / ".bench"
SAMPLES = HERE.parent / "samples"
PEERS = ("onnxruntime", "nncf")


@dataclass(frozen=True)
class TrialSpec:
    """A network, its calibration data and the input that is judged."""

    name: str
    network: Path
    data: Path
    feeds: dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["ocr", "MobileNetV2", "ResNet-50"])
    parser.add_argument("--more", type=float, default=6.0, help="dB above full INT8")
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for a peer")
    parser.add_argument("--json", type=Path, default=None, help="also write every figure there")
    asked = parser.parse_args()
    rows = []
    for name in asked.only:
        rows += [{"network": name, **row} for row in _rows(_subject(name), asked.more, asked.peers, asked.timeout)]
        Console(width=140).print(_table([row for row in rows if row["network"] == name]))
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")


def _subject(name: str) -> TrialSpec:
    if name == "ocr":
        folder = SAMPLES / "ocr"
        feeds = {name: array[:1] for name, array in np.load(folder / "inputs.npz").items()}
        return TrialSpec(name, folder / "network.onnx", folder / "calibration.npz", feeds)
    case = next(case for case in CASES if case.name == name)
    network, data = write(case, WORK / "networks")
    return TrialSpec(name, network, data, {"x": np.load(data)["x"][:1]})


def _rows(subject: TrialSpec, more: float, peers: Sequence[str], timeout: float) -> list[dict[str, Any]]:
    network = trt_bisect.load_network(subject.network)
    ranges = trt_bisect.calibrate(network, trt_bisect.open_dataset(str(subject.data), network.inputs), "minmax")
    network = network.with_shapes(facts_for(network, subject.feeds).shapes)
    builder = trt_bisect.make_builder("onnxruntime", "strong", network, ranges.scales, BuildOptions())
    costs = {
        k: by[Precision.FP32] for k, by in shares(times_by_macs(network, facts_for(network, subject.feeds))).items()
    }
    index = {network.layers[k].name: k for k in network.quantizable}
    with builder.reference() as engine:
        reference = engine.infer(subject.feeds)

    def sqnr(high: Sequence[str]) -> float:
        with builder.build(all_but(len(network.layers), [index[name] for name in high])) as engine:
            found = engine.infer(subject.feeds)
        return min(trt_bisect.similarity(reference[name], found[name], "sqnr") for name in reference)

    threshold = round(sqnr(()) + more, 2)

    def row(way: str, high: Sequence[str], seconds: float) -> dict[str, Any]:
        cost = sum(costs[index[name]] for name in high)
        figures = {"layers": len(high), "cost": cost, "sqnr": sqnr(high), "seconds": seconds}
        return {"way": way, "threshold": threshold, **figures}

    wishes: dict[str, Any] = {"metric": "sqnr", "threshold": threshold, "progress": Silent()}
    wishes["engine"] = "onnxruntime"
    began = time.perf_counter()
    report = trt_bisect.run(network, ranges, subject.feeds, **wishes)
    rows = [row("run", report.recipe.high, time.perf_counter() - began)]
    for peer in peers:
        found = run_peer(peer, subject.network, subject.data, timeout)
        ranking = [name for name in found.get("ranking", ()) if name in index]  # type: ignore[attr-defined]
        if not ranking:
            print(f"{peer} on {subject.name}: {found.get('skipped', 'names none of our layers')}")
            continue
        rows.append(
            row(f"{peer} {found['version']}, its ranking", _cut(ranking, sqnr, threshold), float(str(found["seconds"])))
        )
    began = time.perf_counter()
    best = trt_bisect.recover(network, ranges, subject.feeds, **wishes)
    rows.append(row("recover", [left.layer for left in best.high], time.perf_counter() - began))
    return rows


def _cut(ranking: Sequence[str], sqnr: Callable[[Sequence[str]], float], threshold: float) -> Sequence[str]:
    """The shortest first part of a ranking that meets the threshold, each tried in turn."""
    for count in range(1, len(ranking) + 1):
        if sqnr(ranking[:count]) >= threshold:
            return ranking[:count]
    return ranking


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("network", "threshold, dB", "way", "layers high", "cost", "SQNR, dB", "seconds", box=None)
    for row in rows:
        table.add_row(
            row["network"], f"{row['threshold']:.2f}", row["way"], str(row["layers"]), f"{row['cost']:.2%}",
            f"{row['sqnr']:.2f}", f"{row['seconds']:.0f}",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    main()
