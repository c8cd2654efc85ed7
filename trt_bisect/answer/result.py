from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trt_bisect.analyzer.judge import Rule
from trt_bisect.answer.plans import AnswerInputs
from trt_bisect.answer.search import CalibratorTried
from trt_bisect.answer.validation import Recipe
from trt_bisect.builder.base import Builder
from trt_bisect.builder.pipeline import PipelineBuilder
from trt_bisect.builder.tensorrt_build import RTX, TENSORRT
from trt_bisect.builder.tensorrt_weak import weak_plan
from trt_bisect.calibration.cache import DLA_VERSION, NEWEST_VERSION, TensorRTVersion, parse_version, version_of_engine
from trt_bisect.data.datasets import Profile
from trt_bisect.data.named import name_of
from trt_bisect.driver.search_space import Kept
from trt_bisect.evaluator.each_input import GivenInputs
from trt_bisect.evaluator.speed import Latencies
from trt_bisect.evaluator.trial import Trial
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import Scales
from trt_bisect.options.concerns import RunOptions
from trt_bisect.options.declare import repeated
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.recipe.commands import Setting
from trt_bisect.recipe.files import RecipeFiles, pipeline_files, recipe_files
from trt_bisect.recipe.trtexec import Build
from trt_bisect.report.answer import ExpensiveLayer, PlanFigures
from trt_bisect.report.choices import LEAST_GAIN
from trt_bisect.report.model import Report
from trt_bisect.support.text import Line


@dataclass(frozen=True)
class EngineResult:
    """The measurements on engines for the answer that the emulation proposed.

    Attributes:
        base: trial with no layer in low precision.
        builds: number of engines built.
        kernels: units that the engine does not compute as its file says.
        lines: sentences on the contradictions between engine and emulation; else empty.
    """

    proposal: Answer
    engine: str
    base: Trial
    builds: int
    kernels: Kept
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Answer:
    """The answer of a run: a recipe and its measurements. Trials are on all given inputs unless an entry says
    otherwise.

    Attributes:
        recipe: ``recipe.meets`` is true if it passes on all given inputs.
        full: trial of full INT8.
        restored: trial of the recipe.
        put_back: by unit with a loss in ``recipe.put_back``, the similarity or accuracy with it in INT8 too; None if
            not finite.
        tried: full INT8 and the recipe by each calibrator.
        judged: number of inputs that the search judged.
        held_out: the recipe's trial on held-out inputs, judged by similarity even if an accuracy decides; None if not
            measured.
        unquantized: the recipe's trial if unquantized layers round their inputs too; None if that changes nothing.
        half: the recipe's largest loss with scales moved by FP16's rounding; None without a layer in 16 bits.
        plain: trial of the recipe's file in ONNX Runtime with default options; None if not measured.
        in_fp16, in_fp32: figures with all layers in high precision in FP16, or in FP32; None if not measured.
        around_fp16: figures with FP16 wherever the recipe has FP32, in unquantized layers too; None if not
            measured.
        expensive: the few layers that cause most of an expensive recipe's cost; else empty.
        not_done: parts that a stopped run left out, a clause each.
        fp16: trial of the network in FP16; None if the low precision is a float type, a layer is in FP16 in the
            file, or the plan cannot run.
        fp16_held_out: the same on held-out inputs; None unless the recipe misses there.
        nan_in_fp16, nan_in_recipe: a clause on NaN inside the plan that its outputs hide; empty if there is none.
        most: largest cost allowed (``--budget``); None without it.
        by_accuracy: an accuracy decides: losses are parts of FP32's accuracy, and no input is judged by itself.
        own: answer on the user's network, if this answer has a changed network with a cheaper recipe; else None.
        changes: by change, the mean loss with it and the changes kept before; first, without a name, that of the user's
            network.
        engines: trials of engines; None if the emulation decides. With engines, ``tried`` and ``own`` are from the
            emulation, except ``own.full``.
    """

    recipe: Recipe
    full: Trial
    restored: Trial
    put_back: Mapping[int, float | None]
    tried: tuple[CalibratorTried, ...]
    inputs: AnswerInputs
    judged: int
    has_held_out: bool = False
    held_out: Trial | None = None
    held_out_inputs: GivenInputs | None = None
    unquantized: Trial | None = None
    half: float | None = None
    plain: Trial | None = None
    in_fp16: PlanFigures | None = None
    in_fp32: PlanFigures | None = None
    around_fp16: PlanFigures | None = None
    fp16: Trial | None = None
    fp16_held_out: Trial | None = None
    nan_in_fp16: str = ""
    nan_in_recipe: str = ""
    expensive: tuple[ExpensiveLayer, ...] = ()
    not_done: tuple[str, ...] = ()
    most: float | None = None
    by_accuracy: bool = False
    own: Answer | None = None
    changes: Mapping[str, float] = field(default_factory=dict)
    engines: EngineResult | None = None

    @property
    def emulated(self) -> Answer:
        """The answer before engines decided; this answer if the emulation decides."""
        return self if self.engines is None else self.engines.proposal

    @property
    def of_user(self) -> Answer:
        """The answer on the user's network, whose culprits and full INT8 are reported."""
        return self if self.own is None else self.own

    @property
    def experiment(self) -> Experiment:
        """The experiment with the network and the ranges of the recipe."""
        return self.recipe.experiment

    @property
    def base(self) -> Trial | None:
        """The trial with no layer in low precision; None if only the curve measured it, on the inputs of the search."""
        if self.engines is not None:
            return self.engines.base
        experiment = self.of_user.experiment
        all_in_fp16 = experiment.network.base is experiment.whole.high is Precision.FP16
        return self.fp16 if all_in_fp16 else None

    @property
    def plan(self) -> str:
        """The name of the plan for sentences: ``the recipe``; ``full INT8`` if no layer is in high precision, in an
        unchanged network.
        """
        network = self.experiment.network
        return "the recipe" if self.recipe.kept or network.changes else f"full {network.low.title}"

    @property
    def meets(self) -> bool:
        """True if the recipe passes on all given inputs."""
        return self.recipe.meets

    @property
    def misses_held_out(self) -> bool:
        """True if the recipe passes on all given inputs and misses on held-out inputs."""
        return self.meets and self.held_out is not None and not self.experiment.rule.meets(self.held_out)

    @property
    def members(self) -> tuple[int, ...]:
        """The index of the first layer of each unit that the recipe needs, ascending: with this unit in INT8, the
        recipe misses.
        """
        # With a cost budget the recipe may keep more layers high, for accuracy.
        recipe, space, budget = self.recipe, self.recipe.space, self.recipe.space.budget
        losses = {unit: back.loss for unit, back in recipe.put_back.items() if unit not in recipe.faster}
        needed = [unit for unit, loss in losses.items() if loss is not None and (self.most is None or loss > budget)]
        kernels = () if self.engines is None else self.engines.kernels
        return tuple(sorted(space.units[unit][0] for unit in needed if unit not in kernels))

    @property
    def untested(self) -> tuple[int, ...]:
        """The indices of the recipe's layers in high precision that no measurement shows to be needed, ascending; empty
        if the recipe misses.
        """
        units = self.recipe.kept - self.recipe.put_back.keys()
        return tuple(sorted(self.recipe.space.layers(units))) if self.meets else ()


def recipe_of(setup: Setup, options: RunOptions, answer: Answer) -> RecipeFiles:
    """Returns the files of the recipe, built for the input shapes of all samples."""
    experiment, plan, feeds = answer.experiment, answer.recipe.plan, answer.inputs.given.feeds
    network, builder, scales = experiment.network, experiment.builder, experiment.ranges.scales
    profile = setup.profile(network, feeds)
    plugins = tuple(str(Path(name).absolute()) if Path(name).is_file() else name for name in options.plugins)
    built = replace(options.build_options(), plugins=plugins)

    def files_of(network: Network, builder: Builder, scales: Scales, plan: PrecisionPlan, fed: Profile) -> RecipeFiles:
        build = Build(
            target=target_version(options, builder),
            shapes=fed.shapes,
            dynamic=tuple(spec.name for spec in network.inputs if None in spec.shape),
            options=replace(built, sizes=fed.sizes),
        )
        return recipe_files(network, scales, plan, experiment.whole.high, weak_plan(builder, network, plan), build)

    whole = files_of(network, builder, scales, plan, profile)
    if not isinstance(builder, PipelineBuilder):
        return whole
    parts = {}
    for part, own in builder.builders:
        fed = Profile(part.of(profile.shapes), part.of(profile.sizes))
        parts[part.name] = files_of(part.network, own, part.of(scales), part.plan(plan), fed)
    return pipeline_files(whole, parts)


def target_version(options: RunOptions, builder: Builder) -> TensorRTVersion:
    """Returns the TensorRT version that a recipe is for: the one asked for, else the one in use, else the newest (with
    ``--dla`` the newest with a DLA).
    """
    if options.trt_version:
        return parse_version(options.trt_version)
    for engine in (TENSORRT, RTX):
        version = version_of_engine(builder.versions.get(engine, ""), rtx=engine == RTX)
        if builder.engine == engine and version is not None:
            return version
    return NEWEST_VERSION if getattr(options, "dla", None) is None else DLA_VERSION


def setting_of(experiment: Experiment, options: RunOptions, report: Report) -> Setting:
    """Returns the settings of a run that commands suggested in its report repeat, such as files, calibrator and
    options.
    """
    flags, files = repeated(options), report.files
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


def cost_of(answer: Answer) -> float:
    """Returns the cost of a recipe: by measured times if engines ran INT8 faster than FP16, else as in the search."""
    times = {plan: timed.median_ms for plan, timed in (latencies_of(answer) or {}).items() if timed is not None}
    if not {"fp16", "int8", "recipe"} <= times.keys() or times["int8"] > (1.0 - LEAST_GAIN) * times["fp16"]:
        return answer.recipe.cost
    return max((times["recipe"] - times["int8"]) / (times["fp16"] - times["int8"]), 0.0)


def low_layers(answer: Answer) -> dict[int, Layer]:
    """Returns the layers that can be in low precision, by index."""
    network = answer.experiment.network
    return {k: network.layers[k] for k in network.quantizable}


def similarity_of(rule: Rule, loss: float) -> float | None:
    """Returns the metric's value that has this loss; None for a loss that is not finite."""
    return None if not math.isfinite(loss) else rule.metric.value(loss)


def names_of(recipe: Recipe) -> tuple[str, ...]:
    """Returns the names of the layers that a recipe keeps in high precision."""
    return tuple(recipe.experiment.network.layers[k].name for k in recipe.high)


def figures_of(recipe: Recipe, trial: Trial) -> PlanFigures:
    """Returns the figures of a recipe (cost, layers, similarity) from its trial."""
    rule = recipe.experiment.rule
    return PlanFigures(recipe.cost, names_of(recipe), rule.similarity(trial), rule.meets(trial))


def latencies_of(answer: Answer) -> Latencies | None:
    """Returns the latencies of the engines, by plan (``fp32``, ``fp16``, ``int8``, ``recipe``), each None if not
    measured; None if the emulation decides.
    """
    engines, fp16 = answer.engines, answer.fp16
    if engines is None:
        return None
    in_fp32 = answer.experiment.network.base_type is None
    return {
        "fp32": engines.base.latency if in_fp32 else None,
        "fp16": None if fp16 is None else fp16.latency,
        "int8": answer.full.latency,
        "recipe": answer.restored.latency,
    }
