"""The search for the worst inputs of a data set. The command line calls this too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from trt_bisect.analyzer.judge import DEFAULT_SHARE, Rule
from trt_bisect.analyzer.metrics import BUILT_IN, default_threshold, find_metric
from trt_bisect.analyzer.worst import distribution_of, verdict
from trt_bisect.builder.base import EMULATED, MEASURED, Outputs
from trt_bisect.builder.engines import ONNXRUNTIME, choose_engine
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import Dataset, open_dataset
from trt_bisect.data.named import content_of
from trt_bisect.errors import BadInput
from trt_bisect.model.network import GivenModel, Network
from trt_bisect.options.commands import WorstOptions
from trt_bisect.options.declare import takes
from trt_bisect.precision import low_of
from trt_bisect.preparation.asked_network import asked_network, fixed_notes, refuse_emulated_only
from trt_bisect.preparation.experiment import Setup
from trt_bisect.preparation.judgement import Judgement
from trt_bisect.preparation.preparation import find_worst, refuse_unknown_outputs, say_engine, usable
from trt_bisect.report.losses import WorstReport
from trt_bisect.support.files import output_folder
from trt_bisect.support.progress import default_progress

ASCENDING, DESCENDING = "ascending", "descending"
_BEHIND: dict[bool, Callable[[float, float], float]] = {
    True: lambda value, perfect: perfect - value,
    False: lambda value, perfect: value - perfect,
}
"""By ``Metric.higher`` how far a value is behind that of equal outputs."""


@takes(WorstOptions)
def worst(model: GivenModel, options: WorstOptions) -> WorstReport:
    """Finds the inputs on which low precision and FP32 differ most, and how the difference is spread over the data.

    The data set is read once. In memory are about ``keep`` samples, and a few numbers for each of the others.

    Args:
        model: an ONNX file of opset 9 or later, or a loaded network.
        options: as listed. ``dataset`` may be any iterable of feeds, an endless one too where ``steps`` is given.

    Raises:
        BadInput: something given cannot be used.
        EngineUnavailable: the engine cannot be used here.
    """
    return worst_with(model, options)


def worst_with(model: GivenModel, options: WorstOptions) -> WorstReport:
    """Does what ``worst`` does."""
    if options.threshold is not None and not math.isfinite(float(options.threshold)):
        raise BadInput(f"The threshold {options.threshold} is not a number.", "Give the worst acceptable value.")
    if isinstance(options.metric, str) and options.metric.lower() in BUILT_IN:
        options = replace(options, metric=options.metric.lower())
    find_metric(options.metric)  # refuses before anything is read
    folder = None if options.output is None else Path(content_of(options.output))
    with output_folder(folder), closing(options.progress or default_progress()) as shown:
        network = asked_network(options, model, options.shapes)
        report = _search(Setup.of(options, network, None, shown, _WorstJudgement), options)
        if folder is not None:
            report.save(folder)
    return report


def _search(setup: Setup, options: WorstOptions) -> WorstReport:
    """Takes ranges and an engine as a run does, then passes once over a data set; Ctrl-C ends the pass early."""
    refuse_unknown_outputs(setup)
    engine = choose_engine(options.engine)
    refuse_emulated_only(setup.read, engine)
    network, ranges, source = _ranges_and_samples(setup, engine, options)
    say_engine(setup, engine)
    source = source if options.steps is None else source.first(options.steps)
    setup.progress.stage("Searching for the worst inputs", source.length)
    builder = setup.builder_for(network, engine, ranges, source)
    found = find_worst(setup, network, builder, source, options.keep, keep=True)
    known, low = math.isfinite(found.rule.threshold), network.low.precision
    allowed = found.rule.budget if known else None
    distribution = distribution_of(found.similarities, found.losses, allowed, found.faint)
    values, losses = (
        tuple(figure if math.isfinite(figure) else None for figure in figures)
        for figures in (found.similarities, found.losses)
    )
    return WorstReport(
        model=network.source,
        engine=engine,
        typing=builder.typing,
        arithmetic=EMULATED if engine == ONNXRUNTIME else MEASURED,
        metric=found.rule.metric.name,
        order=ASCENDING if setup.judgement.asked_metric.higher else DESCENDING,
        threshold=found.rule.threshold if known else None,
        allowed=allowed,
        high=tuple(each.name for each in network.layers if each.fixed and low_of(each.fixed) is not low),
        source=source.source,
        values=values,
        losses=losses,
        faint=found.faint,
        places=found.places,
        stopped=found.stopped,
        distribution=distribution,
        verdict=verdict(distribution),
        notes=(*fixed_notes(network), *(note.text for note in setup.notes)),
        low=str(low),
    ).holding(found.inputs)


def _ranges_and_samples(setup: Setup, engine: str, options: WorstOptions) -> tuple[Network, Ranges, Dataset]:
    dataset, read = options.dataset, setup.read
    if engine != ONNXRUNTIME and not read.is_static and isinstance(dataset, Iterator):
        raise BadInput(
            f"{engine} must know the shapes of all samples first, and an iterator gives them only once.",
            "Fix the shapes, or give a list, or a function that makes the iterator.",
        )
    ranges, data = setup.data.ranges(options.calibration)
    network = usable(setup, read, ranges)
    pictures = options.preprocessing()
    source = data if dataset is None else open_dataset(dataset, network.inputs, once=True, pictures=pictures)
    if source is None:
        raise BadInput("There is no data set to search: the scales do not come from data.", "Give --dataset.")
    return network, ranges, source


class _WorstJudgement(Judgement):
    """A judgement whose threshold is NaN where neither the user nor the metric has one."""

    def rule(self, outputs: tuple[str, ...], reference: Sequence[Outputs]) -> Rule:
        """The rule. The values of a user's function are ranked as they are, also those better than of equal outputs."""
        metric = self.metric(outputs, reference)
        if metric.code:
            metric = replace(metric, loss_of=_BEHIND[metric.higher])
        own = default_threshold(metric.name, self._low) or math.nan
        threshold = own if self.options.threshold is None else float(self.options.threshold)
        return Rule(metric, threshold, DEFAULT_SHARE, self.entries(outputs))
