"""Makes the files of a recipe from a measured plan, and the facts that commands on it repeat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trt_bisect.answer.result import Answer
from trt_bisect.builder.base import Builder
from trt_bisect.builder.tensorrt_build import RTX, TENSORRT
from trt_bisect.builder.tensorrt_walk import weak_plan
from trt_bisect.calibration.cache import DLA_VERSION, NEWEST_VERSION, TensorRTVersion, parse_version, version_of_engine
from trt_bisect.data.datasets import profile_shapes, profile_sizes
from trt_bisect.data.named import name_of
from trt_bisect.options.commands import MeasuringOptions, RunOptions
from trt_bisect.options.concerns import CalibrationOptions
from trt_bisect.options.declare import repeated
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.experiment import Experiment
from trt_bisect.recipe.commands import Setting
from trt_bisect.recipe.files import RecipeFiles, recipe_files
from trt_bisect.recipe.trtexec import Build
from trt_bisect.report.model import Report


def recipe_of(options: MeasuringOptions, answer: Answer, plan: PrecisionPlan) -> RecipeFiles:
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


def target_version(options: CalibrationOptions, builder: Builder) -> TensorRTVersion:
    """Returns the TensorRT that a recipe is for: the one asked for, else the one in use, else the newest."""
    if options.trt_version:
        return parse_version(options.trt_version)
    for engine in (TENSORRT, RTX):
        found = version_of_engine(builder.versions.get(engine, ""), rtx=engine == RTX)
        if builder.engine == engine and found is not None:
            return found
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
