"""Makes the files of a recipe from a measured plan."""

from __future__ import annotations

from trt_bisect.builder.base import Builder
from trt_bisect.builder.tensorrt_module import TENSORRT
from trt_bisect.builder.weak_plan import weak_plan
from trt_bisect.calibration.cache import DEFAULT_VERSION, TensorRTVersion, parse_version, version_of_engine
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.options.concerns import CalibrationOptions
from trt_bisect.precision import PrecisionPlan
from trt_bisect.results.recipe_files import RecipeFiles, recipe_files


def recipe_of(options: CalibrationOptions, experiment: Experiment, plan: PrecisionPlan) -> RecipeFiles:
    """The files of a recipe that was measured on ``experiment``."""
    weak = weak_plan(experiment.builder, experiment.network, plan)
    version = cache_version(options, experiment.builder)
    return recipe_files(experiment.network, experiment.ranges.scales, plan, experiment.whole.high, weak, version)


def cache_version(options: CalibrationOptions, builder: Builder) -> TensorRTVersion:
    """The TensorRT that is to read calibration caches: the one asked for, else the one in use, else the default."""
    if options.trt_version:
        return parse_version(options.trt_version)
    return version_of_engine(builder.versions.get(TENSORRT, "")) if builder.engine == TENSORRT else DEFAULT_VERSION
