"""The costs of layers and plans: by multiply-adds, by measured or predicted times, or from a user's file."""

from __future__ import annotations

import math
from pathlib import Path

from trt_bisect.builder.engines import choose_engine
from trt_bisect.builder.inspector import kernels_of
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.speed import measure_times
from trt_bisect.model.cost import Costs, TimeCosts, Times, instead_of, shares, times_by_macs, times_from_csv
from trt_bisect.model.network import Network
from trt_bisect.model.observe import facts_for
from trt_bisect.options.concerns import MACS, MEASURED_TIME, MIXED, RunOptions
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.report.answer import PredictedTimes
from trt_bisect.report.choices import LEAST_GAIN

_SLOWEST = 3  # the number of slowest kernels that a report names
# The shares of full INT8's time from which on type conversions, and kernel launches, are named as a reason.
_LEAST_CONVERSIONS, _LEAST_LAUNCHES = 0.05, 0.5


def layer_costs(setup: Setup, options: RunOptions, experiment: Experiment, timed: TimeCosts | None = None) -> Costs:
    """Returns by layer and higher precision the cost of the layer in it, as ``--cost`` and ``--gpu`` ask.

    Args:
        timed: predicted times; None without a known GPU.

    Raises:
        BadInput: the engine does not time layers, or the file of ``--cost`` cannot be used.
    """
    network, cost = experiment.network, options.costs_by
    low = network.low.precision
    if cost == MACS:
        return shares(_per_sample(network, times_by_macs(network, facts_for(network, experiment.feeds[0]))), low)
    if options.by_time and timed is not None:
        return timed.layers((Precision.FP32, Precision.FP16, Precision.BF16))
    needed = {instead_of(low), options.high_precision, *((Precision.FP16,) if options.precision == MIXED else ())}
    if cost == MEASURED_TIME:
        setup.progress.stage("Timing the layers", None)
        high = {Precision.FP32, Precision.FP16, *needed} - {low}
        builder = setup.builder_for(network, choose_engine(options.engine), experiment.ranges, experiment.feeds)
        return shares(measure_times(builder, network, high, experiment.feeds[0]), low)
    times = times_from_csv(Path(cost), network)
    for k, by in times.items():
        for precision in needed - by.keys():
            raise BadInput(
                f"'{cost}' has no time of layer '{network.layers[k].name}' in {precision}.",
                f"Add a column {precision}: costs are against {instead_of(low).upper()}.",
            )
    return shares(_per_sample(network, times), low)


def _per_sample(network: Network, times: Times) -> Times:
    calls = {k: network.calls(network.layers[k].name) for k in times}
    return {k: {kind: calls[k] * time for kind, time in by.items()} for k, by in times.items()}


def time_costs(options: RunOptions, experiment: Experiment, user: Experiment | None = None) -> TimeCosts | None:
    """Returns the costs by predicted time; None if no GPU is named or recognised in the machine.

    Args:
        user: experiment with the user's network, if ``experiment`` has a changed network; costs are then shares of
            the speedup of the user's network.

    Raises:
        BadInput: the profile that ``--cost`` names cannot be used.
    """
    network, gpu = experiment.network, options.cost_gpu
    if gpu is None:
        return None
    profile = kernels_of(network, options.profile) if options.profile is not None else ()
    of_user = None if user is None else time_costs(options, user)
    return TimeCosts(network, facts_for(network, experiment.feeds[0]), gpu, profile, of_user)


def predicted_times(options: RunOptions, experiment: Experiment, recipe: PrecisionPlan) -> PredictedTimes | None:
    """Returns the predicted times of an inference in FP32, FP16, full INT8 and a recipe; None if no GPU is known."""
    timed = time_costs(options, experiment)
    if timed is None:
        return None
    full = experiment.network.full(experiment.whole.high)
    plans = {"fp32": timed.in_all(Precision.FP32), "fp16": timed.in_all(Precision.FP16), "int8": full}
    times = {name: timed.predicted(plan) for name, plan in {**plans, "recipe": recipe}.items()}
    slowest, added = timed.slowest(recipe, _SLOWEST), timed.added_reformats(recipe)
    return PredictedTimes(timed.gpu.name, times, slowest, added, _no_gain(timed, full))


def foreseen_times(timed: TimeCosts | None) -> str:
    """Returns a sentence with the predicted times of FP16 and full INT8 and, if INT8 is no faster, the reason; empty if
    ``timed`` is None (no known GPU).
    """
    if timed is None:
        return ""
    low = timed.network.low
    other = instead_of(low.precision)
    slow, fast = timed.predicted(timed.in_all(other)).ms, timed.predicted(timed.full).ms
    text = f"Predicted on {timed.gpu.name}: {other.upper()} {slow:.3g} ms, full {low.title} {fast:.3g} ms"
    why = _no_gain(timed, timed.full)
    return f"{text}. {why}" if why else text


def _no_gain(timed: TimeCosts, full: PrecisionPlan) -> str:
    low = timed.network.low
    other = instead_of(low.precision)
    floats = timed.in_all(other)
    slow, fast = timed.predicted(floats).ms, timed.predicted(full).ms
    if fast <= (1.0 - LEAST_GAIN) * slow:
        return ""
    reformats = math.fsum(kernel.ms for kernel in timed.added_reformats(full, floats))
    attention = timed.in_attentions(full) - timed.in_attentions(floats)
    starts, alike = timed.starts(full), timed.no_faster(full, floats)
    reasons = {
        f"changes of type and layout add {reformats:.3g} ms": (reformats, _LEAST_CONVERSIONS),
        f"Q/DQ pairs divide attention into kernels, which adds {attention:.3g} ms": (attention, _LEAST_CONVERSIONS),
        f"starting kernels takes {starts:.3g} ms of it, which a larger batch shares": (starts, _LEAST_LAUNCHES),
        f"kernels that are no faster in {low.title} take {alike:.3g} ms of it": (alike, _LEAST_LAUNCHES),
    }
    told = [text for text, (ms, share) in reasons.items() if ms > share * fast][:2]
    why = f": {' and '.join(told)}" if told else ""
    return f"{low.title} is not predicted to be faster than {other.upper()}{why}"
