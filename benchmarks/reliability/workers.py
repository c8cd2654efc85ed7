"""Workers that segfault, hang, or run out of memory: each costs the trial that it was busy with, and nothing else.

    python -m benchmarks.reliability workers --plans 60 --deaths 4 --seed 1 --json FILE

A sweep over the plans of a chain of convolutions, each on a whole engine in a worker process (``builder.isolation``,
as TensorRT's engines are built), once as it is and once with deaths planted in random plans. The engines are ONNX
Runtime's. The deaths are real: a null pointer is written to, a build sleeps past the limit, memory is taken until the
worker's own limit (RLIMIT_AS) ends it, the worker is killed as Linux does where memory runs out.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.support import networks
from tests.support.faulty_builder import crash, hang, make_faulty
from trt_bisect.analyzer.judge import comparison
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.isolation import IsolatedBuilder
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.errors import OUT_OF_MEMORY
from trt_bisect.evaluator.rebuild import RebuildEvaluator
from trt_bisect.evaluator.trial import BUILD_FAILED, TIMED_OUT, Trial
from trt_bisect.model.network import Network, load_network
from trt_bisect.precision import PrecisionPlan, int8_set
from trt_bisect.runs.journal import MemoryStore

LIMIT = 10.0
"""Seconds that a build may take."""

_MEMORY = 64 << 20


def exhaust() -> None:
    """Takes memory until there is no more: NumPy raises MemoryError, as a C++ builder raises bad_alloc."""
    held, (used, *_) = [], map(int, Path("/proc/self/statm").read_text().split())
    limit = used * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while True:
        held.append(np.ones(1 << 22, np.uint8))


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


DEATHS: dict[str, tuple[Callable[[], None], str]] = {
    "segfault": (crash, BUILD_FAILED),
    "hang": (hang, TIMED_OUT),
    "memory exhausted": (exhaust, OUT_OF_MEMORY),
    "killed by the system": (be_killed, OUT_OF_MEMORY),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plans", type=int, default=60)
    parser.add_argument("--deaths", type=int, default=4, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)


def measure(asked: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    with tempfile.TemporaryDirectory(prefix="workers-") as work:
        return swept(asked.plans, asked.deaths, asked.seed, Path(work), DEATHS)


def swept(
    count: int, deaths: int, seed: int, work: Path, kinds: Mapping[str, tuple[Callable[[], None], str]]
) -> tuple[dict[str, Any], list[str]]:
    """The sweep with and without deaths; ``deaths`` of each of ``kinds``, with the outcome that each must have."""
    random = Random(seed)
    model = networks.chain(8)
    network = load_network(networks.save(model, work))
    feeds = {name: array[:1] for name, array in networks.samples(model).items()}
    plans = _plans(network, count, random)
    chosen = random.sample(plans, deaths * len(kinds))
    names = [name for name in kinds for _ in range(deaths)]
    planted = {plan.key(): name for plan, name in zip(chosen, names, strict=True)}
    undisturbed = _sweep(network, feeds, plans, {})
    trials = _sweep(network, feeds, plans, {key: kinds[name][0] for key, name in planted.items()})
    lost: Counter[str] = Counter()
    broken = []
    for plan, one, other in zip(plans, undisturbed, trials, strict=True):
        name = planted.get(plan.key(), "")
        if name:
            lost[name] += other.failed
            if other.outcome != kinds[name][1]:
                broken.append(f"{name}: the outcome is '{other.outcome}', not '{kinds[name][1]}'")
        elif one.outcome != other.outcome or one.outputs != other.outputs:
            broken.append(f"a trial without a death differs: {one.outcome}, {other.outcome}: {other.message[:200]}")
    figures = {"seed": seed, "plans": count, "planted of each kind": deaths, "trials lost": dict(lost)}
    return {**figures, "other trials equal": count - len(planted) - sum("differs" in fault for fault in broken)}, broken


def _plans(network: Network, count: int, random: Random) -> list[PrecisionPlan]:
    """Different sets of layers in INT8."""
    plans: dict[str, PrecisionPlan] = {}
    while len(plans) < count:
        chosen = [k for k in network.quantizable if random.randrange(2)]
        plan = int8_set(len(network.layers), chosen)
        plans[plan.key()] = plan
    return list(plans.values())


def _sweep(
    network: Network,
    feeds: dict[str, np.ndarray],
    plans: list[PrecisionPlan],
    dying: Mapping[str, Callable[[], None]],
) -> list[Trial]:
    scales = {name: np.float32(0.05) for name in network.activations}
    make = partial(OnnxRuntimeBuilder, network, scales, BuildOptions())
    builder = IsolatedBuilder(partial(make_faulty, make, dying), LIMIT)
    with builder.reference() as engine:
        reference = [engine.infer(feeds)]
    compare = comparison(reference, find_metric("cosine", "higher"))
    store = MemoryStore()
    evaluator = RebuildEvaluator(network, builder, [feeds], compare, store)
    return [evaluator.measure(plan) for plan in plans]
