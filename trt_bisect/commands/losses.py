from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from trt_bisect.analyzer.fp32_itself import started_at
from trt_bisect.analyzer.judge import DEFAULT_SHARE, Rule, refuse_no_loss
from trt_bisect.analyzer.metrics import BUILT_IN, DEFAULT_THRESHOLDS, default_threshold, find_metric
from trt_bisect.analyzer.worst import WorstInputs, distribution_of, verdict
from trt_bisect.builder.base import EMULATED, MEASURED, Outputs
from trt_bisect.builder.engines import AUTO, ONNXRUNTIME, choose_engine
from trt_bisect.builder.onnxruntime import OnnxRuntimeEngine
from trt_bisect.calibration.cache import is_data
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import Dataset, open_dataset
from trt_bisect.errors import BadInput, TrialFailed
from trt_bisect.evaluator.trial import Trial, TrialKey
from trt_bisect.evaluator.workers import tried
from trt_bisect.model.cost import macs
from trt_bisect.model.network import GivenModel, Network
from trt_bisect.model.observe import facts_for
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import make_session
from trt_bisect.options.commands import SensitivityOptions, WorstOptions
from trt_bisect.options.concerns import INT16, MIXED, FixedLayerOptions
from trt_bisect.options.declare import shared, takes
from trt_bisect.precision import Precision, PrecisionPlan, low_of
from trt_bisect.preparation.asked_network import (
    SENSITIVITY_FILE,
    TOP,
    as_emulated,
    asked_network,
    fixed_notes,
    refuse_emulated_only,
)
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.preparation.judgement import Judgement, outputs_of
from trt_bisect.preparation.preparation import (
    find_worst,
    prepared,
    refuse_unfit_outputs,
    say_engine,
    usable,
    worst_between,
)
from trt_bisect.preparation.two_networks import Planned, refuse_with_other
from trt_bisect.preparation.workspace import working_in
from trt_bisect.report.losses import WAYS, SensitiveOp, Sensitivity, WorstReport
from trt_bisect.support.files import output_folder
from trt_bisect.support.progress import PrefixedProgress, Progress, default_progress
from trt_bisect.support.text import JUDGED_BY, counted, noted

_BOTH = "both"
_NAMED = 4


@takes(SensitivityOptions)
def sensitivity(model: GivenModel, options: SensitivityOptions) -> Sensitivity:
    """Measures for each layer the loss if only this layer is in low precision, and the part of full INT8's loss that is
    gone if only this layer is in high precision.

    In INT8 a layer has up to three rows: its weights, its activations, or both rounded. On NVIDIA engines, and in other
    low precisions, there is only ``both``. With ``unquantized="int8"`` each unquantized layer has a row too: the loss
    if only its outputs are rounded.

    Args:
        model: an FP32 ONNX file of opset 9 or later, or a loaded network.
        options: fields of ``SensitivityOptions``, as keywords.

    Raises:
        BadInput: an argument cannot be used.
        EngineUnavailable: the engine cannot be used here.
        NothingMeasured: the FP32 network itself could not be run.
    """
    folder = options.folder
    with working_in(folder, options.progress or default_progress()) as shown:
        network = as_emulated(asked_network(options, model, options.shapes), options.engine)
        setup = Setup(options, network, folder, shown, judgement=_AnythingGoes)
        with prepared(setup) as experiment:
            measured = measure_alone(experiment, shown)
        if folder is not None:
            measured.save(folder)
    return measured


_Given = TypeVar("_Given", bound=FixedLayerOptions)


def with_most_sensitive(model: GivenModel, options: _Given) -> _Given:
    """Returns the options with the names of the most sensitive layers in place of patterns such as ``top:3``; measures
    the sensitivity if necessary.

    With an output folder the options stay as they are, and the sensitivity is saved in the folder, if it is not there
    yet: ``run`` reads it there.
    """
    names = ("high", "keep_low", "only")
    patterns = [pattern for name in names for pattern in getattr(options, name)]
    folder = getattr(options, "output", None)
    is_measured = folder is not None and (Path(folder) / SENSITIVITY_FILE).is_file()
    counts = [pattern.removeprefix(TOP) for pattern in patterns if pattern.startswith(TOP)]
    if is_measured or not counts or not all(map(str.isdecimal, counts)):
        return options
    given = shared(options, SensitivityOptions) | dict.fromkeys(names, ())
    if given.get("precision") in (MIXED, INT16):  # of ``run`` alone: nothing is high here
        del given["precision"]
    if given.get("progress") is not None:
        given["progress"] = PrefixedProgress(given["progress"], "top")
    measured: Sensitivity = sensitivity.job(model, SensitivityOptions(**given))
    most = [op.op_name for op in measured.sorted_by("loss", way=_BOTH)]
    if folder is not None:
        return options

    def named(pattern: str) -> list[str]:
        count = pattern.removeprefix(TOP)
        return most[: int(count)] if pattern.startswith(TOP) and count.isdecimal() and int(count) else [pattern]

    changed: dict[str, Any] = {}
    for name in names:
        changed[name] = tuple(each for pattern in getattr(options, name) for each in named(pattern))
    return replace(options, **changed)


class _AnythingGoes(Judgement):
    @property
    def threshold(self) -> float | None:
        metric = self.options.metric
        if metric in DEFAULT_THRESHOLDS:
            return None
        return 1e300 if metric in BUILT_IN or not self.asked_metric.higher else -1e300


def measure_alone(experiment: Experiment, progress: Progress, chosen: Collection[int] | None = None) -> Sensitivity:
    """Returns for each layer the loss if only this layer is in INT8, and the part of full INT8's loss that is gone if
    only this layer is in high precision.

    Args:
        chosen: indices of the layers to measure, only in INT8; None: all layers, both ways.
    """
    network, rule = experiment.network, experiment.rule
    high, without, layers = experiment.whole.high, dict[int, PrecisionPlan](), chosen
    low = network.full(high)
    if layers is None:
        layers, without = network.movable, {k: low.keeping({k}, high) for k in network.movable}
    plans = _alone(experiment, layers)
    trials = _trials(experiment, [*plans.values(), low, *without.values()], progress)
    full = rule.loss(trials[low])
    cost = macs(network, facts_for(network, experiment.feeds[0]))
    total = sum(cost.values()) or 1
    alone: list[tuple[int, str, Trial, Trial | None]] = []
    for (k, part), plan in plans.items():
        others = trials[without[k]] if k in without and part == _BOTH else None
        alone.append((k, part, trials[plan], others))
    if chosen is None and "unquantized" in experiment.parts:
        alone += [(k, _BOTH, trial, others) for k, trial, others in _unquantized(experiment, progress)]
    ops = []
    for k, part, trial, others in alone:
        layer, share, judged = network.layers[k], cost[k] / total, rule.judged(trial)
        gain = None if others is None else _difference(full, rule.loss(others))
        worst = rule.worst_of(judged)
        ops.append(
            SensitiveOp(
                index=k,
                op_name=layer.name,
                sensitive_type=part,
                op_type=layer.op_type,
                module=layer.module,
                code=layer.code,
                loss=rule.loss(trial),
                alone=gain,
                worth=None if gain is None or not share else gain / share,
                macs=cost[k],
                share=share,
                metrics=dict(judged[worst].values) if judged else {},
            )
        )
    ops.sort(key=lambda op: (-(op.loss if op.loss is not None else float("inf")), op.index))
    arithmetic = experiment.builder.arithmetic
    return Sensitivity(network.source, rule.metric.name, arithmetic, full, tuple(ops), str(network.low.precision))


def _alone(experiment: Experiment, chosen: Collection[int]) -> dict[tuple[int, str], PrecisionPlan]:
    network, low = experiment.network, experiment.network.low.precision
    nothing = network.plan((), network.base or experiment.whole.high)
    sides = experiment.builder.arithmetic == EMULATED and low is Precision.INT8
    return {
        (k, part): nothing.keeping({k}, precision)
        for part, precision in (WAYS if sides else {_BOTH: low}).items()
        for k in chosen
        if part == _BOTH or len({rounding.is_weight for rounding in network.layers[k].roundings}) == 2
    }


def _unquantized(experiment: Experiment, progress: Progress) -> Iterator[tuple[int, Trial, Trial]]:
    # the index of each unquantized layer whose outputs have a scale, the trial in which only they are rounded, and the
    # trial of full INT8 in which all others are
    network, scales = experiment.network, experiment.ranges.scales
    high = experiment.whole.high
    nothing, full = network.plan((), network.base or high), network.full(high)
    every = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME, unquantized_round=True).followed(full.lowered)
    floats = network.types.float32 - {spec.name for spec in network.outputs}
    sets = {layer.index: frozenset(layer.outputs) & floats & scales.keys() for layer in network.layers if layer.follows}
    progress.stage("Measuring unquantized layers", sum(map(bool, sets.values())))
    for k, tensors in sets.items():
        if tensors:
            progress.step(network.layers[k].name)
            yield k, _holding(experiment, nothing, tensors), _holding(experiment, full, every - tensors)


def _holding(experiment: Experiment, plan: PrecisionPlan, tensors: frozenset[str]) -> Trial:
    rounded = hashlib.sha256("\n".join(sorted(tensors)).encode()).hexdigest()[:16]
    key = TrialKey(plan.key(), f"unquantized {rounded}").text
    stored = experiment.store.find(key)
    if stored is not None:
        return stored
    writer = PlanWriter(experiment.network, experiment.ranges.scales, GraphTarget.ONNXRUNTIME, held=tensors)
    trial, outputs = tried(
        key,
        lambda: OnnxRuntimeEngine(make_session(writer.write(plan)), {}),
        lambda engine: [engine.infer(sample) for sample in experiment.feeds],
    )
    if outputs is not None:
        trial = replace(trial, inferences=len(outputs)).judged(experiment.compare(outputs))
    experiment.store.keep(trial)
    return trial


def _difference(full: float | None, without: float | None) -> float | None:
    return None if full is None or without is None or math.isinf(without) else full - without


def _trials(experiment: Experiment, plans: Sequence[PrecisionPlan], progress: Progress) -> dict[PrecisionPlan, Trial]:
    title, evaluator = f"Measuring {len(plans)} plans", experiment.evaluator
    progress.stage(title, len(plans))
    trials = {}
    for plan in plans:
        progress.step(f"{counted(len(plan.lowered), 'layer')} low")
        trials[plan] = evaluator.measure(plan)
    return trials


ASCENDING, DESCENDING = "ascending", "descending"
_BEHIND: dict[bool, Callable[[float, float], float]] = {
    True: lambda value, perfect: perfect - value,
    False: lambda value, perfect: value - perfect,
}


@takes(WorstOptions)
def worst(model: GivenModel, options: WorstOptions) -> WorstReport:
    """Finds the inputs on which low precision and FP32 differ most, and the distribution of the difference over the
    data.

    With ``other``, two networks are compared instead, both unchanged, on ONNX Runtime without calibration. The data set
    may be any iterable of feeds, also an endless one if ``steps`` is given. It is read once; about ``keep`` samples are
    in memory.

    Args:
        model: an ONNX file of opset 9 or later, or a loaded network.
        options: fields of ``WorstOptions``, as keywords.

    Raises:
        BadInput: an argument cannot be used.
        EngineUnavailable: the engine cannot be used here.
    """
    if options.threshold is not None and not math.isfinite(float(options.threshold)):
        raise BadInput(f"The threshold {options.threshold} is not a number.", "Give the worst acceptable value.")
    if isinstance(options.metric, str) and options.metric.lower() in BUILT_IN:
        options = replace(options, metric=options.metric.lower())
    find_metric(options.metric)  # refuses before anything is read
    options = with_most_sensitive(model, options)
    if options.other is not None:
        refuse_with_other(options)
    folder = options.folder
    with output_folder(folder), closing(options.progress or default_progress()) as shown:
        network = as_emulated(asked_network(options, model, options.shapes), options.engine)
        setup = Setup(options, network, None, shown, _WorstJudgement)
        report = _search(setup, options) if options.other is None else _search_two(setup, options)
        if folder is not None:
            report.save(folder)
    return report


def _search(setup: Setup, options: WorstOptions) -> WorstReport:
    refuse_unfit_outputs(setup)
    engine = choose_engine(options.engine)
    refuse_emulated_only(setup.read, engine)
    network, ranges, source = _ranges_and_samples(setup, engine, options)
    say_engine(setup, engine)
    source = source if options.steps is None else source.first(options.steps)
    setup.progress.stage("Searching for the worst inputs", source.length)
    builder = setup.builder_for(network, engine, ranges, source)
    result = find_worst(setup, network, builder, source, options.keep, keep=True)
    return _reported(setup, network, source, result, engine, builder.typing)


def _search_two(setup: Setup, options: WorstOptions) -> WorstReport:
    network, data = setup.read, options.saved_for
    if options.engine not in (AUTO, ONNXRUNTIME):
        raise BadInput(f"Two networks run on ONNX Runtime, not on {options.engine}.", "Leave out --engine.")
    if not is_data(data):
        raise BadInput("There is no data set to search.", "Give --dataset.")
    first = Planned.as_in_file(network)
    texts: list[str] = []
    second = outputs_of(options.other, network, options, texts.extend)
    source = open_dataset(data, network.inputs, once=True, pictures=options.preprocessing())
    source = source if options.steps is None else source.first(options.steps)
    setup.progress.stage("Searching for the worst inputs", source.length)
    engine = OnnxRuntimeEngine(make_session(first.writer.write(first.plan)), {})
    try:
        result = worst_between(setup, engine, second, source, options.keep, keep=True)
    except TrialFailed as failure:
        raise BadInput(f"'{network.source}' does not run: {failure.message}", "Run it alone to see why.") from failure
    setup.notes += noted(JUDGED_BY, texts)
    return _reported(setup, network, source, result, ONNXRUNTIME, "strong", second.source)


def _reported(
    setup: Setup, network: Network, source: Dataset, result: WorstInputs, engine: str, typing: str, other: str = ""
) -> WorstReport:
    has_threshold, low = math.isfinite(result.rule.threshold), network.low.precision
    allowed = result.rule.budget if has_threshold else None
    distribution = distribution_of(result.similarities, result.losses, allowed, (*result.faint, *result.broken))
    return WorstReport(
        model=network.source,
        engine=engine,
        typing=typing,
        arithmetic=EMULATED if engine == ONNXRUNTIME else MEASURED,
        metric=result.rule.metric.name,
        order=ASCENDING if setup.judgement.asked_metric.higher else DESCENDING,
        threshold=result.rule.threshold if has_threshold else None,
        allowed=allowed,
        high=tuple(layer.name for layer in network.layers if layer.fixed and low_of(layer.fixed) is not low),
        source=source.source,
        values=_finite(result.similarities),
        losses=_finite(result.losses),
        faint=result.faint,
        broken=result.broken,
        data=_on_broken(setup, network, result),
        places=result.places,
        stopped=result.stopped,
        distribution=distribution,
        verdict=verdict(distribution),
        notes=(*fixed_notes(network), *(note.text for note in setup.notes)),
        low=str(low),
        other=other,
    ).holding(result.inputs)


def _finite(figures: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(figure if math.isfinite(figure) else None for figure in figures)


def _on_broken(setup: Setup, network: Network, result: WorstInputs) -> str:
    if result.first_broken is None:
        return ""
    counting = set(range(len(result.losses))) - set(result.broken)
    good = result.inputs[:1] if result.places[0] in counting else ()
    where, _ = started_at(network, result.first_broken, good, setup.options.memory_bytes)
    of_all = f"{len(result.broken)} of {counted(len(result.losses), 'sample')}"
    which = ", ".join(map(str, result.broken[:_NAMED]))
    if len(result.broken) > _NAMED:
        which += ", ..."
    return (
        f"FP32 itself gives NaN or infinite values on {of_all} (number {which}){where}. They do not count: leave them "
        "out, or mend the layer."
    )


def _ranges_and_samples(setup: Setup, engine: str, options: WorstOptions) -> tuple[Network, Ranges, Dataset]:
    dataset, read = options.dataset, setup.read
    if engine != ONNXRUNTIME and not read.is_static and isinstance(dataset, Iterator):
        problem = f"{engine} must know the shapes of all samples first, and an iterator gives them only once."
        raise BadInput(problem, "Fix the shapes, or give a list, or a function that makes the iterator.")
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
        metric = self.metric(outputs, reference)
        if metric.code:
            metric = replace(metric, loss_of=_BEHIND[metric.higher])
        usual = default_threshold(metric.name, self._low) or math.nan
        threshold = usual if self.options.threshold is None else float(self.options.threshold)
        rule = Rule(metric, threshold, DEFAULT_SHARE, self.entries(outputs))
        refuse_no_loss(rule)
        return rule
