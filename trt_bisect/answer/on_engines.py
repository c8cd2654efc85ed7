"""The search runs in the emulation; engines decide what it proposes.

Builds are slow, so engines are built only for the plans that decide, each once:

    base ------> full INT8 ------> recipe -------> each unit of it put back in INT8
    |            |                 |               |
    misses:      passes, and the   misses: mend    holds: the unit is not needed, and goes to INT8
    the end      emulation fails:
                 each unit low by itself

Contradictions between engine and emulation, and what is built for each: docs/concepts/strategies.md.

Mend. If a recipe misses, the engine computes something otherwise than its file says. The distance between the outputs
of engine and emulation for the *same* plan shows where. The recipe's units stay high, the first n other units are in
INT8, and the rest are high: bisection finds the n at which the logarithm of the distance rises. The unit found stays
high. If this does not halve the distance, units are added to the recipe.

Put back. If a unit put back goes to INT8, all units measured with it high are measured anew.

Invariants. The verdict and every figure of a unit put back are measured on engines, on all given inputs. No plan is
built twice, also after a stop (the trials are in the journal); a plan without INT8 is built once for all scales.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from trt_bisect.answer.accuracy import AskedAccuracy
from trt_bisect.answer.answer import AnswerSearch
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.recipe_search import FEW_UNITS
from trt_bisect.answer.result import Answer, EngineResult, similarity_of
from trt_bisect.answer.validation import Checked, PutBack, Recipe
from trt_bisect.builder.base import Outputs
from trt_bisect.data.feeds import Spill
from trt_bisect.driver.search_space import Kept, Space
from trt_bisect.errors import NothingMeasured, TrialFailed
from trt_bisect.evaluator.evaluators import EngineEvaluator, EngineJudge
from trt_bisect.evaluator.trial import BUILD_FAILED, INFERENCE_FAILED, MEASURED, Trial
from trt_bisect.model.quantizer import FLOAT_TYPES
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.experiment import Experiment
from trt_bisect.report.answer import (
    BASE_MISSES,
    DIFFUSE,
    ENGINE_PASSES,
    KERNEL,
    NOT_NEEDED,
    OTHER_CALIBRATOR,
    OWN,
    SCALES_DIFFER,
)
from trt_bisect.runs.cached_inputs import fingerprint
from trt_bisect.support.progress import Progress, fits
from trt_bisect.support.text import Line, counted, listed

# Engine and emulation agree on a plan if the loss between their outputs is at most this share of the budget.
APART = 0.5
HALVES = 0.5  # a single unit causes a distance if at most this share of it is left with the unit high
OTHER_SCALES = 2  # the most other calibrators with which full INT8 is built, if the emulation passes with them
MOST_HIGH = 0.5  # a recipe grows up to this share of the units
_NAMED = 3
# A unit whose loss on the engine is below this share of its loss in the emulation does not run in INT8.
_LEAST_OBEYED = 0.1
_NEVER_RUNS = (BUILD_FAILED, INFERENCE_FAILED)


Trials = dict[tuple[str, str], Trial]


class NoKernels(Exception):
    """The engine cannot build some layers in INT8: the search has to be repeated with these layers high.

    Attributes:
        reasons: by index of the layer, the reason why it stays high.
        trials: trials of engines so far.
    """

    def __init__(self, reasons: dict[int, str], trials: Trials) -> None:
        super().__init__(reasons)
        self.reasons, self.trials = reasons, trials


def engine_experiment(plans: AnswerPlans, emulated: Experiment, engine: str) -> Experiment:
    """Returns the experiment with an NVIDIA engine in place of the emulation; each plan runs on all given inputs.

    Raises:
        EngineUnavailable: the engine does not start here.
    """
    setup, network, ranges = plans.setup, emulated.network, emulated.ranges
    given, held_out, memory = plans.inputs.given, plans.held_out, setup.options.memory_bytes // 4
    feeds = [*given.feeds, *(held_out.feeds if held_out else ())]
    builder = setup.builder_for(network, engine, ranges, feeds)
    parts = setup.fingerprint_parts(network, builder, ranges, feeds)
    if "reference" in emulated.parts:
        parts["reference"] = emulated.parts["reference"]
    without_scales = {**parts, "ranges": ""}
    store = plans.experiment.store.under(fingerprint(parts), parts)
    unscaled = plans.experiment.store.under(fingerprint(without_scales), without_scales)

    def apart(plan: PrecisionPlan, outputs: Sequence[Outputs]) -> float:
        try:
            with Spill(memory) as spill, plans.runner(ranges).opened(plan) as infer:
                references = [spill.kept(infer(sample)) for sample in given.feeds]
                figures = emulated.comparison_with(references, deciding=True)(outputs)
        except TrialFailed:
            return math.inf
        loss = emulated.rule.loss(Trial("", MEASURED).judged(figures))
        return math.inf if loss is None else loss

    compare = emulated.comparison_with(given.references, given.feeds)
    of_held_out = compare if held_out is None else emulated.comparison_with(held_out.references, held_out.feeds)
    evaluator = EngineEvaluator(
        network,
        builder,
        given.feeds,
        held_out.feeds if held_out else (),
        EngineJudge(compare, of_held_out, apart),
        store,
        unscaled,
        setup.options.high_precision,
        setup.workers(network, builder, ranges, feeds, timed=True),
        memory,
    )
    return replace(
        emulated,
        feeds=list(given.feeds),
        references=given.references,
        compare=compare,
        builder=builder,
        store=store,
        evaluator=evaluator,
        parts=parts,
    )


@dataclass
class OnEngines:
    """Measures on engines the proposal of the emulation, and changes the proposal where engines contradict it.

    Attributes:
        of_user: search on the user's network, if the recipe is for a changed network; else ``search``.
        trials: trials of all engines, by the experiment's key (empty for a plan without INT8) and the plan's key.
        base, full, fp16: trials of no layer in INT8, full INT8, and all layers in FP16; None before they are
            measured.
        holding: units in high precision of the last plan that passed (with ``--budget``: that was measured); None
            before.
        kernels: units that the engine does not compute as the ONNX file says.
        grown: units that were added to the recipe because it missed; they are not measured back in INT8.
        put_back: by unit of the recipe, the measurement with this unit in INT8.
    """

    search: AnswerSearch
    of_user: AnswerSearch
    proposal: Answer
    engine: str
    accuracy: AskedAccuracy | None
    trials: Trials
    base: Trial | None = None
    full: Trial | None = None
    fp16: Trial | None = None
    holding: Kept | None = None
    kernels: Kept = frozenset()
    grown: Kept = frozenset()
    put_back: dict[int, PutBack] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    _total: int = 0

    def __post_init__(self) -> None:
        proposal = self.proposal
        self.kept = proposal.recipe.kept
        self.experiment = self.user = self._on_engine(self.search, proposal)
        if proposal.own is not None:
            self.user = self._on_engine(self.of_user, proposal.own)

    def _on_engine(self, search: AnswerSearch, answer: Answer) -> Experiment:
        experiment = engine_experiment(search.plans, answer.experiment, self.engine)
        if self.accuracy is not None:
            _evaluator(experiment).further = self.accuracy.measure_open(experiment)
        return experiment

    @property
    def space(self) -> Space:
        """The units from which the recipe is chosen."""
        return self.proposal.recipe.space

    @property
    def budget(self) -> float:
        """The largest loss that meets the threshold or the least accuracy."""
        return self.space.budget

    @property
    def built(self) -> int:
        """The number of engines built, those of interrupted runs included."""
        return sum(trial.builds for trial in self.trials.values())

    def decide(self) -> Answer:
        """Builds the engines and returns the answer that they give.

        Raises:
            NoKernels: the engine cannot build some layers in INT8.
            NothingMeasured: the engine does not build the network without INT8.
            TimeUp: the next build would end after the time limit.
        """
        units = len(self._needed())
        has_fp16 = self.user.network.low.precision not in FLOAT_TYPES
        self._total = 2 + has_fp16 + bool(self.kept) + (units if len(self.kept) > 1 else 0)
        self._progress.stage(f"Building engines with {self.engine}", self._total)
        self.base = self._built("the base", self.experiment, self._without_low)
        if self.base.failed:
            raise NothingMeasured(
                f"{self.engine} does not build the network without INT8: {self.base.message}",
                "Build it with trtexec alone; 'trt-bisect check' lists what TensorRT refuses.",
            )
        full_plan = self.of_user.plans.full
        self.full = self._built("full INT8", self.user, full_plan)
        if self.full.outcome in _NEVER_RUNS:
            raise NoKernels(self._refused(full_plan), self.trials)
        if self._loss_of(self.experiment, self._without_low) > self.budget:
            text = f"{self.engine} misses the threshold without INT8 too, so that no plan can meet it"
            self.lines.append(Line(BASE_MISSES, f"{text}."))
            return self.answer()
        if self._passes:
            self._explain_pass()
        elif not self.kept and self._passes_with_other_scales():
            pass
        elif self.proposal.most is not None:
            self._loss(self.kept, "the recipe")
            self.holding = self.kept
            self._put_all_back()
        elif self.proposal.meets and self._mended():
            self._put_all_back()
        if has_fp16:
            self.fp16 = self._built("FP16", self.user, self.user.network.all_in(Precision.FP16), as_is=True)
        return self.answer()

    def so_far(self) -> Answer:
        """Returns the answer of a stopped run: the emulation's until engines have decided."""
        if self.full is not None and (self.holding is not None or self._passes):
            return replace(self.answer(), not_done=(f"not all engines of {self.engine} were built",))
        return replace(self.proposal, not_done=(f"no engine of {self.engine} has confirmed the recipe",))

    @property
    def _passes(self) -> bool:
        return self._loss_of(self.user, self.of_user.plans.full) <= self.budget

    def answer(self) -> Answer:
        """Returns the answer that the engines built so far give; ``base`` and ``full`` must be measured."""
        proposal, full, base = self.proposal, self.full, self.base
        assert full is not None
        assert base is not None
        own, experiment, space, kept = proposal.own, self.experiment, self.space, self.holding
        proposed = proposal
        if self._passes or kept is None:
            own, experiment, kept, proposed = None, self.user, frozenset[int](), proposal.of_user
            space = proposed.recipe.space
        plan = space.plan(kept)
        evaluator = _evaluator(experiment)
        put_back = {unit: back for unit, back in self.put_back.items() if unit in kept}
        loss = self._loss_of(experiment, plan)
        recipe = Recipe(
            space=space,
            kept=kept,
            experiment=experiment,
            aim=proposal.recipe.aim,
            checked=Checked({OWN: loss}),
            meets=loss <= self.budget,
            put_back=put_back,
            faster=proposal.recipe.faster & kept,
            reserve=proposal.recipe.reserve,
        )
        if own is not None:
            own = replace(own, full=full, recipe=replace(own.recipe, experiment=self.user))
        return Answer(
            recipe=recipe,
            full=full,
            restored=evaluator.measure(plan),
            put_back={unit: self._figure(back.loss) for unit, back in put_back.items()},
            tried=proposed.tried,
            inputs=proposal.inputs,
            judged=proposal.judged,
            has_held_out=proposal.has_held_out,
            held_out=evaluator.held_out(plan),
            held_out_inputs=self.search.plans.held_out,
            most=proposal.most,
            by_accuracy=proposal.by_accuracy,
            own=own,
            changes=proposed.changes,
            fp16=self.fp16,
            engines=EngineResult(proposal, self.engine, base, self.built, self.kernels, tuple(self.lines)),
        )

    # Plans and what engines say of them

    @property
    def _without_low(self) -> PrecisionPlan:
        return replace(self.space, others={}).plan(self.space.all)

    def _plan(self, kept: Kept) -> PrecisionPlan:
        return self.space.plan(kept)

    def _built(self, what: str, experiment: Experiment, plan: PrecisionPlan, *, as_is: bool = False) -> Trial:
        evaluator = _evaluator(experiment)
        plan = plan if as_is else evaluator.canonical(plan)
        key = experiment.key if plan.lowered else "", plan.key()
        if key not in self.trials:
            self._begin(what, known=evaluator.store_of(plan).find(plan.key()) is not None)
            self.trials[key] = evaluator.measure_as_is(plan)
        return self.trials[key]

    def _begin(self, what: str, *, known: bool) -> None:
        seconds = [trial.build_seconds + trial.infer_seconds for trial in self.trials.values()]
        if seconds and not known:
            fits(self._progress, seconds[-1])
            self._progress.left(max(self._total - len(seconds), 1) * fmean(seconds))
        self._progress.step(what)

    def _loss_of(self, experiment: Experiment, plan: PrecisionPlan) -> float:
        trial = _evaluator(experiment).measure(plan)
        if trial.failed:
            return math.inf
        loss = experiment.rule.loss(trial) if self.accuracy is None else self.accuracy.loss_on(experiment, plan)
        return math.inf if loss is None or math.isnan(loss) else loss

    def _loss(self, kept: Kept, what: str) -> float:
        plan = self._plan(kept)
        self._built(what, self.experiment, plan)
        return self._loss_of(self.experiment, plan)

    def _apart(self, kept: Kept, what: str) -> float:
        trial = self._built(what, self.experiment, self._plan(kept))
        return math.inf if trial.apart is None else trial.apart

    def _figure(self, loss: float | None) -> float | None:
        if loss is None:
            return None
        if self.accuracy is not None:
            return None if math.isinf(loss) else self.accuracy.reference - loss
        return similarity_of(self.experiment.rule, loss)

    def _names(self, units: Sequence[int]) -> list[str]:
        layers = self.experiment.network.layers
        return [layers[k].name for unit in units for k in self.space.units[unit]]

    @property
    def _progress(self) -> Progress:
        return self.search.plans.setup.progress

    # Contradictions

    def _explain_pass(self) -> None:
        proposal, full, search = self.proposal.of_user, self.full, self.of_user
        assert full is not None
        rule, recipe, layers = proposal.experiment.rule, proposal.recipe, proposal.experiment.network.layers
        emulated = rule.loss(proposal.full)
        if self.accuracy is not None or not recipe.kept or (emulated is not None and emulated <= self.budget):
            return
        low, units = str(self.user.network.low.precision), sorted(recipe.kept)
        tells = any(full.ran.get(k, low) != low for unit in units for k in recipe.space.units[unit])
        disobeying = list[int]()
        space, inputs = replace(recipe.space, others={}), search.plans.inputs.counting
        for unit in [] if tells else units:
            alone = space.plan(space.all - {unit})
            self._built("a culprit alone in INT8", self.user, alone)
            (in_emulation,) = search.plans.to_the_end([alone], proposal.experiment.ranges, inputs)
            if self._loss_of(self.user, alone) < _LEAST_OBEYED * (in_emulation or 0.0):
                disobeying.append(unit)
        names, similarity = self._names(units), rule.similarity(proposal.full)
        figure = "no figure" if similarity is None else rule.text(similarity)
        text = f"the emulation fails full INT8 ({figure}) because of {listed(names, _NAMED)}"
        if disobeying:
            names = [layers[k].name for unit in disobeying for k in recipe.space.units[unit]]
            text += f", and {self.engine} does not run {listed(names, _NAMED)} in INT8"
        self.lines.append(
            Line(ENGINE_PASSES, f"{self.engine} passes what the emulation does not: {text}.", tuple(names))
        )

    def _passes_with_other_scales(self) -> bool:
        plans, proposal = self.search.plans, self.proposal
        in_use = proposal.experiment.ranges
        others = [row for row in proposal.tried if row.meets and row.ranges.digest() != in_use.digest()]
        for row in sorted(others, key=lambda row: row.loss or 0.0)[:OTHER_SCALES]:
            emulated = plans.with_ranges(row.ranges)
            experiment = engine_experiment(plans, emulated, self.engine)
            full = self._built(f"full INT8 with {row.ranges.origin}", experiment, plans.full)
            if full.failed or (self._loss_of(experiment, plans.full)) > self.budget:
                continue
            whole = plans.whole(plans.full, emulated)
            recipe = replace(proposal.recipe, experiment=emulated)
            self.proposal = replace(proposal, recipe=recipe, full=whole, restored=whole)
            self.experiment = self.user = experiment
            self.full = full
            text = (
                f"{self.engine} passes full INT8 with calibrator {row.ranges.origin}, and fails it with {in_use.origin}"
            )
            self.lines.append(Line(OTHER_CALIBRATOR, f"{text}, which the emulation passes.", ()))
            return True
        return False

    def _mended(self) -> bool:
        while self._loss(self.kept, "the recipe") > self.budget:
            unit = self._leaves_the_emulation()
            if unit is None:
                return self._grown()
            wider, what = self.kept | {unit}, "the recipe with one more layer"
            if self._apart(wider, what) > HALVES * self._apart(self.kept, what):
                return self._grown()
            (name,) = self._names([unit])[:1]
            text = f"'{name}': the engine computes it otherwise than its file says. It stays high"
            self.lines.append(Line(KERNEL, f"{text}.", (name,)))
            self.kernels |= {unit}
            self.kept = wider
        self.holding = self.kept
        return True

    def _leaves_the_emulation(self) -> int | None:
        others, near, far = (
            sorted(self.space.all - self.kept),
            APART * self.budget,
            self._apart(self.kept, "the recipe"),
        )
        if far <= near:
            return None
        without, enough = 0, len(others)
        is_small = HALVES * far <= near  # half of it is agreement: the place is where the limit is crossed
        while enough - without > 1:
            middle = (without + enough) // 2
            apart = self._apart(self.kept.union(others[middle:]), "a part of the recipe")
            if apart > (APART * self.budget if is_small else math.sqrt(near * far)):
                enough, far = middle, apart
            else:
                without, near = middle, max(near, apart)
        return others[enough - 1]

    def _grown(self) -> bool:
        space = self.space
        alone = self.search.alone.sensitivities(space, self.proposal.experiment.ranges)
        losses = [0.0] * len(space.units) if alone is None else alone.losses
        order = sorted(space.all - self.kept, key=lambda unit: (-losses[unit] / space.costs[unit], unit))
        few = len(space.units) <= FEW_UNITS
        most = len(order) - 1 if few else math.floor(MOST_HIGH * len(order))
        misses, count = 0, min(1, most)
        while not count or not self._holds_with(order[:count]):
            if count >= most:
                needed = counted(count, "more layer")
                text = f"{self.engine} does not compute with these scales: {needed} high are not enough"
                self.lines, self.kernels = [Line(SCALES_DIFFER, f"{text}.")], frozenset()
                return False
            misses, count = count, min(2 * count, most)
        while count - misses > 1:
            middle = (misses + count) // 2
            if self._holds_with(order[:middle]):
                count = middle
            else:
                misses = middle
        more = order[:count]
        self.grown = frozenset(more)
        text = f"{self.engine} loses more than the emulation, in no single place: {counted(count, 'more layer')} high"
        self.lines.append(Line(DIFFUSE, f"{text}.", tuple(self._names(more))))
        self.kept = self.holding = self.kept.union(more)
        return True

    def _holds_with(self, more: Sequence[int]) -> bool:
        return self._loss(self.kept.union(more), f"{counted(len(more), 'more layer')} high") <= self.budget

    # Put back

    def _put_all_back(self) -> None:
        proposed, order = self.proposal.recipe, self._needed()
        aim = proposed.aim if self._loss(self.kept, "the recipe") <= proposed.aim else self.budget
        inputs = None if self.accuracy is not None else len(self.search.plans.inputs.counting)
        if self.experiment.whole.has_workers and self.accuracy is None:
            plans = [self.space.plan(self.kept - {unit}) for unit in order]
            self.experiment.whole.measure_all(plans, lambda _plan: self._progress.step("a layer put back"))
        dropped, beside = list[int](), dict[int, Kept]()
        while stale := [unit for unit in order if unit in self.kept and beside.get(unit) != self.kept]:
            for unit in stale:
                (name,) = self._names([unit])[:1]
                loss = self._loss(self.kept - {unit}, f"'{name}' put back")
                slower = self.space.cost(self.kept - {unit}) > self.space.cost(self.kept)
                if loss <= aim and not slower and self.proposal.most is None:
                    self.kept = self.holding = self.kept - {unit}
                    dropped.append(unit)
                else:
                    self.put_back[unit], beside[unit] = PutBack(loss, OWN, inputs), self.kept
        if dropped:
            names = self._names(dropped)
            text = f"the emulation needs {listed(names, _NAMED)} in high precision, {self.engine} does not"
            self.lines.append(Line(NOT_NEEDED, f"{text}.", tuple(names)))

    def _loss_in_emulation(self, unit: int) -> float:
        back = self.proposal.recipe.put_back.get(unit)
        return math.inf if back is None or back.loss is None else back.loss

    def _needed(self) -> list[int]:
        units = [unit for unit in self.kept - self.grown if self._loss_in_emulation(unit) > self.budget]
        return sorted(units, key=lambda unit: (self._loss_in_emulation(unit), unit))

    # Refused layers

    def _refused(self, full_plan: PrecisionPlan) -> dict[int, str]:
        network, reasons = self.user.network, dict[int, str]()  # the reason by index of the layer
        low = self.experiment.network.low.title
        reason = f"{self.engine} has no {low} kernel for it"
        high = self.user.whole.high
        while True:
            plan = full_plan.keeping(reasons, high)
            trial = self._built("full INT8 without refused layers", self.user, plan)
            if trial.outcome not in _NEVER_RUNS:
                return reasons
            layers = [k for k in network.movable if k not in reasons]
            named = [k for k in layers if _is_named(network.layers[k].name, trial.message)]
            if named and self._builds(full_plan.keeping([*reasons, *named], high)):
                return {**reasons, **dict.fromkeys(named, reason)}
            found = self._first_refused(full_plan, layers, reasons, high)
            alike = [k for k in layers if network.layers[k].op_type == network.layers[found].op_type]
            again = any(network.layers[k].op_type == network.layers[found].op_type for k in reasons)
            # Two layers of an operator without a kernel: none of them has one.
            reasons |= dict.fromkeys(alike if again else [found], reason)

    def _builds(self, plan: PrecisionPlan) -> bool:
        trial = self._built("full INT8 without refused layers", self.user, plan)
        return trial.outcome not in _NEVER_RUNS

    def _first_refused(
        self, full_plan: PrecisionPlan, layers: Sequence[int], refused: dict[int, str], high: Precision
    ) -> int:
        builds, fails = 0, len(layers)
        while fails - builds > 1:
            middle = (builds + fails) // 2
            if self._builds(full_plan.keeping([*refused, *layers[middle:]], high)):
                builds = middle
            else:
                fails = middle
        return layers[fails - 1]


def _evaluator(experiment: Experiment) -> EngineEvaluator:
    assert isinstance(experiment.evaluator, EngineEvaluator)
    return experiment.evaluator


def _is_named(name: str, message: str) -> bool:
    start = message.find(name)
    while name and start >= 0:
        around = message[start - 1 : start] + message[start + len(name) : start + len(name) + 1]
        if not any(letter.isalnum() or letter in "_/" for letter in around):
            return True
        start = message.find(name, start + 1)
    return False
