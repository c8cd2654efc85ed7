"""Commands, or lines of configuration, that apply a remedy with each tool.

Sources. ModelOpt: ``python -m modelopt.onnx.quantization --help`` (the parser of 0.47 takes these commands), and its
guide "PyTorch Quantization". ONNX Runtime: ``onnxruntime.quantization.quantize_static``. AIMET:
``aimet_onnx.cross_layer_equalization``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.model.quantizer import FLOAT_TYPES
from trt_bisect.precision import Precision
from trt_bisect.recipe.files import FP16_NETWORK, POLYGRAPHY as SCRIPT, network_file, recipe_commands
from trt_bisect.recipe.trtexec import CACHE, Build, calibrated, engine_flags, polygraphy_command, strong_command

# The values of each option, by its flag such as ``--samples``; empty for a switch.
Options = Mapping[str, tuple[str, ...]]
_DATA, _RANGES = "DATA.npz", "RANGES.cache"

TRT_BISECT, MODELOPT, POLYGRAPHY, TRTEXEC = "trt-bisect", "ModelOpt", "Polygraphy", "trtexec"
ORT, AIMET, RTX = "ONNX Runtime", "AIMET", "tensorrt_rtx"

_MODELOPT = "python -m modelopt.onnx.quantization"
_AUTOCAST = "python -m modelopt.onnx.autocast"
_MTQ = "import modelopt.torch.quantization as mtq"
_FLOAT_NETWORK = "FP32.onnx"
_MOST_EXCLUDED = 50  # with more high layers, only the recipe's files list them


@dataclass(frozen=True)
class Command:
    """A command: the ``tool`` and the ``text`` to type."""

    tool: str
    text: str


# Commands that equalise channels: of convolutions (AIMET), of matrix products (SmoothQuant).
EQUALISING = (
    Command(AIMET, "from aimet_onnx.cross_layer_equalization import equalize_model; equalize_model(onnx_model)"),
    Command(MODELOPT, f"{_MTQ}; mtq.quantize(model, mtq.INT8_SMOOTHQUANT_CFG, forward_loop)  # matrix products"),
)
TRAINING = (Command(MODELOPT, f"{_MTQ}; mtq.quantize(model, mtq.INT8_DEFAULT_CFG, forward_loop)  # then train on"),)


@dataclass(frozen=True)
class Setting:
    """The facts of a run that its commands are made from.

    Attributes:
        calibration: the path of the data or the calibration cache; empty if unknown.
        has_data: true if calibration is data, not a cache.
        calibrator: the calibrator of the data; None for a cache.
        options: the run's options on the command line, data included.
        fixed: the user's shapes for dynamic inputs.
        kept: the layers that the recipe keeps in high precision; empty without a recipe.
    """

    model: str
    calibration: str
    has_data: bool
    calibrator: Calibrator | None
    has_pairs: bool
    high: Precision
    folder: str
    build: Build
    options: Options = field(default_factory=dict)
    low: Precision = Precision.INT8
    fixed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    kept: tuple[str, ...] = ()

    @property
    def float_network(self) -> str:
        """The path of the FP32 network, or a placeholder if the network has Q/DQ pairs."""
        return _FLOAT_NETWORK if self.has_pairs else self.model

    @property
    def data(self) -> str:
        """The path of the calibration data, or a placeholder without data."""
        return self.calibration if self.has_data and self.calibration else _DATA

    def beside(self, name: str) -> str:
        """Returns the folder for another run on the same network: this run's with ``-name`` appended."""
        return f"{self.folder or 'trt-bisect'}-{name.replace(' ', '-')}"

    def path(self, *parts: str) -> str:
        """Returns the path of a file in the run folder."""
        return "/".join((self.folder, *parts) if self.folder else parts)


def calibrating(setting: Setting, calibrator: Calibrator) -> tuple[Command, ...]:
    """Returns the commands that use another calibrator: a run of trt-bisect, ModelOpt if it has the method, and, if the
    version of TensorRT has weak typing, tools that use the calibration cache of that run.
    """
    folder = setting.beside(str(calibrator))
    cache = f"{folder}/recipe/{CACHE}"
    by_percentile = f"percentile={calibrator.percentile:g}" if calibrator.method == "percentile" else ""
    changed = {"--calibration": (setting.data,), "--calibrator": (by_percentile or calibrator.method,)}
    method = {"entropy": "entropy", "minmax": "max"}.get(calibrator.method)
    by_data = ["--calibration_data_path", setting.data, "--calibration_method", method or ""]
    weak = _with_cache(setting, cache)
    by_cache = [_modelopt(setting, "--calibration_cache_path", cache)] if weak else []
    modelopt = [_modelopt(setting, *by_data)] if method else by_cache
    return (_run(setting, {**changed, "--output": (folder,)}), *modelopt, *weak)


def with_cache(setting: Setting, cache: str) -> tuple[Command, ...]:
    """Returns the commands, one for each tool, that use the calibration cache ``cache`` of the run folder."""
    path = setting.path(cache)
    return (
        _run(setting, {"--calibration": (path,), "--output": (path.removesuffix(".cache"),)}),
        _modelopt(setting, "--calibration_cache_path", path),
        *_with_cache(setting, path),
    )


def running_moved(setting: Setting, network: str) -> Command:
    """Returns the command that runs trt-bisect on the file ``network`` of the run folder, whose weights a remedy
    changed.
    """
    path = setting.path(network)
    return _run(setting, {"--output": (path.removesuffix(".onnx"),)}, network=path)


def with_moved(setting: Setting, network: str, cache: str) -> tuple[Command, ...]:
    """Returns the commands that build the file ``network`` of the run folder, whose weights a remedy changed, in
    INT8 with ``cache``.
    """
    moved, path = replace(setting, model=setting.path(network), fixed={}), setting.path(cache)
    return (_modelopt(moved, "--calibration_cache_path", path), *_with_cache(moved, path))


def keeping_high(
    setting: Setting, layer: str, high: Precision, of_recipe: Precision | None = None
) -> tuple[Command, ...]:
    """Returns the commands that keep layers in ``high``: those that the recipe keeps or, without a recipe, ``layer``.

    All other layers are in the low precision. ``of_recipe`` is the recipe's high precision; None: the run's. If it is
    ``high``, or the low precision is FP16 or BF16, the commands build the recipe, and run again with ``--front``; else
    they search a recipe with ``high``. For at most 50 layers ModelOpt's command follows.
    """
    kept = setting.kept or (layer,)
    cache = setting.calibration or (setting.path("recipe", CACHE) if setting.build.weak else _RANGES)
    by_data = setting.has_data or setting.has_pairs
    ranges = ["--calibration_data_path", setting.data] if by_data else ["--calibration_cache_path", cache]
    pattern = ("--nodes_to_exclude", *(f"^{re.escape(name)}$" for name in kept))
    if setting.low in FLOAT_TYPES:
        words = ["--onnx_path", setting.float_network, "--low_precision_type", str(setting.low), *pattern]
        excluding = Command(MODELOPT, f"{_AUTOCAST} {shlex.join(words)}")
    else:
        excluding = _modelopt(setting, *ranges, *pattern, high=high)
    by_name = () if len(kept) > _MOST_EXCLUDED else (excluding,)
    if setting.low not in FLOAT_TYPES and high is not (of_recipe or setting.high):
        changed = {"--precision": (str(high),), "--output": (setting.beside(high),)}
        return (_run(setting, changed, network=setting.model), *by_name)
    return (*_recipe(setting), running(setting, {"--front": ()}), *by_name)


def running(setting: Setting, changed: Options | None = None) -> Command:
    """Returns the command of the same run in its folder, with the options in ``changed`` added or replaced."""
    folder = {"--output": (setting.folder,)} if setting.folder else {}
    return _run(setting, {**folder, **(changed or {})}, network=setting.model)


def using_recipe(setting: Setting, typing: str) -> Command:
    """Returns the command that builds the recipe's engine, weakly typed if ``typing`` is ``weak``, else strongly."""
    commands = _recipe(setting)
    return commands[-1] if typing == "weak" else commands[0]


def using_fp16(setting: Setting, typing: str) -> Command:
    """Returns the command that builds the network in FP16, weakly typed if ``typing`` is ``weak``, else from a file
    with Casts.
    """
    build = replace(setting.build, precisions=frozenset({Precision.FP16}))
    tool = RTX if build.target.rtx else TRTEXEC
    # A file with Q/DQ pairs would have INT8 layers.
    if typing == "weak":
        network = setting.path("recipe", FP16_NETWORK) if setting.has_pairs else setting.model
        return Command(tool, shlex.join(["trtexec", f"--onnx={network}", "--fp16", *engine_flags(build)]))
    return Command(tool, shlex.join(strong_command(build, setting.path("recipe", FP16_NETWORK))))


def _recipe(setting: Setting) -> tuple[Command, ...]:
    commands = recipe_commands(setting.path("recipe"), setting.build, network_file(setting.low))
    tool = RTX if setting.build.target.rtx else TRTEXEC
    return tuple(Command(POLYGRAPHY if file == SCRIPT else tool, text) for file, text in commands.items())


def _run(setting: Setting, changed: Options, *, network: str = "") -> Command:
    options = {**setting.options, **changed}
    if (not setting.has_pairs or not network) and setting.low not in FLOAT_TYPES:
        options.setdefault("--calibration", (setting.data,))
    if options.get("--calibration") != (setting.data,) and not options.keys() & {"--input", "--dataset"}:
        options["--dataset"] = (setting.data,)
    words = ["trt-bisect", "run", network or setting.float_network]
    for option, values in options.items():
        words += [option] if not values else [word for value in values for word in (option, value)]
    return Command(TRT_BISECT, shlex.join(words))


def _modelopt(setting: Setting, *options: str, high: Precision | None = None) -> Command:
    mode = [] if setting.low is Precision.INT8 else ["--quantize_mode", str(setting.low)]
    high = high or setting.high
    arguments = ["--onnx_path", setting.float_network, *mode, *options, "--high_precision_dtype", str(high)]
    return Command(MODELOPT, f"{_MODELOPT} {shlex.join(arguments)}")


def _with_cache(setting: Setting, cache: str) -> tuple[Command, ...]:
    if not setting.build.target.weak:
        return ()
    network, build = setting.float_network, setting.build
    fixed = {name: (shape, shape, shape) for name, shape in setting.fixed.items()}
    build = replace(build, shapes={**build.shapes, **fixed}, dynamic=tuple(dict.fromkeys((*build.dynamic, *fixed))))
    converting = polygraphy_command(build, network, "--int8", "--calibration-cache", cache)
    trtexec = ["trtexec", f"--onnx={network}", "--int8", *calibrated(build, cache), *engine_flags(build, weak=True)]
    return Command(POLYGRAPHY, shlex.join(converting)), Command(TRTEXEC, shlex.join(trtexec))


def requantizing(setting: Setting) -> tuple[Command, ...]:
    """Returns the commands that quantize the FP32 network again: symmetric, with a scale for each output channel."""
    return (
        _run(setting, {"--calibration": (setting.data,), "--output": (setting.beside("symmetric"),)}),
        _modelopt(setting, "--calibration_data_path", setting.data),
        Command(
            ORT,
            f"quantize_static({setting.float_network!r}, 'INT8.onnx', reader, quant_format=QuantFormat.QDQ, "
            "per_channel=True, activation_type=QuantType.QInt8, weight_type=QuantType.QInt8, "
            "extra_options={'ActivationSymmetric': True, 'WeightSymmetric': True, 'QuantizeBias': False})",
        ),
    )
