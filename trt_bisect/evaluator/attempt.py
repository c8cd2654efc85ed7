"""One plan tried on a builder: what its engine answered, or why there is no answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from trt_bisect.builder.base import Builder, Outputs
from trt_bisect.data.datasets import Feeds
from trt_bisect.errors import OUT_OF_MEMORY, TrialFailed, first_line
from trt_bisect.evaluator.trial import Cost
from trt_bisect.precision import PrecisionPlan


@dataclass(frozen=True)
class Answers:
    """What the engine of a plan gave.

    Attributes:
        outputs: for every input.
        ran: by layer index, the precision that the engine says a layer ran in.
        messages: what the builder warned of.
    """

    outputs: Sequence[Outputs]
    ran: Mapping[int, str]
    messages: tuple[str, ...]
    cost: Cost


@dataclass(frozen=True)
class Failure:
    """Why a plan has no answers: an outcome of its trial, what was said, and the seconds that the build took."""

    outcome: str
    message: str
    build_seconds: float = 0.0


Attempt = Answers | Failure


def attempt(plan: PrecisionPlan, builder: Builder, inputs: Sequence[Feeds]) -> Attempt:
    """Builds the engine of a plan and runs the inputs through it."""
    began = perf_counter()
    built = began
    try:
        with builder.build(plan) as engine:
            built = perf_counter()
            outputs = [engine.infer(feeds) for feeds in inputs]
            ran, messages = dict(engine.ran), tuple(engine.messages)
    except TrialFailed as failure:
        built = perf_counter() if built == began else built
        return Failure(failure.outcome, failure.message, built - began)
    except MemoryError as error:
        return Failure(OUT_OF_MEMORY, first_line(error), perf_counter() - began)
    return Answers(outputs, ran, messages, Cost(built - began, perf_counter() - built, len(outputs)))
