"""Given and held-out inputs with FP32's outputs, and measurements of plans on them with any ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, nan
from typing import Any

import numpy as np

from trt_bisect.analyzer.doubts import constant_outputs
from trt_bisect.analyzer.fp32_itself import data_warnings, not_finite_warning
from trt_bisect.analyzer.judge import Comparer, Rule, judged_outputs
from trt_bisect.analyzer.metrics import AGREEMENT, BUILT_IN, EQUAL
from trt_bisect.analyzer.slices import output_of
from trt_bisect.analyzer.tasks.task import FOUND, ITEMS, NEARBY, finds_nothing
from trt_bisect.builder.base import Builder, Engine, Outputs, precisions_in
from trt_bisect.builder.pipeline import AllPlans, EmulatedBuilder
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import digest_of_feeds
from trt_bisect.data.feeds import Feeds, Spill
from trt_bisect.driver.search import Loss
from trt_bisect.driver.search_space import are_many
from trt_bisect.errors import BadInput, TrialFailed
from trt_bisect.evaluator.each_input import EachInput, GivenInputs, Pools
from trt_bisect.evaluator.inferences import (
    SHARE_KEPT,
    InputLoss,
    Judged,
    Runner,
    SessionEngine,
    SwitchRunner,
    WholeRunner,
    switch_session,
)
from trt_bisect.evaluator.trial import MEASURED, OutputFigures, Trial, TrialKey
from trt_bisect.evaluator.workers import tried
from trt_bisect.model.cost import Costs
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.observe import facts_for
from trt_bisect.model.pieces import Boundaries
from trt_bisect.model.session import give_back_arena
from trt_bisect.options.concerns import MIXED, RunOptions
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.support.machine import cores
from trt_bisect.support.memory import give_back_memory
from trt_bisect.support.text import DATA, OUTPUTS, Note, counted, noted

_JOIN_AT_ONCE = 8  # the most inputs that join the judged inputs at a time
_COPIES = 2  # an inference on the session of all plans holds a tensor and its rounded copy
# Shares by which all scales are moved, up and down. The first moves only borderline values to another INT8 level; the
# second moves as many values as another FP16 arithmetic does, whose results differ in the last bit.
NUDGE, HALF_NUDGE = 2e-5, 2.0**-11
_VARYING = 32  # the number of inputs over which the search measures the variation of the outputs
# An input that loses more than this share of the budget is near it: another optimisation level of the kernels moved the
# loss of an input by at most 53 %.
_NEAR_BUDGET = 0.5


SQNR = BUILT_IN["sqnr"]


@dataclass
class AnswerPlans:
    """Measures plans on the given inputs, with the ranges of any calibrator; each plan is measured once.

    Attributes:
        cost_of: returns the cost of a whole plan; None if it is the sum over its layers.
        judged: indices of the inputs that the search runs; those on which a recipe misses are added.
        varying: true once a plan missed only by the variation of its outputs over the inputs; the search then judges
            that variation too.
        allowed: number of inferences that the search may take; infinite without a limit.
        changes: changes that made this network from the user's, in words.
        session: the ONNX Runtime session that runs all plans; None if an engine is built for each plan.
        changed: by change (``equalised``, ``smoothed`` or ``rounded``), the ``AnswerPlans`` for the network with it
            added, or the reason why there are none.
    """

    setup: Setup
    options: RunOptions
    experiment: Experiment
    inputs: AnswerInputs
    costs: Costs
    judged: list[int] = field(default_factory=list)
    varying: bool = False
    cost_of: Callable[[PrecisionPlan], float] | None = None
    allowed: float = field(default=inf, init=False)
    changes: tuple[str, ...] = field(default=(), init=False)
    changed: dict[str, AnswerPlans | str] = field(default_factory=dict, init=False)
    session: AllPlans | None = field(default=None, init=False)
    _by_ranges: dict[str, EachInput] = field(default_factory=dict)
    _comparisons: dict[str, Comparer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A recipe may have layers in FP16. The session has that from the start: another graph could sum otherwise.
        takes_fp16 = self.options.precision in (None, MIXED) and self.experiment.network.base_type is None
        more = [Precision.FP16] if takes_fp16 else []
        self.session = switch_session(self.experiment.builder, self._facts, self._memory // SHARE_KEPT, more)
        self._compare = self.experiment.comparison_with(self.inputs.given.references, deciding=True)

    @property
    def switches(self) -> bool:
        """True if one ONNX Runtime session runs all plans."""
        return self.session is not None

    def cost(self, plan: PrecisionPlan) -> float:
        """Returns a plan's cost, a share of full INT8's speedup."""
        if self.cost_of is not None:
            return self.cost_of(plan)
        return sum(by.get(plan.precisions[k], 0.0) for k, by in self.costs.items())

    @property
    def taken(self) -> int:
        """The number of inferences that the search has taken so far."""
        return sum(evaluator.taken for evaluator in self._by_ranges.values())

    def left(self, reserved: float = 0.0) -> float:
        """Returns the number of inferences left, less the share ``reserved`` of those allowed; infinite without a
        limit.
        """
        return self.allowed if self.allowed == inf else self.allowed * (1.0 - reserved) - self.taken

    @cached_property
    def held_out(self) -> GivenInputs | None:
        """The held-out inputs; None without any."""
        return held_out_inputs(self.setup, self.experiment, self.inputs)

    def loss_on_held_out(self, plan: PrecisionPlan, ranges: Ranges) -> float:
        """Returns a plan's loss on the held-out inputs: 0 if there are none, infinite if the plan cannot run."""
        if self.held_out is None:
            return 0.0
        experiment = self.with_ranges(ranges)
        loss = experiment.rule.loss(self.whole(plan, experiment, self.held_out, "held-out inputs"))
        return inf if loss is None else loss

    @property
    def full(self) -> PrecisionPlan:
        """Full INT8: every quantizable layer in low precision, except layers that the user fixed."""
        return self.experiment.network.full(self.experiment.whole.high)

    def give_back(self) -> None:
        """Frees memory for other engines: closes the session if the network's weights exceed ``--memory``, else frees
        the tensors that it keeps.
        """
        if self.session is None:
            return
        self.session.forget()
        if sum(array.nbytes for array in self.experiment.network.weights.values()) > self._memory:
            self.session.close()
        give_back_memory()

    def close(self) -> None:
        """Closes the session that runs all plans; a later measurement reopens it."""
        if self.session is not None:
            self.session.close()
        give_back_memory()

    def each(self, ranges: Ranges) -> EachInput:
        """Returns the evaluator that measures plans with these ranges on one input at a time."""
        digest, rule = ranges.digest(), self.experiment.rule
        if digest not in self._by_ranges:
            more = {"together": self._compared_by_fp32, "pools": self._pools, "ran": self.setup.forecast.ran}
            self._by_ranges[digest] = self._evaluator(ranges, self._judged_at, rule.budget, rule.metric.name, **more)
        return self._by_ranges[digest]

    def noise(self, ranges: Ranges) -> EachInput:
        """Returns the evaluator whose loss is the outputs' noise to signal ratio, which grows steadily where the metric
        jumps.
        """
        key = f"{ranges.digest()} noise"
        if key not in self._by_ranges:
            self._by_ranges[key] = self._evaluator(ranges, self._noise_at, inf, SQNR.name)
        return self._by_ranges[key]

    def _evaluator(
        self, ranges: Ranges, judge: Callable[[int, Outputs], Judged], budget: float, metric: str, **more: Any
    ) -> EachInput:
        inputs, store, canonical = self.inputs.given, self.experiment.store, self.experiment.whole.canonical
        runner = self.runner(ranges)
        return EachInput(inputs, judge, budget, runner, store, ranges.digest(), metric, canonical, **more)

    def runner(self, ranges: Ranges) -> Runner:
        """Returns the object that runs plans with these ranges."""
        if self.session is not None:
            return SwitchRunner(self._session_of, ranges.scales, lambda: self._builder_with(ranges), self._at_once)
        return WholeRunner(self._builder_with(ranges))

    def _builder_with(self, ranges: Ranges) -> Builder:
        return self.with_ranges(ranges).builder

    def _noise_at(self, input_index: int, outputs: Outputs) -> Judged:
        figures = self._compare_noise.at(input_index, outputs)
        return figures, InputLoss(max(noise_losses(self.experiment, figures), default=0.0))

    @cached_property
    def _compare_noise(self) -> Comparer:
        experiment, references = self.experiment, self.inputs.given.references
        classes, slices, integers = experiment.classes, experiment.slices, experiment.integers
        return Comparer(references, None, classes, slices, integers=integers, only=SQNR, with_facts=False)

    def with_ranges(self, ranges: Ranges) -> Experiment:
        """Returns the experiment with these ranges."""
        if ranges.digest() == self.experiment.ranges.digest():
            return self.experiment
        return self.setup.with_ranges(self.experiment, ranges)

    def losses(
        self,
        plans: Sequence[PrecisionPlan],
        ranges: Ranges,
        among: Sequence[int] | None = None,
        *,
        to_the_end: bool = False,
    ) -> list[Loss]:
        """Returns the loss of each plan on the inputs ``judged``, or of its outputs' variation if that is larger; None
        for a plan that cannot run.

        Args:
            among: indices of the inputs to run; None: ``judged``.
            to_the_end: run all inputs, also after a miss.
        """
        places, budget = self.judged if among is None else among, self.experiment.rule.budget
        losses = self.each(ranges).losses(plans, places, self.tell, to_the_end=to_the_end)
        return [
            loss if loss is None or loss > budget else max(loss, self.by_variation(plan, ranges))
            for plan, loss in zip(plans, losses, strict=True)
        ]

    def by_variation(self, plan: PrecisionPlan, ranges: Ranges) -> float:
        """Returns a plan's loss over at most 32 inputs, with the variation of its outputs judged too.

        0 until any plan has missed by the variation alone; infinite if the plan cannot run.
        """
        if not self.varying:
            return 0.0
        inputs, experiment, store = self._varying_inputs, self.experiment, self.experiment.store
        canonical = experiment.whole.canonical(plan)
        key = TrialKey(canonical.key(), f"inputs {inputs.digest[:12]} {ranges.digest()[:12]} varying").text
        trial = store.find(key)
        if trial is None:
            try:
                with self.runner(ranges).opened(canonical) as infer:
                    outputs = [self.inputs.spill.kept(infer(feeds)) for feeds in inputs.feeds]
            except TrialFailed as failure:
                trial = Trial(key, failure.outcome, message=failure.message, builds=0)
            else:
                trial = Trial(key, MEASURED, inferences=len(outputs), builds=0).judged(
                    self._comparison(inputs)(outputs)
                )
            store.keep(trial)
        loss = experiment.rule.loss(trial)
        return inf if loss is None else loss

    @cached_property
    def _varying_inputs(self) -> GivenInputs:
        given, counting = self.inputs.given, self.inputs.counting
        places = counting[:: -(-len(counting) // _VARYING)]
        return GivenInputs(
            feeds=[given.feeds[k] for k in places],
            references=[given.references[k] for k in places],
            labels=[given.labels[k] for k in places],
            sources=[given.sources[k] for k in places],
        )

    def loss(self, plan: PrecisionPlan, ranges: Ranges) -> float:
        """Returns a plan's loss on the inputs on which it was run so far; infinite without any."""
        return max(self.each(ranges).loss(plan), self.by_variation(plan, ranges))

    def join(self, missed: Iterable[int]) -> bool:
        """Adds the new ones among ``missed``, indices of inputs, to ``judged``, at most the first 8; returns true if
        any was new.
        """
        new = [input_index for input_index in missed if input_index not in self.judged][:_JOIN_AT_ONCE]
        self.judged += new
        return bool(new)

    def on_judged(self, plan: PrecisionPlan, ranges: Ranges) -> list[float]:
        """Returns a plan's losses on the inputs ``judged`` that were run, up to a miss, in the order of ``judged``; one
        infinite loss if the plan cannot run.
        """
        (loss,) = self.losses([plan], ranges)
        by_place = self.each(ranges).by_place(plan)
        losses = [by_place[input_index] for input_index in self.judged if input_index in by_place]
        return [inf] if loss is None or not losses else losses

    def to_the_end(self, plans: Sequence[PrecisionPlan], ranges: Ranges, among: Sequence[int]) -> list[Loss]:
        """Returns each plan's largest loss on the inputs with the indices ``among``, all of which are run; None for a
        plan that cannot run.
        """
        return self.losses(plans, ranges, among, to_the_end=True)

    def on_all(self, plan: PrecisionPlan, ranges: Ranges) -> dict[int, float]:
        """Returns a plan's loss on each given input that counts (``inputs.counting``), by index; empty if the plan
        cannot run.
        """
        counting = self.inputs.counting
        (loss,) = self.to_the_end([plan], ranges, counting)
        losses = self.each(ranges).by_place(plan)
        return {} if loss is None else {input_index: losses[input_index] for input_index in counting}

    def largest_on_all(self, plan: PrecisionPlan, ranges: Ranges) -> float:
        """Returns a plan's largest loss on the inputs of ``on_all``; infinite if the plan cannot run."""
        largest = max(self.on_all(plan, ranges).values(), default=inf)
        return max(largest, self.by_variation(plan, ranges))

    def worst(self, plan: PrecisionPlan, ranges: Ranges) -> list[int]:
        """Returns the indices of the inputs of ``on_all``, by falling loss of ``plan``."""
        losses = self.on_all(plan, ranges)
        return sorted(self.inputs.counting, key=lambda input_index: -losses.get(input_index, 0.0))

    def exceeding(self, losses: Mapping[int, float], budget: float | None = None) -> list[int]:
        """Returns the indices of inputs whose losses exceed a budget (by default the run's), by falling loss."""
        most = self.experiment.rule.budget if budget is None else budget
        return sorted((index for index in losses if losses[index] > most), key=lambda index: -losses[index])

    def nudged(
        self, plan: PrecisionPlan, ranges: Ranges, *, to_the_end: bool = False, by: float = NUDGE
    ) -> tuple[float, dict[int, float]]:
        """Measures a plan, then measures it with all scales moved up and down by the share ``by``. Inputs whose loss is
        far below the budget may keep the loss with unmoved scales.

        ``to_the_end``: run all inputs, also after a miss.

        Returns:
            The largest loss with moved and unmoved scales: over all inputs, and by index of the input. Infinite if the
                plan cannot run.
        """
        rule, losses, together = self.experiment.rule, self.on_all(plan, ranges), 0.0
        # Where a figure can jump, as top-1 does, and in large networks, which add up the noise, all inputs are near.
        jumps = by > NUDGE or rule.metric.of_sums is None or self.each(ranges).pools_differ(plan)
        jumps = jumps or are_many(len(self.experiment.network.movable))
        near = [index for index in self.inputs.counting if jumps or losses[index] > _NEAR_BUDGET * rule.budget]
        near.sort(key=lambda index: -losses[index])
        for factor in (1.0 + by, 1.0 - by) if near else ():
            scales = {tensor: np.float32(scale * factor) for tensor, scale in ranges.scales.items()}
            moved = replace(ranges, scales=scales)
            (loss,) = self.losses([plan], moved, near, to_the_end=to_the_end)
            if loss is None:
                return inf, dict.fromkeys(self.inputs.counting, inf)
            together = max(together, self.loss(plan, moved))
            for input_index, nudged_loss in self.each(moved).by_place(plan).items():
                losses[input_index] = max(nudged_loss, losses[input_index])
        return max(together, *losses.values()) if self._compared_by_fp32 is None else together, losses

    def whole(
        self,
        plan: PrecisionPlan,
        experiment: Experiment,
        inputs: GivenInputs | None = None,
        name: str = "all inputs",
        kind: str = "whole",
        build: Callable[[], Engine] | None = None,
    ) -> Trial:
        """Returns the trial of a plan on some inputs (by default all given ones), with the figures of all metrics.

        Args:
            name: words for the inputs on the progress bar.
            kind: a word in the trial's key that tells trials with different ``build`` apart, such as ``plain``.
            build: makes another engine for the plan; None: the usual one.
        """
        canonical, inputs = experiment.whole.canonical(plan), self.inputs.given if inputs is None else inputs
        key, store = self._key(kind, canonical, experiment, inputs), self.experiment.store
        trial = store.find(key)
        if trial is None:
            self.setup.progress.stage(f"Measuring on {name}", len(inputs))
            session = None
            if build is None and experiment.network is self.experiment.network:
                session = self._session_of(canonical)
            if session is not None:
                ran = precisions_in(experiment.network, canonical)
                engine = SessionEngine(session, canonical, experiment.ranges.scales, ran)
                trial = replace(self._measured(key, lambda: engine, inputs), builds=0)
            else:
                self.give_back()
                give_back_arena()
                trial = self._measured(key, build or partial(experiment.builder.build, canonical), inputs)
            store.keep(trial)
        self.varying |= inputs is self.inputs.given and self.experiment.rule.only_varies_less(trial)
        return trial

    def _session_of(self, plan: PrecisionPlan) -> AllPlans | None:
        session = self.session
        return session if session is not None and session.runs(plan) else None

    def known(self, plan: PrecisionPlan, experiment: Experiment) -> Trial | None:
        """Returns a plan's trial on all given inputs if it was measured, or can be made from losses on single inputs;
        else None.
        """
        plan, rule, inputs = experiment.whole.canonical(plan), experiment.rule, self.inputs
        key = self._key("whole", plan, experiment, inputs.given)
        trial, evaluator = self.experiment.store.find(key), self._by_ranges.get(experiment.ranges.digest())
        if trial is not None or evaluator is None or self.varying:
            return trial
        losses, value, metric = evaluator.by_place(plan), rule.metric.value, rule.metric.name
        if not losses.keys() >= set(inputs.counting):
            return None
        # Where neither FP32 nor the plan finds anything, there is no figure.
        figured = {k for k, loss in losses.items() if loss or k not in inputs.given.empty}
        by_input = tuple(value(losses[k]) if k in figured else None for k in range(len(inputs.given)))
        worst = {metric: value(evaluator.loss(plan))}
        name = (*rule.outputs, *(spec.name for spec in experiment.network.outputs))[0]
        found = tuple(float(k not in inputs.given.empty) for k in range(len(inputs.given)))
        figures = OutputFigures(worst, inputs={metric: by_input, FOUND: found} if len(by_input) > 1 else {})
        return Trial(key, MEASURED, {name: figures}, builds=0)

    def meeting(self, ranges: Ranges, among: Sequence[int]) -> list[PrecisionPlan]:
        """Returns the plans measured to meet the budget on all inputs ``among`` with these ranges."""
        evaluator = self._by_ranges.get(ranges.digest())
        return [] if evaluator is None else evaluator.meeting(among)

    def has_plain(self, plan: PrecisionPlan, experiment: Experiment) -> bool:
        """Returns true if ONNX Runtime with default options computes a plan as the emulation does."""
        builder = experiment.builder
        return isinstance(builder, EmulatedBuilder) and builder.has_plain(experiment.whole.canonical(plan))

    def plain(self, plan: PrecisionPlan, experiment: Experiment) -> Trial:
        """Returns the trial of a plan's Q/DQ file in ONNX Runtime with default options, on all given inputs."""
        builder, canonical, name = experiment.builder, experiment.whole.canonical(plan), "all inputs, INT8 kernels"
        assert isinstance(builder, EmulatedBuilder)
        return self.whole(plan, experiment, name=name, kind="plain", build=partial(builder.plain, canonical))

    def as_file(self, plan: PrecisionPlan, experiment: Experiment) -> Trial:
        """Returns the trial of a plan's Q/DQ file in ONNX Runtime without INT8 kernels, on all given inputs."""
        builder, canonical = experiment.builder, experiment.whole.canonical(plan)
        assert isinstance(builder, EmulatedBuilder)
        build = partial(builder.plain, canonical, integers=False)
        return self.whole(plan, experiment, name="all inputs, ONNX Runtime's optimisations", kind="file", build=build)

    def _key(self, kind: str, plan: PrecisionPlan, experiment: Experiment, inputs: GivenInputs) -> str:
        return TrialKey(plan.key(), f"inputs {inputs.digest[:12]} {experiment.ranges.digest()[:12]} {kind}").text

    def _measured(self, key: str, build: Callable[[], Engine], inputs: GivenInputs) -> Trial:
        trial, outputs = tried(key, build, lambda engine: _outputs(self.setup, engine, inputs.feeds, self.inputs.spill))
        if outputs is None:
            return trial
        figures, task = self._comparison(inputs)(outputs), self.experiment.task
        if task is not None and self._nearby is not None and inputs is self.inputs.given and figures[task.entry].values:
            values = {**figures[task.entry].values, NEARBY: self._nearby(outputs)}
            figures[task.entry] = replace(figures[task.entry], values=values)
        return replace(trial, inferences=len(outputs)).judged(figures)

    def _comparison(self, inputs: GivenInputs) -> Comparer:
        if inputs.digest not in self._comparisons:
            comparison = self.experiment.comparison_with(inputs.references, inputs.feeds)
            self._comparisons[inputs.digest] = comparison
        return self._comparisons[inputs.digest]

    @cached_property
    def _nearby(self) -> Callable[[Sequence[Outputs]], float] | None:
        task = self.experiment.task
        return None if task is None or task.nearby is None else task.nearby(self.inputs.given.references)

    def _judged_at(self, input_index: int, outputs: Outputs) -> Judged:
        figures, rule = self._compare.at(input_index, outputs), self.experiment.rule
        judged = rule.judged_of(figures)
        items = sum(figure.values.get(ITEMS, 0.0) for figure in judged.values()) if rule.metric is AGREEMENT else 1.0
        own = [rule.own_loss(figure) for figure in judged.values()]
        pooled = {name: counts for name, counts in _pools_of(rule, judged).items() if counts[0]}
        return figures, InputLoss(max((loss for loss in own if loss is not None), default=0.0), items, pooled)

    @cached_property
    def _pools(self) -> Pools:
        rule, references = self.experiment.rule, self.inputs.given.references

        def loss(name: str, differ: float, of_all: float, *, alone: bool = False) -> float:
            return rule.pooled_loss(name.rpartition(" ")[2], differ, of_all, alone=alone)

        # A metric of the user's is slow, and says nothing of rows.
        compare = self._compare if rule.metric.function is None else self._compare_noise
        equal = [rule.judged_of(compare.at(place, outputs)) for place, outputs in enumerate(references)]
        of_fp32 = [{name: counts[1] for name, counts in _pools_of(rule, judged).items()} for judged in equal]
        return Pools(of_fp32, loss)

    @cached_property
    def _compared_by_fp32(self) -> dict[int, float] | None:
        # By input, the number of FP32's findings, if a task decides.
        if self.experiment.rule.metric is not AGREEMENT:
            return None
        references = self.inputs.given.references
        return {index: self._judged_at(index, references[index])[1].items for index in range(len(references))}

    @property
    def _memory(self) -> int:
        return self.setup.options.memory_bytes

    @cached_property
    def _facts(self) -> TensorFacts:
        return facts_for(self.experiment.network, self.experiment.feeds[0])

    @cached_property
    def _at_once(self) -> int:
        if self.experiment.network.pipeline is not None:
            return 1  # its function need not be thread-safe
        bytes_each = _COPIES * Boundaries(self.experiment.network).most_bytes(self._facts)
        return max(1, min(cores(), 1 + self._memory // 2 // max(bytes_each, 1)))

    def tell(self, plan: PrecisionPlan) -> None:
        """Shows on the progress bar that the measurement of a plan begins."""
        high = len(self.experiment.network.quantizable) - len(plan.lowered)
        self.setup.progress.step(f"{counted(high, 'layer')} high")


def _pools_of(rule: Rule, judged: Mapping[str, OutputFigures]) -> dict[str, tuple[float, float]]:
    return {f"{name} {kind}": counts for name, of_one in judged.items() for kind, counts in rule.pools(of_one).items()}


def noise_losses(experiment: Experiment, outputs: Mapping[str, OutputFigures]) -> list[float]:
    """Returns the loss by noise to signal ratio of each output that is judged or read by the task."""
    reads = None if experiment.task is None else experiment.task.reads
    judged = experiment.rule.judged_of(outputs)
    counting = judged if reads is None else {name: outputs[name] for name in outputs if output_of(name) in reads}
    # Without values and finite, neither output has elements.
    values = [figures.values for figures in counting.values() if figures.values or not figures.finite]
    return [EQUAL.loss(of[EQUAL.name]) if EQUAL.name in of else SQNR.loss(of.get(SQNR.name, nan)) for of in values]


@dataclass(frozen=True)
class AnswerInputs:
    """The given inputs, with FP32's outputs.

    Attributes:
        given: the inputs, those of the curve first.
        counting: indices of the inputs that are measured: those for which FP32 gives an output to judge.
        first: indices of the inputs of the curve.
        warnings: sentences on inputs for which FP32 itself gives nothing to compare with.
    """

    given: GivenInputs
    counting: tuple[int, ...]
    first: tuple[int, ...]
    spill: Spill
    warnings: tuple[str, ...] = ()

    @property
    def told(self) -> tuple[int, ...]:
        """The indices in ``counting`` of the inputs on which FP32 finds something."""
        return tuple(place for place in self.counting if place not in self.given.empty)


@contextmanager
def answer_inputs(setup: Setup, experiment: Experiment) -> Iterator[AnswerInputs]:
    """Runs FP32 on the given inputs and yields them, those of the curve first.

    Raises:
        BadInput: a sample cannot be used, or FP32 does not run on it.
        TrialFailed: no engine of FP32 can be built.
    """
    with Spill(setup.options.memory_bytes // 2) as spill:
        feeds, names = _distinct(experiment, spill)
        others = feeds[len(experiment.references) :]
        if others:
            setup.progress.stage("FP32 on all inputs", len(others))
        labels = [name for _, name in names]
        more = _references(setup, experiment, others, labels[len(experiment.references) :], spill)
        references = [*experiment.references, *more]
        setup.notes += noted(OUTPUTS, constant_outputs(experiment.rule, references)[1])
        sources = [source for source, _ in names]
        empty = _empty(experiment, references)
        given = GivenInputs(feeds, references, labels, sources, empty)
        if empty and experiment.task is None:
            on = f"{len(empty)} of {len(given)} inputs (first: {labels[min(empty)]})"
            low = experiment.network.low.title
            setup.notes.append(
                Note(OUTPUTS, f"FP32 gives no row on {on}: such an input counts only where {low} gives one")
            )
        compare, judged = experiment.comparison_with(references, deciding=True), experiment.rule.judged_of
        places = tuple(range(len(given)))
        counting = tuple(k for k in places if judged(compare.at(k, references[k]))) or places
        warnings = _warnings(setup, experiment, given)
        give_back_arena()
        yield AnswerInputs(given, counting, tuple(range(len(experiment.feeds))), spill, warnings)


def _warnings(setup: Setup, experiment: Experiment, given: GivenInputs) -> tuple[str, ...]:
    names = judged_outputs(experiment.rule, given.references[0])
    data = given.feeds, given.references, given.labels
    warnings = tuple(data_warnings(experiment.network, names, *data, setup.options.memory_bytes))
    for warning in warnings:
        setup.progress.say(f"DATA: {warning}")
    return warnings


def _distinct(experiment: Experiment, spill: Spill) -> tuple[list[Feeds], list[tuple[str, str]]]:
    source = experiment.about.source
    places = experiment.about.places or range(len(experiment.feeds))
    feeds = list(experiment.feeds)
    label = {data.source: data.label for data in experiment.more}.get(source, f"{source} {{}}".format)
    names = [(source, label(index)) for index in places]
    digests = {digest_of_feeds(sample) for sample in feeds}
    for data in experiment.more:
        for position, sample in enumerate(data):
            digest = digest_of_feeds(sample)
            if digest not in digests:
                digests.add(digest)
                feeds.append(spill.kept(sample))
                names.append((data.source, data.label(data.place(position))))
    return feeds, names


def _references(
    setup: Setup, experiment: Experiment, feeds: Sequence[Feeds], labels: Sequence[str], spill: Spill
) -> list[Outputs]:
    references = list[Outputs]()
    if not feeds:
        return references
    with setup.reference_engine(experiment.builder) as engine:
        for sample, label in zip(feeds, labels, strict=True):
            setup.progress.step(label)
            try:
                references.append(spill.kept(engine.infer(sample)))
            except TrialFailed as failure:
                problem = f"FP32 does not run on '{label}': {failure.message}"
                raise BadInput(problem, "Check the sample's shapes and values.") from failure
    return references


def _outputs(setup: Setup, engine: Engine, samples: Sequence[Feeds], spill: Spill) -> list[Feeds]:
    outputs = []
    for input_index, feeds in enumerate(samples):
        setup.progress.step(f"input {input_index}")
        outputs.append(spill.kept(engine.infer(feeds)))
    return outputs


def held_out_inputs(setup: Setup, experiment: Experiment, inputs: AnswerInputs) -> GivenInputs | None:
    """Runs FP32 on the held-out inputs and returns them; None without any.

    Inputs equal to given ones or to calibration samples are left out, with a note.
    """
    held_out, holdout = setup.data.held_out, setup.data.holdout
    if held_out is None or holdout is None:
        return None
    seen = set(map(digest_of_feeds, inputs.given.feeds)).union(holdout.kept.digests if holdout.named else ())
    new: dict[str, tuple[int, Feeds]] = {}
    copies = 0
    for position, sample in enumerate(held_out):
        digest = digest_of_feeds(sample)
        copies += digest in seen
        if digest not in seen and digest not in new:
            new[digest] = position, inputs.spill.kept(sample)
    if copies:
        text = f"{counted(copies, 'held-out sample')} of {held_out.source} not counted, equal to others"
        setup.notes.append(Note(DATA, text))
    if not new:
        return None
    setup.progress.stage("FP32 on held-out inputs", len(new))
    feeds = [sample for _, sample in new.values()]
    labels = [held_out.label(held_out.place(position)) for position, _ in new.values()]
    references = _references(setup, experiment, feeds, labels, inputs.spill)
    data = judged_outputs(experiment.rule, references[0]), feeds, references, labels
    broken = not_finite_warning(experiment.network, *data, setup.options.memory_bytes, "held-out input")
    setup.notes += noted(DATA, [broken] if broken else [])
    return GivenInputs(feeds, references, labels, [held_out.source] * len(labels), _empty(experiment, references))


def _empty(experiment: Experiment, references: Sequence[Outputs]) -> frozenset[int]:
    if experiment.task is None:
        names = judged_outputs(experiment.rule, references[0])
        rowless = {k for k, outputs in enumerate(references) if not any(outputs[name].size for name in names)}
        return frozenset(rowless if len(rowless) < len(references) else ())
    judge = experiment.task.judge(references)
    return frozenset(k for k, outputs in enumerate(references) if finds_nothing(judge({k: outputs}).values))
