"""Writes a recipe's precisions in the file formats of other tools: one ``Dialect`` for each tool."""

from __future__ import annotations

import glob
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trt_bisect.builder.tensorrt_weak import WeakPlan
from trt_bisect.errors import BadInput
from trt_bisect.model.modules import WEIGHTED
from trt_bisect.model.quantizer import FLOAT_TYPES
from trt_bisect.precision import Precision
from trt_bisect.recipe.trtexec import CACHE, FLOAT_NETWORK, Build, unsayable
from trt_bisect.support.text import listed

_POOLS = frozenset({"AveragePool", "GlobalAveragePool"})
# DeepStream's network-mode; TAO Deploy knows the same precisions
_NETWORK_MODES = {Precision.INT8: 1, Precision.FP16: 2}
QUANT_CFG = "modelopt_quant_cfg.json"
MODELOPT = "modelopt_nodes_to_exclude.json"
_ROUND_TRIP, _PARSED = "round trip", "parsed back; unproven"


@dataclass(frozen=True)
class ToldLayer:
    """A layer that the low precision can round.

    Attributes:
        module: the layer's PyTorch module, with or without the class; empty if unknown.
    """

    name: str
    op_type: str
    module: str
    precision: Precision

    @property
    def path(self) -> str:
        """The module as ``named_modules`` names it; empty if unknown."""
        return self.module.partition("(")[0].strip()


@dataclass(frozen=True)
class Told:
    """The facts of a recipe that other tools' files are written from.

    Attributes:
        names: all names, in the recipe's files, of the nodes that stay in high precision.
        network: the file with Q/DQ pairs or Casts.
    """

    layers: tuple[ToldLayer, ...]
    names: tuple[str, ...]
    low: Precision
    weak: WeakPlan
    build: Build
    network: str
    properties: Mapping[str, str]

    @property
    def rules(self) -> list[tuple[str, Precision]]:
        """The names of layers in TensorRT's network that weak typing constrains, each with its precision; empty without
        weak typing.
        """
        rules = self.weak.constraints if self.build.weak else ()
        return [(rule.layer, rule.precision) for rule in rules if rule.precision is not None]

    @property
    def has_rules(self) -> bool:
        """True if weak typing constrains layers, all in precisions that DeepStream and TAO Deploy know."""
        kinds = {kind for _, kind in self.rules}
        return bool(kinds) and Precision.BF16 not in kinds and self.low in _NETWORK_MODES


@dataclass(frozen=True)
class Dialect:
    """The file format in which a tool reads the precisions of a recipe.

    Attributes:
        source: the tool's version that the format was read from.
        use: the command or line of code that uses the file.
        proof: how the format was tested.
        write: returns the file's text; empty if the tool cannot express the recipe.
    """

    file: str
    tool: str
    source: str
    use: str
    proof: str
    write: Callable[[Told], str]


def quant_cfg(layers: Iterable[ToldLayer], low: Precision) -> dict[str, Any]:
    """Returns the config for ``mtq.quantize`` of ModelOpt 0.47, with quantizers on for layers in ``low`` only.

    Raises:
        BadInput: ``low`` is not INT8 or FP8, or the module of such a layer (with a weight, or a pool) is unknown.
    """
    if low not in (Precision.INT8, Precision.FP8):
        raise BadInput(f"ModelOpt's quant_cfg has no {low.upper()}.", "Use Torch-TensorRT's autocast, or the recipe.")
    told = [layer for layer in layers if layer.op_type in WEIGHTED | _POOLS]
    low_layers = [layer for layer in told if layer.precision is low]
    if nameless := [layer.name for layer in low_layers if not layer.path]:
        problem = f"The modules of PyTorch are not known for {listed(nameless, 3)}."
        raise BadInput(problem, "Give the module itself, or a file that torch.onnx.export wrote.")
    # Applied in order. Names are patterns of fnmatch; a parent_class that is not registered is an error, so modules are
    # named one by one.
    entries: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    bits = (4, 3) if low is Precision.FP8 else 8
    for layer in low_layers:
        name, channel = glob.escape(layer.path), 1 if layer.op_type == "ConvTranspose" else 0
        axis = None if low is Precision.FP8 else channel
        if layer.op_type in WEIGHTED:
            entries.append({"quantizer_name": f"{name}.weight_quantizer", "cfg": {"num_bits": bits, "axis": axis}})
        entries.append({"quantizer_name": f"{name}.input_quantizer", "cfg": {"num_bits": bits, "axis": None}})
    high_paths = dict.fromkeys(layer.path for layer in told if layer.path and layer.precision is not low)
    for path in high_paths:
        for side in ("weight", "input"):
            entries.append({"quantizer_name": f"{glob.escape(path)}.{side}_quantizer", "enable": False})
    return {"quant_cfg": entries, "algorithm": "max"}


def as_dictionary(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a result of ``quant_cfg`` in the form of ModelOpt before 0.47: a dictionary by quantizer."""
    entries = {}
    for entry in config["quant_cfg"]:
        entries[entry["quantizer_name"]] = {**entry.get("cfg", {}), "enable": entry.get("enable", True)}
    return {**config, "quant_cfg": entries}


def _in_json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def _modelopt_torch(told: Told) -> str:
    if told.low in FLOAT_TYPES or not any(layer.path for layer in told.layers):
        return ""
    try:
        return _in_json(quant_cfg(told.layers, told.low))
    except BadInput:
        return ""


def _pattern(name: str) -> str:
    # ModelOpt on ONNX and Torch-TensorRT match from the beginning of a name; without the $ longer names would match too
    return f"^{re.escape(name)}$"


def _modelopt_onnx(told: Told) -> str:
    every = Counter(layer.op_type for layer in told.layers)
    high = Counter(layer.op_type for layer in told.layers if layer.precision is not told.low)
    whole = sorted(op_type for op_type, count in high.items() if count == every[op_type])
    excluded = {"nodes_to_exclude": [_pattern(name) for name in told.names]}
    return _in_json({**excluded, **({"op_types_to_exclude": whole} if whole else {})})


def _torch_tensorrt(told: Told) -> str:
    half = next((kind for kind in FLOAT_TYPES if kind in told.build.precisions), None)
    kept = [layer for layer in told.layers if layer.precision is Precision.FP32]
    if half is None or not any(layer.path for layer in told.layers) or not all(layer.path for layer in kept):
        return ""
    # The names are the modules of nn_module_stack: one that is never called (a function reads its parameters) cannot be
    # named. Before autocast Torch-TensorRT had enabled_precisions.
    settings = {
        "enable_autocast": True,
        "autocast_low_precision_type": str(half),
        "autocast_excluded_nodes": list(dict.fromkeys(_pattern(layer.path) for layer in kept)),
        "enabled_precisions": sorted(map(str, told.build.precisions)),
    }
    return _in_json(settings)


def _ultralytics(told: Told) -> str:
    if told.properties.get("author") != "Ultralytics" or told.low in FLOAT_TYPES:
        return ""
    # With a precision, Ultralytics rewrites files with Q/DQ pairs for TensorRT 11; before, INT8 has to be allowed.
    precision = None if told.build.target.strong and not told.build.target.weak else 8
    return f'''"""Builds the engine of the recipe as Ultralytics exports engines: YOLO("network.engine") runs it."""

import onnx
from ultralytics.utils.export.engine import onnx2engine

properties = onnx.load("{told.network}", load_external_data=False).metadata_props
metadata = {{entry.key: entry.value for entry in properties}}
onnx2engine("{told.network}", "network.engine", quantize={precision}, metadata=metadata)
'''


def _deepstream(told: Told) -> str:
    # a key file of GLib, whose lists are split at ";"; an entry is split at its first two colons
    rules = told.rules
    if not told.has_rules or any(":" in layer for layer, _ in rules):
        return ""
    entries = [f"{_escaped(layer)}:{kind}:gpu;" for layer, kind in rules]
    cache = f"int8-calib-file={CACHE}\n" if told.low is Precision.INT8 else ""
    mode = f"onnx-file={FLOAT_NETWORK}\nnetwork-mode={_NETWORK_MODES[told.low]}\n"
    return f"[property]\n{mode}{cache}layer-device-precision={''.join(entries)}\n"


def _escaped(name: str) -> str:
    for letter, code in {"\\": "\\\\", ";": "\\;", "\n": "\\n", "\t": "\\t", "\r": "\\r"}.items():
        name = name.replace(letter, code)
    return name.replace(" ", "\\s") if name.startswith(" ") else name


def _tao(told: Told) -> str:
    # An entry is split at its last colon. TAO only prefers the precisions: TensorRT may take others.
    rules = told.rules
    if not told.has_rules:
        return ""
    entries = "".join(f"      - {json.dumps(f'{layer}:{kind}', ensure_ascii=False)}\n" for layer, kind in rules)
    cache = f"    calibration:\n      cal_cache_file: {CACHE}\n" if told.low is Precision.INT8 else ""
    head = f"gen_trt_engine:\n  onnx_file: {FLOAT_NETWORK}\n  tensorrt:\n    data_type: {told.low}\n"
    return f"{head}{cache}    layers_precision:\n{entries}"


def _dla(told: Told) -> str:
    if told.build.options.dla is None or not told.rules or any(unsayable(layer) for layer, _ in told.rules):
        return ""
    # each entry ends with a comma; the DLA has INT8 and FP16
    return "".join(f"{layer}:fp16," for layer, kind in told.rules if kind is not Precision.INT8)


# The formats that a recipe is written in; ``recipe.files`` writes those of trtexec and Polygraphy.
DIALECTS: Sequence[Dialect] = (
    Dialect(
        QUANT_CFG,
        "ModelOpt on PyTorch",
        "nvidia-modelopt 0.47.0",
        f'mtq.quantize(model, json.load(open("{QUANT_CFG}")), forward_loop)',
        _ROUND_TRIP,
        _modelopt_torch,
    ),
    Dialect(
        MODELOPT,
        "ModelOpt on ONNX",
        "nvidia-modelopt 0.47.0",
        f'modelopt.onnx.quantization.quantize("network.onnx", **json.load(open("{MODELOPT}")))',
        _ROUND_TRIP,
        _modelopt_onnx,
    ),
    Dialect(
        "ultralytics_engine.py",
        "Ultralytics",
        "ultralytics 8.4.190",
        "python ultralytics_engine.py",
        "written from its source; unproven on a GPU",
        _ultralytics,
    ),
    Dialect(
        "torch_tensorrt.json",
        "Torch-TensorRT",
        "torch-tensorrt 2.14.0; enabled_precisions: 2.8.0",
        "torch_tensorrt.dynamo.compile(program, inputs, enable_autocast=True, autocast_excluded_nodes=...)",
        "names found in the nn_module_stack of torch.export; unproven on a GPU",
        _torch_tensorrt,
    ),
    Dialect(
        "tao_deploy.yaml",
        "TAO Deploy",
        "nvidia-tao-deploy 7.3.0",
        "the keys of gen_trt_engine in your own specification",
        _PARSED,
        _tao,
    ),
    Dialect(
        "deepstream_nvinfer.txt",
        "DeepStream",
        "nvinfer of DeepStream 6.0 to 8.0",
        "the keys of [property] in your own configuration of nvinfer",
        _PARSED,
        _deepstream,
    ),
    Dialect(
        "layer_arg.txt",
        "DLA",
        "qdq_translator of Deep-Learning-Accelerator-SW",
        "trtexec --precisionConstraints=prefer --layerPrecisions=$(cat layer_arg.txt)",
        _PARSED,
        _dla,
    ),
)


def texts_of(told: Told) -> dict[str, str]:
    """Returns the text for each tool that can express the recipe, by file name."""
    texts = {dialect.file: dialect.write(told) for dialect in DIALECTS}
    return {file: text for file, text in texts.items() if text}
