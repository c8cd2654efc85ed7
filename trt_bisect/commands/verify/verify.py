from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.analyzer.judge import numeric_outputs
from trt_bisect.builder.base import Outputs
from trt_bisect.builder.debug_tensors import EngineTensor
from trt_bisect.builder.inspector import engine_layers, ran_in
from trt_bisect.calibration.ranges import Ranges, keeping_unusable_high
from trt_bisect.commands.verify import suspicions as suspected
from trt_bisect.commands.verify.cause import Search
from trt_bisect.commands.verify.emulation import Emulation, Held, builder_of, session_of
from trt_bisect.commands.verify.kernel import KERNEL, parted, write_minimal
from trt_bisect.commands.verify.suspicions import LAYERS_HIGH, LAYERS_LOW, SCALES, Suspicion
from trt_bisect.data.datasets import open_dataset
from trt_bisect.data.feeds import Feeds, TensorSpec, match_names
from trt_bisect.data.saved import inferences_for
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.network import GivenModel, Network
from trt_bisect.model.quantizer import Scales
from trt_bisect.options.commands import VerifyOptions
from trt_bisect.options.declare import takes
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.asked_network import asked_network
from trt_bisect.preparation.given_data import ranges_of
from trt_bisect.recipe.files import FOLDER, QDQ_NETWORK
from trt_bisect.report.verification import DIFFERS, SAME, UNKNOWN, DifferentLayer, Tried, Verdict, Verification
from trt_bisect.support.files import output_folder
from trt_bisect.support.progress import Progress, default_progress
from trt_bisect.support.text import percent

_SAMPLES = 8
_MAYBE_NOISE = 1.5  # a difference without a cause may be noise up to this multiple of the noise floor
# in INT8 a difference up to this multiple of FP16's effect has no known cause: small changes flip roundings alike
_LIKE_FP16 = 2.0
# a suspicion that explains this share of the squared difference is the cause, even if more is left than noise
_CAUSE_EXPLAINS = 0.9
# without a cause, the nearest suspicion is named if it explains this share of the squared difference
_NEAREST_EXPLAINS = 0.1
_FEW_VALUES = 100  # with fewer output values, one of many suspicions reproduces them by chance
_LEFT_OF_FEW = 0.01  # with few values, a cause that is no type must leave at most this share of the difference
_NEGLIGIBLE = 0.1  # the share of the noise floor, or of INT8's effect, below which a difference needs no explanation
_HIGH_FLOOR = 0.1  # a noise floor of this size, or as large as INT8's effect, hides differences


@takes(VerifyOptions)
def verify(model: GivenModel, options: VerifyOptions) -> Verification:
    """Compares an engine's outputs with what its ONNX file computes, and finds the cause if they differ.

    Args:
        model: the ONNX file that the engine was built from, with or without Q/DQ pairs; or a run folder, for the file
            of its recipe.
        options: fields of ``VerifyOptions``, as keywords.

    Raises:
        BadInput: an argument cannot be used.
    """
    if options.inputs is None or options.outputs is None:
        lacks = "outputs" if options.outputs is None else "inputs"
        raise BadInput(f"The engine's {lacks} are missing.", "Give --input with what it got, and --outputs.")
    folder = options.folder
    with output_folder(folder), closing(options.progress or default_progress()) as shown:
        try:
            result = _Verifying(model, options, shown).verified()
        except TrialFailed as failure:
            raise BadInput(f"The file does not run: {failure.message}", "Run it alone to see why.") from failure
        finally:
            session_of.cache_clear()
    if folder is not None:
        result.save(folder)
    return result


class _Verifying:
    def __init__(self, model: GivenModel, options: VerifyOptions, progress: Progress) -> None:
        if isinstance(model, (str, Path)) and Path(model).is_dir():
            model = Path(model) / FOLDER / QDQ_NETWORK
        network = asked_network(options, model, options.shapes)
        self.options, self.progress, self.notes = options, progress, list(network.notes)
        self.tensors: tuple[EngineTensor, ...] = ()
        self.data = open_dataset(options.inputs, network.inputs, pictures=options.preprocessing())
        self.count = len(self.data.digests)
        network, scales, plan, self.asked = self._asked(network)
        self.file = Emulation(builder_of(network, scales), plan, list(islice(self.data, _SAMPLES)))
        self.reference = self.file.outputs(range(len(self.file.feeds)))

    def _asked(self, network: Network) -> tuple[Network, Scales, PrecisionPlan, str]:
        if network.has_pairs:
            network = network.as_in_file()
            return network, {}, network.free_plan(network.quantizable), "the file's own Q/DQ pairs"
        if not network.low.needs_ranges:
            return network, {}, network.full(Precision.FP32), network.low.title
        if self.options.calibration is None and not network.scales:
            return network, {}, network.free_plan(), "FP32"
        network, ranges, notes = self._calibrated(network, self.options.calibration)
        self.notes += notes
        plan = network.full(network.base or Precision.FP32)
        free = tuple(replace(layer, fixed=None) for layer in network.layers)
        return replace(network, layers=free), ranges.scales, plan, f"INT8, scales: {ranges.origin}"

    def _calibrated(self, network: Network, data: Any) -> tuple[Network, Ranges, list[str]]:
        ranges, _ = ranges_of(network, data, self.options, self.progress)
        network, notes = keeping_unusable_high(network, ranges)
        return network, ranges, notes

    def verified(self) -> Verification:
        options, different = self.options, list[DifferentLayer]()
        ran, other_ran = self._ran(options.layers), self._ran(options.other_layers)
        first, other = self._verdict(options.outputs, ran, options.tensors), None
        if options.other_outputs is not None:
            other = self._verdict(options.other_outputs, other_ran, None)
        for k in sorted(ran.keys() & other_ran.keys()):
            if ran[k] != other_ran[k]:
                different.append(DifferentLayer(self.file.network.layers[k].name, ran[k][1], other_ran[k][1]))
        return Verification(
            **vars(first),
            model=self.file.network.source,
            asked=self.asked,
            source=self.data.source,
            samples=len(self.file.feeds),
            tensors=self.tensors,
            other=other,
            different=tuple(different),
            notes=tuple(self.notes),
        )

    def _ran(self, path: Any) -> dict[int, tuple[str, str]]:
        # by layer index the precision, and a text with it and the layers fused with this one
        if path is None:
            return {}
        try:
            engine = engine_layers(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadInput(f"'{path}' cannot be read: {first_line(error)}", "Give a file of JSON.") from error
        layers, fused = self.file.network.layers, dict[str, str]()
        ran = ran_in(engine, layers)
        if not ran:
            problem = f"'{path}' names no layer of '{self.file.network.source}' with its precision."
            raise BadInput(problem, "Give the file of trtexec --exportLayerInfo --profilingVerbosity=detailed.")
        for part in engine:
            fused.update(dict.fromkeys(part.network_layers, " + ".join(part.network_layers)))
        return {k: (word, f"{word}: {fused.get(layers[k].name, '')}") for k, word in ran.items()}

    def _saved(self, path: Any, specs: Sequence[TensorSpec]) -> list[Feeds]:
        return inferences_for(Path(str(path)), self.count, specs)[: len(self.reference)]

    def _verdict(self, source: Any, ran: Mapping[int, tuple[str, str]], tensors: Any) -> Verdict:
        saved = self._saved(source, self.file.network.outputs)
        held = Held(self.file, self.reference, self._under_our_names(saved, source), range(len(saved)))
        floor = held.floor(self.file, held.of_file)
        if any(values.dtype == np.float16 for values in saved[0].values()):
            floor += 2.0**-10
        if tensors is not None:
            inner = zip(self._saved(tensors, ()), saved, strict=True)
            self.tensors = parted(self.file, [{**each, **outputs} for each, outputs in inner])
        search, differs = Search(held, self.progress), held.distance > floor
        if differs or held.distance > _NEGLIGIBLE * floor:
            told = suspected.on_info(self.file, {k: word for k, (word, _) in ran.items()})
            search.run([[*told], [*self._simple(held)]], self.tensors, kernels=differs)
        shown = cause = _cause(search.best, held, differs=differs)
        answer, text = self._answer(held, floor, cause)
        facts: dict[str, Any] = {"cause": None, "layers": (), "nearest": None, "similarity": None, "distance": None}
        if cause is not None:
            facts |= {"cause": cause.kind, "layers": cause.layers}
        elif answer == DIFFERS:
            shown = max(search.tried, key=lambda row: row.explained, default=None)
            if shown is not None and shown.explained >= _NEAREST_EXPLAINS:
                text += f" Nearest: that it {shown.text}."
                facts["nearest"] = shown.kind
            else:
                shown = None
        if not held.is_far:
            norms = float(np.linalg.norm(held.of_file) * np.linalg.norm(held.of_engine))
            facts["similarity"] = float(held.of_file @ held.of_engine) / norms if norms else 0.0
            facts["distance"] = held.distance
        tried = sorted(search.tried, key=lambda row: (row is not shown, not row.reproduces, -row.explained))
        return Verdict(
            outputs=str(source),
            answer=answer,
            text=text,
            explained=shown.explained if shown in tried else None,
            floor=floor,
            next=tuple(self._next(answer, cause)),
            tried=tuple(tried),
            **facts,
        )

    def _under_our_names(self, saved: Sequence[Feeds], source: Any) -> list[Outputs]:
        ours = self.reference[0]
        names = match_names(numeric_outputs(ours), saved[0])
        if not names:
            wanted, given = (", ".join(map(repr, each)) for each in (ours, saved[0]))
            raise BadInput(f"'{source}' has none of the network's outputs ({wanted}): it has {given}.", "Give these.")
        try:
            engine = [{name: np.asarray(each[theirs], np.float64) for name, theirs in names.items()} for each in saved]
        except (KeyError, ValueError, TypeError) as error:
            problem = f"'{source}' lacks an output for a sample, or holds no numbers: {first_line(error)}"
            raise BadInput(problem, "Save all outputs for each sample.") from error
        for name, values in engine[0].items():
            if values.size != ours[name].size:
                sizes = f"{values.size} values for a sample, the file gives {ours[name].size}"
                self.notes.append(f"'{source}' has of '{name}' {sizes}: the first ones are compared")
            if not all(np.isfinite(each[name]).all() for each in engine):
                self.notes.append(f"'{source}' has NaN or infinite values in '{name}'")
        return engine

    def _answer(self, held: Held, floor: float, cause: Tried | None) -> tuple[str, str]:
        differs = held.distance > floor
        if cause is not None:
            return DIFFERS, f"The engine differs from its file: it {cause.text}."
        if not held.of_file.size:
            return UNKNOWN, "It cannot be told: the file's outputs have no values for these inputs."
        if differs and held.of_file.size < _FEW_VALUES:
            values = f"{held.of_file.size} values of outputs"
            self.notes.append(f"{values} are few to tell causes apart: give more samples")
        if differs and self.file.plan.lowered:
            _, in_fp16, _ = suspected.on_types(self.file.network)
            if held.distance <= _LIKE_FP16 * held.apart(in_fp16.change(self.file)):
                text = "It cannot be told: FP16 in place of FP32 makes as large a difference, as any small change does."
                return UNKNOWN, text
        if held.distance > _MAYBE_NOISE * floor:
            return DIFFERS, "The engine differs from its file, but no suspicion tells why."
        if differs:
            return UNKNOWN, "It cannot be told: the difference is hardly more than noise."
        if self.file.plan.lowered:
            lost = held.apart(replace(self.file, plan=self.file.network.free_plan()))
            if floor >= min(lost, _HIGH_FLOOR) and held.distance > _NEGLIGIBLE * lost:
                changes = f"{percent(floor)}, and {self.file.network.low.title} by {percent(lost)}"
                return UNKNOWN, f"It cannot be told: float noise alone changes these outputs by up to {changes}."
        return SAME, "The engine is its file."

    def _simple(self, held: Held) -> Iterator[Suspicion]:
        e, options, network = self.file, self.options, self.file.network
        channels = None
        for x in e.feeds[0].values():
            for axis in (3, 1):
                if x.ndim == 4 and x.dtype.kind == "f" and x.shape[axis] == 3:
                    channels = axis
        yield from suspected.on_types(network)
        if e.plan.lowered:
            yield from suspected.on_plan(e)
            if network.has_pairs and options.calibration is not None:
                bare = replace(network.without_scales(), has_pairs=False)
                other, ranges, _ = self._calibrated(bare, options.calibration)
                yield suspected.having(SCALES, f"has the scales of {ranges.origin}", other, ranges.scales)
            yield from suspected.on_scales(e)
        elif network.quantizable and network.low.needs_ranges:
            with suppress(BadInput):
                lowered, ranges, _ = self._calibrated(network, e.feeds)
                text = "runs in INT8 what the file has in FP32 (scales from these inputs)"
                plan = lowered.full(Precision.FP32)
                yield suspected.having(LAYERS_LOW, text, lowered, ranges.scales, plan=plan)
        if self.data.pictures:
            yield from suspected.on_pictures(network, options.inputs, options.preprocessing())
        yield from suspected.on_values(channels)
        yield from suspected.on_axes(channels)
        yield from suspected.on_batches(e)
        yield from suspected.on_outputs({name: self.reference[0][name] for name in held.engine[0]})

    def _next(self, answer: str, cause: Tried | None) -> Iterator[str]:
        network, folder = self.file.network, self.options.folder
        if answer == SAME:
            yield "NEXT: the loss, if any, is in the file: find its layers with"
            yield f"  trt-bisect run {network.source} --calibration DATA --input {self.data.source}"
        elif cause is not None:
            asked = network.low.precision if cause.kind == LAYERS_HIGH else Precision.FP32
            layers = ",".join(f'"{name}":{asked}' for name in cause.layers or "*")
            flags = f"--layerPrecisions={layers} --layerOutputTypes={layers}"
            yield f"NEXT: {NEXT[cause.kind].format(layers=', '.join(cause.layers), flags=flags)}"
            if cause.kind == KERNEL and folder is not None:
                written = write_minimal(self.file, cause.layers, folder / KERNEL)
                yield f"  {written} has the layer alone with its input, for a bug report"
        else:
            yield "NEXT: save the engine's inner tensors, and give their folder with --tensors:"
            yield "  trtexec --loadEngine=ENGINE --markUnfusedTensorsAsDebugTensors --saveAllDebugTensors=numpy"


def _cause(best: Tried | None, held: Held, *, differs: bool) -> Tried | None:
    if best is None:
        return None
    few = held.of_file.size < _FEW_VALUES
    if few and best.kind not in suspected.TYPES:
        tells = best.left <= _LEFT_OF_FEW * held.distance
    elif not differs:
        tells = best.reproduces and best.left <= _NEGLIGIBLE * held.distance
    elif few and not best.layers:
        tells = best.explained >= _CAUSE_EXPLAINS
    else:
        tells = best.reproduces or best.explained >= _CAUSE_EXPLAINS
    return best if tells else None


_OBEY = "--precisionConstraints=obey {flags}"
# the next step by cause; ``{layers}`` are the layers to blame, and ``{flags}`` trtexec's options for them
NEXT = {
    "input-scale": "scale the inputs as in training, once, before the engine or in it.",
    "input-mean-std": "normalise the inputs as in training: the same mean and std, in the order of channels.",
    "channel-order": "convert BGR to RGB before the engine: cv2.cvtColor(image, cv2.COLOR_BGR2RGB).",
    "layout": "copy the inputs in the file's layout: numpy.ascontiguousarray(image.transpose(2, 0, 1)).",
    "resize": "resize the pictures in the deployment as for the file.",
    "batch": "copy all rows, wait for the stream before you read outputs, and read the rows of this batch.",
    "output-order": "bind outputs by name (getIOTensorName), and read them in the engine's own shape.",
    "tf32": "build with --noTF32 if this is too coarse.",
    "fp16": f"build without --fp16, or keep layers in FP32: 'trt-bisect run --low fp16' names them for {_OBEY}",
    "bf16": f"build without --bf16, or keep layers in FP32: 'trt-bisect run --low bf16' names them for {_OBEY}",
    "layers-high": f"build with {_OBEY}, or accept it: it costs time, not accuracy.",
    "layers-low": f"build with {_OBEY}, or from a file with Q/DQ pairs.",
    "scales": "delete the old calibration cache and the timing cache, and build with --calib of this network.",
    "per-tensor-weights": "the engine has one scale for each weight, as a DLA has: measure it with --one-scale '*'.",
    "pairs-ignored": "build with --int8 or --stronglyTyped, so that the Q/DQ pairs are used.",
    "followers-low": "build from Q/DQ pairs (--stronglyTyped), or measure with --unquantized int8.",
    "clip-fused": "keep {layers} apart from its reader: mark its output as an output of the network.",
    "kernel": f"build with {_OBEY}, another --builderOptimizationLevel or --tacticSources, and report it.",
}
