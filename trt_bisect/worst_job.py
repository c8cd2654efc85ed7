"""The search for the worst inputs of a data set. The command line calls this too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trt_bisect.analyzer.judge import DEFAULT_SHARE, Rule
from trt_bisect.analyzer.metrics import BUILT_IN, DEFAULT_THRESHOLDS, find_metric
from trt_bisect.builder.base import DEFAULT_TIMEOUT, EMULATED, MEASURED, BuildOptions, Outputs
from trt_bisect.builder.engines import ONNXRUNTIME, choose_engine, choose_typing
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.calibration.usable import keeping_unusable_high
from trt_bisect.data import Dataset, open_dataset
from trt_bisect.errors import BadInput
from trt_bisect.job import Job
from trt_bisect.machine import MEMORY
from trt_bisect.model.network import Network, load_network
from trt_bisect.progress import Progress, Showing, default_progress
from trt_bisect.report.worst_report import WorstReport, without_infinities
from trt_bisect.request import Request
from trt_bisect.runs.folder import make_folder
from trt_bisect.strategy import BRANCH, FULL, Way

ASCENDING, DESCENDING = "ascending", "descending"
_BETTER = {ASCENDING: "higher", DESCENDING: "lower"}
_BEHIND: dict[str, Callable[[float, float], float]] = {
    "higher": lambda value, perfect: perfect - value,
    "lower": lambda value, perfect: value - perfect,
}
KEEP = 10


def worst(
    model: str | Path | Network,
    dataset: Any = None,
    *,
    calibration: Any = None,
    steps: int | None = None,
    keep: int = KEEP,
    metric: str | Callable[..., Any] = "cosine",
    order: str | None = None,
    threshold: float | None = None,
    high: Sequence[str] = (),
    outputs: Sequence[str] = (),
    engine: str = "auto",
    typing: str = "auto",
    calibrator: str = "entropy",
    percentile: float = 99.99,
    keep_mask_ranges: bool = False,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    build_timeout: float | None = DEFAULT_TIMEOUT,
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> WorstReport:
    """Finds the inputs on which INT8 and FP32 differ most, and how the difference is spread over the data set.

    The data set is gone through once. Held are about ``keep`` of its samples, and a few numbers of each of the others.

    Args:
        model: an ONNX file of opset 11 or later, or a loaded network.
        dataset: see ``open_dataset``; any iterable of feeds will do, an endless one too where ``steps`` is given.
            Without it the calibration data is searched.
        calibration: data, or a TensorRT calibration cache. Not needed for a network that holds Q/DQ pairs.
        steps: how many samples are taken, from the first on; all of them if None.
        keep: how many of the worst inputs are kept.
        metric: a built-in's name, ``module:function``, or a function of reference and output.
        order: for a function, how its values go from the worst to the best: ``ascending`` (the smallest is the worst)
            or ``descending``.
        threshold: the worst value that is still good, for the verdict; some built-in metrics have one of their own.
        high: layers left in FP32, by name.
        outputs: the final outputs that count; all of them if empty. The worst decides.
        engine: ``auto``, ``onnxruntime``, ``tensorrt`` or ``tensorrt-rtx``.
        typing: ``auto``, ``weak`` or ``strong``, TensorRT's.
        calibrator: ``entropy``, ``minmax`` or ``percentile``.
        percentile: for that calibrator, of |x|, in per cent.
        keep_mask_ranges: quantize tensors with mask-like ranges too.
        shapes: sizes of dynamic inputs, by name.
        build_timeout: seconds that TensorRT may take to build an engine, or to run it; None sets no limit.
        output: a folder for ``worst.json``, ``worst.csv`` and ``worst.npz``, which ``run`` takes as inputs.
        progress: where progress is shown; tqdm in a notebook by default.

    Raises:
        BadInput: something given cannot be used.
        EngineUnavailable: the engine cannot be used here.
    """
    if keep < 1 or (steps is not None and steps < 1):
        raise BadInput("There is nothing to search for: no steps, or no inputs to keep.", "Give 1 or more of both.")
    if threshold is not None and not math.isfinite(threshold):
        raise BadInput(f"The threshold {threshold} is no number to compare with.", "Give the worst good value.")
    metric, order = _metric_and_order(metric, order)
    request = Request(
        engine=engine,
        typing=typing,
        way=Way(BRANCH, FULL, MEMORY),
        metric=metric,
        direction=_BETTER[order],
        threshold=threshold,
        share=DEFAULT_SHARE,
        outputs=tuple(outputs),
        samples=keep,
        calibrator=calibrator,
        percentile=percentile,
        keep_mask_ranges=keep_mask_ranges,
        options=BuildOptions(timeout=build_timeout),
    )
    if output is not None:
        make_folder(Path(output))
    network = model if isinstance(model, Network) else load_network(model, shapes)
    with Showing(progress or default_progress()) as shown:
        report = WorstJob(request, network, None, shown).search(calibration, dataset, steps, tuple(high), order)
    if output is not None:
        report.save(output)
    return report


class WorstJob(Job):
    """Ranges and engines as in a run, then one pass over a data set."""

    def search(self, calibration: Any, dataset: Any, steps: int | None, high: Sequence[str], order: str) -> WorstReport:
        """The whole job; Ctrl-C during the pass ends it with what was found until then."""
        self._check_outputs()
        engine = choose_engine(self.request.engine)
        if self.request.engine == "auto":
            self.progress.say(f"Engine: {engine} (chosen by 'auto'; 'trt-bisect engines' says why)")
        left = self._layers_left_high(high)
        ranges, source = self._ranges_and_samples(engine, calibration, dataset)
        source = source if steps is None else source.first(steps)
        self.progress.stage("Searching for the worst inputs", source.length)
        found = self.find_worst(engine, ranges, source, self.request.samples or KEEP, left, keep=True)
        known = math.isfinite(found.rule.threshold)
        return WorstReport(
            model=self.network.source,
            engine=engine,
            typing=choose_typing(engine, self.request.typing),
            arithmetic=EMULATED if engine == ONNXRUNTIME else MEASURED,
            metric=found.rule.metric.name,
            order=order,
            threshold=found.rule.threshold if known else None,
            allowed=found.rule.budget if known else None,
            high=tuple(high),
            source=source.source,
            values=without_infinities(found.similarities),
            losses=without_infinities(found.losses),
            faint=found.faint,
            places=found.places,
            stopped=found.stopped,
            notes=tuple(self.notes),
            inputs=found.inputs,
        )

    def _layers_left_high(self, names: Sequence[str]) -> list[int]:
        left = [self.network.layer_named(name).index for name in names]
        if set(self.network.quantizable) <= set(left):
            raise BadInput("With these layers left high, none is in INT8.", "Leave some of the --high out.")
        return left

    def _ranges_and_samples(self, engine: str, calibration: Any, dataset: Any) -> tuple[Ranges, Dataset]:
        if engine != ONNXRUNTIME and not self.network.is_static and isinstance(dataset, Iterator):
            raise BadInput(
                f"{engine} must know the shapes of all samples first, and an iterator gives them only once.",
                "Fix the shapes, or give a list, or a function that makes the iterator.",
            )
        ranges, data = self._ranges(calibration)
        self.network, kept_high = keeping_unusable_high(self.network, ranges)
        self.notes += kept_high
        source = data if dataset is None else open_dataset(dataset, self.network.inputs, once=True)
        if source is None:
            raise BadInput("There is no data set to search: the ranges do not come from data.", "Give --dataset.")
        return ranges, source

    def _rule(self, reference: Sequence[Outputs]) -> Rule:
        """A rule whose threshold is NaN where neither the user nor the metric has one.

        The values of a user's function are ranked as they are, also those better than that of equal outputs.
        """
        metric = self._metric(reference)
        if metric.code:
            metric = replace(metric, loss_of=_BEHIND[self.request.direction])
        own = DEFAULT_THRESHOLDS.get(metric.name, math.nan)
        threshold = own if self.request.threshold is None else self.request.threshold
        return Rule(metric, threshold, self.request.share, self.request.outputs)


def _metric_and_order(metric: str | Callable[..., Any], order: str | None) -> tuple[str | Callable[..., Any], str]:
    """The metric, and how its values go from the worst to the best."""
    if order not in (None, *_BETTER):
        raise BadInput(f"There is no order '{order}'.", f"Use one of {', '.join(_BETTER)}.")
    if isinstance(metric, str) and metric.lower() in BUILT_IN:
        own = ASCENDING if BUILT_IN[metric.lower()].perfect else DESCENDING
        if order not in (None, own):
            raise BadInput(f"The worst first, '{metric}' is {own}, not {order}.", "Leave the order out.")
        return metric.lower(), own
    find_metric(metric)
    if order is None:
        raise BadInput(
            "The order of the metric's values is not known.",
            "Give --order: ascending where the smallest value is the worst, else descending.",
        )
    return metric, order
