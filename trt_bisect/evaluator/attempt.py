"""One plan tried on a builder: the outputs of its engine, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from trt_bisect.builder.base import Builder, Outputs
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import OUT_OF_MEMORY, TrialFailed, first_line
from trt_bisect.evaluator.trial import Cost
from trt_bisect.precision import PrecisionPlan


@dataclass(frozen=True)
class Answers:
    """The answers of the engine of a plan.

    Attributes:
        outputs: the outputs for every input.
        ran: by layer index, the precision in which the layer ran, as the engine reports it.
        messages: the builder's warnings.
        cost: the cost of the build and the inferences.
    """

    outputs: Sequence[Outputs]
    ran: Mapping[int, str]
    messages: tuple[str, ...]
    cost: Cost


@dataclass(frozen=True)
class FailedAttempt:
    """The reason why a plan has no answers.

    Attributes:
        outcome: the outcome of its trial.
        message: the error's.
        build_seconds: the time of the build.
    """

    outcome: str
    message: str
    build_seconds: float = 0.0


Attempt = Answers | FailedAttempt


def attempt(plan: PrecisionPlan, builder: Builder, inputs: Sequence[Feeds]) -> Attempt:
    """Builds the engine of a plan and runs the inputs through it; a failure is returned, not raised."""
    began = perf_counter()
    built = began
    try:
        with builder.build(plan) as engine:
            built = perf_counter()
            outputs = [engine.infer(feeds) for feeds in inputs]
            ran, messages = dict(engine.ran), tuple(engine.messages)
    except TrialFailed as failure:
        built = perf_counter() if built == began else built
        return FailedAttempt(failure.outcome, failure.message, built - began)
    except MemoryError as error:
        return FailedAttempt(OUT_OF_MEMORY, first_line(error), perf_counter() - began)
    return Answers(outputs, ran, messages, Cost(built - began, perf_counter() - built, len(outputs)))
