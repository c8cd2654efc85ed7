"""The last stage of a run: the cause in each culprit, and remedies, measured on all inputs.

A remedy is another calibrator, a change of weights and biases, or culprits in FP16. A remedy for the whole network is
measured in full INT8 or, if that misses, in the cheapest recipe that it leads to; a remedy for the culprits of a cause
is measured in the recipe with these culprits in INT8.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

from trt_bisect.analyzer.blame import Evidence, LossAlone, advise
from trt_bisect.analyzer.compared import Compared, compare_tensors, compare_weight, rounded_weight
from trt_bisect.analyzer.origins import INPUT, Origin, activation_origins, bias_origins, both_observer, weight_origins
from trt_bisect.analyzer.overflow import overflow_advice
from trt_bisect.analyzer.structure.findings import Finding
from trt_bisect.answer.candidates import EQUALISED, ROUNDED, SMOOTHED, changed, of_network
from trt_bisect.answer.in_fp16 import with_units_in
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.recipe_search import cheaper_than
from trt_bisect.answer.result import Answer, setting_of, similarity_of, target_version
from trt_bisect.answer.search import holds_in_all_settings, make_space
from trt_bisect.answer.validation import Target
from trt_bisect.builder.base import EMULATED
from trt_bisect.calibration.bias_correction import correct_biases
from trt_bisect.calibration.cache import format_cache
from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.calibration.ranges import Ranges, keeping_unusable_high, with_scales_of
from trt_bisect.calibration.weight_rounding import with_weights_on_grid
from trt_bisect.commands.check import check
from trt_bisect.commands.compare import final_outputs_only
from trt_bisect.commands.losses import measure_alone
from trt_bisect.driver.search import Loss
from trt_bisect.driver.search_space import Kept, Space
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.evaluator.evaluators import SwitchEvaluator
from trt_bisect.model.cost import macs
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.observe import facts_for, groups_within
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import give_back_arena
from trt_bisect.options.concerns import EXPLAIN_FULL, EXPLAIN_REMEDIES, RunOptions
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.experiment import Experiment
from trt_bisect.report.advice import (
    BIAS_CORRECTION,
    CALIBRATOR,
    EQUALISATION,
    HIGH,
    ROUNDING,
    SMOOTHING,
    advice_on,
    by_cause,
    cause_of,
)
from trt_bisect.report.explanation import Channels, CulpritAdvice, ExplainedLayer, ExplainedTensor, Explanation, Tried
from trt_bisect.report.model import Report
from trt_bisect.support.machine import ThreadsIfLong, cores
from trt_bisect.support.memory import give_back_memory
from trt_bisect.support.progress import Progress
from trt_bisect.support.text import EXPLANATION, Note, listed, noted

# the subfolder of a run with the changed networks that help, and with calibration caches of mixed scales
REMEDIES = "remedies"
_HELPS = 0.8  # a changed network helps if at most this share of the loss is left


@dataclass(frozen=True)
class ChangedNetwork:
    """A network changed so that it loses less in INT8 at the same speed.

    In FP32 it computes the same as the user's network; with corrected biases, nearly the same.

    Attributes:
        name: a word for files, such as ``equalised``.
        remedy, words: kind of the change, and its text.
    """

    name: str
    remedy: str
    words: str
    plans: AnswerPlans


@dataclass
class Remedies:
    """Tries remedies against the loss of INT8, each judged on all inputs.

    Attributes:
        target: goal of the run: the similarity, or an accuracy, by which only the recipe and full INT8 are judged.
        header: first line of the calibration caches that are written.
        files: by path, the files of the remedies tried so far.
        notes: reasons why remedies could not be tried.
    """

    plans: AnswerPlans
    answer: Answer
    target: Target
    header: str
    files: dict[str, Network | bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def measured_before(self, culprits: tuple[str, ...], recipe: str) -> Iterator[Tried]:
        """Yields the remedies that the run has measured already: its recipe, with the text ``recipe``, as a remedy for
        the ``culprits``; and other calibrators.
        """
        answer, of_run, network = self.answer, self.answer.recipe, self.answer.experiment.network
        by_precision: dict[Precision, list[str]] = {}
        for layer in map(network.layer_named, culprits):
            high = Precision.FP16 if layer.dtype == "float16" else of_run.plan.precisions[layer.index]
            by_precision.setdefault(high, []).append(layer.name)
        loss = answer.experiment.rule.loss(answer.restored)
        for high, names in by_precision.items():
            if high in HIGH:
                tried = Tried(tuple(names), HIGH[high], recipe, None, None, False, own=True)
                if answer.by_accuracy:
                    tried = self._by_accuracy(tried, of_run.plan, answer.experiment.ranges)
                else:
                    tried = self._result(tried, loss)
                yield replace(tried, high=len(of_run.high), cost=of_run.cost)
        in_use = answer.experiment.ranges.digest()
        for row in answer.tried:
            if row.ranges.calibrator is None or row.ranges.digest() == in_use:
                continue
            tried = _by_calibrator(row.ranges.calibrator)
            kept = row.kept or frozenset()
            if answer.by_accuracy:
                yield self._by_accuracy(tried, self.plans.full, row.ranges)
            elif kept or row.meets:
                loss = self._loss(self.plans, of_run.space.plan(kept), row.ranges)
                tried = self._result(tried, loss, of_run.space, kept)
                yield replace(tried, confirmed=row.confirmed) if not kept else self._tested(tried, row.ranges, kept)
            else:
                yield replace(self._result(tried, row.loss), part=row.inputs < len(answer.inputs.told))

    def try_all(self, groups: Sequence[tuple[str, ...]]) -> Iterator[Tried]:
        """Tries the remedies that are not measured yet, for the whole network and for each group of culprits with one
        cause; yields the results.
        """
        answer, experiment, why_not = self.answer, self.answer.experiment, ""
        if experiment.network.has_pairs:
            why_not = "the scales are those of the network's own Q/DQ pairs"
        elif experiment.data is None:
            why_not = f"the scales ({experiment.ranges.origin}) do not come from given data"
        if why_not:
            self.notes.append(f"other calibrators and moves of weights and biases were not tried: {why_not}")
        self.plans.setup.progress.stage("Trying remedies", None)
        if not why_not:
            yield from self._by_other_calibrators()
            for culprits in groups:
                yield from self._by_own_ranges(culprits)
            yield from map(self._by_change, self._changed_networks())
        recipe = answer.recipe
        in_fp32 = experiment.whole.high is Precision.FP32 and not recipe.space.others
        is_known = all(Precision.FP16 in self.plans.costs[k] for k in recipe.high)
        if experiment.builder.arithmetic == EMULATED and in_fp32 and is_known:
            yield from map(self._by_fp16, groups)

    def _by_other_calibrators(self) -> Iterator[Tried]:
        space = self.answer.recipe.space
        for row in self.answer.tried[1:]:
            if row.ranges.calibrator is None or row.meets or row.kept is not None:
                continue
            if cheaper := self._cheaper(self.plans, space, row.ranges):
                tried = self._result(_by_calibrator(row.ranges.calibrator), cheaper[1], space, cheaper[0])
                yield self._tested(tried, row.ranges, cheaper[0])

    def _by_own_ranges(self, culprits: tuple[str, ...]) -> Iterator[Tried]:
        # culprits in INT8, with another calibrator's scales for the tensors that they read
        answer, space, ranges = self.answer, self.answer.recipe.space, self.answer.experiment.ranges
        units = self._units(culprits)
        layers = [answer.experiment.network.layer_named(name) for name in culprits]
        names = dict.fromkeys(pair.tensor for layer in layers for pair in layer.roundings if not pair.is_weight)
        tensors = [name for name in names if name in ranges.scales]
        for row in answer.tried if tensors else ():
            changed = with_scales_of(ranges, {name: row.ranges for name in tensors if name in row.ranges.scales})
            calibrator = row.ranges.calibrator
            if calibrator is None or changed.digest() == ranges.digest():
                continue
            what = f"{calibrator} for the inputs of {listed(culprits, 3)}"
            self.plans.setup.progress.step(what)
            tried, kept = Tried(culprits, CALIBRATOR, what, None, None, False, calibrator), answer.recipe.kept - units
            tried = self._result(tried, self._loss(self.plans, space.plan(kept), changed), space, kept)
            tried = self._tested(tried, changed, kept)
            if tried.meets:
                first_layers = [str(space.units[unit][0]) for unit in sorted(units)[:4]]
                name = "-".join([*first_layers, str(calibrator).replace(" ", "-")])
                tried = replace(tried, cache=self._cache(name, changed))
            yield tried

    def _by_fp16(self, culprits: tuple[str, ...]) -> Tried:
        recipe, experiment, units = self.answer.recipe, self.answer.experiment, self._units(culprits)
        trial = self.plans.whole(recipe.plan.keeping(recipe.space.layers(units), Precision.FP16), experiment)
        what = f"FP16 instead of FP32 for {listed(culprits, 3)}"
        tried = Tried(culprits, HIGH[Precision.FP16], what, None, None, False)
        tried = self._result(tried, experiment.rule.loss(trial))
        cost = with_units_in(recipe.space, units, Precision.FP16, self.plans.costs).cost(recipe.kept)
        return replace(tried, high=len(recipe.high), cost=cost)

    def _changed_networks(self) -> Iterator[ChangedNetwork]:
        user = self.plans
        # networks that the search tried are measured already
        equalised = changed(user, EQUALISED)
        if isinstance(equalised, str):
            self._not_tried("equalisation", equalised)
        else:
            yield ChangedNetwork("equalised", EQUALISATION, "cross-layer equalisation", equalised)
        yield from self._corrected("corrected", "bias correction", user)
        if not isinstance(equalised, str):
            words = "cross-layer equalisation, then bias correction,"
            yield from self._corrected("equalised-corrected", words, equalised)
        smoothed, words = changed(user, SMOOTHED), "weights rounded for the outputs"
        if isinstance(smoothed, str):
            self._not_tried("channel smoothing", smoothed)
        else:
            yield ChangedNetwork("smoothed", SMOOTHING, "smoothed channels", smoothed)
            user, words = smoothed, f"smoothed channels, then {words}"
        rounded = changed(user, ROUNDED)
        if not isinstance(rounded, str):
            yield ChangedNetwork("rounded", ROUNDING, words, rounded)

    def _corrected(self, name: str, words: str, plans: AnswerPlans) -> Iterator[ChangedNetwork]:
        experiment = plans.experiment
        assert experiment.data is not None
        try:
            ranges, memory = self._like_the_runs(plans), plans.setup.options.memory_bytes
            network, _ = keeping_unusable_high(experiment.network, ranges)
            plan = network.full(experiment.whole.high)
            corrected, errors = correct_biases(network, ranges.scales, plan, experiment.data, memory=memory)
            if errors:
                yield ChangedNetwork(name, BIAS_CORRECTION, words, of_network(plans, corrected))
            else:
                self._not_tried("bias correction", "no layer in INT8 has a bias")
        except (BadInput, TrialFailed) as error:
            self._not_tried("bias correction", first_line(error))

    def _like_the_runs(self, plans: AnswerPlans) -> Ranges:
        chosen, ranges = self.answer.experiment.ranges, plans.experiment.ranges
        if plans is self.plans:
            return chosen
        if chosen.calibrator in (None, ranges.calibrator):
            return ranges
        return next((row for row in plans.setup.data.candidates if row.calibrator == chosen.calibrator), ranges)

    def _not_tried(self, what: str, why: str) -> None:
        note = f"{what} was not tried: {why}"
        if note not in self.notes:
            self.notes.append(note)

    def _by_change(self, moved: ChangedNetwork) -> Tried:
        plans, rule, kept = moved.plans, self.answer.experiment.rule, frozenset[int]()
        self.plans.setup.progress.step(moved.words)
        plans.judged = plans.judged or list(self.plans.judged)
        ranges, space = self._like_the_runs(plans), make_space(plans)
        loss = self._loss(plans, plans.full, ranges)
        tried = self._result(Tried((), moved.remedy, moved.words, None, None, False), loss)
        if not tried.meets and (cheaper := self._cheaper(plans, space, ranges)):
            kept = cheaper[0]
            tried = self._result(tried, cheaper[1], space, kept)
        tried = self._tested(tried, ranges, kept, plans, space)
        plans.close()
        before = rule.loss(self.answer.full)
        if not tried.meets and (before is None or loss > _HELPS * before):
            return tried
        path, network = f"{REMEDIES}/{moved.name}.onnx", plans.experiment.network
        self.files[path] = with_weights_on_grid(network, space.plan(kept).lowered)
        return replace(tried, network=path, cache=self._cache(moved.name, ranges))

    def _cache(self, name: str, ranges: Ranges) -> str:
        path = f"{REMEDIES}/{name}.cache"
        self.files[path] = format_cache(ranges.scales, self.header).encode()
        return path

    def _cheaper(self, plans: AnswerPlans, space: Space, ranges: Ranges) -> tuple[Kept, float] | None:
        if not plans.switches or not self.answer.meets:
            return None
        recipe = cheaper_than(self.answer.recipe.cost, plans, space, ranges)
        if recipe is None:
            return None
        loss = self._loss(plans, recipe.plan, ranges)
        return (recipe.kept, loss) if loss <= space.budget else None

    def _by_accuracy(self, tried: Tried, plan: PrecisionPlan, ranges: Ranges) -> Tried:
        (loss,) = self.target.losses([plan], ranges)
        meets = loss is not None and loss <= self.target.budget
        return replace(tried, similarity=self.target.figure(plan, loss, ranges), loss=loss, meets=meets)

    def _units(self, culprits: tuple[str, ...]) -> frozenset[int]:
        network, recipe = self.answer.experiment.network, self.answer.recipe
        indices = {network.layer_named(name).index for name in culprits}
        return frozenset(unit for unit in recipe.kept if indices & set(recipe.space.units[unit]))

    @staticmethod
    def _loss(plans: AnswerPlans, plan: PrecisionPlan, ranges: Ranges) -> float:
        loss = plans.largest_on_all(plan, ranges)
        return max(loss, plans.loss_on_held_out(plan, ranges)) if loss <= plans.experiment.rule.budget else loss

    def _tested(
        self,
        tried: Tried,
        ranges: Ranges,
        kept: Kept,
        plans: AnswerPlans | None = None,
        space: Space | None = None,
    ) -> Tried:
        # ``confirmed``: holds in all settings without a doubt; only a remedy cheaper than the recipe is tested
        recipe = self.answer.recipe
        if not tried.meets or (self.answer.meets and tried.cost >= recipe.cost):
            return tried
        plan = (space or recipe.space).plan(kept)
        holds, is_doubted = holds_in_all_settings(plans or self.plans, plan, ranges)
        return replace(tried, confirmed=holds and not is_doubted)

    def _result(self, tried: Tried, loss: Loss, space: Space | None = None, kept: Kept = frozenset()) -> Tried:
        rule = self.answer.experiment.rule
        if space is not None:
            layers, network = sorted(space.layers(kept)), self.answer.experiment.network
            names = tuple(network.layers[k].name for k in layers)
            precisions = {str(space.plan(kept).precisions[k]) for k in layers}
            precision = precisions.pop() if len(precisions) == 1 else ""
            tried = replace(tried, high=len(layers), layers=names, cost=space.cost(kept), precision=precision)
        if loss is None or not math.isfinite(loss):
            return replace(tried, similarity=None, loss=None, meets=False)
        return replace(tried, similarity=similarity_of(rule, loss), loss=loss, meets=loss <= rule.budget)


def _by_calibrator(calibrator: Calibrator) -> Tried:
    return Tried((), CALIBRATOR, str(calibrator), None, None, False, calibrator)


_Tensor = tuple[Compared, ExplainedTensor]


def explained(
    plans: AnswerPlans, answer: Answer, target: Target, report: Report, known: Report, options: RunOptions
) -> dict[str, Any]:
    """Explains the culprits of ``report``; returns the fields to change in ``known``, the report without the answer, by
    name. Empty if ``report`` has no verdict; an error becomes a note among the fields.
    """
    if report.exit_code not in (0, 1):
        return {}
    began, notes = perf_counter(), list(known.notes)
    explanation: Explanation | None = None
    files: Mapping[str, Network | bytes] = {}
    try:
        explanation, files, notes_on_it = _explanation(plans, answer, target, report, options)
        notes += noted(EXPLANATION, notes_on_it)
    except Exception as error:
        logging.getLogger(__name__).debug("no explanation", exc_info=True)
        text = f"the run could not be explained: {type(error).__name__}: {first_line(error)}"
        notes.append(Note(EXPLANATION, text))
    return {
        "explanation": explanation,
        "remedy_files": files,
        "notes": tuple(notes),
        "seconds": replace(known.seconds, explain=perf_counter() - began),
    }


def _explanation(
    plans: AnswerPlans, answer: Answer, target: Target, report: Report, options: RunOptions
) -> tuple[Explanation, Mapping[str, Network | bytes], list[str]]:
    setup, experiment = plans.setup, answer.experiment
    network, ranges = experiment.network, experiment.ranges
    culprits = [network.layer_named(name) for name in report.culprits]
    give_back_arena()
    tensors, weights = _compared(experiment, setup.progress, options.memory_bytes)
    give_back_arena()
    low = network.low.title
    findings = advise((compared for compared, _ in tensors), (compared for compared, _ in weights), low=low)
    findings = (*overflow_advice(network, report.overflows), *findings)
    alone = _alone(experiment, culprits, options.explain == EXPLAIN_FULL, setup.progress)
    notes = [] if experiment.builder.arithmetic == EMULATED else [final_outputs_only(experiment.builder.engine)]
    structure: tuple[Finding, ...] = ()
    try:
        structure = check(network.source).findings if culprits and Path(network.source).is_file() else ()
    except Exception as error:
        notes.append(f"the structure of '{network.source}' could not be checked: {first_line(error)}")
    biases = [_weight(network, origin) for origin in bias_origins(network)]
    layers = _layers(experiment, tensors, weights, biases, alone)
    rows, budget = {row.name: row for row in report.layers}, experiment.rule.budget
    evidence = [
        Evidence(layer, findings, structure, alone.get(layer.name), rows[layer.name].loss, budget, low)
        for layer in culprits
    ]
    groups = by_cause(evidence)
    remedies = Remedies(plans, answer, target, target_version(options, experiment.builder).header)
    recipe = "the recipe without changes" if report.answer and report.answer.changes else "this run's recipe"
    measured = list(remedies.measured_before(report.culprits, recipe)) if culprits or report.exit_code else []
    if options.explain == EXPLAIN_REMEDIES and report.exit_code:
        measured += remedies.try_all([tuple(facts.layer.name for facts in group) for group in groups.values()])
    tried = tuple({(attempt.culprits, attempt.what): attempt for attempt in measured}.values())
    setting = setting_of(experiment, options, report)
    by_name = {tensor.tensor: tensor for _, tensor in tensors}
    advice: dict[str, CulpritAdvice] = {}
    for layer, facts in zip(culprits, evidence, strict=True):
        around = [by_name[name] for name in (*layer.inputs, *layer.outputs) if name in by_name]
        advice[layer.name] = advice_on(facts, setting, tried, layers.get(layer.name), around)
    whole = ((Precision.FP16, answer.in_fp16), (Precision.FP32, answer.in_fp32))
    others = [HIGH[high] for high, figures in whole if figures is not None]
    explanation = Explanation(
        samples=len(experiment.feeds),
        layers=layers,
        inputs=tuple(tensor for compared, tensor in tensors if compared.origin.kind == INPUT),
        findings=findings,
        advice=tuple(advice.values()),
        tried=tried,
        causes=tuple(cause_of(cause, group, advice, tried, ranges.origin, others) for cause, group in groups.items()),
    )
    return explanation, remedies.files, [*notes, *remedies.notes]


def _compared(experiment: Experiment, progress: Progress, memory: int) -> tuple[list[_Tensor], list[_Tensor]]:
    network = experiment.network
    plan = network.full(experiment.whole.high)
    writer = PlanWriter(network, experiment.ranges.scales, GraphTarget.ONNXRUNTIME)
    origins = activation_origins(network, writer, plan.lowered)
    groups = groups_within(network, origins, experiment.feeds[0], memory, runs=2)
    constants = weight_origins(network, writer, plan.lowered)
    progress.stage("Comparing tensors", len(constants) + len(experiment.feeds) * len(groups))
    weights: list[_Tensor] = []
    with ThreadsIfLong(cores()) as pool:
        for weight in pool.map(lambda origin: _weight(network, origin), constants):
            weights.append(weight)
            progress.step("weights")
    give_back_memory()
    on_both = both_observer(writer, plan, origins, groups)
    runs = chain.from_iterable(on_both(feeds, position) for position, feeds in enumerate(experiment.feeds))
    compared = compare_tensors(runs, origins, lambda: progress.step("FP32 and INT8"))
    return [(tensor, ExplainedTensor.of(tensor)) for tensor in compared], weights


def _weight(network: Network, origin: Origin) -> _Tensor:
    values = network.constant(origin.tensor)
    compared = compare_weight(values, rounded_weight(values, origin), origin)
    return compared, ExplainedTensor.of(compared, Channels.of(values, compared))


def _alone(experiment: Experiment, culprits: Sequence[Layer], full: bool, progress: Progress) -> dict[str, LossAlone]:
    # an engine that is not emulated rounds a layer as a whole: the sides of culprits cannot be told apart
    if not full and (not culprits or experiment.builder.arithmetic != EMULATED):
        return {}
    measured = measure_alone(experiment, progress, None if full else [layer.index for layer in culprits])
    if isinstance(experiment.evaluator, SwitchEvaluator):
        experiment.evaluator.close()
    ways: dict[str, dict[str, float | None]] = {}
    for op in measured.ops:
        losses = ways.setdefault(op.op_name, {})
        losses[op.sensitive_type] = op.loss
        if op.alone is not None:
            losses["alone"] = op.alone
    return {name: LossAlone(**losses) for name, losses in ways.items()}


def _layers(
    experiment: Experiment,
    tensors: Sequence[_Tensor],
    weights: Sequence[_Tensor],
    biases: Sequence[_Tensor],
    alone: Mapping[str, LossAlone],
) -> dict[str, ExplainedLayer]:
    network = experiment.network
    cost = macs(network, facts_for(network, experiment.feeds[0]))
    total = sum(cost.values()) or 1
    by_layer: dict[str, dict[str, list[ExplainedTensor]]] = {}
    for role, rows in (("outputs", tensors), ("weights", weights), ("biases", biases)):
        for compared, tensor in rows:
            by_layer.setdefault(compared.origin.layer, {}).setdefault(role, []).append(tensor)
    return {
        layer.name: ExplainedLayer(
            macs=cost[layer.index],
            share=cost[layer.index] / total,
            sensitivity=alone.get(layer.name),
            **{role: tuple(by_layer[layer.name].get(role, ())) for role in ("outputs", "weights", "biases")},
        )
        for layer in network.layers
        if not {"outputs", "weights"}.isdisjoint(by_layer.get(layer.name, ()))
    }
