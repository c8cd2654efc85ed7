"""The answer of a run: the ranges, the recipe's figures on all inputs, and the things that the verdict rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trt_bisect.support.type_checks import checked

OFF = "optimisations off"
OWN = "own engine"
NUDGED = "scales moved by 2e-5"
PLAIN = "ONNX Runtime's INT8 kernels"
"""Another arithmetic than TensorRT's: it is reported, and does not decide."""
FOLLOWERS = "followers in INT8"
"""It is reported, and does not decide; see ``model.followers``."""
DECIDING = (OFF, OWN, NUDGED)
"""The settings of the engine in which a recipe must meet the threshold."""


@dataclass(frozen=True)
class CalibratorRow:
    """One calibrator's full INT8, and the recipe that its ranges lead to.

    Attributes:
        calibrator: ``entropy``, ``percentile 99.99`` and so on, or the origin of ranges that were given.
        similarity: the similarity of full INT8 on the worst of the inputs that were run, all of them for the chosen
            calibrator; None if it has no figure.
        inputs: the number of these: a calibrator that misses on the first input is not run on others.
        meets: full INT8 meets the threshold on all inputs.
        cost: the cost of the first recipe found with these ranges, a share of INT8's gain in speed; None if none was
            searched, or if it was given up because another was cheaper.
        high: the number of layers that this recipe keeps high.
        chosen: these are the run's ranges.
        mean_loss: the mean loss of that recipe over the judged inputs: of recipes that cost about the same, that with
            the smallest is chosen; None if none was searched, and in older reports.
    """

    calibrator: str
    similarity: float | None
    inputs: int
    meets: bool
    cost: float | None = None
    high: int | None = None
    chosen: bool = False
    mean_loss: float | None = None


@dataclass(frozen=True)
class Held:
    """The recipe's figures on a set of inputs, each judged by itself.

    Attributes:
        source: the name of the data.
        inputs: the number of inputs that count.
        holds: the number of inputs on which the recipe meets the threshold.
        worst: the worst figure; None if an output is not finite.
        worst_input: the input that it belongs to.
        mean: the mean of the figures.
        fifth: their 5th percentile.
        figures: the figures of each input that counts, by its name; None if an output is not finite.
    """

    source: str
    inputs: int
    holds: int
    worst: float | None
    worst_input: str
    mean: float | None
    fifth: float | None
    figures: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanFigures:
    """A plan that is not the recipe.

    Attributes:
        cost: a share of INT8's gain in speed.
        high: the names of the layers that it keeps high.
        similarity: the similarity on the worst of all inputs given; None if it has no figure.
    """

    cost: float
    high: tuple[str, ...]
    similarity: float | None


@dataclass(frozen=True)
class AnswerFacts:
    """The answer of a run.

    Attributes:
        judged: the number of inputs that the search judged each plan on.
        given: the recipe on all inputs given.
        unseen: the recipe on inputs that neither calibration nor search saw; None without such inputs.
        cost: the cost of the recipe, a share of INT8's gain in speed.
        calibrators: a row for each calibrator that was tried.
        equals: other sets of layers that cost the same; each meets the threshold too.
        settings: the recipe's worst figure on all inputs, by the setting of the engine that it was measured in;
            ``followers in INT8`` is reported, and does not decide.
        half_gain: a plan that gives up at most half of INT8's gain, if the recipe gives up more; None otherwise.
        doubts: sentences that contradict the recipe's similarity, or that of full INT8 if it passes.
        doubt_kinds: the kind of each, a word of ``analyzer.doubts``; empty in older reports.
        aim: the loss that the search aimed at; less than the budget where a recipe missed in another setting.
        margin: the share of the loss allowed that a recipe had to leave unused on the inputs given.
        spared: the number of inputs that may use the margin.
        not_done: what was not done because the run was stopped, a clause each; empty if it came to its end.
        confidence: sentences on what the verdict rests on: inputs, arithmetic, noise, layers that only follow. The
            words of a sentence before its first colon are its short form.
        close: noise could reverse the verdict on the recipe.
    """

    judged: int
    given: Held | None
    unseen: Held | None
    cost: float
    calibrators: tuple[CalibratorRow, ...] = ()
    equals: tuple[tuple[str, ...], ...] = ()
    settings: Mapping[str, float | None] = field(default_factory=dict)
    aim: float | None = None
    margin: float = 0.0
    spared: int = 0
    half_gain: PlanFigures | None = None
    doubts: tuple[str, ...] = ()
    doubt_kinds: tuple[str, ...] = ()
    confidence: tuple[str, ...] = ()
    close: bool = False
    not_done: tuple[str, ...] = ()

    @property
    def free_ranges(self) -> tuple[CalibratorRow, ...]:
        """The calibrators that would make full INT8 pass where that of the run does not.

        If full INT8 meets the threshold with the run's own ranges too, and yet a recipe is needed, it misses in another
        setting: then so do the others, which were tried first.
        """
        if any(row.chosen and row.meets for row in self.calibrators):
            return ()
        return tuple(row for row in self.calibrators if row.meets and row.similarity is not None)

    @property
    def rests_on(self) -> str:
        """The sentences of ``confidence``, each in short; empty without any."""
        return "".join(f"{said.partition(':')[0].rstrip('.')}. " for said in self.confidence).rstrip()

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> AnswerFacts:
        """Returns the answer of a report's record.

        Raises:
            KeyError, TypeError: the record is no answer.
        """
        held = {name: None if record[name] is None else checked(Held(**record[name])) for name in ("given", "unseen")}
        rows = tuple(checked(CalibratorRow(**row)) for row in record["calibrators"])
        equals = tuple(tuple(names) for names in record["equals"])
        if (half := record.get("half_gain")) is not None:
            half = checked(PlanFigures(**{**half, "high": tuple(half["high"])}))
        texts = {name: tuple(record.get(name, ())) for name in ("doubts", "doubt_kinds", "confidence", "not_done")}
        return checked(cls(**{**record, **held, **texts, "calibrators": rows, "equals": equals, "half_gain": half}))
