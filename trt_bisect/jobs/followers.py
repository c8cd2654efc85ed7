"""The emulation in which layers that only follow round too: for a whole run, or for the check of one recipe."""

from __future__ import annotations

from dataclasses import replace

from trt_bisect.builder.base import Builder
from trt_bisect.builder.engines import ONNXRUNTIME, open_builder
from trt_bisect.errors import BadInput
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.options.concerns import AUTO, BRANCH, EXHAUSTIVE, FOLLOWERS_INT8
from trt_bisect.jobs.options.measuring import MeasuringOptions
from trt_bisect.model.fusions import followed_tensors
from trt_bisect.precision import PrecisionPlan


def strategy_for(options: MeasuringOptions, engine: str) -> str:
    """Returns the strategy of a run; with rounded followers ``auto`` is ``exhaustive``.

    A layer that goes to INT8 changes what the followers before it round, so that pieces do not add up to the whole.

    Raises:
        BadInput: the engine, or the strategy asked for, does not go together with rounded followers.
    """
    if options.followers != FOLLOWERS_INT8:
        return options.strategy_on(engine)
    if engine != ONNXRUNTIME:
        raise BadInput(
            f"'--followers int8' is an emulation; on the engine '{engine}' TensorRT decides.",
            "Leave it out, or add --engine onnxruntime.",
        )
    if options.strategy == BRANCH:
        raise BadInput(
            "'--followers int8' cannot be measured in pieces: what is rounded depends on the layers after them.",
            "Leave out --strategy branch; exhaustive and bisect work.",
        )
    return EXHAUSTIVE if options.strategy == AUTO else options.strategy


def with_rounded_followers(options: MeasuringOptions, experiment: Experiment, plan: PrecisionPlan) -> Builder | None:
    """Returns a builder like that of an experiment whose layers that only follow round too.

    None if a plan would not change by that: the run rounds them already, an engine decides itself, or the network has
    no such tensor with a scale.
    """
    build = options.build_options()
    if experiment.builder.engine != ONNXRUNTIME or build.followers_round:
        return None
    network, scales = experiment.network, experiment.ranges.scales
    if followed_tensors(network, plan.int8).isdisjoint(scales):
        return None
    typing = experiment.builder.typing
    return open_builder(ONNXRUNTIME, typing, network, scales, replace(build, followers_round=True))
