from __future__ import annotations

from collections.abc import Iterable, Mapping

from trt_bisect.builder.base import Builder, Latency
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput, TrialFailed
from trt_bisect.model.cost import Times
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision

_OTHER_COSTS = "Give --cost macs, or a CSV of times."
Latencies = Mapping[str, Latency | None]
"""The latency by plan (``fp32``, ``fp16``, ``int8``, ``recipe``); None if the plan could not be built or run."""


def layer_times(timed: Latency, network: Network) -> dict[int, float]:
    """Returns by layer index the milliseconds of each quantizable layer.

    Quantizable layers in one engine layer share its time equally; changes of format belong to no layer.
    """
    index = {network.layers[k].name: k for k in network.quantizable}
    times = dict.fromkeys(network.quantizable, 0.0)
    for part in timed.layers:
        inside = [index[name] for name in part.layers if name in index]
        for k in inside:
            times[k] += part.milliseconds / len(inside)
    return times


def measure_times(builder: Builder, network: Network, high: Iterable[Precision], feeds: Feeds) -> Times:
    """Returns by layer index and precision the milliseconds of each quantizable layer, measured on one engine in the
    low precision and one in each of ``high``.

    Raises:
        BadInput: the arithmetic is emulated, or an engine does not run or reports no layer times.
    """
    low = {network.low.precision: network.free_plan(network.quantizable)}
    plans = {**low, **{p: network.all_in(p) for p in high}}
    by_precision = {}
    for precision, plan in plans.items():
        try:
            with builder.build(plan) as engine:
                timed = engine.latency(feeds)
        except TrialFailed as failure:
            raise BadInput(
                f"The time of layers in {precision} cannot be measured: {failure.message}", _OTHER_COSTS
            ) from failure
        if timed is None or not timed.layers:
            raise BadInput(f"The engine '{builder.engine}' does not report the time of layers.", _OTHER_COSTS)
        by_precision[precision] = layer_times(timed, network)
    return {k: {precision: times[k] for precision, times in by_precision.items()} for k in network.quantizable}
