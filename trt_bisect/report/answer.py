"""The result of a run's search: goal, recipe, calibrators and front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.model.cost import TimedKernel
from trt_bisect.model.gpu_time import Predicted
from trt_bisect.support.table import FIGURE, PERCENT, Column
from trt_bisect.support.text import Line

OWN, NUDGED, FUSED = "scales as they are", "scales moved by 2e-5", "ONNX Runtime's optimisations"
DECIDING = (OWN, NUDGED, FUSED)
"""The settings in which a recipe must meet the threshold; the second only with scales, the last two only in the
emulation.
"""
ENGINE_PASSES, KERNEL, DIFFUSE = "engine passes", "wrong kernel", "engine loses more"
SCALES_DIFFER, NOT_NEEDED, BASE_MISSES = "other scales", "not needed on the engine", "base misses"
OTHER_CALIBRATOR = "another calibrator"
PLAIN, HALF = "ONNX Runtime's INT8 kernels", "scales moved by FP16's rounding"
UNQUANTIZED = "unquantized layers in INT8"
"""Settings that do not decide, because TensorRT computes differently."""

AS_CHEAP = 0.03
"""Recipes whose costs differ by less count as equally expensive."""


@dataclass(frozen=True)
class CalibratorRow:
    """A calibrator: full INT8 with its ranges, and the first recipe found with them. Figures not measured are None.

    Attributes:
        calibrator: ``entropy``, ``percentile 99.99`` and so on, or the origin of given ranges; the chosen one may have
            exceptions, such as ``mse, 1 tensor by entropy``.
        similarity: the similarity of full INT8 on the worst input that was run.
        inputs: the number of inputs that were run; those that show a miss may be few.
        meets: full INT8 meets the threshold on all inputs.
        cost: the share of INT8's speedup over FP16 that the first recipe gives up.
        high: the number of layers in high precision in the first recipe.
        chosen: the run uses this calibrator.
        mean_loss: the mean loss of the first recipe, which decides between recipes of about the same cost.
        by: the calibrator for ``--calibrator``; None for given ranges.
        confirmed: full INT8 passes in all settings, without a doubt, and on held-out inputs; None if not tested.
    """

    calibrator: str
    similarity: float | None
    inputs: int
    meets: bool
    cost: float | None = None
    high: int | None = None
    chosen: bool = False
    mean_loss: float | None = None
    by: Calibrator | None = None
    confirmed: bool | None = None


@dataclass(frozen=True)
class Held:
    """The recipe's similarity on a set of inputs, each judged by itself; None if not finite.

    Attributes:
        source: the name of the data with the worst input.
        inputs: the number of inputs that are not faint.
        holds: the number of inputs on which the recipe meets the threshold.
        worst: the worst similarity.
        worst_input: the name of the worst input.
        mean: the mean of the finite similarities.
        fifth: the 5th percentile of the finite similarities; the 95th if lower is better.
        figures: the similarities by name of the input.
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
    """A measured plan, for comparison with the recipe.

    Attributes:
        cost: the share of INT8's speedup over FP16 that the plan gives up.
        high: the layers in high precision.
        similarity: the similarity on the worst given input; None if not finite.
        meets: the plan meets the threshold on all given inputs.
    """

    cost: float
    high: tuple[str, ...]
    similarity: float | None
    meets: bool


@dataclass(frozen=True)
class ExpensiveLayer:
    """A layer that causes much of a recipe's cost.

    Attributes:
        cost: the share of INT8's speedup over FP16 that the layer gives up.
        alone: the similarity on the worst given input with only this layer in INT8; None if not measured.
    """

    name: str
    cost: float
    alone: float | None


@dataclass(frozen=True)
class EngineFacts:
    """Measurements on NVIDIA engines of the plans that the emulation proposed; None for a plan without a figure.

    Attributes:
        builds: the number of engines built.
        base: the similarity of the network without INT8, on the engine.
        int8_emulated: the similarity of full INT8 in the emulation.
        recipe_emulated: the similarity of the proposed recipe in the emulation.
        apart_int8: the loss of full INT8 on the engine, with the emulation's outputs as reference.
        apart_recipe: the loss of the proposed recipe on the engine, with the emulation's outputs as reference.
        lines: contradictions between engine and emulation, a sentence each.
        engine: ``tensorrt`` or ``tensorrt-rtx``.
    """

    engine: str
    builds: int
    base: float | None
    int8_emulated: float | None
    recipe_emulated: float | None
    apart_int8: float | None
    apart_recipe: float | None
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class AnswerFacts:
    """The recipe of a run: its figures, its cost, other plans, and the grounds of the verdict. What was not measured is
    None.

    Attributes:
        judged: the number of inputs on which the search judged each plan.
        given, held_out: the recipe on all given, and on held-out inputs; None if an accuracy decides.
        has_held_out: inputs were held out.
        cost: the share of INT8's speedup over FP16 that the recipe gives up.
        calibrators: the calibrators that were tried.
        equals: other sets of layers that, in high precision, pass at the same cost.
        settings: by setting, the recipe's worst similarity; None if not finite. ``unquantized layers in INT8`` and
            ``scales moved by FP16's rounding`` do not decide.
        in_fp16: the recipe with FP16 in place of FP32 for the layers in high precision.
        in_fp32: the recipe with all layers in high precision in FP32, before some were moved to FP16.
        around_fp16: the recipe, or full INT8 if that passes, with FP16 in place of all FP32 (``--base fp16``).
        changes: in words, the changes of the network that reduce the recipe's loss; empty without any.
        changes_tried: by change of the network, the mean of full INT8's loss and a cheap plan's, with this change and
            those kept before, on inputs from which no change was computed; ``""`` is the given network.
        unchanged: the cheapest recipe for the given network, if a changed network has a cheaper one.
        expensive: the one or two layers that cause at least 80 % of the recipe's cost, if this cost is over 30 %; the
            most expensive first.
        ranked: the culprits, by decreasing loss with the culprit back in INT8.
        weak: the culprits with which in INT8 the recipe misses the threshold by less than the noise, or misses only the
            margin, or misses only in another setting than ``scales as they are``.
        doubts: reasons to doubt the similarity of the recipe, or of full INT8 if that passes.
        aim: the largest loss that the search accepted; less than the threshold allows if ``margin`` is above 0.
        margin: the share of the allowed loss that the recipe leaves unused on given inputs (``--margin``).
        cheapest: the cheapest passing plan, if the recipe is a safer one.
        not_done: the parts that a stopped run left out, a clause each.
        confidence: the grounds of the verdict: inputs, arithmetic, noise, unquantized layers.
        close: noise could reverse the verdict on the recipe.
        on_engines: the measurements on NVIDIA engines.
    """

    judged: int
    given: Held | None
    held_out: Held | None
    cost: float
    calibrators: tuple[CalibratorRow, ...] = ()
    equals: tuple[tuple[str, ...], ...] = ()
    settings: Mapping[str, float | None] = field(default_factory=dict)
    aim: float | None = None
    margin: float = 0.0
    cheapest: PlanFigures | None = None
    in_fp16: PlanFigures | None = None
    in_fp32: PlanFigures | None = None
    around_fp16: PlanFigures | None = None
    changes: str = ""
    changes_tried: Mapping[str, float] = field(default_factory=dict)
    unchanged: PlanFigures | None = None
    expensive: tuple[ExpensiveLayer, ...] = ()
    ranked: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    doubts: tuple[Line, ...] = ()
    confidence: tuple[Line, ...] = ()
    close: bool = False
    not_done: tuple[str, ...] = ()
    has_held_out: bool = False
    on_engines: EngineFacts | None = None

    @property
    def free_ranges(self) -> tuple[CalibratorRow, ...]:
        """The calibrators confirmed to make full INT8 pass; empty if the chosen one meets the threshold."""
        if any(row.chosen and row.meets for row in self.calibrators):  # it misses in another setting, with all of them
            return ()
        return tuple(row for row in self.calibrators if row.confirmed)

    def is_bound(self, row: CalibratorRow) -> bool:
        """Returns true if full INT8 with this calibrator was not run on all inputs: its similarity may be worse."""
        return row.similarity is not None and row.inputs < max(each.inputs for each in self.calibrators)

    @property
    def rests_on(self) -> str:
        """The grounds of the verdict (``confidence``), shortened, as one text."""
        return " ".join(line.short or line.text for line in self.confidence)


@dataclass(frozen=True)
class RecipeLayers:
    """The layers that a recipe keeps in high precision.

    Attributes:
        high: the layers in high precision.
        added: the layers of ``high`` that are no culprits.
        meets: the recipe meets the threshold.
        untested: the layers of ``high`` that the run did not measure back in INT8 and that may be unnecessary.
        faster: the layers of ``high`` that only speed needs: with them in INT8 the plan is predicted to be slower.
    """

    high: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    meets: bool = False
    untested: tuple[str, ...] = ()
    faster: tuple[str, ...] = ()


@dataclass(frozen=True)
class Goal:
    """The goal of the search for a recipe, besides the threshold.

    Attributes:
        most: the largest share of INT8's speedup over FP16 that the recipe may give up; None without ``--budget``.
        drop: the allowed loss of accuracy, as given by ``--drop``; empty if the similarity decides.
        costs: the source of costs: ``macs`` (multiply-adds), ``measured``, ``time on`` and a GPU's name, or a file of
            times.
        mixed: layers in high precision are in FP16 where that is accurate enough.
    """

    most: float | None = None
    drop: str = ""
    costs: str = "macs"
    mixed: bool = False


@dataclass(frozen=True)
class PredictedTimes:
    """The predicted times of plans on a GPU.

    Attributes:
        gpu: the GPU.
        plans: the times of ``fp32``, ``fp16``, ``int8`` (all layers in the low precision) and ``recipe``.
        slowest: the slowest kernels of the recipe.
        reformats: the recipe's kernels that only change a type or layout, and that ``int8`` does not have.
        no_gain: a clause on why the low precision saves less than 5 % of the time; empty if it saves more.
    """

    gpu: str
    plans: Mapping[str, Predicted]
    slowest: tuple[TimedKernel, ...] = ()
    reformats: tuple[TimedKernel, ...] = ()
    no_gain: str = ""


@dataclass(frozen=True)
class Accuracies:
    """The accuracy on labelled data; None for a plan that could not be run.

    Attributes:
        least: the lowest acceptable accuracy; None if the similarity decides.
        base: the accuracy with no layer in low precision, if the base is FP16 or BF16.
        fp16: the accuracy with every layer in FP16; None if FP16 is the low precision.
        also: other figures by plan (``fp32``, ``int8``, ``recipe``) and name, such as ``map50``.
    """

    fp32: float | None
    int8: float | None
    recipe: float | None
    least: float | None = None
    base: float | None = None
    fp16: float | None = None
    also: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


ALL_HIGH, RECIPE, KNEE = "all high", "recipe", "knee"


@dataclass(frozen=True)
class FrontPoint:
    """A plan of the front of cost and accuracy, measured on all given inputs with the recipe's scales.

    Attributes:
        figure: the similarity, or the accuracy if that decides; None if the plan cannot be run.
        loss: the loss of ``figure``.
        names: the names of the plan, such as ``recipe`` or ``knee``; empty for most plans.
        high: the precision of each layer that is not in low precision, by layer.
    """

    cost: Annotated[
        float,
        Column("Cost", "Share of {low}'s speedup that the plan gives up", PERCENT, rank=0),
    ]
    figure: Annotated[
        float | None,
        Column(
            "{figure}",
            "Figure that decides, on all inputs given; its name, such as accuracy, is that of the column",
            FIGURE,
            rank=0,
            key="{figure}",
        ),
    ]
    loss: float | None
    names: Annotated[tuple[str, ...], Column("Plan", "Name of the plan", rank=0)]
    high: Annotated[Mapping[str, str], Column("")]

    @property
    def layers(self) -> Annotated[int, Column("Layers high", "Number of layers that are not low", rank=0)]:
        """The number of layers that are not low."""
        return len(self.high)
