from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from types import MappingProxyType
from typing import NamedTuple, Protocol

from trt_bisect.builder.base import Builder, Outputs
from trt_bisect.builder.pipeline import AllPlans, EmulatedBuilder
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.trial import OutputFigures
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.quantizer import Scales
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.support.machine import InThisThread, ThreadsIfLong

Infer = Callable[[Feeds], Outputs]
SHARE_KEPT = 4  # tensors between the pieces of a network may take one part in this many of the memory


class Runner(Protocol):
    """Runs plans on inputs; at most ``at_once`` plans can be open."""

    at_once: int

    def opened(self, plan: PrecisionPlan) -> AbstractContextManager[Infer]:
        """Opens a plan and yields the function that runs it on an input; raises TrialFailed if it cannot be built."""

    def ran(self, plan: PrecisionPlan, /) -> Mapping[int, str]:
        """Returns by layer index the precision that the engine of a closed plan reported; empty if it reported none."""


class WholeRunner:
    """Runs each plan on an engine of its own."""

    at_once = 1

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._ran: dict[PrecisionPlan, Mapping[int, str]] = {}

    @contextmanager
    def opened(self, plan: PrecisionPlan) -> Iterator[Infer]:
        """Builds the engine of a plan, and yields its function from feeds to outputs."""
        with self._builder.build(plan) as engine:
            try:
                yield engine.infer
            finally:
                self._ran[plan] = dict(engine.ran)

    def ran(self, plan: PrecisionPlan) -> Mapping[int, str]:
        """Returns the precisions that a plan's engine reported; empty if it was not built."""
        return self._ran.get(plan, {})


class SwitchRunner:
    """Runs plans with certain scales on one ONNX Runtime session that has the layers of all plans.

    Args:
        session_of: returns the session, shared by the runners of all scales; None for a plan that it cannot run.
        builder: makes the builder with these scales, for plans that the session cannot run.
    """

    def __init__(
        self,
        session_of: Callable[[PrecisionPlan], AllPlans | None],
        scales: Scales,
        builder: Callable[[], Builder],
        at_once: int,
    ) -> None:
        self.at_once = at_once
        self._session_of = session_of
        self._scales = scales
        self._make_builder = builder

    @cached_property
    def _builder(self) -> Builder:
        return self._make_builder()

    @contextmanager
    def opened(self, plan: PrecisionPlan) -> Iterator[Infer]:
        """Yields the function that runs a plan on an input, on the session or, if that cannot run the plan, on an
        engine.
        """
        session = self._session_of(plan)
        if session is not None:
            yield lambda feeds: session.infer(plan, feeds, self._scales)
        else:
            with self._builder.build(plan) as engine:
                yield engine.infer

    def ran(self, _plan: PrecisionPlan) -> Mapping[int, str]:
        """Returns an empty mapping: the emulation runs every layer as planned."""
        return {}


def switch_session(
    builder: Builder, facts: TensorFacts, memory: int, more: Collection[Precision] = ()
) -> AllPlans | None:
    """Returns an ONNX Runtime session that runs all plans, with one thread an inference; None for NVIDIA engines, or if
    ONNX Runtime refuses the graph.

    The session keeps at most ``memory`` bytes of tensors. ``more`` are precisions besides the network's high and low
    ones.
    """
    if not isinstance(builder, EmulatedBuilder):
        return None
    try:
        return builder.switch(1, facts, memory, more)
    except TrialFailed:
        return None


class SessionEngine:
    """A plan on the ONNX Runtime session that runs all plans, with the interface of an engine.

    Attributes:
        ran: by layer index, the precision in which each layer runs.
    """

    def __init__(self, session: AllPlans, plan: PrecisionPlan, scales: Scales, ran: Mapping[int, str]) -> None:
        self._session = session
        self._plan = plan
        self._scales = scales
        self.ran = ran
        self.messages: tuple[str, ...] = ()

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs for a sample (arrays that must not be changed)."""
        outputs = self._session.infer(self._plan, feeds, self._scales)
        self.messages = tuple(dict.fromkeys((*self.messages, *self._session.messages)))
        return outputs

    def latency(self, feeds: Feeds) -> None:
        """Returns None: an emulation's time is not an engine's."""

    def __enter__(self) -> SessionEngine:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing: other plans use the session."""


class InputLoss(NamedTuple):
    """The loss of a plan on an input.

    Attributes:
        share: the loss; with a task, the share of the compared results (such as boxes) that differ from FP32's.
        items: number of results compared; 1 without a task.
        pooled: by name of a count that is judged over all inputs, the numbers of differing elements or rows and of all.
    """

    share: float
    items: float = 1.0
    pooled: Mapping[str, tuple[float, float]] = MappingProxyType({})


Judged = tuple[Mapping[str, OutputFigures], InputLoss]
JudgeAt = Callable[[int, Outputs], Judged]
"""Judges a plan's outputs for the input with this index: the figures of the outputs, and their loss."""


@dataclass
class Measuring:
    """A plan while it is run on its inputs.

    Attributes:
        left: indices of the inputs whose results are still to be judged, in order.
        losses: by input, the losses so far.
        stored: by input, losses from the journal, which need no inference.
        outputs: figures on the input with the largest loss so far.
        results: by input, the inferences that were begun and not judged.
    """

    plan: PrecisionPlan
    left: list[int]
    losses: dict[int, InputLoss]
    stored: Mapping[int, InputLoss]
    outputs: Mapping[str, OutputFigures] = field(default_factory=dict)
    failure: TrialFailed | None = None
    inferences: int = 0
    results: dict[int, Future[Outputs | TrialFailed]] = field(default_factory=dict)
    _infer: Infer | None = None
    _engine: ExitStack = field(default_factory=ExitStack)
    _opening: Lock = field(default_factory=Lock)

    @property
    def done(self) -> bool:
        """True if no inference is running or left."""
        return not self.left and not self.results

    @property
    def waiting(self) -> list[Future[Outputs | TrialFailed]]:
        """The begun inferences that are not ready."""
        return [result for result in self.results.values() if not result.done()]

    @property
    def following(self) -> list[int]:
        """The inputs in ``left`` whose inference has not begun."""
        return self.left[len(self.results) :]

    @property
    def first(self) -> Outputs | TrialFailed | None:
        """The outputs or failure for the first input in ``left``; None if not ready, or none is left."""
        result = self.results.get(self.left[0]) if self.left else None
        return result.result() if result is not None and result.done() else None

    def result(self, index: int, feeds: Sequence[Feeds], runner: Runner) -> Outputs | TrialFailed:
        """Returns the outputs for an input (empty if its loss is stored), or the failure."""
        if index in self.stored:
            return {}
        try:
            with self._opening:
                if self._infer is None:
                    self._infer = self._engine.enter_context(runner.opened(self.plan))
            return self._infer(feeds[index])
        except TrialFailed as failure:
            return failure

    def let_go(self) -> None:
        """Once no input is left, drops finished results, and closes the engine if no inference is running."""
        if not self.left:
            self.results = {index: result for index, result in self.results.items() if not result.done()}
        if self.done:
            self._engine.close()

    def close(self) -> None:
        """Waits for running inferences, and closes the engine."""
        wait(self.waiting)
        self._engine.close()


class Inferences:
    """Runs plans on inputs, as many inferences at a time as the runner allows.

    The results of a plan are judged in the order of its inputs, up to the first miss.
    """

    def __init__(self, feeds: Sequence[Feeds], judge: JudgeAt, runner: Runner) -> None:
        self._feeds = feeds
        self._judge = judge
        self._runner = runner
        self._executor = ThreadsIfLong(runner.at_once) if runner.at_once > 1 else InThisThread()

    def run(self, plans: Iterable[Measuring], ends: Callable[[Measuring], bool]) -> Generator[Measuring]:
        """Runs plans on their inputs, and yields each in order when it is done.

        Args:
            plans: drawn one by one, as soon as a plan can be run.
            ends: called after each input of a plan; true ends its run.
        """
        coming, begun = iter(plans), deque[Measuring]()
        try:
            while self._begin(coming, begun):
                waiting = [result for run in begun for result in run.waiting]
                if waiting and all(run.first is None for run in begun):
                    wait(waiting, return_when=FIRST_COMPLETED)
                for run in begun:
                    self._take(run, ends)
                while begun and begun[0].done:
                    yield begun.popleft()
        finally:
            for run in begun:
                run.close()

    def _begin(self, coming: Iterator[Measuring], begun: deque[Measuring]) -> bool:
        at_once = self._runner.at_once
        while True:
            if sum(len(run.waiting) for run in begun) >= at_once:
                return True
            if sum(not run.done for run in begun) < at_once and (measuring := next(coming, None)) is not None:
                begun.append(measuring)
                continue
            # An input is begun before the previous input is judged only if no other plan can be run.
            ready = [run for run in begun if run.following]
            if not ready:
                return bool(begun)
            run = min(ready, key=lambda run: len(run.results))
            index = run.following[0]
            run.results[index] = self._executor.submit(run.result, index, self._feeds, self._runner)
            if run.results[index].done():
                return True

    def _take(self, measuring: Measuring, ends: Callable[[Measuring], bool]) -> None:
        while (result := measuring.first) is not None:
            index = measuring.left.pop(0)
            del measuring.results[index]
            stored = measuring.stored.get(index)
            measuring.inferences += stored is None
            try:
                if isinstance(result, TrialFailed):
                    raise result
                figures, loss = self._judge(index, result) if stored is None else ({}, stored)
            except TrialFailed as failure:
                measuring.failure = failure
            else:
                measuring.losses[index] = loss
                if loss.share >= max(other.share for other in measuring.losses.values()):
                    measuring.outputs = figures
            if measuring.failure is not None or ends(measuring):
                measuring.left.clear()
        measuring.let_go()
