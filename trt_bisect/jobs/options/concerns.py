"""The options by concern. The names of engines, calibrators and so on stand here again: their modules load slowly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trt_bisect.data.named import StagedFile
from trt_bisect.driver.suspects.curves import ADAPTIVE, CULPRITS, FULL, usual_curve
from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.declare import Options, option
from trt_bisect.jobs.options.kinds import (
    DATA,
    NUMBER,
    PLACE,
    SHAPES,
    SWITCH,
    TEXTS,
    TRT_VERSION,
    WHOLE,
)
from trt_bisect.jobs.options.low import LOWS, LowOptions
from trt_bisect.precision import Precision
from trt_bisect.support.machine import MEMORY

if TYPE_CHECKING:
    from trt_bisect.builder.base import BuildOptions
    from trt_bisect.model.network import Network
    from trt_bisect.support.progress import Progress

AUTO, BRANCH, EXHAUSTIVE, BISECT = "auto", "branch", "exhaustive", "bisect"
STRATEGIES = (AUTO, BRANCH, EXHAUSTIVE, BISECT)
CURVES = (AUTO, FULL, ADAPTIVE, CULPRITS)
QUICK, DEFAULT, THOROUGH = "quick", "default", "thorough"
EFFORTS = (QUICK, DEFAULT, THOROUGH)
EXPLAIN_NOTHING, EXPLAIN_TENSORS, EXPLAIN_FULL = "none", "tensors", "full"
EXPLAIN = (EXPLAIN_TENSORS, EXPLAIN_FULL, EXPLAIN_NOTHING)
ENGINE_CHOICES = (AUTO, "onnxruntime", "tensorrt", "tensorrt-rtx")
TYPING_CHOICES = (AUTO, "weak", "strong")
CALIBRATORS = (AUTO, "entropy", "minmax", "percentile", "mse")
PRECISIONS = (Precision.FP32.value, Precision.FP16.value)
FOLLOWERS_HIGH, FOLLOWERS_INT8 = "high", "int8"
FOLLOWERS = (FOLLOWERS_HIGH, FOLLOWERS_INT8)
PER_CHANNEL, PER_TENSOR = "channel", "tensor"
WEIGHT_SCALES = (PER_CHANNEL, PER_TENSOR)
BESIDE, NONE = "beside", "none"
MIB = 1 << 20

_DATA = ".npz, .npy, .json, a folder of these or of pictures, or module:function"


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """The data that a network is calibrated with and judged on."""

    panel: ClassVar[str] = "Data"

    calibration: Any = option(
        None,
        kind=DATA,
        help=f"Data to calibrate with ({_DATA}), or a TensorRT calibration cache; none for a network with Q/DQ pairs.",
        stands_for="DATA.npz",
    )
    inputs: Any = option(
        None,
        kind=DATA,
        flag=("--input", "--inputs", "--load-inputs"),
        help="The inputs that the curve is judged on, each by itself. A recipe must hold on all data given.",
        otherwise="the worst of the data set are found",
        stands_for="INPUT.npz",
    )
    dataset: Any = option(
        None,
        kind=DATA,
        help="Data to search for the worst inputs.",
        otherwise="the calibration data",
        stands_for="DATASET.npz",
    )
    shapes: Mapping[str, tuple[int, ...]] | None = option(
        None,
        kind=SHAPES,
        flag=("--shape", "--shapes"),
        help="Sizes of dynamic inputs, by name; on the command line name:1x3x224x224, repeated for each input.",
    )


@dataclass(frozen=True, kw_only=True)
class HoldoutOptions(Options):
    """The samples that neither calibration nor the search sees."""

    panel: ClassVar[str] = "Data"

    holdout: float = option(
        0.2,
        kind=NUMBER,
        least=0,
        most=0.9,
        help="Of 20 calibration samples or more, this share is kept from calibration and from the search, spread "
        "evenly: 0.2 is every fifth. 0 holds nothing out.",
    )
    validation: Any = option(
        None,
        kind=DATA,
        help="Data that neither calibration nor the search sees; then nothing is held out.",
        otherwise="the samples held out",
        stands_for="VALIDATION.npz",
    )


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions(Options):
    """The ranges of the activations."""

    panel: ClassVar[str] = "Calibration"

    calibrator: str = option(
        AUTO,
        choices=CALIBRATORS,
        noun="calibrator",
        help="Chooses each tensor's range from the calibration data. auto: in run and recover one with which full INT8 "
        "passes, else the one whose recipe is cheapest; of recipes that cost about the same (within 1 % of INT8's gain "
        "in speed), the one that loses least. Elsewhere entropy, as in TensorRT.",
    )
    percentile: float = option(
        99.99, kind=NUMBER, above=0, most=100, unit="per cent", help="For the percentile calibrator, of |x|."
    )
    keep_mask_ranges: bool = option(
        False, kind=SWITCH, help="Quantize tensors whose range is a mask's (-1e9, -3e38) too."
    )
    trt_version: str = option(
        "",
        kind=TRT_VERSION,
        help="The TensorRT that the recipe is for, such as 10.3.0, or rtx: it decides which files and commands are "
        "written. Weak typing needs a version before 11.",
        otherwise="the one in use, else the newest",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.percentile < 1:
            raise BadInput(
                f"--percentile {self.percentile:g} is a share of 1; it is in per cent.",
                f"Give --percentile {100 * self.percentile:g}.",
            )

    @property
    def calibrator_method(self) -> str:
        """The calibrator to begin with: ``auto`` is ``entropy``."""
        return "entropy" if self.calibrator == AUTO else self.calibrator


@dataclass(frozen=True, kw_only=True)
class EngineOptions(LowOptions):
    """The inference engine, and how its engines are built."""

    panel: ClassVar[str] = "Engine"

    engine: str = option(
        AUTO,
        choices=ENGINE_CHOICES,
        noun="engine",
        help="Builds and runs the networks. 'trt-bisect engines' says which can be used here.",
    )
    typing: str = option(AUTO, choices=TYPING_CHOICES, noun="typing", help="TensorRT's typing.")
    precision: str = option(
        "",
        choices=PRECISIONS,
        noun="precision",
        help="Of the layers that are kept out of the low precision: culprits, and those of --high.",
        otherwise="that of --base, else fp32",
    )
    workspace: int | None = option(
        None, kind=WHOLE, least=1, unit="MiB", bytes_before=True, help="TensorRT's workspace limit."
    )
    optimization_level: int | None = option(
        None, kind=WHOLE, least=0, most=5, help="TensorRT's builder optimisation level."
    )
    force_int8: bool = option(
        False, kind=SWITCH, help="Weak typing: force INT8 instead of leaving the choice to TensorRT."
    )
    followers: str = option(
        FOLLOWERS_HIGH,
        choices=FOLLOWERS,
        noun="precision of the followers",
        help="ONNX Runtime: layers that only follow stay high, or also round what they make and read between INT8 "
        "layers, as weak typing may do (int8).",
    )
    tactic_sources: Sequence[str] = option(
        (),
        kind=TEXTS,
        flag=("--tactic-source", "--tactic-sources"),
        help="The only sources that TensorRT may take kernels from, by their names in TacticSource; may be repeated.",
        otherwise="TensorRT's own choice",
    )
    weight_scales: str = option(
        PER_CHANNEL,
        choices=WEIGHT_SCALES,
        noun="choice of weight scales",
        help="One scale for each output channel of a weight (channel), or one for the whole weight (tensor), as the "
        "DLA has them. TensorRT's weak typing chooses by itself.",
    )
    plugins: Sequence[str] = option(
        (),
        kind=TEXTS,
        flag=("--plugin", "--plugins"),
        help="Libraries with TensorRT plugins, loaded before the network is parsed; may be repeated.",
    )
    dla: int | None = option(
        None,
        kind=WHOLE,
        least=0,
        help="Weak typing: the DLA core that runs what it can; the rest falls back to the GPU. Untried.",
    )
    build_timeout: float | None = option(
        1800.0,
        kind=NUMBER,
        above=0,
        unit="seconds",
        help="TensorRT may take so long to build an engine, or to run it; then that trial is 'timed out', and the "
        "search goes on. None, in Python, sets no limit.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low not in (LOWS[0], Precision.FP8) and self.precision not in ("", Precision.FP32):
            raise BadInput(
                f"--low {self.low} and --precision {self.precision} leave no layer in FP32.",
                "Leave out --precision: beside FP16 and BF16 the high precision is fp32.",
            )
        if self.base not in ("", Precision.FP16) and self.precision == Precision.FP16:
            raise BadInput(
                f"--precision {self.precision} does not raise layers above a base of {self.base}.",
                f"Give --precision fp32, or leave it out: then they are in {self.base}.",
            )
        if self.low != LOWS[0] and self.followers == FOLLOWERS_INT8:
            raise BadInput(
                f"--followers int8 belongs to INT8, and not to --low {self.low}.", "Leave out one of the two."
            )

    @property
    def high_precision(self) -> Precision:
        """The precision of layers that are kept out of the low one."""
        return Precision(self.precision or self.base_precision)

    @property
    def base_precision(self) -> Precision:
        """The precision of what is neither low nor kept out of the low one."""
        return Precision(self.base or self.precision or Precision.FP32)

    def gain_over(self, network: Network) -> Precision:
        """Returns the precision over which the low one's gain in speed is counted, of which prices are shares.

        It is ``--base``, else that of a file which is not in float32, else FP32. The base that ``--precision`` alone
        brings along changes no price: the same plan costs the same however it was asked for.
        """
        is_implied = not self.base and network.base == self.base_precision
        return Precision.FP32 if is_implied else network.base or Precision.FP32

    def build_options(self) -> BuildOptions:
        """The options as builders take them."""
        from trt_bisect.builder.base import BuildOptions

        return BuildOptions(
            high=self.high_precision,
            workspace_bytes=None if self.workspace is None else self.workspace * MIB,
            optimization_level=self.optimization_level,
            force_int8=self.force_int8,
            tactic_sources=tuple(self.tactic_sources) or None,
            followers_round=self.followers == FOLLOWERS_INT8,
            plugins=tuple(self.plugins),
            dla=self.dla,
            timeout=self.build_timeout,
        )


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(Options):
    """The memory for tensors."""

    panel: ClassVar[str] = "Memory"

    memory: int = option(
        MEMORY // MIB,
        kind=WHOLE,
        least=1,
        unit="MiB",
        bytes_before=True,
        help="What may be held beside the memory that an FP32 engine and a full INT8 engine of the network take. "
        "Tensors are counted and compared, and rows of a pass run, in groups that fit; a larger tensor is a group "
        "of its own.",
    )

    @property
    def memory_bytes(self) -> int:
        """``memory`` in bytes."""
        return self.memory * MIB


@dataclass(frozen=True, kw_only=True)
class SearchOptions(MemoryOptions):
    """The choice of the plans, and their measuring."""

    panel: ClassVar[str] = "Search"

    strategy: str = option(
        AUTO,
        choices=STRATEGIES,
        noun="strategy",
        help="branch (the whole curve in one pass through pieces of the network), exhaustive (an engine a layer), "
        "bisect (about log2 N engines a suspect), or auto: branch on ONNX Runtime, bisect on an NVIDIA engine.",
    )
    curve: str = option(
        AUTO,
        choices=CURVES,
        noun="curve",
        help="With branch: full (every boundary), adaptive (every sixteenth one, and all where the loss changes), "
        "culprits (only what the verdict needs), or auto: adaptive from 401 quantizable layers on, else full.",
    )

    margin: float = option(
        0.2,
        kind=NUMBER,
        least=0,
        most=0.9,
        help="With 20 inputs or more, held-out ones among them, a recipe leaves this share of the loss that the "
        "threshold allows unused, because inputs that were not given lose more. 0 uses all of it.",
    )

    def curve_of(self, strategy: str, layers: int) -> str:
        """The curve of a network with that many quantizable layers; only ``branch`` has a choice."""
        if strategy == BRANCH:
            return usual_curve(layers) if self.curve == AUTO else self.curve
        return FULL if strategy == EXHAUSTIVE else CULPRITS

    def strategy_on(self, engine: str) -> str:
        """The strategy on an engine: ``auto`` is ``branch`` on ONNX Runtime, and else ``bisect``.

        An NVIDIA engine may fuse and round a piece differently from the whole network. How much is not known yet.
        """
        if self.strategy != AUTO:
            return self.strategy
        return BRANCH if engine == "onnxruntime" else BISECT


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(Options):
    """The explanation of culprits."""

    panel: ClassVar[str] = "Explanation"

    explain: str = option(
        EXPLAIN_TENSORS,
        choices=EXPLAIN,
        noun="explanation",
        help="Why: tensors (every tensor compared, and each culprit's sides measured), full (each layer alone, too), "
        "none.",
    )
    try_remedies: bool = option(
        False,
        kind=SWITCH,
        help="Measure remedies on all inputs: other calibrators, other ranges for the culprits' tensors, equalised "
        "channels, corrected biases, FP16 for the culprits.",
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """The files that are written."""

    panel: ClassVar[str] = "Output"

    output: str | Path | StagedFile | None = option(
        None,
        kind=PLACE,
        flag=("--output", "-o"),
        repeated=False,
        help="The run folder: the run is journaled there, and the same command goes on from there after any stop.",
        otherwise="trt-bisect-<model>; in Python nothing is written",
    )
    history: str | Path = option(
        BESIDE,
        kind=PLACE,
        choices=(BESIDE, NONE),
        help="The run is recorded beside the run folder, not at all (none), or in a file.",
    )
    tensorboard: str | Path | None = option(None, kind=PLACE, repeated=False, help="A folder for TensorBoard's logs.")
    tensorboard_channels: int = option(
        0,
        kind=WHOLE,
        least=0,
        most=256,
        repeated=False,
        help="Of so many channels of a tensor, the loudest, logs have histograms as well.",
    )
    progress: Progress | None = option(
        None, flag="", repeated=False, help="Shows progress.", otherwise="tqdm in a notebook, else nothing"
    )
