"""The options of all commands but ``run``: those of ``concerns`` that a command takes, its own, and fixed values."""

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any

from trt_bisect.driver.curves import FULL
from trt_bisect.options.concerns import (
    AUTO,
    INPUT,
    LOADED,
    NO_TENSORS,
    OUTPUT,
    CalibrationOptions,
    DataOptions,
    DeviceOptions,
    FixedLayerOptions,
    JudgeOptions,
    LowOptions,
    MeasuringOptions,
    MemoryOptions,
    NetworkOptions,
    OtherOptions,
    OutputOptions,
    PictureOptions,
    ReferenceOptions,
    RunOptions,
    ShapeOptions,
    UnquantizedOptions,
)
from trt_bisect.options.declare import Option, fixed, shared
from trt_bisect.options.kinds import (
    Curve,
    Data,
    DataByName,
    Detail,
    Engine,
    File,
    Fraction,
    GpuName,
    High,
    Model,
    Networks,
    Place,
    Share,
    Strategy,
    TextOrFile,
    Version,
    whole,
)


class WithoutRecipeOptions(MeasuringOptions):
    """The options of commands that measure in this process with TensorRT's defaults, and write no recipe."""

    strategy: Strategy = fixed(AUTO)
    curve: Curve = fixed(FULL)
    trtexec: str = fixed("")
    tensorboard: File | None = fixed(None)
    tensorboard_detail: Detail | None = fixed(None)
    margin: Share = fixed(0.0)
    validation: Data = fixed(0.0)
    dla: int | None = fixed(None)
    cluster: str = fixed("")
    accept: bool = fixed(False)


class PipelineOptions(RunOptions):
    """The options of ``pipeline``.

    Attributes:
        networks: Run this network in the pipeline, under a name: detector=det.onnx. Repeatable.
        calibration: Calibrate a network with this data or TensorRT calibration cache instead of what the pipeline feeds
            it: detector=data.npz. Repeatable. Default: what the pipeline feeds it.
        inputs: Run the pipeline on these samples: .npz, .npy, a folder of files, or module:function.
        most_calls: Count a sample as a miss if a plan calls the networks more often than this. Default: 10 times as
            often as FP32, at least 100.
        high: Keep this layer in high precision: detector/conv1, a pattern with * and ?, re:PATTERN, op:Softmax,
            recipe:RUN (a recipe's layers). Repeatable.
    """

    networks: Annotated[Networks | None, Option("--network --networks")] = None
    calibration: DataByName | None = field(default=None, kw_only=False)
    inputs: Annotated[Data, INPUT] = field(default=None, kw_only=False)
    most_calls: Annotated[int | None, whole(least=1)] = None
    reference: None = fixed(None)
    dataset: Data = fixed(None)
    shapes: None = fixed(None)
    resize: None = fixed(None)
    letterbox: bool = fixed(False)
    scale: None = fixed(None)
    mean: None = fixed(None)
    std: None = fixed(None)
    colors: None = fixed(None)
    save_tensors: str = fixed(NO_TENSORS)  # type: ignore[assignment]
    cluster: str = fixed("")

    def __post_init__(self) -> None:
        # labels belong to the data set
        object.__setattr__(self, "dataset", self.inputs if self.labels is not None else None)
        super().__post_init__()

    @property
    def validation_data(self) -> tuple[Any, ...]:
        """The data to test the recipe on, one entry; empty if a share of the samples is held out instead."""
        return () if isinstance(self.validation, (int, float, type(None))) else (self.validation,)

    def for_run(self, samples: Any, *validation: Any, progress: Any) -> RunOptions:
        """Returns these options for ``run`` on the networks of the pipeline merged into one, with ``samples`` as its
        data; ``validation``: the held-out data, if given.
        """
        options = shared(self, RunOptions)
        options |= {"calibration": samples, "inputs": None, "progress": progress}
        options["dataset"] = None if self.labels is None else samples
        options["validation"] = validation[0] if validation else self.validation
        return RunOptions(**options)


class SensitivityOptions(WithoutRecipeOptions):
    """The options of ``sensitivity``. No threshold judges the results.

    Attributes:
        high: Keep this layer in high precision: a name, a pattern with * and ?, re:PATTERN, op:Softmax, recipe:RUN (a
            recipe's layers). Repeatable.
    """

    threshold: Share | None = fixed(None)


class WorstOptions(OtherOptions, WithoutRecipeOptions):
    """The options of ``worst``.

    Attributes:
        calibration: Calibrate with this data, or with a TensorRT calibration cache.
        dataset: Search this data for the worst inputs. Default: the calibration data.
        steps: Search only this many samples, from the first on. Default: all.
        keep: Keep this many of the worst inputs.
        output: Write worst.json, worst.csv, worst.html and worst.npz to this folder, which 'run' takes as --input.
    """

    dataset: Data = field(default=None, kw_only=False)
    steps: Annotated[int | None, whole(least=1)] = None
    keep: Annotated[int, whole(least=1)] = 10
    output: Annotated[Place | None, OUTPUT] = None
    inputs: Data = fixed(None)
    samples: int | None = fixed(None)
    precision: None = fixed(None)

    @property
    def saved_for(self) -> Data:
        """The samples that the outputs saved as ``reference`` belong to: those that are searched."""
        return self.calibration if self.dataset is None else self.dataset


class TensorOptions(OutputOptions, MemoryOptions, FixedLayerOptions, CalibrationOptions, PictureOptions, DataOptions):
    """The options that ``compare`` and ``profile`` share.

    Attributes:
        inputs: Run these samples. Default: the calibration data.
        output: Write the tables as JSON, CSV and text, and a page, to this folder.
    """

    inputs: Annotated[Data, LOADED] = field(default=None, kw_only=False)
    output: Annotated[Place | None, OUTPUT] = None


class CompareOptions(OtherOptions, ReferenceOptions, UnquantizedOptions, TensorOptions):
    """The options of ``compare``.

    Attributes:
        recipe: Compare with this run's recipe: a run folder, or its recipe folder.
        fp32: Compare this saved FP32 run instead of running a network: .npz, the JSON of Polygraphy, trtexec or Triton,
            name:file.bin, or a folder of such files.
        int8: Compare with this saved low-precision run of the same inputs.
        engine: Run on this engine. ONNX Runtime emulates INT8; TensorRT 10.8 and later also shows the tensors of its
            fused engines, TensorRT-RTX and older versions give final outputs only.
        threshold: Call a tensor's similarity low below this cosine. Default: 0.99; 0.9999 for fp16, 0.999 for bf16.
        sort: Sort by this column: index, or, worst first, cosine, sqnr, mse, l1, kl, max_abs, max_rel or another
            column.
    """

    reference: Annotated[Model | None, Option("--reference --load-outputs", panel="Comparison", expert=True)] = None
    recipe: File | None = None
    fp32: File | None = None
    int8: File | None = None
    engine: Engine = "onnxruntime"
    threshold: Annotated[Fraction | None, Option(panel="Comparison")] = None
    sort: str = "index"


class ProfileOptions(TensorOptions):
    """The options of ``profile``.

    Attributes:
        prefix: List only layers whose name begins with this text. Repeatable. Default: all.
        op_types: List only layers of this operator. Repeatable. Default: all.
    """

    prefix: Sequence[str] = ()
    op_types: Annotated[Sequence[str], Option("--op --op-types")] = ()


class CalibrateOptions(MemoryOptions, NetworkOptions, CalibrationOptions, PictureOptions, DataOptions):
    """The options of ``trt-bisect calibrate``.

    Attributes:
        output: Write the calibration cache to this file.
        trt_version: Write the cache for this TensorRT: 10.3.0. Default: 10.3.0.
    """

    output: Annotated[Place, Option("--output -o")] = "calibration.cache"
    trt_version: Annotated[Version, Option(panel="Results")] = ""
    inputs: Data = fixed(None)


class MigrateOptions(OutputOptions, JudgeOptions, PictureOptions, ShapeOptions, DeviceOptions):
    """The options of ``migrate``.

    Attributes:
        cache: Take the scales from this calibration cache of TensorRT 7 to 10.
        layer_precisions: Take the precisions from the trtexec command line of the old engine, from its
            --layerPrecisions (conv1:fp16,conv2:fp32), or from a file with either, or with a table (JSON, TOML).
            Default: every layer in INT8.
        base: Run what is not in INT8 in this precision. Default: fp16 if the command line allows FP16, else fp32.
        inputs: Compare the network with FP32 on these inputs. Default: not measured.
        gpu: Predict the times of FP16 and full INT8 on this GPU, or on that of a TOML file with its peaks.
        output: Write network.qdq.onnx, the plan and the report to this folder. Default: trt-bisect-migrated.
    """

    cache: File | None = None
    layer_precisions: TextOrFile = None
    base: Annotated[High | None, Option(panel="Precision")] = None
    inputs: Annotated[Data, INPUT] = None
    gpu: Annotated[GpuName | None, Option(panel="Goal")] = None
    output: Annotated[Place | None, Option("--output -o", repeated=False)] = None


class VerifyOptions(LowOptions, TensorOptions):
    """The options of ``verify``.

    Attributes:
        calibration: Take the scales of the engine from this calibration cache, or from this data. A network with Q/DQ
            pairs has its own; then these are the scales that the engine is suspected to have.
        inputs: Take these inputs of the engine: .npz, .npy, pictures, the JSON of Polygraphy or Triton, name:file.bin,
            or a folder of such files.
        outputs: Take these outputs of the engine for the inputs: .npz, .npy, the JSON of Polygraphy, trtexec
            --exportOutput or Triton, name:file.bin, or a folder of such files.
        other_outputs: Take these outputs of a second engine of this network for the same inputs.
        layers: Read the precision that each layer ran in from the JSON of trtexec --exportLayerInfo.
        other_layers: Read the precisions of the second engine's layers from its JSON.
        tensors: Compare the engine's inner tensors: .npz, Polygraphy's JSON, or the folder of trtexec
            --saveAllDebugTensors=numpy.
        output: Write the result, and the minimal network of a wrong kernel, to this folder.
    """

    inputs: Annotated[Data, LOADED] = field(default=None, kw_only=False)
    outputs: Annotated[File | None, Option("--outputs --load-outputs", panel="Data")] = field(
        default=None, kw_only=False
    )
    other_outputs: File | None = None
    layers: File | None = None
    other_layers: File | None = None
    tensors: File | None = None
    tensorboard: File | None = fixed(None)
    tensorboard_detail: Detail | None = fixed(None)


class LayersOptions(LowOptions, ShapeOptions):
    """The options of ``trt-bisect layers``."""

    base: None = fixed(None)
    device: None = fixed(None)


# the options of each command by its name, which is that of the Python function too
COMMANDS: dict[str, Any] = {
    "run": RunOptions,
    "pipeline": PipelineOptions,
    "sensitivity": SensitivityOptions,
    "worst": WorstOptions,
    "compare": CompareOptions,
    "profile": ProfileOptions,
    "verify": VerifyOptions,
    "migrate": MigrateOptions,
}
