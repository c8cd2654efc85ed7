"""The facts of a run that suggested commands repeat."""

from __future__ import annotations

from trt_bisect.data.staged import name_of
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.options.measuring import RecoverOptions, RunOptions
from trt_bisect.jobs.options.repeated import repeated
from trt_bisect.recipe.commands import Setting
from trt_bisect.recipe.trtexec import Build


def setting_of(experiment: Experiment, options: RunOptions, build: Build) -> Setting:
    """Returns the facts of a run that suggested commands repeat; ``build`` has those of the recipe's engine."""
    flags = repeated(options)
    return Setting(
        model=experiment.network.source,
        calibration=flags.get("--calibration", ("",))[0],
        has_data=experiment.data is not None,
        calibrator=experiment.ranges.calibrator,
        has_pairs=experiment.network.has_pairs,
        high=experiment.whole.high,
        low=experiment.network.low.precision,
        folder=name_of(options.output),
        build=build,
        options=flags,
        recover_options=repeated(options, RecoverOptions),
        fixed=dict(options.shapes or {}),
    )
