"""Times the same plans on Ray clusters of one and of two workers: the gain of the second worker, the cost of a task.

    python -m benchmarks.cluster --repeat 5

A cluster of node processes on this machine: a head without processors, and nodes of one processor each, so that a
worker has one thread of ONNX Runtime. The plans are prefixes of one network, tried by the pool that ``--cluster``
makes; workers that have started, and hold the network, are timed. One worker, two, and this process alone with one
thread take turns; every figure is the median of the turns, every ratio within one turn. Meant for two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.networks import CASES, write
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.engines import make_builder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.cluster.ray_cluster import RayCluster
from trt_bisect.evaluator.workers import TrialSpec, WorkerPool, attempt
from trt_bisect.model.network import load_network
from trt_bisect.precision import PrecisionPlan, int8_set

_STORE = 1 << 30
"""Bytes of a node's object store."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=[case.name for case in CASES], default="ResNet-50")
    parser.add_argument("--plans", type=int, default=24)
    parser.add_argument("--inputs", type=int, default=2, help="judged together in each trial")
    parser.add_argument("--repeat", type=int, default=5, help="turns")
    parser.add_argument("--json", type=Path, default=None, help="also write every figure there")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as folder:
        os.environ.update(RAY_TMPDIR=folder, RAY_USAGE_STATS_ENABLED="0")
        turns = measure(asked.network, asked.plans, asked.inputs, asked.repeat, Path(folder))
    show(turns, asked.plans)
    if asked.json:
        asked.json.write_text(json.dumps(turns, indent=1))


Turn = dict[str, float]
"""Seconds of ``one`` worker, of ``two``, and ``alone`` in this process."""


def measure(name: str, count: int, inputs: int, repeat: int, folder: Path) -> list[Turn]:
    """Runs the turns and returns their times."""
    from ray.cluster_utils import Cluster as NodeProcesses

    subject, plans = prepared(name, count, inputs, folder)
    own = subject.make(subject.options)
    nodes: Any = NodeProcesses(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=1, object_store_memory=_STORE)
        turns = []
        for _ in range(repeat):
            one = tried(nodes.address, subject, plans)
            second = nodes.add_node(num_cpus=1, object_store_memory=_STORE)
            two = tried(nodes.address, subject, plans)
            nodes.remove_node(second)
            began = time.perf_counter()
            for plan in plans:
                attempt(plan, own, subject.inputs)
            turns.append({"one": one, "two": two, "alone": time.perf_counter() - began})
    finally:
        nodes.shutdown()
    return turns


def prepared(name: str, count: int, inputs: int, folder: Path) -> tuple[TrialSpec, list[PrecisionPlan]]:
    """Returns a network of ``CASES`` for a pool of workers with one thread, and evenly spread prefixes of it."""
    path, data = write(next(case for case in CASES if case.name == name), folder)
    network = load_network(path)
    feeds = [{"x": x[None]} for x in np.load(data)["x"]]
    scales = calibrate(network, feeds[:2], "minmax").scales
    options = BuildOptions(threads=1, timeout=600.0)
    make = partial(make_builder, "onnxruntime", "strong", network, scales)
    ends = np.unique(np.linspace(1, len(network.quantizable), count).astype(int))
    plans = [int8_set(len(network.layers), network.quantizable[:end]) for end in ends]
    return TrialSpec("onnxruntime", make(options).versions, make, options, feeds[:inputs]), plans


def tried(address: str, spec: TrialSpec, plans: Sequence[PrecisionPlan]) -> float:
    """Returns the seconds that the workers of a cluster take for plans, after they all have started."""
    with RayCluster(address, print) as cluster:
        pool = cluster.pool(spec, spec.make(spec.options))
        assert pool is not None, "nobody has interrupted it"
        for _ in range(3):
            seconds_of(pool, plans[: pool.size])
        return seconds_of(pool, plans)


def seconds_of(pool: WorkerPool, plans: Sequence[PrecisionPlan]) -> float:
    """The seconds that plans take."""
    began = time.perf_counter()
    for plan in plans:
        pool.begin(plan)
    for _ in plans:
        pool.ended()
    return time.perf_counter() - began


def show(turns: Sequence[Turn], plans: int) -> None:
    """Prints the table."""

    def row(what: str, values: Sequence[float], form: str) -> None:
        shown = [format(value, form) for value in (statistics.median(values), min(values), max(values))]
        print(f"| {what} | " + " | ".join(shown) + " |")

    print("| | median | least | most |\n| --- | --- | --- | --- |")
    row("one worker, s", [turn["one"] for turn in turns], ".2f")
    row("two workers, s", [turn["two"] for turn in turns], ".2f")
    row("this process alone, s", [turn["alone"] for turn in turns], ".2f")
    row("speed-up of two workers against one", [turn["one"] / turn["two"] for turn in turns], ".2f")
    row("a task costs, ms a trial", [1000 * (turn["one"] - turn["alone"]) / plans for turn in turns], ".1f")


if __name__ == "__main__":
    main()
