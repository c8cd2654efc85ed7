"""Measures plans on many inputs, each judged by itself; a plan that misses on one input is not run on the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import NamedTuple, Protocol

from trt_bisect.builder.base import Builder, Outputs
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder, SwitchSession
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.given_inputs import GivenInputs
from trt_bisect.evaluator.rebuild import TrialStore
from trt_bisect.evaluator.trial import MEASURED, Cost, OutputFigures, Trial
from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.model.quantizer import Scales
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.threads import InThisThread, ThreadsIfLong

Infer = Callable[[Feeds], Outputs]
INPUTS = "inputs"
"""The first word of the engines' name in the keys of these trials."""


class InputLoss(NamedTuple):
    """The loss of a plan on one input.

    Attributes:
        share: the loss; with a task, the share of the things compared on which the plan differs from FP32.
        items: the number of things compared; 1 without a task.
    """

    share: float
    items: float = 1.0


Judged = tuple[Mapping[str, OutputFigures], InputLoss]
"""The figures of the outputs for one input, and their loss."""
JudgeAt = Callable[[int, Outputs], Judged]
"""Judges a plan's outputs for the input at a place."""


@dataclass(frozen=True)
class Margin:
    """A share of the loss allowed that a plan has to leave unused.

    Attributes:
        share: a share of the loss allowed, 0 to 1.
        spared: the number of inputs that may use it.
    """

    share: float = 0.0
    spared: int = 0

    def loss(self, losses: Collection[float]) -> float:
        """Returns the loss to compare with the budget.

        It is the largest loss, or that of the inputs that are not spared, divided by 1 - ``share``, if that is larger.

        Args:
            losses: the losses by input; infinite without any.
        """
        ranked = sorted(losses, reverse=True)
        left = ranked[self.spared :]
        return max([*ranked[:1], *(loss / (1.0 - self.share) for loss in left[:1])], default=math.inf)


NO_MARGIN = Margin()


class Runner(Protocol):
    """Runs plans on inputs.

    Attributes:
        at_once: the number of plans that can be open at the same time.
    """

    at_once: int

    def opened(self, plan: PrecisionPlan) -> AbstractContextManager[Infer]:
        """Opens a plan; raises TrialFailed if it cannot be built."""
        ...

    def ran(self, plan: PrecisionPlan, /) -> Mapping[int, str]:
        """Returns the precisions that the engine of a closed plan reported for its layers, see ``Engine.ran``."""
        ...


class WholeRunner:
    """Runs plans on whole engines, each built for it."""

    at_once = 1

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._ran: dict[PrecisionPlan, Mapping[int, str]] = {}

    @contextmanager
    def opened(self, plan: PrecisionPlan) -> Iterator[Infer]:
        """Builds the engine of a plan."""
        with self._builder.build(plan) as engine:
            try:
                yield engine.infer
            finally:
                self._ran[plan] = dict(engine.ran)

    def ran(self, plan: PrecisionPlan) -> Mapping[int, str]:
        """Returns the precisions that the engine of a plan reported for its layers; empty if it was not built."""
        return self._ran.get(plan, {})


class SwitchRunner:
    """Runs plans on one session that switches precisions, with some scales of the activations.

    Args:
        session: shared by the runners of all scales.
        scales: the scales of the activations.
        builder: makes the builder with these scales, for plans of precisions that the session does not have.
        at_once: the number of inferences that may run at a time.
    """

    def __init__(self, session: SwitchSession, scales: Scales, builder: Callable[[], Builder], at_once: int) -> None:
        self.at_once = at_once
        self._session = session
        self._scales = scales
        self._make_builder = builder

    @cached_property
    def _builder(self) -> Builder:
        return self._make_builder()

    @contextmanager
    def opened(self, plan: PrecisionPlan) -> Iterator[Infer]:
        """Opens a plan; only one that the session does not run is built."""
        if self._session.runs(plan):
            yield lambda feeds: self._session.infer(plan, feeds, self._scales)
        else:
            with self._builder.build(plan) as engine:
                yield engine.infer

    def ran(self, _plan: PrecisionPlan) -> Mapping[int, str]:
        """Returns nothing: the emulation runs every layer as the plan says."""
        return {}


@dataclass
class _Pending:
    """A plan under measurement.

    Attributes:
        infer: runs the plan; the first call opens it.
        left: the inputs to run it on.
        losses: the losses on the inputs so far.
        stored: losses that an earlier run left in the journal: they are taken instead of another inference.
    """

    plan: PrecisionPlan
    infer: Infer
    left: list[int]
    losses: dict[int, InputLoss]
    stored: Mapping[int, InputLoss]
    outputs: Mapping[str, OutputFigures] = field(default_factory=dict)
    failure: TrialFailed | None = None
    inferences: int = 0


class EachInput:
    """Measures plans on inputs, one input at a time; the input that was missed most often comes first.

    Attributes:
        margin: the margin that plans must leave; it can be changed at any time.

    Args:
        given: the inputs.
        judge: judges the outputs for one input.
        budget: the largest loss that is good.
        runner: runs plans.
        store: keeps trials.
        ranges: identifies the scales that the runner has, for the trials' keys.
        canonical: maps a plan to the plan with the same engine under which trials are stored.
        together: by place the number of things that FP32 gives to compare: the inputs are judged together, not each by
            itself. None otherwise.

    The loss of a plan is that on its worst input. With ``together`` it is the share of all things compared.
    """

    def __init__(
        self,
        given: GivenInputs,
        judge: JudgeAt,
        budget: float,
        runner: Runner,
        store: TrialStore,
        ranges: str,
        canonical: Callable[[PrecisionPlan], PrecisionPlan],
        *,
        together: Mapping[int, float] | None = None,
    ) -> None:
        self.given = given
        self._judge = judge
        self._budget = budget
        self._runner = runner
        self._store = store
        self._measured_in = f"{INPUTS} {given.digest[:12]} {ranges[:12]}"
        self._canonical = canonical
        self._missed: Counter[int] = Counter()
        self._found: dict[PrecisionPlan, dict[int, InputLoss]] = {}
        self._failed: set[PrecisionPlan] = set()
        self._together = together
        self._executor = ThreadsIfLong(runner.at_once) if runner.at_once > 1 else InThisThread()
        self.margin = NO_MARGIN

    def losses(
        self,
        plans: Sequence[PrecisionPlan],
        among: Sequence[int],
        on_plan: Callable[[PrecisionPlan], None] = lambda _: None,
        *,
        to_the_end: bool = False,
    ) -> list[float | None]:
        """Returns for each plan its largest loss on the inputs that were run; None if it cannot be run.

        Args:
            plans: the plans to measure.
            among: the places of the inputs that count.
            on_plan: called with each plan that has to be run.
            to_the_end: every plan is run on all these inputs, even after it missed the budget on one.
        """
        plans = [self._canonical(plan) for plan in plans]
        order = sorted(among, key=lambda place: (-self._missed[place], place))
        unknown = [plan for plan in dict.fromkeys(plans) if self._left(plan, order, to_the_end)]
        for start in range(0, len(unknown), self._runner.at_once):
            some = unknown[start : start + self._runner.at_once]
            for plan in some:
                on_plan(plan)
            self._measure(some, order, to_the_end)
        for plan in dict.fromkeys(plans):
            self._missed.update(place for place, loss in self._known(plan).items() if loss.share > self._budget)
        return [self._largest(plan, among) for plan in plans]

    def by_place(self, plan: PrecisionPlan) -> dict[int, float]:
        """Returns the losses of a plan on the inputs that it was run on, by their places."""
        return {place: loss.share for place, loss in self._known(self._canonical(plan)).items()}

    def without_margin(self, plan: PrecisionPlan) -> float:
        """Returns the loss of a plan on the inputs that it was run on, whatever margin it has to leave."""
        known = self._known(self._canonical(plan))
        if self._together is not None:
            return self._loss(known, known)
        return max((loss.share for loss in known.values()), default=math.inf)

    def _key(self, plan: PrecisionPlan) -> str:
        return TrialKey(plan.key(), self._measured_in).text

    def _known(self, plan: PrecisionPlan) -> dict[int, InputLoss]:
        return self._found.get(plan, {})

    def _largest(self, plan: PrecisionPlan, among: Sequence[int]) -> float | None:
        if plan in self._failed:
            return None
        return self._loss({place: loss for place, loss in self._known(plan).items() if place in among}, among)

    def _loss(self, losses: Mapping[int, InputLoss], among: Collection[int]) -> float:
        """Returns the loss of a plan from those on the inputs that it was run on so far, among all that count.

        With ``together``, the inputs to come count as if the plan were like FP32 there.
        """
        if self._together is None:
            return self.margin.loss([loss.share for loss in losses.values()])
        if any(math.isinf(loss.share) for loss in losses.values()):
            return math.inf
        different = sum(loss.share * loss.items for loss in losses.values())
        items = sum(losses[place].items if place in losses else self._together[place] for place in among)
        return different / items if items else 0.0

    def _left(self, plan: PrecisionPlan, order: Sequence[int], to_the_end: bool) -> list[int]:
        """Returns the inputs that a plan still has to be run on: none after a miss, unless ``to_the_end``."""
        if plan in self._failed:
            return []
        known = self._known(plan)
        if not to_the_end and self._misses({place: known[place] for place in order if place in known}, order):
            return []
        return [place for place in order if place not in known]

    def _misses(self, losses: Mapping[int, InputLoss], among: Collection[int]) -> bool:
        return bool(losses) and self._loss(losses, among) > self._budget

    def _measure(self, plans: Sequence[PrecisionPlan], order: Sequence[int], to_the_end: bool) -> None:
        began = perf_counter()
        with ExitStack() as stack:
            pending = [self._pending(plan, self._left(plan, order, to_the_end), stack) for plan in plans]
            self._run([one for one in pending if one.failure is None], order, to_the_end)
        seconds = (perf_counter() - began) / len(plans)
        for one in pending:
            self._keep(one, seconds)

    def _pending(self, plan: PrecisionPlan, left: list[int], stack: ExitStack) -> _Pending:
        trial = self._store.find(self._key(plan))
        stored = {} if trial is None else self._stored(trial)
        opened: list[Infer] = []

        def infer(feeds: Feeds) -> Outputs:
            if not opened:
                opened.append(stack.enter_context(self._runner.opened(plan)))
            return opened[0](feeds)

        one = _Pending(plan, infer, left, dict(self._known(plan)), stored)
        if trial is not None and trial.failed:
            one.failure = TrialFailed(trial.outcome, trial.message)
        return one

    def _stored(self, trial: Trial) -> dict[int, InputLoss]:
        """Returns the losses that a trial of the journal has; with ``together`` those whose items it has too."""
        counted = trial.losses.keys() if self._together is None else trial.items.keys()
        return {int(k): InputLoss(loss, trial.items.get(k, 1.0)) for k, loss in trial.losses.items() if k in counted}

    def _run(self, pending: Sequence[_Pending], among: Collection[int], to_the_end: bool) -> None:
        """Runs plans on their inputs, as many inferences at a time as the runner allows."""
        while active := [one for one in pending if one.left and one.failure is None]:
            share = max(1, self._runner.at_once // len(active))
            wave = [(one, place) for one in active for place in one.left[:share]]
            inferred: list[Future[Outputs | TrialFailed]] = []
            try:
                for one, place in wave:
                    inferred.append(self._executor.submit(self._inferred, one, place))
                for (one, place), result in zip(wave, inferred, strict=True):
                    self._take(one, place, *self._figures(one, place, result.result()))
                    if not to_the_end and self._misses(one.losses, among):
                        one.left.clear()
            finally:
                wait(inferred)  # the engines are closed next

    def _inferred(self, one: _Pending, place: int) -> Outputs | TrialFailed:
        """Returns the outputs of a plan for an input, none if its loss is stored; or the failure."""
        try:
            return {} if place in one.stored else one.infer(self.given.feeds[place])
        except TrialFailed as failure:
            return failure

    def _figures(self, one: _Pending, place: int, result: Outputs | TrialFailed) -> tuple[Judged, TrialFailed | None]:
        """Judges outputs. It runs in the main thread: a metric of the user's is called by one thread at a time."""
        if place in one.stored:
            return ({}, one.stored[place]), None
        if isinstance(result, TrialFailed):
            return ({}, InputLoss(math.inf)), result
        try:
            return self._judge(place, result), None
        except TrialFailed as failure:
            return ({}, InputLoss(math.inf)), failure

    @staticmethod
    def _take(one: _Pending, place: int, judged: Judged, failure: TrialFailed | None) -> None:
        """Adds the result of one inference; results after a miss in the same wave are not taken."""
        if place not in one.left or one.failure is not None:
            return
        one.inferences += place not in one.stored
        if failure is not None:
            one.failure = failure
            return
        one.left.remove(place)
        figures, one.losses[place] = judged
        if one.losses[place] >= max(one.losses.values()):
            one.outputs = figures

    def _keep(self, one: _Pending, seconds: float) -> None:
        """Keeps a trial if anything new was measured for it."""
        key = self._key(one.plan)
        if one.failure is not None:
            self._failed.add(one.plan)
            if self._store.find(key) is None:
                self._store.keep(Trial(key, one.failure.outcome, message=one.failure.message))
            return
        self._found[one.plan] = one.losses
        if one.inferences:
            before = self._store.find(key) or Trial(key, MEASURED)
            cost = Cost(0.0, before.infer_seconds + seconds, before.inferences + one.inferences, 0)
            ran = self._runner.ran(one.plan) or before.ran
            trial = Trial.judged(key, one.outputs or before.outputs, ran, cost)
            found = {str(place): loss for place, loss in {**one.stored, **one.losses}.items()}
            items = {} if self._together is None else {place: loss.items for place, loss in found.items()}
            losses = {place: loss.share for place, loss in found.items()}
            self._store.keep(replace(trial, losses=losses, items=items))


def switch_session(builder: Builder) -> SwitchSession | None:
    """Returns the session that runs any plan, a thread for each inference; None if the engine has none or refuses."""
    if not isinstance(builder, OnnxRuntimeBuilder):
        return None
    try:
        return builder.switch(threads=1)
    except TrialFailed:
        return None
