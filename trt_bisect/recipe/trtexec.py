"""The commands that build a recipe's engine, by trtexec and Polygraphy, for one version of TensorRT.

Sources. trtexec: ``sampleOptions.cpp``, ``sampleEngines.cpp`` and ``sampleUtils.cpp`` in ``samples/common`` of
NVIDIA/TensorRT, ``release/8.5`` to ``release/11.1``; Polygraphy: ``tools/Polygraphy`` there. TensorRT-RTX: its
documentation, "Performance Benchmarking"; its ``tensorrt_rtx`` is made from trtexec's sources without plugins
(``TRT_WINML`` in 10.3's), so its ``--noTF32`` is inferred.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trt_bisect.builder.base import BuildOptions, ProfileShapes
from trt_bisect.builder.tensorrt_weak import Constraint, WeakPlan
from trt_bisect.calibration.cache import TensorRTVersion, parse_version
from trt_bisect.errors import BadInput
from trt_bisect.precision import Precision

# files of a recipe: the scales, and the network without Q/DQ pairs and Casts
CACHE, FLOAT_NETWORK = "calibration.cache", "network.onnx"

# trtexec splits a list at every comma, and an entry at its last colon; apostrophes quote, and are removed from names
_SPLITS = ",'\n"
_MOST_BYTES = 100_000  # if flags and environment exceed 128 KiB, xargs starts a second trtexec with the rest

_OLD_TYPES = {"fp32": "fp32", "FLOAT": "fp32", "fp16": "fp16", "HALF": "fp16"}
_OLD_TYPES |= {kind: kind.lower() for kind in ("int8", "INT8", "INT32")}
_TYPES = _OLD_TYPES | {kind: kind.lower() for kind in ("bf16", "BF16", "INT64", "BOOL", "UINT8")}
# trtexec's names of output types, by precision or by TensorRT's own name; before 9.3 it knows only the old ones, with
# INT32 for ONNX's int64
_OLD_TYPES |= {"INT64": "int32"}

_SOURCES = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
_OLD_SOURCES = ("CUBLAS", "CUBLAS_LT", "CUDNN", *_SOURCES)
_MIB = 1 << 20
_TAKEN = "--builderOptimizationLevel=3 --memPoolSize=workspace:512 --tacticSources=+CUBLAS,+CUDNN"

_FIRST_LEVEL = (8, 6, 0)
_FIRST_TYPES = (9, 3, 0)
_LAST_DLA, _DLA_AGAIN = (10, 7, 99), (11, 4, 1)

REFUSED = "--refused-by-trt-bisect"  # a flag that trtexec does not have: trtexec prints it with its value, and fails


@dataclass(frozen=True)
class Build:
    """The facts, except the network, that a recipe's engine is built with.

    Attributes:
        precisions: all precisions of the engine's layers.
        weak: true if the recipe has files for weak typing.
        shapes: the smallest, the first sample's and the largest shape of every input.
        dynamic: the names of the inputs with dynamic axes.
    """

    target: TensorRTVersion
    precisions: frozenset[Precision] = frozenset()
    weak: bool = False
    shapes: ProfileShapes = field(default_factory=dict)
    dynamic: tuple[str, ...] = ()
    options: BuildOptions = field(default_factory=BuildOptions)

    def to_json(self) -> dict[str, Any]:
        """Returns the facts in JSON's types, as in ``plan.json``, without defaults."""
        shapes = {name: [*map(_joined, three)] for name, three in self.shapes.items()}
        more: dict[str, Any] = {"shapes": shapes, "dynamic": self.dynamic} if self.dynamic else {}
        more |= {name: getattr(self.options, name) for name in _IN_JSON}
        changed = {name: value for name, value in more.items() if value is not None and value != () and value != {}}
        kinds = sorted(map(str, self.precisions))
        return {"target": str(self.target), "precisions": kinds, "weak": self.weak, **changed}

    @classmethod
    def from_json(cls, record: Any) -> Build | None:
        """Returns the facts that ``to_json`` wrote; None if ``record`` does not hold them."""
        try:
            options = {name: _IN_JSON[name](record[name]) for name in _IN_JSON if name in record}
            shapes = {str(name): _three(three) for name, three in record.get("shapes", {}).items()}
            return cls(
                target=parse_version(record["target"]),
                precisions=frozenset(map(Precision, record["precisions"])),
                weak=bool(record["weak"]),
                shapes=shapes,
                dynamic=tuple(name for name in _texts(record.get("dynamic", ())) if name in shapes),
                options=BuildOptions(**options),
            )
        except (AttributeError, KeyError, TypeError, ValueError, BadInput):
            return None


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(map(str, values))


def _three(shapes: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    least, usual, most = (tuple(map(int, shape.split("x"))) if shape else () for shape in shapes)
    return least, usual, most


def _joined(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


# the build options that a command has to repeat, with their readers
_IN_JSON: Mapping[str, Any] = {
    "workspace_bytes": int,
    "optimization_level": int,
    "tactic_sources": _texts,
    "plugins": _texts,
    "dla": int,
}


def options_in(flags: str) -> dict[str, Any]:
    """Returns ``BuildOptions`` fields from trtexec's flags for optimisation level, workspace and tactic sources.

    Raises BadInput for any other flag.
    """
    options: dict[str, Any] = {}
    for flag in flags.split():
        name, _, value = flag.partition("=")
        if match := re.fullmatch(r"--builderOptimizationLevel=([0-5])", flag):
            options["optimization_level"] = int(match[1])
        elif match := re.fullmatch(r"--memPoolSize=workspace:([1-9]\d*)([MG]?)", flag):
            options["workspace_bytes"] = int(match[1]) * (_MIB << 10 if match[2] == "G" else _MIB)
        elif name == "--tacticSources" and (used := re.findall(r"(?<![-\w])\w+", value)):
            options["tactic_sources"] = tuple(used)
        else:
            raise BadInput(f"'{flag}' is no flag that is taken over from trtexec.", f"Give one or more of {_TAKEN}.")
    return options


def strong_command(build: Build, network: str) -> list[str]:
    """Returns the words of the command that builds a network with Q/DQ pairs or Casts.

    The engine is strongly typed from TensorRT 10 on. Before, the pairs decide, and flags allow the precisions.
    """
    tool = "tensorrt_rtx" if build.target.rtx else "trtexec"
    typed = [] if build.target.rtx else ["--stronglyTyped"]  # from 9.3 on; in 11 it does nothing
    typing = typed if build.target.strong else allowing(build.precisions)
    return [tool, f"--onnx={network}", *typing, *engine_flags(build)]


def allowing(precisions: frozenset[Precision]) -> list[str]:
    """Returns the flags, of trtexec and Polygraphy, that allow the precisions of a weakly typed engine."""
    return [f"--{kind}" for kind in (Precision.INT8, Precision.FP16, Precision.BF16) if kind in precisions]


def engine_flags(build: Build, *, weak: bool = False) -> list[str]:
    """Returns trtexec's flags for shapes and build options, as far as it has such flags; ``weak``: for weak typing."""
    flags, options = ["--noTF32"], build.options
    # Without shapes trtexec sets dynamic axes to 1; with shapes it fails for a static network.
    named = [name for name in build.dynamic if not unsayable(name)]
    if named:
        for shape_index, option in enumerate(("--minShapes", "--optShapes", "--maxShapes")):
            flags.append(f"{option}={_shapes(build, named, shape_index)}")
    if options.workspace_bytes is not None:
        flags.append(f"--memPoolSize=workspace:{options.workspace_bytes / _MIB:.0f}")
    if options.optimization_level is not None and _has_level(build.target):
        flags.append(f"--builderOptimizationLevel={options.optimization_level}")
    if options.tactic_sources is not None:
        signs = (f"{'+' if source in options.tactic_sources else '-'}{source}" for source in _sources(build.target))
        flags.append(f"--tacticSources={','.join(signs)}")
    if not build.target.rtx:
        option = "--staticPlugins" if build.target.number >= _FIRST_LEVEL else "--plugins"
        flags += [f"{option}={library}" for library in options.plugins]
    if options.dla is not None and _has_dla(build.target, weak=weak):
        flags += [f"--useDLACore={options.dla}", "--allowGPUFallback"]
    return flags


def missing(build: Build) -> list[str]:
    """Returns a clause for each build option of the measured engine that trtexec's command for strong typing cannot
    express.
    """
    options, target = build.options, build.target
    split = filter(unsayable, build.dynamic)
    clauses = [f"the shapes of the input '{name}', whose name trtexec splits" for name in split]
    clauses += [
        f"the values of the input '{name}', if {target.title} takes it for sizes: give them in place of its shape, "
        f"{_joined(values[0])} to {_joined(values[2])}"
        for name, values in options.sizes.items()
    ]
    if options.optimization_level is not None and not _has_level(target):
        clauses.append(f"the optimisation level {options.optimization_level}, which came with TensorRT 8.6")
    sources = _sources(target)
    clauses += [f"the tactic source {name}" for name in options.tactic_sources or () if name not in sources]
    if target.rtx and options.plugins:
        clauses.append(f"the plugins {', '.join(options.plugins)}")
    if options.operators and not options.plugins:
        clauses.append(f"plugins for the operators in {', '.join(options.operators)}, which are ONNX Runtime's")
    if options.dla is not None and not _has_dla(target, weak=False):
        clauses.append(f"the DLA core {options.dla}, which takes Q/DQ pairs from TensorRT 11.4.1 on")
    kinds = (Precision.BF16, Precision.FP8) if not target.strong else ()
    clauses += [f"{str(kind).upper()}, which came with TensorRT 10" for kind in kinds if kind in build.precisions]
    return clauses


def _has_level(target: TensorRTVersion) -> bool:
    return target.rtx or target.number >= _FIRST_LEVEL


def _has_dla(target: TensorRTVersion, *, weak: bool) -> bool:
    return not target.rtx and (target.number <= _LAST_DLA if weak else target.number >= _DLA_AGAIN)


def _sources(target: TensorRTVersion) -> tuple[str, ...]:
    return _OLD_SOURCES if target.weak else _SOURCES


def unsayable(name: str) -> bool:
    """Returns true for a name that trtexec splits, or strips of apostrophes."""
    return any(letter in name for letter in _SPLITS)


def _shapes(build: Build, names: list[str], shape_index: int) -> str:
    return ",".join(f"{name}:{_joined(build.shapes[name][shape_index])}" for name in names)


def polygraphy_command(build: Build, network: str, *more: str) -> list[str]:
    """Returns the words of ``polygraphy convert`` for a weakly typed engine, with ``more`` added."""
    # Polygraphy leaves TF32 off by itself, and takes the calibration profile from the shapes.
    options, words = build.options, ["polygraphy", "convert", network, "-o", "model.engine", *more]
    for shape_index, option in enumerate(("--trt-min-shapes", "--trt-opt-shapes", "--trt-max-shapes")):
        entries = [f"{name}:[{','.join(map(str, build.shapes[name][shape_index]))}]" for name in build.dynamic]
        words += [option, *entries] if entries else []
    if options.workspace_bytes is not None:
        words += ["--pool-limit", f"workspace:{options.workspace_bytes}"]
    if options.optimization_level is not None and _has_level(build.target):
        words += ["--builder-optimization-level", str(options.optimization_level)]
    if options.tactic_sources is not None:
        words += ["--tactic-sources", *(name for name in options.tactic_sources if name in _sources(build.target))]
    words += ["--plugins", *options.plugins] if options.plugins else []
    return [*words, "--use-dla", "--allow-gpu-fallback"] if options.dla is not None else words


def flags_of(weak: WeakPlan, build: Build) -> list[str]:
    """Returns trtexec's flags that build the plan with weak typing."""
    flags = [*engine_flags(build, weak=True), *allowing(build.precisions)]
    if Precision.INT8 in build.precisions:
        flags += calibrated(build, CACHE)
    type_names = _types_of(build)
    layers = [f"{rule.layer}:{rule.precision}" for rule in weak.constraints if rule.precision is not None]
    types = [f"{rule.layer}:{_types(rule, type_names)}" for rule in weak.constraints if _types_outputs(rule)]
    if layers or types:
        flags.append("--precisionConstraints=obey")
    if layers:
        flags.append(f"--layerPrecisions={','.join(layers)}")
    if types:
        flags.append(f"--layerOutputTypes={','.join(types)}")
    return flags


def calibrated(build: Build, cache: str) -> list[str]:
    """Returns trtexec's flags for a calibration cache, with the calibration profile of a dynamic network."""
    # NvInfer.h, setCalibrationProfile: it must be set if the network has runtime dimensions; for static inputs too.
    flags, names = [f"--calib={cache}"], list(build.shapes)
    if build.dynamic and not any(map(unsayable, names)):
        flags.append(f"--optShapesCalib={_shapes(build, names, 1)}")
    return flags


def _types_of(build: Build) -> Mapping[str, str]:
    return _TYPES if build.target.number >= _FIRST_TYPES else _OLD_TYPES


def _types_outputs(constraint: Constraint) -> bool:
    return any(isinstance(kind, Precision) for kind in constraint.outputs)


def _types(constraint: Constraint, type_names: Mapping[str, str]) -> str:
    # joined by +, one for each output, integers included; or one for all of them
    kinds = [type_names.get(str(kind), "") for kind in constraint.outputs]
    return kinds[0] if len(set(kinds)) == 1 else "+".join(kinds)


def flags_file(flags: list[str], refused: list[str]) -> str:
    """Returns the text of a file with a flag on each line, quoted for ``xargs``.

    If trtexec cannot express the plan (``refused``), the file makes trtexec fail and print the reasons.
    """
    if refused:
        # xargs takes a line end, even in quotes, for the end of an argument
        text = "".join(letter if letter.isprintable() else "?" for letter in "; ".join(refused))
        return shlex.quote(f"{REFUSED}={text}") + "\n"
    return "\n".join(map(shlex.quote, flags)) + "\n"


def refusals(weak: WeakPlan, build: Build, flags: list[str]) -> list[str]:
    """Returns a clause for each reason why trtexec, with the ``flags`` of ``flags_of``, cannot express a plan."""
    type_names, length = _types_of(build), sum(len(flag.encode()) for flag in flags)
    reasons = [f"layer '{rule.layer}': {why}" for rule in weak.constraints for why in _why_not(rule, weak, type_names)]
    if not reasons and length > _MOST_BYTES:
        size = f"their names take {length >> 10} KiB, too much for a command line"
        reasons.append(f"{len(weak.constraints)} layers: {size}")
    return reasons


def _why_not(constraint: Constraint, weak: WeakPlan, type_names: Mapping[str, str]) -> Iterator[str]:
    name = constraint.layer
    start, star, end = name.partition("*")
    letters = [letter for letter in _SPLITS if letter in name]
    if letters:
        yield f"its name holds {' and '.join(map(repr, letters))}"
    longer = (layer for layer in weak.layers if layer != name and len(layer) >= len(start) + len(end))
    # from 10.0 on, the first * matches any text, for layers that no entry names exactly
    if star and any(layer.startswith(start) and layer.endswith(end) for layer in longer):
        yield "its name holds '*' and stands for other layers too"
    if Counter(weak.layers)[name] != weak.constraints.count(constraint):
        yield "other layers have the same name"
    if _types_outputs(constraint):
        unknown = sorted({str(kind).lower() for kind in constraint.outputs if kind and str(kind) not in type_names})
        if unknown:
            yield f"trtexec of the target does not know the type {' and '.join(unknown)} of its outputs"
        if None in constraint.outputs:
            yield "some of its outputs have a type and some are left to TensorRT"
    elif constraint.precision is not None and str(constraint.precision) not in type_names:
        yield f"trtexec of the target does not know the precision {constraint.precision}"
