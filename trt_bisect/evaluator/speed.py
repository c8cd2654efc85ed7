"""What the plans are worth in time: the latency of the network in FP32, FP16 and INT8, and of the recipe."""

from __future__ import annotations

from trt_bisect.builder.base import MEASURED, Builder, Engine
from trt_bisect.builder.timing import Latency
from trt_bisect.data import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision, PrecisionPlan, int8_set
from trt_bisect.progress import Progress

Latencies = dict[str, Latency | None]
"""By plan, ``fp32``, ``fp16``, ``int8`` and ``recipe``; None where it could not be built or run."""


def measure_latencies(
    builder: Builder, network: Network, recipe: PrecisionPlan, high: Precision, feeds: Feeds, progress: Progress
) -> Latencies | None:
    """Builds and times an engine for each; None where the arithmetic is emulated, whose time tells nothing.

    Args:
        builder: of the engines.
        network: what it builds.
        recipe: the plan that is handed back.
        high: the precision of the layers that full INT8 cannot take.
        feeds: the sample that is run.
        progress: told of each plan.
    """
    if builder.arithmetic != MEASURED:
        return None
    count = len(network.layers)
    plans = {
        "fp32": None,
        "fp16": int8_set(count, (), Precision.FP16),
        "int8": int8_set(count, network.quantizable, high),
        "recipe": recipe,
    }
    progress.stage("Timing the plans", len(plans))
    found: Latencies = {}
    for name, plan in plans.items():
        progress.step(name)
        try:
            with _engine(builder, plan) as engine:
                found[name] = engine.latency(feeds)
        except TrialFailed:
            found[name] = None
    return found


def _engine(builder: Builder, plan: PrecisionPlan | None) -> Engine:
    return builder.reference() if plan is None else builder.build(plan)
