"""Writes a recipe as files that other tools read."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import onnx

from trt_bisect.builder.tensorrt_weak import WeakPlan
from trt_bisect.calibration.cache import format_cache
from trt_bisect.calibration.weight_rounding import with_weights_on_grid
from trt_bisect.errors import NoRoom
from trt_bisect.model.file import Weights, Written, save_model
from trt_bisect.model.merged import split
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import FLOAT_TYPES, FP8, INT8, LOWS, SMALLEST_SCALE, Scales, scale_in
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.recipe import trtexec
from trt_bisect.recipe.dialects import DIALECTS, MODELOPT, Told, ToldLayer, texts_of
from trt_bisect.recipe.given import without_pairs
from trt_bisect.recipe.trtexec import CACHE, FLOAT_NETWORK
from trt_bisect.support.files import make_folder
from trt_bisect.support.text import listed

ANNOTATED = "annotated.onnx"
FOLDER = "recipe"
QDQ_NETWORK = "network.qdq.onnx"
TRTEXEC = "trtexec.flags"
POLYGRAPHY = "polygraphy_postprocess.py"
FP16_NETWORK = "network.fp16.onnx"
PLAN = "plan.json"
README = "README.md"
GIVEN = "given"  # the folder of the user's file without the Q/DQ pairs of the high layers, if the file had pairs
BUILD = "build"  # the key of ``PLAN`` for the facts that the engine is built with
# The names of a recipe's text files.
TEXTS = (PLAN, TRTEXEC, POLYGRAPHY, *(dialect.file for dialect in DIALECTS), CACHE, README)

TRT_TYPES = {Precision.FP32: "float32", Precision.FP16: "float16", Precision.BF16: "bfloat16", Precision.INT8: "int8"}


def network_file(low: Precision) -> str:
    """Returns the file name of the recipe's network: with Q/DQ pairs, or with Casts to a low float type."""
    return f"network.{low}.onnx" if low in FLOAT_TYPES else QDQ_NETWORK


_POSTPROCESS = Template('''"""Tells TensorRT the precisions of the recipe that trt-bisect found, layer by layer.

README.md next to this file has the command that runs this script.
"""

import tensorrt as trt

# (layer, the precision it computes in, the type of each of its outputs); None leaves the choice to TensorRT
CONSTRAINTS = $constraints
MUST_BE_THERE = $required


def postprocess(network):
    told = {name: (precision, types) for name, precision, types in CONSTRAINTS}
    seen = set()
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.name not in told:
            continue
        if layer.name in seen:
            raise RuntimeError(f"the network has two layers {layer.name!r}")
        seen.add(layer.name)
        precision, types = told[layer.name]
        if precision is not None:
            layer.precision = getattr(trt, precision)
        for slot, kind in enumerate(types[: layer.num_outputs]):
            if kind is not None:
                layer.set_output_type(slot, getattr(trt, kind))
    for index in range(network.num_outputs):
        tensor = network.get_output(index)
        if tensor.dtype in (trt.float32, trt.float16, getattr(trt, "bfloat16", None)):
            tensor.dtype = trt.float32
    missing = [name for name in MUST_BE_THERE if name not in seen]
    if missing:
        raise RuntimeError(f"the network has no layers {missing}: it is not the one that was measured")
''')


@dataclass(frozen=True)
class RecipeFiles:
    """The contents of a recipe's files.

    Attributes:
        texts: the texts by file name; for a pipeline, those for all its networks.
        network: the network with Q/DQ pairs or Casts at the layers in low precision.
        measured: the float network that was measured; None if the network came with Q/DQ pairs, or in FP8.
        fp16: the network in FP16 if that is the plan to ship, else None.
        properties: the user's ``metadata_props``, such as class names.
        given: writes the user's file, without the pairs of layers in high precision, into a folder; None without such a
            file.
        parts: for a pipeline, the files of each network, by its name, which is also its folder.
    """

    texts: Mapping[str, str]
    network: Written
    build: trtexec.Build
    properties: Mapping[str, str]
    measured: Network | None = None
    notes: tuple[str, ...] = ()
    network_name: str = QDQ_NETWORK
    fp16: Written | None = None
    given: Callable[[Path], None] | None = None
    parts: Mapping[str, RecipeFiles] = field(default_factory=dict)

    def with_fp16(self, network: Network) -> RecipeFiles:
        """Returns the files with the network in FP16 added, as the plan to ship."""
        if self.parts:
            return replace(
                self, parts={part.name: self.parts[part.name].with_fp16(part.network) for part in split(network)}
            )
        written = PlanWriter(network, {}, GraphTarget.TENSORRT).write(network.all_in(Precision.FP16))
        build = replace(self.build, precisions=frozenset({Precision.FP16}), weak=False)
        command = shlex.join(trtexec.strong_command(build, FP16_NETWORK))
        text = f"\n## FP16\n\nFP16 meets what was asked, and needs no scales:\n\n```\n{command}\n```\n"
        texts = {**self.texts, README: self.texts.get(README, "") + text}
        return replace(self, fp16=written, texts=texts)

    @property
    def viewed(self) -> tuple[onnx.ModelProto, str]:
        """The model to look at in Netron, whose nodes are the recipe's layers, in floats or with pairs; and its file's
        name.
        """
        if self.measured is not None:
            return self.measured.skeleton, FLOAT_NETWORK
        return self.network.model, self.network_name

    def write(self, folder: Path, named: Callable[[], None] = lambda: None) -> None:
        """Writes the files, and removes files that only an earlier recipe had; raises BadInput if a file cannot be
        written.

        After a stop at any moment, a folder with ``plan.json`` holds the files of one recipe, and the report names it:
        ``named``, which writes the report, is called just before ``plan.json`` is there.
        """
        make_folder(folder)
        for name, part in self.parts.items():
            part.write(folder / name)
        # Files get temporary names first; plan.json is removed before the first is replaced, and comes last.
        with _beside(folder / PLAN) as beside:
            for name, text in self.texts.items():
                (beside / name).write_bytes(text.encode())
            if not self.parts:
                self._write_networks(beside)
            for name in (PLAN, ANNOTATED):
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / GIVEN, ignore_errors=True)
            written = {path.name for path in beside.iterdir()}
            for name in sorted(written - {PLAN}, reverse=True):
                (beside / name).replace(folder / name)
            for name in {*TEXTS, FLOAT_NETWORK, FP16_NETWORK, *map(network_file, LOWS)} - written:
                (folder / name).unlink(missing_ok=True)
            named()
            (beside / PLAN).replace(folder / PLAN)

    def _write_networks(self, folder: Path) -> None:
        save_model(self._described(self.network.model), self.network.weights, folder / self.network_name)
        if self.fp16 is not None:
            save_model(self._described(self.fp16.model), self.fp16.weights, folder / FP16_NETWORK)
        if self.measured is not None:
            floats = self._described(self.measured.for_parser.skeleton)
            save_model(floats, self.measured.weights, folder / FLOAT_NETWORK)
        if self.given is not None:
            (folder / GIVEN).mkdir()
            self.given(folder / GIVEN)

    def _described(self, model: onnx.ModelProto) -> onnx.ModelProto:
        described = onnx.ModelProto()
        described.CopyFrom(model)
        onnx.helper.set_model_props(described, dict(self.properties))
        return described


def pipeline_files(whole: RecipeFiles, parts: Mapping[str, RecipeFiles]) -> RecipeFiles:
    """Returns the files of a pipeline's recipe: ``plan.json`` of ``whole``, the merged network; and the files of each
    network, ``parts``.
    """
    lines = ["# Recipes of a pipeline", f"`{PLAN}` has the precision of every layer. Each network has a folder:"]
    for name, part in parts.items():
        command = recipe_commands(name, part.build, part.network_name)[part.network_name]
        lines.append(f"`{name}`: see its {README}.\n\n{_fenced(command)}")
    notes = tuple(f"{name}: {note}" for name, part in parts.items() for note in part.notes)
    texts = {PLAN: whole.texts[PLAN], README: "\n\n".join(lines) + "\n"}
    return replace(whole, texts=texts, notes=notes, parts=parts)


def write_network(path: Path, model: onnx.ModelProto, weights: Weights) -> None:
    """Writes a network whole or not at all; raises BadInput if it cannot be written."""
    with _beside(path) as beside:
        for file in reversed(save_model(model, weights, beside / path.name)):
            file.replace(path.with_name(file.name))


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        beside.mkdir(exist_ok=True)
        yield beside
    except OSError as error:
        raise NoRoom(f"'{path}' cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def recipe_files(
    network: Network,
    scales: Mapping[str, np.float32],
    plan: PrecisionPlan,
    high: Precision,
    weak: WeakPlan,
    build: trtexec.Build,
) -> RecipeFiles:
    """Returns the files of a plan for one version of TensorRT.

    The files for weak typing (calibration cache, trtexec's flags, Polygraphy's script) are left out if the version has
    none, and if Q/DQ pairs decide the precisions: those of the user's file, or FP8's.

    Args:
        scales: the INT8 scales, by activation.
        high: the precision of layers that are never in low precision, if the network has no base.
        build: the measured engine's facts; ``precisions`` and ``weak`` are set anew.
    """
    low, base = network.low, network.base or high
    lowered = {layer.index for layer in network.layers if layer.quantizable} & plan.lowered
    kept, told = {}, []
    for layer in network.layers:
        if layer.roundings:
            precision = low.precision
            if layer.index not in lowered:
                precision = plan.precisions[layer.index] if layer.quantizable else base
                kept[layer.name] = precision
            module = "" if network.changes else layer.module
            told.append(ToldLayer(layer.name, layer.op_type, module, precision))
    alone = network.has_pairs or low is FP8
    build = replace(build, precisions=network.used_precisions(plan), weak=build.target.weak and not alone)
    texts = {PLAN: plan_json(network, kept, base, scales, build)}
    name = network_file(low.precision)
    written = PlanWriter(network, scales, GraphTarget.TENSORRT).write(plan)
    if low.wide or not _EMULATED.isdisjoint(plan.precisions):
        return RecipeFiles(texts, written, build, network.properties)
    in_parser = {mine.name: layer.name for mine, layer in zip(network.layers, network.for_parser.layers, strict=True)}
    required = [in_parser[name] for name in kept]
    names = tuple(kept) if alone else tuple(dict.fromkeys((*kept, *required)))
    texts |= texts_of(Told(tuple(told), names, low.precision, weak, build, name, network.properties))
    refused: list[str] = []
    if build.weak:
        flags = trtexec.flags_of(weak, build)
        refused = trtexec.refusals(weak, build, flags)
        texts[TRTEXEC] = trtexec.flags_file(flags, refused)
        texts[POLYGRAPHY] = polygraphy_script(weak, required)
        if low.needs_ranges:
            texts[CACHE] = format_cache({**weak.scales, **scales}, build.target.header)
    given = without_pairs(network, kept) if kept else None
    texts[README] = readme(network, weak, refused, build, [*texts, GIVEN] if given else texts)
    note = (
        f"trtexec cannot express this recipe, so {TRTEXEC} makes it fail ({listed(refused, 3)}): use {POLYGRAPHY} or "
    )
    measured = None if alone else with_weights_on_grid(network, lowered)
    notes = (note + name,) if refused else ()
    return RecipeFiles(texts, written, build, network.properties, measured, notes, name, given=given)


def recipe_commands(folder: str, build: trtexec.Build, network: str) -> dict[str, str]:
    """Returns the command that uses each file of a recipe, by file name: strong typing first, weak typing last.

    ``folder`` is the recipe's; empty if the commands run in it. ``network`` is the file with Q/DQ pairs or Casts.
    """
    beside = f"{folder}/" if folder else ""
    commands = {network: shlex.join(trtexec.strong_command(build, beside + network))}
    if not build.weak:
        return commands
    cache = ["--calibration-cache", beside + CACHE] if Precision.INT8 in build.precisions else []
    script = ["--precision-constraints", "obey", "--trt-network-postprocess-script", beside + POLYGRAPHY]
    convert = trtexec.polygraphy_command(
        build, beside + FLOAT_NETWORK, *trtexec.allowing(build.precisions), *cache, *script
    )
    weak = f"grep -v '^#' {TRTEXEC} | xargs trtexec --onnx={FLOAT_NETWORK}"
    commands[POLYGRAPHY] = shlex.join(convert)
    commands[TRTEXEC] = f"(cd {shlex.quote(folder)} && {weak})" if folder else weak
    return commands


def plan_json(
    network: Network, kept: Mapping[str, Precision], high: Precision, scales: Scales, build: trtexec.Build
) -> str:
    """Returns ``plan.json``: the precision of every layer that the low precision rounds, and the activations' scales.

    Scales are as used (largest magnitude / 448 in FP8); unusable ones are left out. ``kept`` has the precision of each
    layer in high precision, by name.
    """
    layers = {
        layer.name: str(kept.get(layer.name, network.low.precision)) for layer in network.layers if layer.roundings
    }
    of_scales = network.low if network.low.level is not None else INT8
    usable = {}
    for name in network.rounded_activations:
        scale = float(scale_in(of_scales, scales[name])) if name in scales else math.nan
        if math.isfinite(scale) and scale >= SMALLEST_SCALE:
            usable[name] = scale
    one_scale = [network.layers[k].name for k in sorted(network.one_scale) if network.layers[k].has_weight]
    plan: dict[str, Any] = {"model": network.source}
    if network.changes:
        plan = {"model": FLOAT_NETWORK, "changes": network.changes}
    if network.low is not INT8:
        plan["low"] = str(network.low.precision)
    if network.low.wide:
        plan["activations"] = "int16"
    plan |= {"high": str(high), "layers": layers}
    if usable:
        plan["scales"] = usable
    if one_scale:
        plan["one_scale"] = one_scale
    plan[BUILD] = build.to_json()
    return json.dumps(plan, indent=1) + "\n"


def polygraphy_script(weak: WeakPlan, named: list[str]) -> str:
    """Returns a script for Polygraphy's ``--trt-network-postprocess-script``, with ``--precision-constraints obey``.

    The script fails if TensorRT's network lacks a constrained layer; if TensorRT's parser did not name the layers, only
    if a layer in ``named`` is missing.
    """
    constraints = [
        (rule.layer, _trt_type(rule.precision), [_trt_type(kind) for kind in rule.outputs]) for rule in weak.constraints
    ]
    required = [rule.layer for rule in weak.constraints if weak.parser or rule.layer in named]
    return _POSTPROCESS.substitute(constraints=_python_list(constraints), required=_python_list(required))


def _python_list(items: Sequence[object]) -> str:
    return "".join(["[", *(f"\n    {entry!r}," for entry in items), "\n]"])


def _trt_type(kind: Precision | str | None) -> str | None:
    return TRT_TYPES.get(kind) if isinstance(kind, Precision) else None


def readme(network: Network, weak: WeakPlan, refused: list[str], build: trtexec.Build, texts: Collection[str]) -> str:
    """Returns the recipe's README: the purpose of each file in ``texts``, and the commands for the target version.

    ``refused`` has the reasons why trtexec cannot build the recipe.
    """
    low = network.low
    name, title = network_file(low.precision), low.title
    commands = recipe_commands("", build, name)
    pairs = "Casts" if low.precision in FLOAT_TYPES else "Q/DQ pairs"
    alone = network.has_pairs or low is FP8
    rows = [f"| `{name}` | the network with {pairs}: its graph says what is rounded |"]
    if GIVEN in texts:
        use = "the file given without the pairs of the layers that stay high, all else byte for byte as it was"
        use += "; TensorRT refuses its asymmetric pairs" if network.asymmetric else ""
        rows.append(f"| `{GIVEN}/{Path(network.source).name}` | {use} |")
    if not alone:
        use = f"the network that was measured, in floats, made from `{_in_table(network.source)}`"
        use += f", with {network.changes}; `{PLAN}` is for this file" if network.changes else ""
        use += ": the next files are for it" if build.weak else ""
        rows.append(f"| `{FLOAT_NETWORK}` | {use} |")
    if build.weak:
        rows.append(f"| `{TRTEXEC}` | weak typing: trtexec's flags |")
        rows.append(f"| `{POLYGRAPHY}` | weak typing: the same constraints for Polygraphy |")
    if build.weak and low.needs_ranges:
        rows.append(f"| `{CACHE}` | the scales for {build.target.title} |")
    for dialect in DIALECTS:
        if dialect.file in texts:
            use = _modelopt(low.precision) if dialect.file == MODELOPT else dialect.use
            rows.append(f"| `{dialect.file}` | {dialect.tool}: `{use}` |")
    rows.append(f"| `{PLAN}` | the precision of every layer that {title} would round |")
    use = "to look at in Netron: loss, culprit, scales and precision stand on each node; made by `run`"
    rows.append(f"| `{ANNOTATED}` | {use}. Its weights are those in `{QDQ_NETWORK if alone else FLOAT_NETWORK}` |")
    parts = [
        f"# Recipe\n\nFor {build.target.title} ({build.target.why}); `--trt-version` names another version. Run "
        "the commands in this folder.",
        "\n".join(["| file | use |", "| --- | --- |", *rows]),
        f"## {'Strong typing' if build.target.strong else f'The network with {pairs}'}",
        *_about_building(commands[name], build),
    ]
    if alone:
        came = f"`{_in_table(network.source)}` came with Q/DQ pairs" if network.has_pairs else "The network is in FP8"
        parts.append(
            f"{came}: TensorRT takes precisions and scales from pairs alone. So the recipe\n"
            "has no separate scales, and no constraints on layers."
        )
    if low.precision not in FLOAT_TYPES:
        usual = (f"{dynamic}:{'x'.join(map(str, build.shapes[dynamic][1]))}" for dynamic in build.dynamic)
        shapes = [word for shape in usual for word in ("--shape", shape)]
        checking = ["trt-bisect", "check", name, "--engine", "tensorrt-rtx", *shapes]
        parts.append(f"{_ABOUT_A_REAL_ENGINE}\n\n{_fenced(shlex.join(checking))}")
    if build.weak:
        parts.append(_about_weak(weak, refused, build, commands, cached=low.needs_ranges))
    if low is INT8:
        parts.append(_ABOUT_ONNX_RUNTIME)
    return "\n\n".join(parts) + "\n"


def _about_building(command: str, build: trtexec.Build) -> Iterator[str]:
    yield _fenced(command)
    if build.dynamic:
        yield "The shapes are those of the data that the recipe was measured on. Give your own shapes for other data."
    if "--useDLACore" in command:
        yield _ABOUT_THE_DLA
    if unsaid := trtexec.missing(build):
        yield f"The command cannot express all settings of the measured engine. It lacks {'; '.join(unsaid)}."


def _about_weak(
    weak: WeakPlan, refused: list[str], build: trtexec.Build, commands: Mapping[str, str], *, cached: bool
) -> str:
    names = (
        f"Both name the layers of {weak.parser}'s parser, with all constraints of the measured engine."
        if weak.parser
        else "Both name the nodes of the network. Layers that TensorRT's parser adds to a node are left to TensorRT: "
        "no TensorRT with weak typing was in use here to name them."
    )
    flags = (
        f"trtexec cannot express this recipe ({'; '.join(refused)}). `{TRTEXEC}` makes it fail and say so."
        if refused
        else _fenced(commands[TRTEXEC])
    )
    core = build.options.dla
    dla = f"\n\nPolygraphy builds for DLA core 0; the engine was measured on core {core}." if core else ""
    cache = f"\n\n{_ABOUT_CACHES}" if cached else ""
    return f"""## Weak typing

{flags}

With Polygraphy:

{_fenced(commands[POLYGRAPHY])}{dla}

The flags and the script hold the same constraints, a precision and types of outputs for every layer that is not left to
TensorRT. {names}{cache}"""


def _fenced(command: str) -> str:
    return f"```\n{command}\n```"


# no engine is asked for these: plans with them have no files for engines
_EMULATED = {Precision.INT16, Precision.INT8_WEIGHT, Precision.INT8_ACTIVATION}
_ABOUT_THE_DLA = """The DLA takes layers in INT8 and FP16, and the GPU the rest; each weight has one scale.
**Unproven**: no board has built this network. trtexec with `--verbose` names the layers that fall back to the GPU."""
_ABOUT_CACHES = """TensorRT 10 skips a calibration cache of another version, and then fails with "bound to nullptr"."""
_ABOUT_A_REAL_ENGINE = """TensorRT-RTX, where it is installed, builds a real engine without a GPU. Its kernels show
which layers run in INT8, which are only rounded, and where a pair costs a kernel of its own:"""

_ABOUT_ONNX_RUNTIME = f"""To try `{QDQ_NETWORK}` in ONNX Runtime, set
its session option `session.disable_quant_qdq` to `"1"`. Otherwise ONNX Runtime's INT8 kernels compute other outputs on
x86 processors without VNNI, because their 16-bit sums saturate."""


def _modelopt(low: Precision) -> str:
    if low in FLOAT_TYPES:
        return f"python -m modelopt.onnx.autocast --low_precision_type {low} --nodes_to_exclude ..."
    return f"python -m modelopt.onnx.quantization --quantize_mode {low} --nodes_to_exclude ..."


def _in_table(text: str) -> str:
    return text.replace("|", "\\|")
