"""``migrate``: rewrites the network of a weakly typed engine as one strongly typed network for TensorRT 11.

In TensorRT 11 the graph alone determines every precision. Under weak typing TensorRT decided some by itself and wrote
them nowhere, so the report lists each assumption.

Sources of trtexec's command line: ``sampleOptions.cpp`` and ``sampleEngines.cpp`` of NVIDIA/TensorRT, release/8.5 to
release/10.13. A list is split at every comma, an entry at its last colon, apostrophes quote, and ``*`` matches any text
(from 10.0 on). ``--best`` allows every precision. TensorRT may ignore layer precisions unless
``--precisionConstraints`` is ``prefer`` or ``obey``.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.analyzer.structure.graph import FileGraph
from trt_bisect.analyzer.structure.refusals import in_lines, refusals
from trt_bisect.answer.costs import foreseen_times
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.tensorrt_weak import WeakPlan
from trt_bisect.calibration import cache as caches
from trt_bisect.calibration.collect import magnitudes
from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.calibration.ranges import Ranges, keeping_unusable_high, ranges_from_scales
from trt_bisect.commands.run.run import run
from trt_bisect.data.datasets import open_dataset, profile_of
from trt_bisect.data.feeds import Feeds
from trt_bisect.data.named import name_of
from trt_bisect.errors import BadInput, first_line
from trt_bisect.model.cost import TimeCosts
from trt_bisect.model.file import Written, read_model
from trt_bisect.model.network import GivenModel, Network, load_network
from trt_bisect.model.observe import facts_for, facts_of_shapes
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import make_session, use_device
from trt_bisect.options.commands import MigrateOptions
from trt_bisect.options.concerns import EXPLAIN_NOTHING, NONE, RunOptions
from trt_bisect.options.declare import asked_gpu, read_toml, shared, takes
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.recipe.files import QDQ_NETWORK, recipe_files
from trt_bisect.recipe.trtexec import Build, strong_command
from trt_bisect.report.given import FIXED
from trt_bisect.report.model import Report
from trt_bisect.report.structure import Choice, MigratedLayer, Migration, Proof
from trt_bisect.report.words import NO_RECIPE
from trt_bisect.support.progress import Progress, Silent, default_progress

_PRECISIONS = {str(kind): kind for kind in (Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8)}
_WORDS = {**_PRECISIONS, "float": Precision.FP32, "float32": Precision.FP32, "half": Precision.FP16}
_WORDS |= {"float16": Precision.FP16, "bfloat16": Precision.BF16}
_NOT_FLOATS = frozenset(("int32", "int64", "bool", "uint8"))
_LAYERS = ("layerPrecisions", "layer_precisions", "layers", "precisions")
_CONSTRAINED = ("obey", "prefer")
_SUFFIXES = (".json", ".toml", ".sh", ".txt")
# trtexec's options of weak typing that TensorRT 11 does not have, each with its replacement
_GONE = {
    "int8": "the Q/DQ pairs say what is rounded",
    "fp16": "the types of the tensors in the graph say it",
    "bf16": "the types of the tensors in the graph say it",
    "best": "the graph says it",
    "calib": "the scales are in the Q/DQ pairs",
    "layerPrecisions": "the graph says it",
    "layerOutputTypes": "the graph says it",
    "precisionConstraints": "the graph says it",
}


@dataclass(frozen=True)
class Deployment:
    """The settings with which an engine was built.

    Attributes:
        source: origin of the settings, for messages; empty if nothing is known.
        layers: precisions by name or pattern of layers.
        outputs: names or patterns of layers whose output types were set too.
        base: the precision of layers that are not in INT8.
        obeyed: False if the settings name ``layers`` but did not tell TensorRT to obey them.
        dla: number of the DLA core; None for the GPU.
        gone: options that TensorRT 11 does not have, each with its replacement.
    """

    source: str = ""
    layers: Mapping[str, Precision] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    base: Precision = Precision.FP32
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    obeyed: bool = True
    dla: int | None = None
    gone: Mapping[str, str] = field(default_factory=dict)


def read_deployment(source: str | Path | Mapping[str, Any]) -> Deployment:
    """Returns the settings with which an engine was built.

    Args:
        source: a trtexec command line or a file with one; a list as ``--layerPrecisions`` takes it; a JSON or TOML
            file, or a mapping, with a table of layers and precisions; empty if nothing is known.

    Raises:
        BadInput: ``source`` has another form, or the engine was not in INT8.
    """
    if isinstance(source, Mapping):
        return Deployment("the layer precisions", _table(source, "the layer precisions"))
    text = str(source).strip()
    if not text:
        return Deployment()
    path = Path(text)
    try:
        is_file = path.is_file()
    except OSError:  # a command line is too long for a path
        is_file = False
    if not is_file and path.suffix.lower() in _SUFFIXES and "--" not in text:
        raise BadInput(f"The file '{path}' does not exist.", _FORMS)
    if not is_file:
        return _of_text(text, "--layer-precisions")
    if path.suffix.lower() == ".toml":
        return Deployment(str(path), _table(read_toml(path, "file", _FORMS), str(path)))
    try:
        content = path.read_text(encoding="utf-8")
        if path.suffix.lower() == ".json":
            return Deployment(str(path), _table(json.loads(content), str(path)))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"'{path}' cannot be read: {first_line(error)}.", _FORMS) from error
    lines = [line for line in content.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    return _of_text(" ".join(lines), str(path))


_FORMS = (
    "Give the trtexec command line, its --layerPrecisions (conv1:fp16,conv2:int8), or a JSON or TOML file of layers "
    "and precisions."
)


def _of_text(text: str, source: str) -> Deployment:
    if "--" not in text:
        return Deployment(source, dict(_entries(text, source)))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"The command line of {source} cannot be read: {error}.", _FORMS) from error
    options: dict[str, str] = {}
    for position, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            follows = words[position + 1] if position + 1 < len(words) else "--"
            options[name] = value if equals or follows.startswith("-") else follows
    if "stronglyTyped" in options:
        problem = f"The engine of {source} is strongly typed: its network is what TensorRT 11 takes."
        raise BadInput(problem, "Nothing is to migrate.")
    if not {"int8", "best"} & set(options) and "layerPrecisions" not in options:
        problem = f"The command line of {source} builds no engine in INT8: it has neither --int8 nor --best."
        raise BadInput(problem, "Give the command line of the INT8 engine.")
    layers = dict(_entries(options.get("layerPrecisions", ""), source))
    constrained = options.get("precisionConstraints", "none") in _CONSTRAINED
    shapes = options.get("optShapes", options.get("shapes", ""))
    return Deployment(
        source=source,
        layers=layers,
        outputs=tuple(name for name, _ in _split(options.get("layerOutputTypes", ""), source)),
        base=Precision.FP16 if {"fp16", "best"} & set(options) else Precision.FP32,
        shapes={name: tuple(map(int, shape.split("x"))) for name, shape in _split(shapes, source)},
        obeyed=constrained or not layers,
        dla=int(options["useDLACore"]) if options.get("useDLACore", "").isdecimal() else None,
        gone={f"--{name}": why for name, why in _GONE.items() if name in options},
    )


def _split(text: str, source: str) -> Iterator[tuple[str, str]]:
    for entry in text.split(",") if text else ():
        name, colon, value = entry.rpartition(":")
        if not colon or not name.strip(" '"):
            raise BadInput(f"{source} has the entry {entry.strip()!r}, which is no LAYER:PRECISION.", _FORMS)
        yield name.strip().replace("'", ""), value.strip()


def _entries(text: str, source: str) -> Iterator[tuple[str, Precision]]:
    for name, value in _split(text, source):
        if value.lower() not in _NOT_FLOATS:
            yield name, _precision(value, name, source)


def _precision(word: Any, name: str, source: str) -> Precision:
    if not isinstance(word, str) or word.lower() not in _WORDS:
        raise BadInput(f"{source} has '{name}' in {word!r}, none of {', '.join(_PRECISIONS)}.", _FORMS)
    return _WORDS[word.lower()]


def _table(record: Any, source: str) -> dict[str, Precision]:
    if isinstance(record, Mapping):
        inner = next((record[key] for key in _LAYERS if isinstance(record.get(key), (Mapping, list, str))), None)
        if inner is not None:
            return dict(_entries(inner, source)) if isinstance(inner, str) else _table(inner, source)
        return {str(name): _precision(word, name, source) for name, word in record.items()}
    if isinstance(record, list) and all(isinstance(row, Mapping) and "name" in row for row in record):
        return {str(row["name"]): _precision(row.get("precision"), row["name"], source) for row in record}
    raise BadInput(f"{source} has no table of layers and precisions.", _FORMS)


RUN = "run"  # the subfolder with the comparison of the migrated network with FP32
_MEASURED = 4


class _Choices(list[Choice]):
    def add(self, kind: str, about: str, choice: str, names: Sequence[str] | None = None) -> None:
        if names is None or names:
            self.append(Choice(kind, about, choice, tuple(names or ())))


@takes(MigrateOptions)
def migrate(model: GivenModel, options: MigrateOptions) -> Migration:
    """Rewrites the network of a weakly typed engine for TensorRT 11: strongly typed, with Q/DQ pairs.

    Args:
        model: the ONNX file that the engine was built from, in FP32 and without Q/DQ pairs; or a loaded network.
        options: fields of ``MigrateOptions``, as keywords.

    Raises:
        BadInput: an argument cannot be used.
    """
    if options.cache is None:
        raise BadInput("There is no calibration cache.", "Give --cache with the file that TensorRT's calibrator wrote.")
    folder = Path(options.output or "trt-bisect-migrated")
    with closing(options.progress or default_progress()) as shown:
        return _migrated(model, options, folder, shown)


def _migrated(model: GivenModel, options: MigrateOptions, folder: Path, progress: Progress) -> Migration:
    deployment = read_deployment(options.layer_precisions or "")
    cache = caches.open_cache(Path(options.cache or ""))
    base = Precision(options.base or deployment.base)
    # without a base, layers in INT8 read and make float32 tensors, and the scales are float32 too, bit for bit
    use_device(options.device)
    network = model if isinstance(model, Network) else load_network(model, options.shapes)
    if network.has_pairs:
        problem = f"'{network.source}' has Q/DQ pairs: TensorRT 11 takes it as it is."
        raise BadInput(problem, "Give the network without pairs.")
    notes = _Choices()
    data = options.inputs
    feeds = [] if data is None else list(open_dataset(data, network.inputs, pictures=options.preprocessing()))
    found = _scales(network, cache, feeds, notes)
    ranges = _ranges(network, cache, found, name_of(options.cache), notes)
    predicted = ""
    if options.gpu is not None:
        facts = facts_for(network, feeds[0]) if feeds else facts_of_shapes(network, deployment.shapes)
        predicted = foreseen_times(TimeCosts(network, facts, asked_gpu(options.gpu)))
    precisions = _precisions(network, deployment, notes)
    network, without = _with_scales(network.fixing(precisions), ranges, notes)
    plan = network.full(base)
    _tell_what_weak_typing_decides(network, plan, deployment, notes)
    files = recipe_files(
        network, ranges.scales, plan, base, WeakPlan((), ()), _build(network, deployment, feeds, notes)
    )
    used = {tensor for tensors in files.network.pairs.values() for tensor in tensors}
    scales = tuple(scale for scale in found.found if scale.tensor in used)
    by_other = [scale.tensor for scale in scales if scale.way not in (caches.BY_NAME, caches.MOVED)]
    about = "tensors that the cache does not name"
    notes.add("found otherwise", about, "the scale of the entry in scales.csv", by_other)
    reasons = {**{k: f"asked for {kind}" for k, kind in precisions.items() if kind is not Precision.INT8}, **without}
    search = ["trt-bisect", "run", network.source, "--calibration", name_of(options.cache)]
    search += [] if options.inputs is None else ["--input", name_of(options.inputs)]
    rtx = replace(files.build, target=caches.TensorRTVersion((0, 0, 0), "", rtx=True))
    builds, path = {"TensorRT 11": files.build, "TensorRT-RTX": rtx}, str(folder / QDQ_NETWORK)
    written = files.network
    refused = in_lines(refusals(FileGraph.of(deepcopy(written.model), network.source, written.weights)))
    report = Migration(
        model=network.source,
        cache=name_of(options.cache),
        header=cache.header,
        search=shlex.join(search),
        deployment=deployment.source,
        base=str(base),
        network=path,
        commands={engine: shlex.join(strong_command(build, path)) for engine, build in builds.items()},
        layers=tuple(_rows(network, plan, reasons)),
        scales=scales,
        choices=tuple(notes),
        gone=deployment.gone,
        refused=tuple(line.text for line in refused),
        predicted=predicted,
    )
    files.write(folder)
    if feeds:
        report = replace(report, proof=_proof(network, ranges, plan, feeds, options, folder, progress))
    report.save(folder)
    return report


def _scales(
    network: Network, cache: caches.CalibrationCache, feeds: Sequence[Feeds], notes: _Choices
) -> caches.CacheScales:
    scales = caches.scales_for(network, cache)
    doubts = bool(scales.unsure) or any(scale.way in (caches.FOLDED, caches.BY_ORDER) for scale in scales.found)
    if feeds:
        seen = magnitudes(network, feeds[:_MEASURED], counted=None if doubts else ())
        methods = ("entropy", "minmax") if doubts else ("minmax",)
        scales = caches.scales_for(network, cache, [seen.ranges(Calibrator(method)).scales for method in methods])
    for reason in dict.fromkeys(scales.unsure.values()):
        unsure = [tensor for tensor in network.rounded_activations if scales.unsure.get(tensor) == reason]
        choice = "no scale; give --input, or the network that the cache was made with"
        if reason in cache.doubtful.values():
            choice = "no scale; write the cache again"
        notes.add("unsure", f"tensors without a sure scale: {reason}", choice, unsure)
    about = "tensors whose scale is more than 16 times off the values on the inputs: other tensors may have them"
    notes.add("far", about, "the scale of their name", scales.far)
    return scales


def _ranges(
    network: Network, cache: caches.CalibrationCache, found: caches.CacheScales, source: str, notes: _Choices
) -> Ranges:
    scales = found.scales
    caches.refuse_of_another_network(Path(source), cache, scales, network.rounded_activations)
    if cache.little_endian:
        notes.add("byte order", "the cache has little-endian bits, which TensorRT does not write", "read as such")
    used = {*network.activations, *(scale.entry for scale in found.found)}
    unused = [name for name in cache.scales if name not in used and not caches.OF_THE_PARSER.match(name)]
    about = "entries of the cache for tensors that the network does not have"
    notes.add("unused entries", about, "left out", unused)
    return ranges_from_scales(scales, f"cache {Path(source).name}", found.unsure)


def _precisions(network: Network, deployment: Deployment, notes: _Choices) -> dict[int, Precision]:
    # an exact name wins over a pattern, and a later entry over an earlier one
    unknown, unable, precisions = [], [], dict[int, Precision]()
    exact = {layer.name: layer.index for layer in (*network.for_parser.layers, *network.layers)}
    for name, kind in sorted(deployment.layers.items(), key=lambda entry: entry[0] in exact):
        text = re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)
        indices = (
            [exact[name]]
            if name in exact
            else [k for exact_name, k in exact.items() if "*" in name and text.fullmatch(exact_name)]
        )
        unknown += [] if indices else [name]
        able = [k for k in indices if network.layers[k].quantizable or kind is not Precision.INT8]
        unable += [network.layers[k].name for k in indices if k not in able and name in exact]
        precisions |= dict.fromkeys(able, kind)
    about = "named in the precisions, and no node of the ONNX file: a layer of TensorRT's parser, or a typing error"
    notes.add("unknown layer", about, "left out", unknown)
    about = "layers asked for INT8 that have no INT8 kernel from Q/DQ"
    notes.add("cannot be INT8", about, "left in the base", unable)
    about = "output types of layers: with strong typing an output has the type that its readers need"
    without_precision = [name for name in deployment.outputs if name not in deployment.layers]
    notes.add("output types", about, "left out", without_precision)
    if not deployment.obeyed:
        about = "the precisions were given without --precisionConstraints: TensorRT may have ignored them"
        notes.add("not obeyed", about, "taken as asked", list(deployment.layers))
    return precisions


def _with_scales(network: Network, ranges: Ranges, notes: _Choices) -> tuple[Network, dict[int, str]]:
    usable, _ = keeping_unusable_high(network, ranges)
    without = {
        layer.index: "the cache has no scale"
        for layer, before in zip(usable.layers, network.layers, strict=True)
        if before.quantizable and not layer.quantizable
    }
    names = [network.layers[k].name for k in without]
    about = "layers that read a tensor without a usable scale in the cache"
    notes.add("no scale", about, "left in the base, as TensorRT leaves them in floats", names)
    return usable, without


def _tell_what_weak_typing_decides(
    network: Network, plan: PrecisionPlan, deployment: Deployment, notes: _Choices
) -> None:
    following = [layer.name for layer in network.layers if layer.follows and layer.fixed is None]
    about = "layers between INT8 layers, which TensorRT may have run in INT8 as well"
    notes.add("unquantized layers", about, "left in the base: their inputs are not rounded", following)
    free = [network.layers[k].name for k in plan.lowered if network.layers[k].fixed is None]
    about = "layers in INT8 that TensorRT may have run in floats where that was faster"
    notes.add("faster in floats", about, "in INT8", free)
    if deployment.dla is not None:
        about = f"the engine ran on DLA core {deployment.dla}: one scale a weight, and FP16 next to INT8"
        notes.add("DLA", about, "the network is for the GPU; TensorRT 11.4.1 has the DLA again, strongly typed")


def _build(network: Network, deployment: Deployment, feeds: list[Feeds], notes: _Choices) -> Build:
    dynamic = tuple(spec.name for spec in network.inputs if None in spec.shape)
    if feeds:
        return Build(caches.NEWEST_VERSION, shapes=profile_of(feeds).shapes, dynamic=dynamic)
    shapes = {name: (deployment.shapes[name],) * 3 for name in dynamic if name in deployment.shapes}
    lacking = [name for name in dynamic if name not in shapes]
    about = "dynamic inputs of which no shape was given"
    notes.add("shapes", about, "the commands have none: add --optShapes", lacking)
    return Build(caches.NEWEST_VERSION, shapes=shapes, dynamic=tuple(shapes))


def _rows(network: Network, plan: PrecisionPlan, reasons: Mapping[int, str]) -> Iterator[MigratedLayer]:
    for layer in network.layers:
        precision = plan.precisions[layer.index]
        why = "" if precision is Precision.INT8 else reasons.get(layer.index, layer.why_not)
        yield MigratedLayer(layer.index, layer.name, layer.op_type, str(precision), why)


def _proof(
    network: Network,
    ranges: Ranges,
    plan: PrecisionPlan,
    feeds: list[Feeds],
    options: MigrateOptions,
    folder: Path,
    progress: Progress,
) -> Proof:
    path = folder / QDQ_NETWORK
    progress.stage("Comparing with the plan of the cache", len(feeds))
    difference = _difference(network, ranges, plan, path, feeds, progress)
    progress.stage("Measuring against FP32", None)
    run_options = replace(
        RunOptions(**shared(options, RunOptions)),
        reference=network.source,
        plan={"layers": {network.layers[k].name: str(Precision.INT8) for k in plan.lowered}},
        output=folder / RUN,
        engine=ONNXRUNTIME,
        explain=EXPLAIN_NOTHING,
        history=NONE,
        progress=Silent(),
    )
    report: Report = run.job(path, run_options)
    return Proof(
        inputs=len(feeds),
        difference=difference,
        metric=report.metric,
        similarity=report.similarity.int8,
        threshold=report.threshold,
        verdict=report.verdict,
        sentence="\n".join(line.text for line in report.lines if line.kind not in (FIXED, NO_RECIPE)),
        folder=str(folder / RUN),
    )


def _difference(
    network: Network, ranges: Ranges, plan: PrecisionPlan, path: Path, feeds: Sequence[Feeds], progress: Progress
) -> float:
    """Returns the largest difference between the outputs of the file and of the emulated plan, as a share of the
    output's largest magnitude.
    """
    floats = {kind for kind in plan.precisions if kind is not Precision.INT8}
    written = Written(*read_model(path))
    if floats != {Precision.FP32}:
        plan = replace(plan, precisions=tuple(Precision.FP32 if kind in floats else kind for kind in plan.precisions))
        written = PlanWriter(network, ranges.scales, GraphTarget.TENSORRT).write(plan)
    session = make_session(written)
    names = [output.name for output in session.get_outputs()]
    largest = 0.0
    with OnnxRuntimeBuilder(network, ranges.scales, BuildOptions()).build(plan) as emulated:
        for input_index, sample in enumerate(feeds):
            progress.step(f"input {input_index}")
            outputs = zip(names, session.run(names, dict(sample)), strict=True)
            expected = emulated.infer(sample)
            for name, values in outputs:
                array = np.asarray(expected[name], np.float64)
                magnitude = float(np.max(np.abs(array), initial=0.0)) or 1.0
                apart = np.abs(array - np.asarray(values, np.float64))
                largest = max(largest, float(np.max(apart, initial=0.0)) / magnitude)
    return largest
