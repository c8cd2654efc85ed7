"""The facts of a run's answer: the goal, the recipe, the calibrators, the front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.model.cost import TimedKernel
from trt_bisect.model.gpu_time import Predicted
from trt_bisect.support.table import FIGURE, PERCENT, Column
from trt_bisect.support.text import Line

OWN, NUDGED, ORT_FP16 = "scales as they are", "scales moved by 2e-5", "ONNX Runtime's FP16"
DECIDING = (OWN, NUDGED, ORT_FP16)
"""The settings in which a recipe must meet the threshold; the last one if it has layers in FP16."""
ENGINE_PASSES, KERNEL, DIFFUSE = "engine passes", "wrong kernel", "engine loses more"
SCALES_DIFFER, NOT_NEEDED, BASE_MISSES = "other scales", "not needed on the engine", "base misses"
OTHER_CALIBRATOR = "another calibrator"
"""The contradictions between an engine and the emulation."""
PLAIN, HALF = "ONNX Runtime's INT8 kernels", "scales moved by FP16's rounding"
UNQUANTIZED = "unquantized layers in INT8"
"""Settings that do not decide, because TensorRT computes differently; see ``model.layers``."""

AS_CHEAP = 0.03
"""Recipes whose costs differ by less than this cost the same."""


@dataclass(frozen=True)
class CalibratorRow:
    """A calibrator's full INT8, and the recipe that its ranges lead to.

    Attributes:
        calibrator: ``entropy``, ``percentile 99.99`` and so on, or the origin of given ranges; for the chosen one the
            origin of the run's ranges, such as ``mse, 1 tensor by entropy``.
        similarity: the similarity of full INT8 on the worst of the inputs that were run.
        inputs: the number of these inputs: a calibrator that misses on the first input is not run on others.
        meets: full INT8 meets the threshold on all inputs.
        cost: the cost of the first recipe found with these ranges, a share of INT8's speedup; None if none was
            searched, or it was given up as more expensive than another.
        high: the number of layers that this recipe keeps high.
        chosen: these are the run's ranges.
        mean_loss: the mean loss of that recipe over the judged inputs; it decides between recipes of about the same
            cost.
        by: the calibrator, for commands; None for given ranges.
        confirmed: full INT8 passes in all settings, without a doubt, and on the held-out inputs too; None if not
            tested, because the run's own ranges or an earlier calibrator make it pass.
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
    """The recipe's figures on a set of inputs, each judged by itself.

    Attributes:
        source: the name of the data.
        inputs: the number of inputs that count.
        holds: the number of inputs on which the recipe meets the threshold.
        worst: the worst figure; None if an output is not finite.
        worst_input: the input that the worst figure belongs to.
        mean: the mean of the figures.
        fifth: the 5th percentile of the figures.
        figures: the figure of each input that counts, by its name; None if an output is not finite.
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
        cost: a share of INT8's speedup over FP16.
        high: the layers that it keeps high.
        similarity: the similarity on the worst of all inputs given.
        meets: it meets the threshold on all inputs given.
    """

    cost: float
    high: tuple[str, ...]
    similarity: float | None
    meets: bool


@dataclass(frozen=True)
class ExpensiveLayer:
    """A layer that makes much of a recipe's cost.

    Attributes:
        cost: a share of INT8's speedup over FP16.
        alone: the similarity on the worst input given with this layer low and all others high.
    """

    name: str
    cost: float
    alone: float | None


@dataclass(frozen=True)
class EngineFacts:
    """The figures of NVIDIA engines for the plans that the emulation proposed.

    Attributes:
        engine: ``tensorrt`` or ``tensorrt-rtx``.
        builds: the number of engines built.
        base: the similarity of the network without INT8.
        int8_emulated: the similarity of full INT8 in the emulation.
        recipe_emulated: the similarity of the emulation's recipe in the emulation.
        apart_int8: the loss of the engine's outputs in full INT8 against those of the emulation.
        apart_recipe: the loss of the engine's outputs with the recipe against those of the emulation.
        lines: contradictions to the emulation.
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
    """The answer of a run.

    Attributes:
        judged: the number of inputs on which the search judged each plan.
        given: the recipe on all inputs given.
        held_out: the recipe on held-out inputs.
        has_held_out: inputs were held out.
        cost: the cost of the recipe, a share of INT8's speedup over FP16.
        calibrators: the calibrators that were tried.
        equals: other sets of layers that cost the same and meet the threshold too.
        settings: the recipe's worst figure on all inputs, by the engine's setting. ``unquantized layers in INT8`` and
            ``scales moved by FP16's rounding`` do not decide.
        in_fp16: the recipe with its layers in FP16 instead of FP32.
        in_fp32: the recipe with all high layers in FP32, from which the recipe with layers in FP16 was made.
        around_fp16: the recipe, or full INT8 if it passes, with FP16 in place of all FP32, as with ``--base fp16``.
        changes: the changes of the network by which the recipe loses less; empty if the recipe is for the user's
            network.
        changes_tried: by change, the mean loss with it and the changes kept before it, on inputs from which no change
            was made. It is the geometric mean of the losses of full INT8 and of INT8 with the cheapest layers of
            ``unchanged`` high, up to a tenth of its cost. The first entry, without a name, is the user's network.
        unchanged: the cheapest recipe for the user's network, if that of a changed one is cheaper.
        expensive: the one or two layers that make at least 80 % of the recipe's cost, the most expensive first; empty
            if it costs at most 10 %.
        ranked: the culprits by decreasing loss when put back.
        weak: the weak culprits, last in ``ranked``: put back, they miss the threshold by less than the noise, or miss
            only the margin.
        doubts: the reasons to doubt the recipe's similarity, or that of full INT8 if it passes; kinds of
            ``analyzer.doubts``.
        aim: the loss that the search aimed at; below the budget if a recipe missed in another setting.
        margin: the share of the allowed loss that the recipe leaves unused on the inputs given.
        cheapest: the cheapest set of layers that holds, if the recipe costs more to be likelier to hold on other
            inputs.
        not_done: the parts that a stopped run left out, a clause each.
        confidence: the grounds of the verdict: inputs, arithmetic, noise, unquantized layers.
        close: noise could reverse the verdict on the recipe.
        on_engines: the figures of engines.
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
        """The calibrators with which full INT8 is confirmed to pass, where it fails with the run's own.

        Empty if full INT8 meets the threshold with the run's own ranges and misses in another setting, since it misses
        there with the others too.
        """
        if any(row.chosen and row.meets for row in self.calibrators):
            return ()
        return tuple(row for row in self.calibrators if row.confirmed)

    def is_bound(self, row: CalibratorRow) -> bool:
        """Returns true if a calibrator was not run on all inputs, so that it measures its figure or worse."""
        return row.similarity is not None and row.inputs < max(each.inputs for each in self.calibrators)

    @property
    def rests_on(self) -> str:
        """The lines of ``confidence`` in short."""
        return " ".join(line.short or line.text for line in self.confidence)


@dataclass(frozen=True)
class RecipeLayers:
    """The layers that a recipe leaves high.

    Attributes:
        high: the layers left high.
        added: the high layers that are no culprits.
        meets: the recipe meets the threshold.
        untested: the high layers that a stopped run has not put back.
        faster: the high layers that are not needed, but without which the plan is predicted to be slower.
    """

    high: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    meets: bool = False
    untested: tuple[str, ...] = ()
    faster: tuple[str, ...] = ()


@dataclass(frozen=True)
class Goal:
    """The goal of the search for a recipe, next to the threshold.

    Attributes:
        most: the largest share of INT8's speedup over FP16 that the recipe may give up; the recipe is then the most
            accurate plan within it. None without ``--budget``.
        drop: the loss of accuracy allowed, as given; empty where the similarity decides.
        costs: the source of costs: ``macs``, ``measured``, ``time on`` a GPU, or a file of times.
        mixed: high layers may be in FP16 where that is enough.
    """

    most: float | None = None
    drop: str = ""
    costs: str = "macs"
    mixed: bool = False


@dataclass(frozen=True)
class PredictedTimes:
    """The predicted times of plans on a GPU; see ``docs/concepts/time.md``.

    Attributes:
        gpu: the GPU.
        plans: the times of ``fp32``, ``fp16``, ``int8`` (all layers in the low precision) and ``recipe``.
        slowest: the slowest kernels of the recipe.
        reformats: the kernels of the recipe that only change a type or layout, and that ``int8`` does not have.
        no_gain: a clause that the low precision saves less than 5 % of the time, with the reasons; empty where it saves
            more.
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
        least: the lowest acceptable accuracy; None where the similarity decides.
        base: with no layer low, if the network's base is FP16 or BF16.
        fp16: with every layer in FP16; None if FP16 is the low precision.
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
"""The names of points of the front; ``all INT8`` is another."""


@dataclass(frozen=True)
class FrontPoint:
    """A plan of the front, measured on all inputs given with the recipe's scales.

    Attributes:
        figure: the similarity, or the accuracy where that decides; None if the plan cannot be run.
        loss: the loss of that figure.
        names: the names of the plan, such as ``recipe`` or ``knee``.
        high: the precision of each layer that is not low.
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
