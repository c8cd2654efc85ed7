"""The options that plans are measured with, and those of the commands that find a recipe: ``run`` and ``recover``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from trt_bisect.driver.suspects.curves import FULL
from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.cluster import ClusterOptions
from trt_bisect.jobs.options.concerns import (
    BRANCH,
    DEFAULT,
    EFFORTS,
    EXPLAIN_NOTHING,
    PER_TENSOR,
    CalibrationOptions,
    DataOptions,
    EngineOptions,
    ExplainOptions,
    HoldoutOptions,
    OutputOptions,
    SearchOptions,
)
from trt_bisect.jobs.options.declare import fixed, option
from trt_bisect.jobs.options.fixing import FixedLayerOptions
from trt_bisect.jobs.options.goal import TargetOptions
from trt_bisect.jobs.options.judging import AccuracyOptions, JudgeOptions
from trt_bisect.jobs.options.kinds import TIME, parse_time
from trt_bisect.jobs.options.pictures import PictureOptions
from trt_bisect.jobs.options.tensor_files import TensorFileOptions
from trt_bisect.precision import Precision

if TYPE_CHECKING:
    from trt_bisect.builder.base import BuildOptions
    from trt_bisect.model.network import Network

MIXED = "mixed"


@dataclass(frozen=True, kw_only=True)
class MeasuringOptions(
    DataOptions,
    PictureOptions,
    HoldoutOptions,
    JudgeOptions,
    CalibrationOptions,
    EngineOptions,
    FixedLayerOptions,
    SearchOptions,
    ClusterOptions,
    OutputOptions,
):
    """The options that plans are prepared and measured with."""

    def adapted(self, network: Network) -> Network:
        """Returns a network with the precisions that the user fixes, and the scales of weights asked for."""
        network = super().adapted(network)
        return network.with_one_scale_a_weight() if self.weight_scales == PER_TENSOR else network

    def build_options(self) -> BuildOptions:
        """The options as builders take them."""
        return replace(super().build_options(), operators=tuple(self.ort_ops))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trt_version:
            from trt_bisect.calibration.cache import parse_version

            parse_version(self.trt_version)


@dataclass(frozen=True, kw_only=True)
class RunOptions(MeasuringOptions, ExplainOptions, AccuracyOptions, TensorFileOptions):
    """The options of ``run``."""

    panel: ClassVar[str] = "Search"

    effort: str = option(
        DEFAULT,
        choices=EFFORTS,
        noun="effort",
        help="quick (the first recipe and its culprits, at most one inference for each layer and input), default "
        "(cheaper recipes, at most two), or thorough (until no cheaper recipe is found). The first recipe is written "
        "as soon as it holds.",
    )
    time_limit: str | float | None = option(
        None,
        kind=TIME,
        repeated=False,
        help="90s, 10m or 1h, after which the search ends with the best recipe found until then. The same command with "
        "a longer limit, or none, goes on.",
        otherwise="none",
    )

    @property
    def time_limit_seconds(self) -> float | None:
        """``time_limit`` in seconds."""
        return None if self.time_limit is None else parse_time(self.time_limit)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.time_limit_seconds
        if self.try_remedies and self.explain == EXPLAIN_NOTHING:
            raise BadInput("Remedies are tried for what is explained.", "Leave out --explain none.")
        if self.try_remedies and self.low != "int8":
            raise BadInput(
                f"Remedies are tried for INT8 only, and not for --low {self.low}.", "Leave out --try-remedies."
            )


@dataclass(frozen=True, kw_only=True)
class FixedSearchOptions(MeasuringOptions):
    """The options of commands that choose the strategy themselves and build with TensorRT's defaults."""

    share: float = fixed(0.5)
    strategy: str = fixed(BRANCH)
    curve: str = fixed(FULL)
    workspace: int | None = fixed(None)
    optimization_level: int | None = fixed(None)
    force_int8: bool = fixed(False)
    tactic_sources: Sequence[str] = fixed(())


@dataclass(frozen=True, kw_only=True)
class RecoverOptions(FixedSearchOptions, AccuracyOptions, TargetOptions):
    """The options of ``recover``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task is not None and (self.accuracy is not None or self.labels is not None):
            raise BadInput(f"--task {self.task} and an accuracy cannot decide both.", "Leave out one of the two.")

    precision: str = option(
        "",
        choices=("fp32", "fp16", MIXED),
        noun="precision",
        help="Of the layers that are kept out of the low precision; with mixed each has the cheaper one that will do.",
        otherwise="that of --base, else fp32",
    )

    @property
    def highs(self) -> tuple[Precision, ...]:
        """The precisions that layers kept out of the low one can have."""
        return (Precision.FP32, Precision.FP16) if self.precision == MIXED else (super().high_precision,)

    @property
    def high_precision(self) -> Precision:
        """The precision of plans that are measured before the search chooses between several."""
        return self.highs[0]

    @property
    def base_precision(self) -> Precision:
        """The precision of what is neither low nor kept out of the low one."""
        return Precision(self.base or Precision.FP32) if self.precision == MIXED else super().base_precision
