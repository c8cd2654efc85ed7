"""One plan tried: what came of it, as facts that can be written to a journal and read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trt_bisect.errors import OUT_OF_MEMORY
from trt_bisect.evaluator.precision_encoding import restored, shortened
from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.support.type_checks import checked

MEASURED = "measured"
BUILD_FAILED = "build failed"
INFERENCE_FAILED = "inference failed"
TIMED_OUT = "timed out"
NOT_FINITE = "not finite"
LOST = "lost"
PASSING = (TIMED_OUT, LOST, OUT_OF_MEMORY)
"""Outcomes of the moment, not of the plan: it is tried again by the next run."""


@dataclass(frozen=True)
class OutputFigures:
    """How one final output compares with the FP32 reference.

    Attributes:
        values: each metric's value by its name, on the input where it is worst; empty where nothing could be compared.
        finite: no NaN or infinite value stands where the reference is finite.
        note: what is to be said of the comparison, such as a changed shape.
        inputs: of several inputs, each metric's value on each of them: NaN where there is none, None where that input
            does not count because FP32's output is almost zero. Empty for a single input.
    """

    values: Mapping[str, float]
    finite: bool = True
    note: str = ""
    inputs: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> OutputFigures:
        """The figures as a journal holds them.

        Raises:
            AttributeError, KeyError, TypeError: the record holds no figures.
        """
        inputs = {name: tuple(figures) for name, figures in record.get("inputs", {}).items()}
        return checked(cls(**{**record, "inputs": inputs}))


@dataclass(frozen=True)
class Cost:
    """What a trial took; see ``Trial``."""

    build_seconds: float
    infer_seconds: float
    inferences: int
    builds: int = 1


@dataclass(frozen=True)
class Trial:
    """One plan tried.

    Attributes:
        plan: the text of its key, see ``TrialKey``.
        outcome: one of the words above.
        outputs: the figures of each final output by name; empty where the trial failed.
        ran: by layer index, the precision that the engine says a layer ran in.
        message: why it failed, or what the builder warned of.
        build_seconds: and ``infer_seconds``: what it cost, or its share of a pass.
        builds: how many engines were built for it; of a pass, the first trial has them all.
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

    @classmethod
    def judged(
        cls,
        plan: str,
        figures: Mapping[str, OutputFigures],
        ran: Mapping[int, str],
        cost: Cost,
        message: str = "",
    ) -> Trial:
        """The trial of a plan that ran.

        Args:
            plan: the text of its key.
            figures: of each final output.
            ran: by layer index, what each layer ran in.
            cost: what it took.
            message: what the builder warned of.
        """
        finite = all(output.finite for output in figures.values())
        outcome = MEASURED if finite else NOT_FINITE
        return cls(plan, outcome, figures, dict(ran), message, **asdict(cost))

    @property
    def failed(self) -> bool:
        """There are no outputs to judge: neither good nor bad accuracy."""
        return self.outcome not in (MEASURED, NOT_FINITE)

    def to_json(self) -> dict[str, Any]:
        """The trial as JSON's types."""
        return {**asdict(replace(self, ran={})), "ran": shortened(self.ran, self.plan)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Trial:
        """The trial that ``to_json`` wrote.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: the record is no trial.
        """
        fields = dict(record)
        fields["outputs"] = {name: OutputFigures.from_json(figures) for name, figures in record["outputs"].items()}
        fields["ran"] = restored(record["ran"], record["plan"])
        return checked(cls(**fields))


def of_a_pass(trials: Mapping[str, Trial], key: TrialKey) -> Trial | None:
    """Returns the trial of a plan that was measured in a pass, or None if there is none.

    Args:
        trials: by the text of their keys.
        key: of the plan, and of the engines that the pass ran on.
    """
    return trials.get(key.text) or trials.get(key.in_rows.text)


UNTRIED = Trial("", "not tried", builds=0)
"""Stands for a plan that was not tried."""
