"""``verify``: is the engine its file, and if not, why not. The command line calls this too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.analyzer.judge import numeric_outputs
from trt_bisect.builder.base import Outputs
from trt_bisect.builder.debug_tensors import EngineTensor
from trt_bisect.builder.inspector import engine_layers, ran_in
from trt_bisect.calibration.collect import ranges_of
from trt_bisect.calibration.ranges import keeping_unusable_high
from trt_bisect.commands.verify import suspicions as suspected
from trt_bisect.commands.verify.cause import Held, Search
from trt_bisect.commands.verify.emulation import Emulation, of_network, session_of
from trt_bisect.commands.verify.kernel import parted, write_minimal
from trt_bisect.commands.verify.suspicions import KERNEL, LAYERS_HIGH, LAYERS_LOW, Suspicion
from trt_bisect.data.datasets import Dataset, open_dataset
from trt_bisect.data.feeds import match_names
from trt_bisect.data.saved import inferences_for
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.network import GivenModel, Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.options.commands import VerifyOptions
from trt_bisect.options.declare import takes
from trt_bisect.precision import Precision
from trt_bisect.preparation.asked_network import asked_network
from trt_bisect.recipe.files import FOLDER, QDQ_NETWORK
from trt_bisect.report.verification import DIFFERS, SAME, UNKNOWN, DifferentLayer, Tried, Verdict, Verification
from trt_bisect.support.files import output_folder
from trt_bisect.support.progress import Progress, default_progress

_SAMPLES, _SHOWN = 8, 20
"""The samples that are compared, and the suspicions that the result has."""
_UNSURE = 1.5
"""A difference without a cause may be noise up to this multiple of the floor."""
_CAUSED, _NEAR = 0.9, 0.1
"""A suspicion that explains so much of the squared difference is the cause, although more is left than noise; and so
much, the nearest one."""
_MANY, _EXACT = 100, 0.01
"""One of many suspicions reproduces fewer values of outputs by chance, unless it leaves so little."""
_CLEAR = 0.1
"""A difference below so much of the floor is noise; a larger one is none if a suspicion leaves no more than that."""


@takes(VerifyOptions)
def verify(model: GivenModel, options: VerifyOptions) -> Verification:
    """Says if an engine is its file, from the outputs that it gave; and if not, why, by emulating each suspicion.

    Args:
        model: the ONNX file that the engine was built from, with or without Q/DQ pairs; or a run folder, which stands
            for the file of its recipe.
        options: as listed.

    Raises:
        BadInput: something given cannot be used.
    """
    if options.inputs is None or options.outputs is None:
        lacks = "outputs" if options.outputs is None else "inputs"
        raise BadInput(f"The engine's {lacks} are missing.", "Give --input with what it got, and --outputs.")
    folder = None if options.output is None else Path(options.output)
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
    """The file on the samples, and the engines that are held against it."""

    def __init__(self, model: GivenModel, options: VerifyOptions, progress: Progress) -> None:
        if isinstance(model, (str, Path)) and Path(model).is_dir():
            model = Path(model) / FOLDER / QDQ_NETWORK
        network = asked_network(options, model, options.shapes)
        self.options, self.progress, self.notes = options, progress, list(network.notes)
        self.data = open_dataset(options.inputs, network.inputs, pictures=options.preprocessing())
        self.count = len(self.data.digests)
        feeds = tuple(islice(self.data, _SAMPLES))
        self.network, scales, plan, self.asked = self._asked(network)
        writer = PlanWriter(self.network, scales, GraphTarget.ONNXRUNTIME, unquantized_round=False)
        self.file = Emulation(writer, scales, plan, feeds)
        self.reference = self.file.outputs()

    def _asked(self, network: Network) -> tuple[Network, Mapping[str, np.float32], Any, str]:
        """Returns the network, scales and plan that the engine was to have, and these in words."""
        options = self.options
        if network.has_pairs:
            network = network.as_in_file()
            return network, {}, network.free_plan(network.quantizable), "the file's own Q/DQ pairs"
        if not network.low.needs_ranges:
            return network, {}, network.full(Precision.FP32), f"{network.low.title}"
        if options.calibration is None and not network.scales:
            return network, {}, network.free_plan(), "FP32"
        ranges, _ = ranges_of(network, options.calibration, options.calibrating(), self.progress)
        network, notes = keeping_unusable_high(network, ranges)
        self.notes += notes
        plan = network.full(network.base or Precision.FP32)
        free = (replace(layer, fixed=None) for layer in network.layers)
        return replace(network, layers=tuple(free)), ranges.scales, plan, f"INT8, scales: {ranges.origin}"

    def verified(self) -> Verification:
        """Returns the verdicts on one engine or two."""
        options = self.options
        infos = [self._ran(options.layers), self._ran(options.other_layers)]
        first, rows = self._verdict(options.outputs, infos[0], options.tensors)
        other = None
        if options.other_outputs is not None:
            other, _ = self._verdict(options.other_outputs, infos[1], None)
        return Verification(
            **vars(first),
            model=self.network.source,
            asked=self.asked,
            source=self.data.source,
            samples=len(self.file.feeds),
            tensors=rows,
            other=other,
            different=tuple(self._different(*infos)),
            notes=tuple(self.notes),
        )

    def _ran(self, path: Any) -> Mapping[int, tuple[str, tuple[str, ...]]]:
        """Returns by index of a layer the precision that it ran in, and the layers that it is fused with."""
        if path is None:
            return {}
        try:
            engine = engine_layers(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadInput(f"'{path}' cannot be read: {first_line(error)}", "Give a file of JSON.") from error
        ran = ran_in(engine, self.network.layers)
        if not ran:
            problem = f"'{path}' names no layer of '{self.network.source}' with its precision."
            raise BadInput(problem, "Give the file of trtexec --exportLayerInfo --profilingVerbosity=detailed.")
        fused = {name: part.network_layers for part in engine for name in part.network_layers}
        return {k: (word, fused.get(self.network.layers[k].name, ())) for k, word in ran.items()}

    def _different(self, first: Mapping[int, Any], second: Mapping[int, Any]) -> Iterator[DifferentLayer]:
        for k in sorted(first.keys() & second.keys()):
            if first[k] != second[k]:
                texts = (f"{word}: {' + '.join(names)}" for word, names in (first[k], second[k]))
                yield DifferentLayer(self.network.layers[k].name, *texts)

    def _verdict(self, given: Any, info: Mapping[int, Any], tensors: Any) -> tuple[Verdict, tuple[EngineTensor, ...]]:
        saved = inferences_for(Path(str(given)), self.count, self.network.outputs)[: len(self.reference)]
        case = Case(self, saved, str(given), {k: word for k, (word, _) in info.items()})
        if tensors is not None:
            inner = inferences_for(Path(str(tensors)), self.count, ())[: len(self.reference)]
            case.rows = parted(self.file, [{**each, **outputs} for each, outputs in zip(inner, saved, strict=True)])
        return case.verdict(), case.rows


class Case:
    """An engine's outputs, held against the file.

    Args:
        saved: the outputs.
        source: where they come from.
        ran: by index of a layer the precision that it ran in, where a layer info says that.
    """

    def __init__(self, of: _Verifying, saved: Sequence[Outputs], source: str, ran: Mapping[int, str]) -> None:
        self._of, self._source, self._ran, self._file = of, source, ran, of.file
        self.rows = tuple[EngineTensor, ...]()
        names = match_names(numeric_outputs(of.reference[0]), saved[0])
        if not names:
            ours, theirs = (", ".join(map(repr, each)) for each in (of.reference[0], saved[0]))
            raise BadInput(f"'{source}' has none of the network's outputs ({ours}): it has {theirs}.", "Give these.")
        try:
            engine = [{ours: np.asarray(each[theirs], np.float64) for ours, theirs in names.items()} for each in saved]
        except (KeyError, ValueError, TypeError) as error:
            problem = f"'{source}' lacks an output for a sample, or holds no numbers: {first_line(error)}"
            raise BadInput(problem, "Save all outputs for each sample.") from error
        for name, values in engine[0].items():
            if values.size != of.reference[0][name].size:
                sizes = f"{values.size} values for a sample, the file gives {of.reference[0][name].size}"
                of.notes.append(f"'{source}' has of '{name}' {sizes}: the first ones are compared")
            if not all(np.isfinite(each[name]).all() for each in engine):
                of.notes.append(f"'{source}' has NaN or infinite values in '{name}'")
        self._held = Held.on(of.file, of.reference, engine)
        self._floor = self._held.yard.floor(of.file, of.reference)
        if any(saved[0][name].dtype == np.float16 for name in names.values()):
            self._floor += 2.0**-10
        self._search = Search(self._held, of.progress)

    def verdict(self) -> Verdict:
        """Returns the answer, with the cause if the engine differs."""
        held, file, best = self._held, self._file, None
        differs = held.distance > self._floor
        if differs or held.distance > _CLEAR * self._floor:
            told = [*suspected.on_info(self._of.network, file.plan, self._ran)]
            best = self._search.run(told, [*self._simple()], self.rows, kernels=differs)
        if best is not None:
            is_cause = best.reproduces
            if differs:
                is_cause |= best.explained >= _CAUSED
            else:
                is_cause &= best.left <= _CLEAR * held.distance
            if held.values < _MANY and best.kind not in suspected.TYPES:
                is_cause = best.left <= _EXACT * held.distance
            if is_cause:
                return self._said(DIFFERS, f"The engine differs from its file: it {best.text}.", best)
        if differs and held.values < _MANY:
            self._of.notes.append(f"{held.values} values of outputs are few to tell causes apart: give more samples")
        if held.distance > _UNSURE * self._floor:
            text = "The engine differs from its file, but no suspicion tells why."
            if best is None or best.explained < _NEAR:
                return self._said(DIFFERS, text)
            return self._said(DIFFERS, f"{text} Nearest: that it {best.text}.", nearest=best)
        if differs:
            return self._said(UNKNOWN, "It cannot be told: the difference is hardly more than noise.")
        if file.plan.lowered:
            lost = held.yard.apart(file.in_floats().outputs(), held.reference)
            if lost <= self._floor and held.distance > _CLEAR * lost:
                text = "It cannot be told: noise on these inputs is as large as all that INT8 changes."
                return self._said(UNKNOWN, text)
        return self._said(SAME, "The engine is its file.")

    def _said(self, answer: str, text: str, cause: Tried | None = None, nearest: Tried | None = None) -> Verdict:
        shown = cause or nearest
        tried = sorted(self._search.tried, key=lambda row: (row is not shown, not row.reproduces, -row.explained))
        held = self._held
        ours, theirs = held.yard.vector(held.reference), held.yard.vector(held.engine)
        norms = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
        return Verdict(
            outputs=self._source,
            answer=answer,
            cause=cause.kind if cause else None,
            text=text,
            layers=cause.layers if cause else (),
            nearest=nearest.kind if nearest else None,
            explained=shown.explained if shown else 0.0,
            similarity=float(ours @ theirs) / norms if norms else 0.0,
            distance=held.distance,
            floor=self._floor,
            next=tuple(self._next(answer, cause)),
            tried=tuple(tried[:_SHOWN]),
        )

    def _simple(self) -> Iterator[Suspicion]:
        """Yields the suspicions on inputs, outputs, the arithmetic of all layers, and scales."""
        of, file = self._of, self._of.file
        pictures = [x for x in file.feeds[0].values() if x.ndim == 4 and x.dtype.kind == "f"]
        axis = next((axis for x in pictures for axis in (1, 3) if x.shape[axis] == 3), None)
        yield from suspected.on_arithmetic(of.network, file.plan)
        if file.plan.lowered:
            yield from suspected.on_plan(of.network, file.plan)
            others = []
            if of.options.calibration is not None and not file.scales:
                bare = replace(of.network, has_pairs=False, scales={})
                others = [ranges_of(bare, of.options.calibration, of.options.calibrating(), of.progress)[0]]
            yield from suspected.on_scales(file, others)
        elif of.network.quantizable and of.network.low.needs_ranges:
            yield self._in_int8()
        if of.data.pictures:
            specs, given = of.network.inputs, of.options.inputs
            fed = lambda way: iter(open_dataset(given, specs, pictures=way))  # noqa: E731
            yield from suspected.on_pictures(of.options.preprocessing(), fed)
        yield from suspected.on_values(axis)
        if pictures:
            yield from suspected.on_axes(axis)
        rows = {len(x) for x in file.feeds[0].values() if x.ndim}
        yield from suspected.on_batches(len(file.feeds), max(rows, default=1) if len(rows) == 1 else 1)
        shapes = {name: np.shape(values) for name, values in of.reference[0].items()}
        yield from suspected.on_outputs(shapes)

    def _in_int8(self) -> Suspicion:
        """Returns all layers in INT8, with scales from these inputs, as the engine's own are not known."""
        of, feeds = self._of, self._file.feeds
        data = Dataset("these inputs", of.network.inputs, lambda: feeds, len(feeds))
        ranges, _ = ranges_of(of.network, data, of.options.calibrating(), of.progress)
        network, _ = keeping_unusable_high(of.network, ranges)
        in_int8 = of_network(network, ranges.scales, network.full(Precision.FP32))
        return Suspicion(LAYERS_LOW, "runs in INT8 what the file has in FP32 (scales from these inputs)", in_int8)

    def _next(self, answer: str, cause: Tried | None) -> Iterator[str]:
        """Yields what to do."""
        of, given = self._of, self._of.options
        if answer == SAME:
            yield "NEXT: the loss, if any, is in the file: find its layers with"
            yield f"  trt-bisect run {of.network.source} --calibration DATA --input {of.data.source}"
        elif cause is not None:
            as_asked = str(of.network.low.precision if cause.kind == LAYERS_HIGH else Precision.FP32)
            flags = " ".join(
                f"--{option}=" + ",".join(f'"{name}":{as_asked}' for name in cause.layers or "*")
                for option in ("layerPrecisions", "layerOutputTypes")
            )
            yield f"NEXT: {NEXT[cause.kind].format(layers=', '.join(cause.layers), flags=flags)}"
            if cause.kind == KERNEL and given.output is not None:
                folder = write_minimal(of.file, cause.layers, Path(given.output) / KERNEL)
                yield f"  {folder} has the layer alone with its input, for a bug report"
        else:
            yield "NEXT: save the engine's inner tensors, and give their folder with --tensors:"
            yield "  trtexec --loadEngine=ENGINE --markUnfusedTensorsAsDebugTensors --saveAllDebugTensors=numpy"


_OBEY = "--precisionConstraints=obey {flags}"
NEXT = {
    suspected.INPUT_SCALE: "scale the inputs as in training, once, before the engine or in it.",
    suspected.INPUT_MEAN_STD: "normalise the inputs as in training: the same mean and std, in the order of channels.",
    suspected.CHANNEL_ORDER: "convert BGR to RGB before the engine: cv2.cvtColor(image, cv2.COLOR_BGR2RGB).",
    suspected.LAYOUT: "copy the inputs in the file's layout: numpy.ascontiguousarray(image.transpose(2, 0, 1)).",
    suspected.RESIZE: "resize the pictures in the deployment as for the file.",
    suspected.BATCH: "copy all rows, wait for the stream before you read outputs, and read the rows of this batch.",
    suspected.OUTPUT_ORDER: "bind outputs by name (getIOTensorName), and read them in the engine's own shape.",
    suspected.TF32: "build with --noTF32 if this is too coarse.",
    "fp16": f"build without --fp16, or keep layers in FP32: 'trt-bisect run --low fp16' names them for {_OBEY}",
    "bf16": f"build without --bf16, or keep layers in FP32: 'trt-bisect run --low bf16' names them for {_OBEY}",
    suspected.LAYERS_HIGH: f"build with {_OBEY}, or accept it: it costs time, not accuracy.",
    suspected.LAYERS_LOW: f"build with {_OBEY}, or from a file with Q/DQ pairs.",
    suspected.SCALES: "delete the old calibration cache and the timing cache, and build with --calib of this network.",
    suspected.PER_TENSOR: "the engine has one scale for each weight, as a DLA has: measure it with --one-scale '*'.",
    suspected.PAIRS_IGNORED: "build with --int8 or --stronglyTyped, so that the Q/DQ pairs are used.",
    suspected.FOLLOWERS_LOW: "build from Q/DQ pairs (--stronglyTyped), or measure with --unquantized int8.",
    suspected.CLIP_FUSED: "keep {layers} apart from its reader: mark its output as an output of the network.",
    KERNEL: f"build with {_OBEY}, another --builderOptimizationLevel or --tacticSources, and report it.",
}
"""By cause what to do; ``{layers}`` are those to blame, and ``{flags}`` trtexec's for them."""
