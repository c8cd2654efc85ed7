"""The options of each command: concerns together, with what the command has beside them, or fixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.concerns import (
    ENGINE_CHOICES,
    NONE,
    CalibrationOptions,
    DataOptions,
    MemoryOptions,
    OutputOptions,
)
from trt_bisect.jobs.options.declare import Options, Renamed, fixed, option
from trt_bisect.jobs.options.fixing import FixedLayerOptions
from trt_bisect.jobs.options.judging import DIRECTIONS
from trt_bisect.jobs.options.kinds import DATA, FILE, NUMBER, PLACE, TEXTS, TRT_VERSION, WHOLE
from trt_bisect.jobs.options.low import LowOptions
from trt_bisect.jobs.options.measuring import FixedSearchOptions, RecoverOptions, RunOptions
from trt_bisect.jobs.options.operators import OperatorOptions
from trt_bisect.jobs.options.pictures import PictureOptions
from trt_bisect.precision import Precision

if TYPE_CHECKING:
    from trt_bisect.calibration.collect import Calibrating
    from trt_bisect.jobs.plan_file import FilePlan
    from trt_bisect.model.network import Network


@dataclass(frozen=True, kw_only=True)
class WithoutRecipeOptions(FixedSearchOptions):
    """The options of commands that measure in this process, write no recipe and record no history."""

    tensorboard: str | Path | None = fixed(None)
    tensorboard_channels: int = fixed(0)

    holdout: float = fixed(0.0)
    margin: float = fixed(0.0)
    validation: Any = fixed(None)
    trt_version: str = fixed("")
    dla: int | None = fixed(None)
    cluster: str = fixed("")
    history: str | Path = fixed(NONE)
    accept: bool = fixed(False)


@dataclass(frozen=True, kw_only=True)
class SensitivityOptions(WithoutRecipeOptions):
    """The options of ``sensitivity``. Nothing is judged by its threshold."""

    threshold: float | None = fixed(None)


@dataclass(frozen=True, kw_only=True)
class WorstOptions(WithoutRecipeOptions):
    """The options of ``worst``."""

    POSITIONAL: ClassVar[tuple[str, ...]] = ("dataset",)
    RENAMED: ClassVar[Mapping[str, Renamed]] = {
        "order": Renamed("direction", {"ascending": "higher", "descending": "lower"})
    }

    steps: int | None = option(
        None, kind=WHOLE, least=1, help="So many samples are taken, from the first on.", otherwise="all"
    )
    keep: int = option(10, kind=WHOLE, least=1, help="So many of the worst inputs are kept.")
    direction: str = option(
        "",
        choices=DIRECTIONS,
        noun="direction",
        help="For a metric of yours, which must have it: higher or lower values are better.",
        otherwise="the metric's own",
    )
    output: str | Path | None = option(
        None,
        kind=PLACE,
        flag=("--output", "-o"),
        repeated=False,
        help="A folder for worst.json, worst.csv, worst.html and worst.npz, which 'run' takes as inputs.",
    )
    inputs: Any = fixed(None)
    load_outputs: str | Path | None = fixed(None)
    samples: int | None = fixed(None)
    precision: str = fixed("")


@dataclass(frozen=True, kw_only=True)
class TensorOptions(DataOptions, PictureOptions, CalibrationOptions, FixedLayerOptions, MemoryOptions, OutputOptions):
    """The options that ``compare`` and ``profile`` share."""

    inputs: Any = option(
        None,
        kind=DATA,
        flag=("--input", "--inputs", "--load-inputs"),
        help="The samples to run.",
        otherwise="the calibration data",
        stands_for="INPUT.npz",
    )
    output: str | Path | None = option(
        None,
        kind=PLACE,
        flag=("--output", "-o"),
        repeated=False,
        help="A folder for the tables, as JSON and CSV, and a page.",
    )
    dataset: Any = fixed(None)
    trt_version: str = fixed("")
    history: str | Path = fixed(NONE)

    def calibrating(self) -> Calibrating:
        """The options for ranges from data."""
        from trt_bisect.calibration.collect import Calibrating

        return Calibrating(
            self.calibrator_method, self.percentile, self.keep_mask_ranges, self.memory_bytes, self.preprocessing()
        )


@dataclass(frozen=True, kw_only=True)
class CompareOptions(TensorOptions, LowOptions):
    """The options of ``compare``."""

    panel: ClassVar[str] = "Comparison"

    other: str | Path | Network | None = option(
        None,
        kind=FILE,
        flag="",
        help="A second network, such as a quantized export of the first: each runs as its file says, and layers are "
        "matched. On the command line the second argument.",
    )
    recipe: str | Path | None = option(
        None,
        kind=FILE,
        help="A run folder, or its recipe: layers, scales and base as in the recipe. As --plan does it, but the base "
        "needs no option of its own.",
    )
    fp32: str | Path | None = option(
        None,
        kind=FILE,
        help="A saved FP32 run, compared instead of running anything: .npz, Polygraphy's --save-outputs JSON, or a "
        "folder of them.",
    )
    int8: str | Path | None = option(
        None, kind=FILE, help="The saved run in low precision, of the same inputs, whatever that precision is."
    )
    engine: str = option(
        "onnxruntime",
        choices=ENGINE_CHOICES,
        noun="engine",
        help="onnxruntime emulates; TensorRT's engines give final outputs only, and a note says so.",
    )
    threshold: float | None = option(
        None,
        kind=NUMBER,
        least=0,
        most=1,
        help="The cosine below which a tensor's similarity is low.",
        otherwise="0.99; fp16 0.9999, bf16 0.999",
    )

    @property
    def high_precision(self) -> Precision:
        """The precision of the layers of ``--high``."""
        return self.base_precision

    @property
    def base_precision(self) -> Precision:
        """The precision of what is neither low nor kept out of the low one: that of the recipe, or FP32."""
        recipe = None if self.base or self.recipe is None else self.file_plan()
        return (recipe and recipe.high) or super().base_precision

    def file_plan(self) -> FilePlan | None:
        """Returns the plan of ``--recipe`` or of ``--plan``; None without either.

        Raises:
            BadInput: it cannot be read, or both were given.
        """
        if self.recipe is None:
            return super().file_plan()
        if self.plan is not None:
            raise BadInput("--recipe and --plan both give a plan.", "Leave out one of the two.")
        from trt_bisect.jobs.plan_file import read_plan

        return read_plan(self.recipe)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(TensorOptions):
    """The options of ``profile``."""

    panel: ClassVar[str] = "Layers"

    prefix: Sequence[str] = option(
        (), kind=TEXTS, help="Only layers whose name begins so; may be repeated.", otherwise="all"
    )
    op_types: Sequence[str] = option(
        (),
        kind=TEXTS,
        flag=("--op", "--op-types"),
        help="Only layers of these operators; may be repeated.",
        otherwise="all",
    )


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(DataOptions, PictureOptions, CalibrationOptions, OperatorOptions, MemoryOptions):
    """The options of ``trt-bisect calibrate``."""

    panel: ClassVar[str] = "Output"

    output: str | Path = option(
        "calibration.cache", kind=PLACE, flag=("--output", "-o"), help="The calibration cache to write."
    )
    trt_version: str = option(
        "", kind=TRT_VERSION, help="The TensorRT that is to read the cache, such as 10.3.0.", otherwise="10.3.0"
    )
    inputs: Any = fixed(None)
    dataset: Any = fixed(None)


@dataclass(frozen=True, kw_only=True)
class LayersOptions(DataOptions, OperatorOptions, LowOptions):
    """The options of ``trt-bisect layers``."""

    calibration: Any = fixed(None)
    inputs: Any = fixed(None)
    dataset: Any = fixed(None)
    base: str = fixed("")


@dataclass(frozen=True, kw_only=True)
class RegressOptions(Options):
    """The option of ``trt-bisect regress`` that says where its networks are measured; it may stand in the suite."""

    panel: ClassVar[str] = "Cluster"

    cluster: str | None = option(
        None,
        help="Measure the networks side by side on a Ray cluster (auto, HOST:PORT, ray://HOST:PORT), or try each one's "
        "plans in N processes here (local:N).",
        otherwise="that of the suite, else in this process",
    )


COMMANDS: dict[str, type[Options]] = {
    "run": RunOptions,
    "recover": RecoverOptions,
    "sensitivity": SensitivityOptions,
    "worst": WorstOptions,
    "compare": CompareOptions,
    "profile": ProfileOptions,
}
"""The options of each command by its name, which is that of the Python function too."""

OF_THE_COMMAND_LINE: dict[str, type[Options]] = {"calibrate": CalibrateOptions, "layers": LayersOptions}
"""The options of commands that have no Python function of that signature."""
