"""The user's file with its own asymmetric pairs, beside the symmetric pairs that are measured instead."""

from __future__ import annotations

from collections.abc import Sequence

from trt_bisect.analyzer.judge import Rule
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.rebuild import Compare
from trt_bisect.evaluator.trial import Cost, Trial
from trt_bisect.model.network import Network


def file_figure_noted(
    network: Network, feeds: Sequence[Feeds], compare: Compare, rule: Rule, options: BuildOptions
) -> list[str]:
    """A sentence with the figure of the file as it is, all its pairs in place, in ONNX Runtime.

    Returns:
        Nothing where no pair is asymmetric, or the file's cannot be run.
    """
    if not network.asymmetric:
        return []
    plan = network.free_plan(network.quantizable)
    try:
        with OnnxRuntimeBuilder(network.as_in_file(), {}, options).build(plan) as engine:
            figures = compare([engine.infer(sample) for sample in feeds])
    except TrialFailed:
        return []
    value = rule.similarity(Trial.judged(plan.key(), figures, {}, Cost(0.0, 0.0, len(feeds))))
    figure = "no figure (not finite)" if value is None else rule.metric.text(value)
    return [f"the file with its asymmetric pairs measures {figure} ({rule.metric.name}) in ONNX Runtime"]
