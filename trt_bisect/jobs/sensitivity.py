"""Sensitivity: what each layer costs alone in INT8, and what it gives back when it alone stays high."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.judge import DEFAULT_SHARE, Rule
from trt_bisect.analyzer.metrics import BUILT_IN, DEFAULT_THRESHOLDS
from trt_bisect.builder.base import DEFAULT_TIMEOUT, EMULATED, BuildOptions
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.evaluator.trial import Trial
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.options import BRANCH, FULL, MEMORY, RunOptions, SearchOptions, high_precision
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.jobs.workspace import working_in
from trt_bisect.model.cost import macs
from trt_bisect.model.network import Network, load_network
from trt_bisect.model.shapes import facts_for
from trt_bisect.precision import Precision, PrecisionPlan, all_but, int8_set, only
from trt_bisect.results.sensitivity import WAYS, SensitiveOp, Sensitivity
from trt_bisect.support.files import make_folder
from trt_bisect.support.progress import Progress, default_progress

if TYPE_CHECKING:
    pass


def sensitivity(
    model: str | Path | Network,
    calibration: Any = None,
    inputs: Any = None,
    *,
    dataset: Any = None,
    engine: str = "auto",
    typing: str = "auto",
    metric: str | Callable[..., Any] = "cosine",
    direction: str = "higher",
    precision: str = "fp32",
    outputs: Sequence[str] = (),
    samples: int | None = None,
    class_axis: int | None = None,
    calibrator: str = "entropy",
    percentile: float = 99.99,
    keep_mask_ranges: bool = False,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    memory: int = MEMORY,
    build_timeout: float | None = DEFAULT_TIMEOUT,
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> Sensitivity:
    """Each quantizable layer alone in INT8, by its weights, its activations and both, and alone in high precision.

    On ONNX Runtime each family of plans is one pass of the evaluator ``branch``. On NVIDIA engines a layer is rounded
    as a whole, so only ``both`` is there.

    Args:
        model: and the other arguments: as for ``run``.
        output: a folder for the journal, so that it can be stopped and goes on, and for the result.

    Raises:
        BadInput: something given cannot be used.
        EngineUnavailable: the engine cannot be used here.
        NothingMeasured: the FP32 network itself could not be run.
    """
    request = RunOptions(
        engine=engine,
        typing=typing,
        way=SearchOptions(BRANCH, FULL, memory),
        metric=metric,
        direction=direction,
        threshold=_anything_goes(metric, direction),
        share=DEFAULT_SHARE,
        outputs=tuple(outputs),
        samples=samples,
        class_axis=class_axis,
        calibrator=calibrator,
        percentile=percentile,
        keep_mask_ranges=keep_mask_ranges,
        options=BuildOptions(high=high_precision(precision), timeout=build_timeout),
    )
    folder = None if output is None else make_folder(Path(output))
    with working_in(folder, progress or default_progress()) as shown:
        network = model if isinstance(model, Network) else load_network(model, shapes)
        job = Preparation(request, network, folder, shown)
        with job.opened(calibration, inputs, dataset) as bench:
            found = measure_alone(bench, shown)
        if folder is not None:
            found.save(folder)
    return found


def _anything_goes(metric: str | Callable[..., Any], direction: str) -> float | None:
    """A threshold for metrics that have none of their own; nothing is judged by it here."""
    if metric in DEFAULT_THRESHOLDS:
        return None
    return 1e300 if metric in BUILT_IN or direction == "lower" else -1e300


def measure_alone(bench: Experiment, progress: Progress, chosen: Collection[int] | None = None) -> Sensitivity:
    """Each layer alone in INT8, on a bench.

    Args:
        bench: where it is measured.
        progress: shows it.
        chosen: only these layers, by index, and without their gains; every layer, with them, where it is None.
    """
    network, high = bench.network, bench.whole.high
    layers = len(network.layers)
    ways = WAYS if bench.builder.arithmetic == EMULATED else {"both": Precision.INT8}
    alone = {
        (k, way): only(layers, k, high, precision)
        for way, precision in ways.items()
        for k in (network.quantizable if chosen is None else chosen)
        if way == "both" or {rounding.is_weight for rounding in network.layers[k].roundings} == {True, False}
    }
    everything = int8_set(layers, network.quantizable, high)
    followers = set(range(layers)) - set(network.quantizable)
    restoring = network.quantizable if chosen is None else ()
    without = {k: all_but(layers, followers | {k}, high) for k in restoring}
    trials = _trials(bench, [*alone.values(), everything, *without.values()], progress)
    full = bench.rule.loss(trials[everything])
    cost = macs(network, facts_for(network, bench.feeds[0]))
    total = sum(cost.values()) or 1
    ops = []
    for (k, way), plan in alone.items():
        left = bench.rule.loss(trials[without[k]]) if way == "both" and k in without else None
        gain = None if full is None or left is None else full - left
        layer, trial = network.layers[k], trials[plan]
        loss = bench.rule.loss(trial)
        metrics = _worst_metrics(bench.rule, trial)
        ops.append(SensitiveOp(k, layer.name, way, layer.op_type, metrics, loss, gain, cost[k], cost[k] / total))
    ops.sort(key=lambda op: (-(op.loss if op.loss is not None else float("inf")), op.index))
    return Sensitivity(network.source, bench.rule.metric.name, bench.builder.arithmetic, full, tuple(ops))


def _trials(bench: Experiment, plans: Sequence[PrecisionPlan], progress: Progress) -> dict[PrecisionPlan, Trial]:
    title, evaluator = f"Measuring {len(plans)} plans", bench.evaluator
    if isinstance(evaluator, BranchEvaluator):
        progress.stage(title, evaluator.work(plans))
        return dict(zip(plans, evaluator.measure_all(plans, progress.step), strict=True))
    progress.stage(title, len(plans))
    trials = {}
    for plan in plans:
        progress.step(plan.key())
        trials[plan] = evaluator.measure(plan)
    return trials


def _worst_metrics(rule: Rule, trial: Trial) -> dict[str, float]:
    """The metrics of the output that decides."""
    judged = rule.judged(trial)
    return dict(judged[max(judged, key=lambda name: rule.output_loss(judged[name]))].values) if judged else {}
