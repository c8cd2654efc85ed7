"""The options by concern, where several commands share them, and those of ``run`` together."""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from trt_bisect.data.preprocessing import Preprocessing, preprocessing
from trt_bisect.driver.curves import CULPRITS, FULL, usual_curve
from trt_bisect.errors import BadInput, TrtBisectError
from trt_bisect.model.gpu_time import Gpu, gpu_named
from trt_bisect.options.declare import Option, Options, asked_gpu
from trt_bisect.options.kinds import (
    MIB,
    PRESETS,
    Address,
    Calibrator,
    Channels,
    Cost,
    Curve,
    Data,
    DataFile,
    Detail,
    Device,
    Drop,
    Duration,
    Engine,
    Fraction,
    Function,
    GpuName,
    High,
    History,
    Metric,
    Model,
    PictureSize,
    Place,
    Progress,
    Shapes,
    Share,
    Size,
    Strategy,
    TrtexecFlags,
    Version,
    number,
    share_or_data,
    whole,
)
from trt_bisect.precision import Precision
from trt_bisect.support.machine import MEMORY

if TYPE_CHECKING:
    from trt_bisect.analyzer.tasks.task import AskedTask
    from trt_bisect.builder.base import BuildOptions
    from trt_bisect.model.quantizer import LowPrecision

AUTO: Final = "auto"
ONNXRUNTIME: Final = "onnxruntime"
EMULATION, EXHAUSTIVE = "emulation", "exhaustive"
QUICK: Final = "quick"
DEFAULT: Final = "default"
THOROUGH: Final = "thorough"
EXPLAIN_NOTHING: Final = "none"
EXPLAIN_FULL, EXPLAIN_REMEDIES = "full", "remedies"
EXPLAIN_TENSORS: Final = "tensors"
NO_TENSORS: Final = "none"
OUTPUTS, ALL_LAYERS, BOUNDARIES, POLYGRAPHY = "outputs", "layers", "boundaries", "polygraphy"
WEAK_INT8 = "weak-int8"
HEADS = ("detect", "pose", "obb", "instances", "text")  # the tasks that ``--head`` helps to read
INT8: Final = "int8"
INT16 = "int16"
FLOAT_LOWS = ("fp16", "bf16")
UNQUANTIZED_HIGH: Final = "high"
UNQUANTIZED_INT8 = "int8"
BESIDE, NONE = "beside", "none"
MACS, MEASURED_TIME, TIME, MIXED = "macs", "measured", "time", "mixed"
COSINE: Final = "cosine"
FIXING = ("high", "keep_low", "plan", "scoped", "only", "one_scale")  # the options that fix the precision of layers
PICTURE_OPTIONS = ("scale", "mean", "std", "resize", "letterbox", "colors")

INPUT, LOADED = Option("--input --inputs"), Option("--input --inputs --load-inputs")
OUTPUT = Option("--output -o", repeated=False, without_in_python="None, nothing is written")


class ShapeOptions(Options):
    """The shapes of dynamic inputs.

    Attributes:
        shapes: Set a dynamic shape: images:1x3x640x640. Repeatable.
    """

    shapes: Annotated[Shapes | None, Option("--shape --shapes")] = None


class DataOptions(ShapeOptions):
    """The data that a network is calibrated with and judged on.

    Attributes:
        calibration: Calibrate with this data: .npz, .npy, .json, name:file.bin, a folder of these or pictures,
            module:function, or a TensorRT calibration cache. A network with Q/DQ pairs needs none.
        inputs: Judge these inputs, each by itself. Default: the worst inputs of --dataset.
    """

    calibration: Data = field(default=None, kw_only=False)
    inputs: Annotated[Data, LOADED] = field(default=None, kw_only=False)


class PictureOptions(Options):
    """Preprocessing of JPEG, PNG and other pictures; other data are fed as they are.

    Attributes:
        resize: Resize pictures to this height and width: 480x640. Default: the input's size.
        letterbox: Keep the aspect ratio and pad with grey, as YOLO does.
        scale: Divide pixel values (0 to 255) by this number. Default: 255; 1 if --mean or --std is above 1.
        mean: Subtract this mean after scaling: one number, or one per channel: 0.485,0.456,0.406.
        std: Divide by this standard deviation after subtracting the mean: one number, or one per channel.
        colors: Set the order of the channels, also for --mean and --std. Default: rgb; gray for one channel.
    """

    resize: PictureSize | None = None
    letterbox: bool = False
    scale: Annotated[float | None, number()] = None
    mean: Channels | None = None
    std: Channels | None = None
    colors: Literal["rgb", "bgr", "gray"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.preprocessing()

    def preprocessing(self) -> Preprocessing:
        """Returns the preprocessing of pictures; raises BadInput for a value that cannot be used."""
        return preprocessing({name: getattr(self, name) for name in PICTURE_OPTIONS})


class ReferenceOptions(Options):
    """The network or outputs that a network is compared with.

    Attributes:
        reference: Compare with this network, such as the float network that a QAT network was trained from, or with
            saved outputs for the samples of --input: .npz, the JSON of Polygraphy, trtexec or Triton, name:file.bin, or
            a folder of such files. Default: the network in FP32.
    """

    reference: Annotated[Model | None, Option("--reference --load-outputs")] = None

    @property
    def saved_outputs(self) -> Path | None:
        """The path of the saved outputs to compare with; None if the reference is a network."""
        return saved_outputs(self.reference)

    @property
    def saved_for(self) -> Data:
        """The samples that the outputs saved as ``reference`` belong to."""
        return getattr(self, "inputs", None)


def saved_outputs(reference: Any) -> Path | None:
    """Returns the path of saved outputs; None for a reference that is a network, or no reference."""
    if not isinstance(reference, (str, Path)):
        return None
    path = Path(reference)
    # NumPy comes with the readers: --help does not load it.
    from trt_bisect.data.saved import SAVED

    return path if path.suffix in SAVED or path.is_dir() else None


class OtherOptions(Options):
    """A second network to compare with.

    Attributes:
        other: Compare with this second network, such as a quantized export of the first: each runs as its file says.
    """

    other: Model | None = None


class JudgeOptions(ReferenceOptions):
    """The judgement of outputs.

    Attributes:
        task: Score outputs as this task.
        metric: Compare outputs by cosine, sqnr, centered_sqnr, mse, l1, kl, max_abs, max_rel, top1, or your
            module:function of reference and output.
        threshold: Set the worst acceptable value of the metric: 99%. Default: 0.99 for cosine and tasks.
        outputs: Judge only this output. Repeatable; the worst decides. Default: all.
        samples: Judge this many of the worst inputs; the worst decides. Default: all of --input, else 1.
        head: Describe outputs that cannot be told by their values: columns (xywh,classes:1,keypoints:17x3), raw maps
            (dfl:16,classes:80; yolov5, yolov7), scores (sigmoid, background-first, background-last), or text's blank
            (blank-first, blank-last). Default: told by the values.
        score_threshold: Ignore detections below this score (tasks of detections).
        class_axis: Take the classes from this axis of the outputs (kl, top1 and tasks); negative counts from the end.
            Default: found by size.
        accept: Exit with 0 if full INT8 passes with doubts.
    """

    task: Literal["classify", "detect", "segment", "embed", "text", "pose", "obb", "instances", "depth"] | None = None
    metric: Metric = COSINE
    threshold: Share | None = None
    outputs: Sequence[str] = ()
    samples: Annotated[int | None, whole(least=1)] = None
    head: str | None = None
    score_threshold: Annotated[float, number(least=0, most=1, share=True)] = 0.3
    class_axis: Annotated[int | None, whole(least=-32, most=31)] = None
    accept: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task is not None and self.metric != COSINE:
            raise BadInput(f"--task {self.task} and --metric {self.metric} contradict each other.", "Leave out one.")
        if self.head is not None and self.task not in HEADS and getattr(self, "labels", None) is None:
            raise BadInput("--head needs a task of detections or text.", f"Give --task {'|'.join(HEADS)}.")

    def asked_task(self) -> "AskedTask | None":
        """Returns the task that ``task`` asks for; None without one."""
        if self.task is None:
            return None
        from trt_bisect.analyzer.tasks.task import AskedTask

        return AskedTask(self.task, self.score_threshold, class_axis=self.class_axis, head=self.head)


class DeviceOptions(Options):
    """The device that networks run on.

    Attributes:
        device: Run ONNX Runtime, modules of PyTorch and NVIDIA engines on this device: cpu, cuda:0. The emulation next
            to an NVIDIA engine runs there too if ONNX Runtime has CUDA. Default: a GPU where the engine has one, else
            cpu.
    """

    device: Device | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        engine = getattr(self, "engine", ONNXRUNTIME)
        if self.device == "cpu" and engine == AUTO:
            object.__setattr__(self, "engine", ONNXRUNTIME)
        elif self.device == "cpu" and engine != ONNXRUNTIME:
            raise BadInput(f"The engine {engine} runs on a GPU, not on cpu.", "Give --device cuda:0.")


class NetworkOptions(DeviceOptions):
    """The operators that a network needs, and the layers that reading it fuses.

    Attributes:
        plugins: Load this library of your own operators: TensorRT plugins, or operators for ONNX Runtime
            (RegisterCustomOps). Repeatable.
        fuse_norms: Fuse a LayerNormalization that the exporter took apart (Pow, ReduceMean, Sqrt), in which FP16
            overflows.
    """

    plugins: Annotated[Sequence[str], Option("--plugin --plugins")] = ()
    fuse_norms: bool = False

    def libraries(self, *, onnxruntime: bool) -> tuple[str, ...]:
        """Returns those of ``plugins`` with operators for ONNX Runtime, or else those with TensorRT's plugins."""
        from trt_bisect.model.session import for_onnx_runtime

        return tuple(name for name in self.plugins if for_onnx_runtime(name) is onnxruntime)

    @property
    def low_precision(self) -> "LowPrecision":
        """The low precision: INT8 where a command has no option for it."""
        from trt_bisect.model.quantizer import INT8

        return INT8

    @property
    def base_precision(self) -> Precision | None:
        """The precision of layers and tensors that are neither low nor kept high; None if each plan has its own."""
        return None


class LowOptions(NetworkOptions):
    """The low precision.

    Attributes:
        low: Use this low precision. fp16 and bf16 need no calibration. int16: emulated 16-bit activations.
        base: With int8 and fp8, run unquantized layers and keep float tensors in this precision. Default: the precision
            of --precision, else fp32.
    """

    low: Literal["int8", "fp16", "bf16", "fp8", "int16"] = INT8
    base: Literal["fp32", "fp16", "bf16"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low in FLOAT_LOWS and self.base not in (None, Precision.FP32):
            problem = f"--low {self.low} and --base {self.base} leave no layer in FP32."
            raise BadInput(problem, f"Leave out --base: with --low {self.low} all other layers are in FP32.")

    @property
    def base_precision(self) -> Precision:
        """The precision of layers and tensors that are neither low nor kept high."""
        return Precision(self.base or Precision.FP32)

    @property
    def low_precision(self) -> "LowPrecision":
        """The low precision that ``low`` asks for."""
        from trt_bisect.model.quantizer import find_low

        return find_low(self.low)


class CalibrationOptions(Options):
    """The ranges of the activations.

    Attributes:
        calibrator: Choose scales by entropy, minmax, mse or percentile=99.9. auto: the method with which full INT8
            passes, else that of the cheapest recipe (run); entropy (other commands).
    """

    calibrator: Calibrator = AUTO

    @property
    def calibrator_method(self) -> str:
        """The calibrator to begin with: ``auto`` is ``entropy``."""
        return "entropy" if self.calibrator == AUTO else self.calibrator.partition("=")[0]

    @property
    def percentile(self) -> float:
        """The percentile of the magnitudes, for the calibrator ``percentile``."""
        return float(self.calibrator.partition("=")[2] or 99.99)


class UnquantizedOptions(LowOptions):
    """The unquantized layers.

    Attributes:
        unquantized: On ONNX Runtime, run unquantized layers (Relu, Softmax) in high precision, or in INT8 between INT8
            layers, as weak typing may.
    """

    unquantized: Literal["high", "int8"] = UNQUANTIZED_HIGH

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low not in (INT8, INT16) and self.unquantized_round:
            raise BadInput(f"--unquantized int8 does not go with --low {self.low}.", "Leave out one of the two.")

    @property
    def unquantized_round(self) -> bool:
        """True if tensors of unquantized layers are rounded too."""
        return self.unquantized == UNQUANTIZED_INT8


class FixedLayerOptions(NetworkOptions):
    """The layers whose precision the user fixes; no search changes it.

    Attributes:
        high: Keep this layer in high precision: a name, a module, a pattern with * and ?, re:PATTERN,
            op:Softmax, recipe:RUN (a recipe's layers), top:3 (the most sensitive). Repeatable.
        plan: Fix precisions and scales as in this TOML or JSON file, or as in a run folder's recipe.
        keep_low: Keep these layers in INT8, named as for --high. Repeatable.
        scoped: Measure one plan instead of searching: layers up to this layer (name or number) in INT8, the rest in
            high precision. --high, --keep-low and --plan override --scoped.
        only: Allow INT8 in these layers only, named as for --high: op:Conv. Repeatable. Default: all that TensorRT can
            run in INT8.
        one_scale: Use one scale for the whole weight of these layers, named as for --high: op:MatMul, or * for all, as
            the DLA does. Repeatable. Default: a scale per output channel.
    """

    high: Sequence[str] = ()
    plan: DataFile = None
    keep_low: Sequence[str] = ()
    scoped: str = ""
    only: Sequence[str] = ()
    one_scale: Sequence[str] = ()

    @property
    def high_precision(self) -> Precision:
        """The precision of layers that are not in INT8."""
        return Precision.FP32


class MemoryOptions(Options):
    """The memory for tensors.

    Attributes:
        memory: Limit working memory, not counting the FP32 and INT8 engines: MiB, or 512MB, 2GB.
    """

    memory: Size = MEMORY // MIB

    @property
    def memory_bytes(self) -> int:
        """``memory`` in bytes."""
        return int(self.memory) * MIB


class OutputOptions(Options):
    """The files that are written.

    Attributes:
        output: Write the run to this folder; the same command continues the run. Default: trt-bisect-<model>.
        tensorboard: Write TensorBoard logs to this folder.
        tensorboard_detail: Log histograms of the largest channels of a tensor (channels=8), of each of the first
            samples (samples=3), and of some layers alone (only=op:Conv, a pattern as for --high; repeatable). run logs
            full INT8, the plans of suspects, the recipe and the front, each with its accuracy if labels are given;
            plans=20: other plans too, 20 in all.
        progress: Show progress. Default: a bar in a notebook, else nothing.
    """

    output: Annotated[Place | None, OUTPUT] = None
    tensorboard: Annotated[Place | None, Option(repeated=False)] = None
    tensorboard_detail: Annotated[Detail | None, Option(repeated=False)] = None
    progress: Annotated[Progress | None, Option(repeated=False)] = None

    @property
    def folder(self) -> Path | None:
        """The folder of ``output``; None: nothing is written."""
        return None if self.output is None else Path(self.output)


class MeasuringOptions(
    OutputOptions,
    MemoryOptions,
    UnquantizedOptions,
    FixedLayerOptions,
    CalibrationOptions,
    JudgeOptions,
    PictureOptions,
    DataOptions,
):
    """The options that plans are prepared and measured with.

    Attributes:
        dataset: Find the worst inputs here. Default: calibration data.
        validation: Test the recipe on this data, or hold out this share of 20 or more calibration samples.
        engine: Build and run networks with this engine.
        precision: Run culprits and the layers of --high in this precision. Default: as --base, else fp32.
        typing: Build from Q/DQ pairs in the graph (strong), or from constraints on layers (weak: TensorRT 8 to 10).
            auto: strong, and weak for a calibration cache before TensorRT 10.12. weak-int8: weak, and
            force INT8 where the plan says INT8.
        trtexec: Build as these flags of trtexec say: '--builderOptimizationLevel=3 --memPoolSize=workspace:512
            --tacticSources=+CUBLAS,+CUDNN'. Default: TensorRT's defaults.
        dla: Run on this DLA core, and on the GPU what the core cannot run: with weak typing up to TensorRT 10.7; with
            strong typing from 11.4.1 on, with --base fp16 --one-scale '*'. Not tested yet.
        strategy: Measure the curve in the emulation (auto), with an engine per layer (exhaustive), or with about log2 N
            engines per suspect (bisect).
        curve: In the emulation, measure after every layer (full), after every sixteenth and all where the loss changes
            (adaptive), or only what shows the suspects (culprits). auto: adaptive from 401 quantizable layers on, else
            full.
        margin: Keep this share of the allowed loss in reserve for new inputs, where that costs little more.
        cluster: Build and run engines on a Ray cluster (auto, HOST:PORT, ray://HOST:PORT) or in N processes here
            (local:N). Default: in this process.
    """

    dataset: Data = None
    validation: Annotated[Data, share_or_data(most=0.9)] = 0.2
    engine: Engine = AUTO
    precision: High | None = None
    typing: Literal["auto", "weak", "weak-int8", "strong"] = AUTO
    trtexec: TrtexecFlags = ""
    dla: Annotated[int | None, whole(least=0)] = None
    strategy: Strategy = AUTO
    curve: Curve = AUTO
    margin: Annotated[Share, number(least=0, most=0.9, share=True)] = 0.5
    cluster: Address = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low in FLOAT_LOWS and self.precision not in (None, Precision.FP32):
            problem = f"--low {self.low} and --precision {self.precision} leave no layer in FP32."
            raise BadInput(problem, f"Leave out --precision: with --low {self.low} the high precision is fp32.")
        if self.base not in (None, "fp16") and self.precision == "fp16":
            problem = f"--precision {self.precision} does not raise layers above a base of {self.base}."
            raise BadInput(problem, f"Give --precision fp32, or leave it out: then they are in {self.base}.")
        # without weak typing, the defaults are what the DLA needs: base FP16, one scale per weight
        if self.dla is not None and self.asked_typing != "weak":
            object.__setattr__(self, "one_scale", self.one_scale or ("*",))
            if self.low not in FLOAT_LOWS:
                object.__setattr__(self, "base", self.base or str(Precision.FP16))

    @property
    def asked_typing(self) -> str:
        """``auto``, or the typing of the engines: ``weak`` or ``strong``."""
        return "weak" if self.typing == WEAK_INT8 else self.typing

    @property
    def high_precision(self) -> Precision:
        """The precision of layers that are kept out of the low one."""
        return Precision(self.precision or self.base_precision)

    @property
    def base_precision(self) -> Precision:
        """The precision of layers and tensors that are neither low nor kept high."""
        return Precision(self.base or self.precision or Precision.FP32)

    def build_options(self) -> "BuildOptions":
        """Returns the options that the builder of engines takes."""
        from trt_bisect.builder.base import DEFAULT_TIMEOUT, BuildOptions
        from trt_bisect.recipe.trtexec import options_in

        return BuildOptions(
            high=self.high_precision,
            **options_in(self.trtexec),
            force_int8=self.typing == WEAK_INT8,
            unquantized_round=self.unquantized_round,
            plugins=self.libraries(onnxruntime=False),
            operators=self.libraries(onnxruntime=True),
            dla=self.dla,
            device=self.device,
            timeout=DEFAULT_TIMEOUT,
        )

    def curve_of(self, strategy: str, layers: int) -> str:
        """Returns the curve to measure with a strategy, in a network of ``layers`` quantizable layers: ``full``,
        ``adaptive`` or ``culprits``.
        """
        if strategy == EMULATION:
            return usual_curve(layers) if self.curve == AUTO else self.curve
        return FULL if strategy == EXHAUSTIVE else CULPRITS

    @property
    def asked_strategy(self) -> str:
        """The strategy that measures the curve: ``emulation`` (also for ``auto``), ``bisect`` or ``exhaustive``."""
        return EMULATION if self.strategy == AUTO else self.strategy


class RunOptions(MeasuringOptions):
    """The options of ``run``. The goal is the cheapest recipe that meets the threshold, unless options name another.

    Attributes:
        precision: Run culprits and the layers of --high in this precision. mixed: FP32, and culprits in FP16 if enough.
            int16: emulated, for --high. Default: mixed if that saves 3 %, else as --base.
        trt_version: Write the recipe for this TensorRT: 10.3.0, or rtx. Weak typing needs a version before 11. Default:
            the installed TensorRT, else the newest.
        labels: Measure the accuracy with the classes, boxes (COCO JSON, YOLO txt), masks (PNG) or texts of --dataset.
        accuracy: Measure the accuracy with your module:function, called with infer(feeds) -> outputs; higher is better.
        budget: Find the most accurate plan that gives up at most this share of INT8's speedup over FP16: 5%.
        drop: Find the cheapest plan that loses at most this accuracy: 0.01, 1% of FP32's, mlperf99. Needs --labels,
            --accuracy.
        front: Measure the front of accuracy against cost.
        cost: Count a layer in high precision by its multiply-adds (macs), its time on the engine (measured), the times
            in a CSV file with the columns layer, int8, fp16, fp32, or trtexec's profile of an engine of the network on
            --gpu: NAME.profile.json, with --exportLayerInfo's NAME.graph.json next to it. Default: its predicted time
            if --gpu names a GPU or the machine has a known GPU, else its multiply-adds.
        gpu: Predict times on this GPU, such as A100, L4, T4, RTX4090 or OrinNX (an unknown name lists all), or a TOML
            file with its peaks.
        effort: Limit the search: quick (1 inference per layer and input), default (2), thorough (until nothing cheaper
            is found).
        time_limit: End the search after this time: 90s, 10m, 1h. The same command continues the search.
        as_is: Never change weights (no equalization, no smoothing), even if that makes the recipe cheaper.
        explain: tensors: compare FP32 and INT8 tensors, and split each culprit into weights and activations. full:
            measure every layer alone too. remedies: measure fixes too. none: skip.
        save_tensors: Save the final outputs, or the tensors of all layers (ONNX Runtime), of FP32, full INT8 and the
            recipe in the run folder, for 'compare --fp32 --int8'. boundaries: the final outputs, also of each point
            of the curve. polygraphy: the final outputs, also as Polygraphy's JSON in tensors/polygraphy: inputs.json
            for --load-inputs, and fp32.json, int8.json and recipe.json for --load-outputs.
        history: Record the run in the history next to the run folder, not at all (none), or in this file.
    """

    precision: Literal["fp32", "fp16", "mixed", "int16"] | None = None  # type: ignore[assignment]  # one choice more than other commands have
    trt_version: Version = ""
    labels: DataFile = None
    accuracy: Function | None = None
    budget: Fraction | None = None
    drop: Drop | None = None
    front: bool = False
    cost: Cost | None = None
    gpu: GpuName | None = None
    effort: Literal["quick", "default", "thorough"] = DEFAULT
    time_limit: Annotated[Duration | None, Option(repeated=False)] = None
    as_is: bool = False
    explain: Literal["tensors", "full", "remedies", "none"] = EXPLAIN_TENSORS
    save_tensors: Annotated[
        Literal["none", "outputs", "layers", "boundaries", "polygraphy"], Option(repeated=False)
    ] = NO_TENSORS
    history: History = BESIDE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accuracy is not None and self.labels is not None:
            raise BadInput("--accuracy and --labels contradict each other.", "Leave out one of the two.")
        if self.labels is not None and self.dataset is None:
            raise BadInput("There are labels and no data set that they belong to.", "Give --dataset with its samples.")
        if self.gpu is not None:
            asked_gpu(self.gpu)
        if self.profile is not None and self.cost_gpu is None:
            raise BadInput("A profile says nothing of the GPU, and the machine has none that is known.", "Give --gpu.")
        if self.drop is not None and self.accuracy is None and self.labels is None:
            raise BadInput("--drop is a loss of accuracy, and nothing measures it.", "Give --labels or --accuracy.")
        if self.drop is not None and self.task is not None and self.labels is None:
            raise BadInput("--task and --drop contradict each other.", "Leave out one of the two, or give --labels.")
        if self.precision == INT16 and (self.low != INT8 or not self.high):
            raise BadInput("--precision int16 is for single layers of a network in INT8.", "Name them: --high top:5.")
        if self.explain == EXPLAIN_REMEDIES and self.low not in (INT8, INT16):
            raise BadInput(f"--explain remedies does not go with --low {self.low}.", "Use --explain full.")
        if self.explain == EXPLAIN_REMEDIES and self.drop is not None:
            raise BadInput("--explain remedies judges by similarity, not by --drop.", "Use --explain full.")

    @property
    def high_precision(self) -> Precision:
        """The precision of layers that are kept out of the low one; with ``mixed`` FP32, until the last step of the
        search.
        """
        if self.precision == MIXED:
            return Precision.FP32
        return self.base_precision if self.precision == INT16 else super().high_precision

    @property
    def base_precision(self) -> Precision:
        """The precision of layers and tensors that are neither low nor kept high."""
        is_none = self.precision in (MIXED, INT16)
        return Precision(self.base or Precision.FP32) if is_none else super().base_precision

    @property
    def cost_gpu(self) -> Gpu | None:
        """The GPU that times are predicted for: the one named, else the machine's; None if the machine has no known
        GPU.
        """
        if self.gpu is not None:
            return asked_gpu(self.gpu)
        from trt_bisect.support.machine import find_gpu

        try:
            return gpu_named(find_gpu().name)
        except TrtBisectError:
            return None

    @property
    def profile(self) -> Path | None:
        """The path of the engine's profile by which times are predicted; None without one."""
        path = Path(str(self.cost))
        return path if path.suffix.lower() == ".json" else None

    @property
    def by_time(self) -> bool:
        """True if costs are predicted times, which may follow a profile."""
        return self.costs_by == TIME or self.profile is not None

    @property
    def costs_by(self) -> str:
        """The source of layers' costs: ``macs``, ``measured``, ``time`` (predicted), or a file of times."""
        if self.cost is not None:
            return str(self.cost)
        return MACS if self.cost_gpu is None else TIME

    @property
    def most(self) -> float | None:
        """The largest cost of a recipe, a share of INT8's speedup over FP16; None without a budget."""
        return None if self.budget is None else float(self.budget)

    def least_accuracy(self, reference: float) -> float:
        """Returns the lowest acceptable accuracy; ``reference`` is that of FP32."""
        text = str(PRESETS.get(str(self.drop), self.drop) or 0.0).strip()
        # The user's own function may return a negative accuracy, such as a negative error.
        drop = abs(reference) * float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
        return reference - drop
