from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import msgspec

from trt_bisect.builder.base import Latency, Outputs
from trt_bisect.errors import OUT_OF_MEMORY
from trt_bisect.precision import MOST_LAYERS, WORDS, PrecisionPlan

MEASURED = "measured"
BUILD_FAILED = "build failed"
INFERENCE_FAILED = "inference failed"
TIMED_OUT = "timed out"
NOT_FINITE = "not finite"
LOST = "lost"
PASSING = (TIMED_OUT, LOST, OUT_OF_MEMORY)  # outcomes that the plan may not have caused: the next run tries it again
WHOLE, SWITCH = "", "switch"  # the kinds of engines on which trials are measured (``TrialKey.measured_in``)
AS_ASKED = "as asked"  # stands for the precisions that the plan asks for


@dataclass(frozen=True)
class TrialKey:
    """Identifies a trial in a journal: the plan, and the engine that it was measured on.

    Attributes:
        plan: the plan's key, or another word without a space.
        measured_in: empty for an engine of this plan, ``switch`` for the session that runs all plans, or other words,
            such as for single inputs.
    """

    plan: str
    measured_in: str = WHOLE

    @property
    def text(self) -> str:
        """The key in journals: ``measured_in``, if any, a space, and the plan's key."""
        return f"{self.measured_in} {self.plan}" if self.measured_in else self.plan

    @classmethod
    def from_text(cls, text: str) -> TrialKey:
        """Returns the key with this text.

        >>> TrialKey.from_text("switch 8*3.f*2")
        TrialKey(plan='8*3.f*2', measured_in='switch')
        """
        measured_in, _, plan = text.rpartition(" ")
        return cls(plan, measured_in)

    @property
    def has_plan(self) -> bool:
        """True if ``plan`` is a plan's key; false for FP32's accuracy."""
        return "*" in self.plan


def shortened(ran: Mapping[int, str], plan: str) -> Any:
    """Returns the precisions of layers by index, in JSON types: ``as asked`` if they are the plan's, else pairs of a
    precision (None if unknown) and a run length.

    >>> shortened({0: "int8", 1: "int8", 3: "fp32"}, "8*4")
    [['int8', 2], [None, 1], ['fp32', 1]]
    """
    if ran == _asked(plan):
        return AS_ASKED
    runs = groupby(ran.get(index) for index in range(max(ran, default=-1) + 1))
    return [[precision, sum(1 for _ in run)] for precision, run in runs]


def restored(short: Any, plan: str) -> dict[int, str]:
    """Returns by layer index the precisions that ``shortened`` encoded; also accepts a JSON object by index.

    Raises:
        AttributeError, TypeError, ValueError: ``short`` is neither.
    """
    if short == AS_ASKED:
        return _asked(plan)
    if isinstance(short, Mapping):
        return {int(index): sys.intern(precision) for index, precision in short.items()}
    if sum(count for _, count in short) > MOST_LAYERS:
        raise ValueError(f"precisions of more than {MOST_LAYERS} layers")
    every = [precision for precision, count in short for _ in range(count)]
    return {index: sys.intern(precision) for index, precision in enumerate(every) if precision is not None}


def _asked(plan: str) -> dict[int, str]:
    try:
        precisions = PrecisionPlan.from_key(TrialKey.from_text(plan).plan).precisions
    except (KeyError, ValueError):
        return {}
    return dict(enumerate(map(WORDS.__getitem__, precisions)))


@dataclass(frozen=True)
class OutputFigures:
    """A final output compared with FP32's.

    Attributes:
        values: each metric's value, on the input where it is worst.
        finite: true if no value is NaN or infinite where the reference is finite.
        note: a remark on the comparison, such as a changed shape; empty without one.
        inputs: for several inputs, each metric's value on each: NaN without a value, None if the input does not count
            because FP32's output is almost zero.
        reach: the output's largest magnitude over all inputs, as a share of FP32's largest; None if not known.
        clipped: the share of FP32's large values (at least half of its largest) that exceed the output's largest
            magnitude, at elements where the output has that magnitude.
        vanished: the classes that FP32 is sure of in some rows and the output predicts in none of these.
        pooled: by kind, over all inputs together, the number of elements or rows that differ, and the number of all.
        columns: axis and index of columns that no longer depend on the input.
    """

    values: Mapping[str, float]
    finite: bool = True
    note: str = ""
    inputs: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    reach: float | None = None
    clipped: float = 0.0
    vanished: tuple[int, ...] = ()
    pooled: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    columns: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Trial:
    """A plan tried.

    Attributes:
        plan: the ``TrialKey`` as text.
        outcome: ``measured``, ``not finite``, or a failure such as ``build failed``.
        outputs: the figures of each final output, by name.
        ran: by layer index, the precision to which the layer's inputs were rounded; empty if unknown.
        message: the error, or the builder's warnings.
        build_seconds: the time of the build.
        infer_seconds: the time of the inferences.
        inferences: the number of inferences.
        builds: the number of engines built.
        losses: for a plan run on one input after another, the losses so far, by the index of the input.
        items: for such a plan with a task, the number of things compared, by the index of the input.
        pooled: for such a plan, by the index of the input, then by output and kind, the numbers of differing things and
            of all, where any differ.
        latency: the time of an inference on the engine; None if not measured.
        apart: the largest loss of the engine's outputs against the emulation's of the same plan; infinite if they
            cannot be compared, None if they were not.
    """

    plan: str
    outcome: str
    outputs: Mapping[str, OutputFigures] = field(default_factory=dict)
    ran: Mapping[int, str] = field(default_factory=dict)
    message: str = ""
    build_seconds: float = 0.0
    infer_seconds: float = 0.0
    inferences: int = 0
    builds: int = 1
    losses: Mapping[str, float] = field(default_factory=dict)
    items: Mapping[str, float] = field(default_factory=dict)
    pooled: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    latency: Latency | None = None
    apart: float | None = None

    def judged(self, figures: Mapping[str, OutputFigures]) -> Trial:
        """Returns the trial of a plan that ran, with the figures of its outputs."""
        finite = all(output.finite for output in figures.values())
        return replace(self, outcome=MEASURED if finite else NOT_FINITE, outputs=figures)

    @property
    def failed(self) -> bool:
        """True if there are no outputs to judge."""
        return self.outcome not in (MEASURED, NOT_FINITE)

    def to_json(self) -> dict[str, Any]:
        """Returns the trial in JSON types."""
        record = {**vars(self), "outputs": {name: vars(figures) for name, figures in self.outputs.items()}}
        record |= {"ran": shortened(self.ran, self.plan), "latency": msgspec.to_builtins(self.latency)}
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Trial:
        """Returns the trial that ``to_json`` wrote.

        Raises:
            AttributeError, KeyError, TypeError, ValueError, msgspec.ValidationError: the record is no trial.
        """
        return msgspec.convert({**record, "ran": restored(record["ran"], record["plan"])}, cls)


@dataclass(frozen=True)
class Attempt:
    """A plan that was tried: its trial, and the outputs by input.

    Attributes:
        trial: not judged yet, so without figures.
    """

    plan: PrecisionPlan
    trial: Trial
    outputs: Sequence[Outputs] = ()


class TrialStore:
    """The trials under a fingerprint, in memory; a ``Journal`` also keeps them in a run folder.

    Attributes:
        trials: by the text of their keys.
        resumed: the number of trials left by an earlier run.
    """

    resumed = 0

    def __init__(self) -> None:
        self.trials: dict[str, Trial] = {}
        self._others: dict[str, TrialStore] = {}

    def find(self, plan: str) -> Trial | None:
        """Returns the trial with the key ``plan``; None if unknown."""
        return self.trials.get(plan)

    def keep(self, *trials: Trial) -> None:
        """Adds trials; a journal has written them to its file when this returns."""
        self.trials.update({trial.plan: trial for trial in trials})

    def under(self, fingerprint: str, about: Mapping[str, Any]) -> TrialStore:  # noqa: ARG002
        """Returns the store of trials under another fingerprint, the digest of the parts ``about``."""
        return self._others.setdefault(fingerprint, TrialStore())


UNTRIED = Trial("", "not tried", builds=0)  # a trial in place of a plan that was not measured
