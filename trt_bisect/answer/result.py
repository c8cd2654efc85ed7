"""The answer: the recipe that holds on all inputs given, what was measured for it, and the recipe's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trt_bisect.answer.search import CalibratorTried
from trt_bisect.answer.validation import Checked
from trt_bisect.builder.base import Builder
from trt_bisect.builder.tensorrt_build import RTX, TENSORRT
from trt_bisect.builder.tensorrt_walk import weak_plan
from trt_bisect.calibration.cache import DLA_VERSION, NEWEST_VERSION, TensorRTVersion, parse_version, version_of_engine
from trt_bisect.data.datasets import profile_shapes, profile_sizes
from trt_bisect.data.named import name_of
from trt_bisect.driver.recipes.search_space import Space
from trt_bisect.driver.suspects.search import Loss
from trt_bisect.evaluator.each_input import NO_MARGIN, GivenInputs, Margin
from trt_bisect.evaluator.trial import Trial
from trt_bisect.options.concerns import RunOptions
from trt_bisect.options.declare import repeated
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.experiment import Experiment
from trt_bisect.recipe.commands import Setting
from trt_bisect.recipe.files import RecipeFiles, recipe_files
from trt_bisect.recipe.trtexec import Build
from trt_bisect.report.answer import DearLayer, PlanFigures
from trt_bisect.report.model import Report


@dataclass(frozen=True)
class Answer:
    """The answer.

    Attributes:
        experiment: the experiment with the ranges of the answer.
        space: the units to choose from, with the budget of the threshold.
        kept: the units that stay high.
        meets: the plan holds on all inputs given.
        full: the trial of full INT8 on all inputs, on a whole engine.
        restored: the trial of the recipe on all inputs, on a whole engine.
        taken_back: by unit of ``kept``, the loss with that unit in INT8 as well; None if that plan cannot be run.
        put_back: by unit of ``taken_back`` that has a loss, the similarity or accuracy with that unit in INT8 as well;
            None if that is not finite.
        tried: the calibrators that were tried.
        given: all inputs.
        judged: the number of inputs that the search judged on.
        checked: the check of the recipe in all settings.
        aim: the loss that the search aimed at.
        margin: the margin that the recipe had to leave on the inputs given.
        refused: the largest cost allowed for a recipe with the margin, if none was found; None otherwise.
        half_gain: a plan that gives up at most half of INT8's gain, if the recipe gives up more; None otherwise.
        in_fp16: the recipe with its layers in FP16; None where it was not measured.
        in_fp32: the recipe with its layers in FP32, where some are in FP16; None where it was not measured.
        around_fp16: the recipe with FP16 in place of FP32 everywhere; None where it was not measured.
        dear: the layers that make most of the recipe's cost.
        equals: other sets of units that cost the same.
        unmoved: see ``Cheapest``.
        faster: see ``Cheapest``.
        for_fp16: see ``Cheapest``.
        unseen: the recipe on unseen inputs; None without such inputs. Where an accuracy decides, it is a similarity.
        unseen_inputs: the unseen inputs.
        plain: the recipe's file on all inputs in ONNX Runtime with default options; None where that is the same.
        not_done: what was not done because the search was stopped, a clause each; empty if it came to its end.
        most: the largest cost allowed; None without a budget.
        by_accuracy: an accuracy decides: losses are parts of FP32's accuracy, and no input is judged by itself.
        followers: the recipe on all inputs with the layers that only follow rounding too; None if that changes nothing.
        own: the answer on the user's network, where this is that on a changed one, which is cheaper; else None.
        changes: by change of the network that was tried, the mean loss with that change and those kept before it, see
            ``answer.candidates``; the first one, without a name, is the user's network.
    """

    experiment: Experiment
    space: Space
    kept: frozenset[int]
    meets: bool
    full: Trial
    restored: Trial
    taken_back: Mapping[int, Loss]
    put_back: Mapping[int, float | None]
    tried: tuple[CalibratorTried, ...]
    given: GivenInputs
    counting: tuple[int, ...]
    judged: int
    checked: Checked
    aim: float
    equals: tuple[frozenset[int], ...] = ()
    unmoved: Mapping[int, float] = field(default_factory=dict)
    faster: frozenset[int] = frozenset()
    for_fp16: frozenset[int] = frozenset()
    unseen: Trial | None = None
    unseen_inputs: GivenInputs | None = None
    followers: Trial | None = None
    plain: Trial | None = None
    margin: Margin = NO_MARGIN
    refused: float | None = None
    half_gain: PlanFigures | None = None
    in_fp16: PlanFigures | None = None
    in_fp32: PlanFigures | None = None
    around_fp16: PlanFigures | None = None
    dear: tuple[DearLayer, ...] = ()
    not_done: tuple[str, ...] = ()
    most: float | None = None
    by_accuracy: bool = False
    own: Answer | None = None
    changes: Mapping[str, float] = field(default_factory=dict)

    @property
    def of_user(self) -> Answer:
        """The answer on the user's network, which has its culprits and full INT8."""
        return self if self.own is None else self.own

    @property
    def plan(self) -> PrecisionPlan:
        """The recipe's plan."""
        return self.space.plan(self.kept)

    @property
    def members(self) -> tuple[int, ...]:
        """The layers that were measured to break the target when they are taken back, ascending.

        Within a budget other layers stay high too, which make the plan more accurate.
        """
        losses = {unit: loss for unit, loss in self.taken_back.items() if loss is not None and unit not in self.faster}
        needed = [unit for unit, loss in losses.items() if self.most is None or loss > self.space.budget]
        return tuple(sorted(self.space.units[unit][0] for unit in needed))

    @property
    def untested(self) -> tuple[int, ...]:
        """The layers that stay high though no step back was measured that shows that they must, ascending.

        There are none unless there are many units, as the steps back are limited then, or the search was stopped. A
        recipe that misses has none.
        """
        units = self.kept - self.taken_back.keys() - self.for_fp16
        return tuple(sorted(self.space.layers(units))) if self.meets else ()

    @property
    def high(self) -> tuple[int, ...]:
        """The layers that stay high, ascending."""
        return tuple(sorted(self.space.layers(self.kept)))


def recipe_of(options: RunOptions, answer: Answer, plan: PrecisionPlan) -> RecipeFiles:
    """Returns the files of a recipe that was measured for ``answer``, with the shapes of all inputs given.

    Libraries are named by their whole paths, for commands that run in another folder; a bare name is searched for.
    """
    experiment = answer.experiment
    network, builder = experiment.network, experiment.builder
    build = Build(
        target=target_version(options, builder),
        shapes=profile_shapes(answer.given.feeds[:1] if network.is_static else answer.given.feeds),
        dynamic=tuple(spec.name for spec in network.inputs if None in spec.shape),
        options=replace(
            options.build_options(),
            plugins=tuple(str(Path(name).absolute()) if Path(name).is_file() else name for name in options.plugins),
            sizes=profile_sizes(answer.given.feeds),
        ),
    )
    weak = weak_plan(builder, network, plan)
    return recipe_files(network, experiment.ranges.scales, plan, experiment.whole.high, weak, build)


def target_version(options: RunOptions, builder: Builder) -> TensorRTVersion:
    """Returns the TensorRT that a recipe is for: the one asked for, else the one in use, else the newest."""
    if options.trt_version:
        return parse_version(options.trt_version)
    for engine in (TENSORRT, RTX):
        version = version_of_engine(builder.versions.get(engine, ""), rtx=engine == RTX)
        if builder.engine == engine and version is not None:
            return version
    return NEWEST_VERSION if getattr(options, "dla", None) is None else DLA_VERSION


def setting_of(experiment: Experiment, options: RunOptions, report: Report) -> Setting:
    """Returns the facts of a run that suggested commands repeat."""
    flags, files = repeated(options), report.attached.files
    return Setting(
        model=experiment.network.source,
        calibration=flags.get("--calibration", ("",))[0],
        has_data=experiment.data is not None,
        calibrator=experiment.ranges.calibrator,
        has_pairs=experiment.network.has_pairs,
        high=experiment.whole.high,
        low=experiment.network.low.precision,
        folder=name_of(options.output),
        build=files.build if files else Build(target_version(options, experiment.builder)),
        options=flags,
        fixed=dict(options.shapes or {}),
        kept=report.recipe.high,
    )
