"""The stages before plans are measured: ranges, inputs, builder, reference, journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter, time
from typing import Any

import numpy as np

from trt_bisect._version import versions
from trt_bisect.analyzer.judge import (
    Rule,
    comparison,
    make_rule,
    nonfinite_in_reference,
    numeric_outputs,
    outputs_to_judge,
)
from trt_bisect.analyzer.metrics import Metric, find_metric
from trt_bisect.analyzer.worst import WorstInputs, worst_inputs
from trt_bisect.bench import Bench
from trt_bisect.builder.base import Builder, BuildOptions, Outputs
from trt_bisect.builder.engine_pieces import Profile
from trt_bisect.builder.engines import ONNXRUNTIME, choose_engine, choose_typing, make_builder, open_builder
from trt_bisect.builder.isolation import Workshop
from trt_bisect.calibration.cache import names_cache, read_cache
from trt_bisect.calibration.collect import calibrate
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.calibration.usable import keeping_unusable_high
from trt_bisect.carried import content_of
from trt_bisect.data import Dataset, Feeds, digest_of_feeds, open_dataset, profile_shapes
from trt_bisect.errors import BadInput, NothingMeasured, TrialFailed
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.evaluator.crew import Fleet, Subject
from trt_bisect.evaluator.rebuild import Compare, RebuildEvaluator, TrialStore
from trt_bisect.fleet.cluster import STAYS_HERE, open_fleet
from trt_bisect.model.network import Network
from trt_bisect.model.observe import difference_noted
from trt_bisect.model.shapes import facts_for
from trt_bisect.precision import int8_set
from trt_bisect.progress import Progress
from trt_bisect.request import Request
from trt_bisect.runs.folder import fingerprint, load_inputs, load_ranges, save_inputs, save_ranges
from trt_bisect.runs.journal import Journal, MemoryStore
from trt_bisect.strategy import BRANCH, branch_evaluator


class Job:
    """What comes before the measuring: each method is a stage, in the order in which they are called."""

    def __init__(self, request: Request, network: Network, folder: Path | None, progress: Progress) -> None:
        self.request = request
        self.network = network
        self.folder = folder
        self.progress = progress
        self.began, self.started = perf_counter(), time()
        self.calibrated = 0.0
        self.notes: list[str] = list(network.notes)
        self._fleet: Fleet
        self.outputs_named = bool(request.outputs)

    @contextmanager
    def opened(self, calibration: Any, inputs: Any, dataset: Any) -> Iterator[Bench]:
        """All that plans are measured with, as long as the journal and the fleet are open."""
        if self.request.cluster.address and self.request.way.strategy == BRANCH:
            self.progress.say(STAYS_HERE)
        with open_fleet(self.request.cluster, self.progress.say) as self._fleet:
            yield from self._open(calibration, inputs, dataset)

    def _open(self, calibration: Any, inputs: Any, dataset: Any) -> Iterator[Bench]:
        self._check_outputs()
        engine = choose_engine(self.request.engine)
        if self.request.engine == "auto":
            self.progress.say(f"Engine: {engine} (chosen by 'auto'; 'trt-bisect engines' says why)")
        ranges, data = self._ranges(calibration)
        self.network, kept_high = keeping_unusable_high(self.network, ranges)
        self.notes += kept_high
        feeds, about = self._judged_inputs(engine, ranges, data, inputs, dataset)
        if about.get("faint"):
            self.notes.append(
                f"{len(about['faint'])} of {about['searched']} samples were passed over as worst inputs, number "
                f"{about['faint'][0]} first: FP32's output on them is almost zero, so that float noise decides"
            )
        self.network = self.network.with_shapes(facts_for(self.network, feeds[0]).shapes)
        builder = self._builder(engine, ranges, feeds)
        reference = self._reference(builder, feeds)
        prepared = reference[0] if engine == ONNXRUNTIME else None
        self.notes += difference_noted(self.network, feeds[0], self.request.outputs, prepared)
        rule = self._rule(reference)
        parts = self._fingerprint_parts(builder, ranges, feeds)
        key = fingerprint(parts)
        with ExitStack() as open_files:
            store: Journal | MemoryStore = MemoryStore()
            if self.folder is not None:
                store = open_files.enter_context(Journal(self.folder, key, parts))
                if store.resumed:
                    self.progress.say(f"Going on with {store.resumed} trials measured before in {self.folder}")
            compare = comparison(reference, rule.metric)
            whole = self._whole(builder, ranges, feeds, compare, store)
            evaluator = self._evaluator(whole, builder, ranges, feeds, compare, store)
            measuring = (builder, rule, store, whole, evaluator, key, data, compare, parts)
            yield Bench(self.network, ranges, feeds, about, *measuring)

    def with_ranges(self, bench: Bench, ranges: Ranges) -> Bench:
        """A bench of whole engines with other ranges, its trials journaled under a key of their own."""
        builder = self._builder(bench.builder.engine, ranges, bench.feeds)
        parts = self._fingerprint_parts(builder, ranges, bench.feeds)
        key = fingerprint(parts)
        store = bench.store.under(key, parts)
        whole = self._whole(builder, ranges, bench.feeds, bench.compare, store)
        return replace(
            bench, ranges=ranges, builder=builder, store=store, whole=whole, evaluator=whole, key=key, parts=parts
        )

    def in_pieces(self, bench: Bench) -> Bench:
        """A bench of whole engines with the evaluator that the strategy wants."""
        parts = (bench.whole, bench.builder, bench.ranges, bench.feeds, bench.compare, bench.store)
        return replace(bench, evaluator=self._evaluator(*parts))

    def _check_outputs(self) -> None:
        known = [spec.name for spec in self.network.outputs]
        for name in self.request.outputs:
            if name not in known:
                raise BadInput(
                    f"'{self.network.source}' has no output '{name}'.",
                    "Its outputs are " + ", ".join(f"'{n}'" for n in known) + ".",
                )

    def _ranges(self, calibration: Any) -> tuple[Ranges, Dataset | None]:
        """The scales, and the data they came from if they came from data."""
        calibration = content_of(calibration)
        if self.network.has_pairs:
            if calibration is not None:
                self.notes.append(
                    "the network holds Q/DQ pairs: their scales are used, the calibration data only as inputs"
                )
            no_data = calibration is None or isinstance(calibration, Ranges) or names_cache(calibration)
            data = None if no_data else self._dataset(calibration)
            return Ranges({}, {}, "the network's own Q/DQ"), data
        if calibration is None:
            raise BadInput(
                "There are no ranges: no calibration data and no calibration cache were given.",
                "Give --calibration with data (.npz, .npy, folder, module:function) or a TensorRT calibration cache.",
            )
        if isinstance(calibration, Ranges):
            return calibration, None
        if names_cache(calibration):
            return read_cache(
                Path(calibration), self.network.rounded_activations, keep_masks=self.request.keep_mask_ranges
            ), None
        data = self._dataset(calibration)
        return self._calibrated(data), data

    def _calibrated(self, data: Dataset) -> Ranges:
        began = perf_counter()
        request = self.request
        self.progress.stage("Calibrating", data.length)
        key = ""
        if self.folder is not None:
            settings = (
                request.calibrator,
                request.percentile if request.calibrator == "percentile" else None,
                request.keep_mask_ranges,
            )
            key = fingerprint({"model": self.network.digest(), "data": data.digest(), "how": settings, "v": versions()})
            kept = load_ranges(self.folder, key)
            if kept is not None:
                return kept
        ranges = calibrate(
            self.network,
            data,
            request.calibrator,
            request.percentile,
            keep_masks=request.keep_mask_ranges,
            on_sample=lambda done: self.progress.step(f"sample {done}"),
            memory=request.way.memory,
        )
        if self.folder is not None:
            save_ranges(self.folder, key, ranges)
        self.calibrated = perf_counter() - began
        return ranges

    def _dataset(self, source: Any) -> Dataset:
        return open_dataset(content_of(source), self.network.inputs)

    def _judged_inputs(
        self, engine: str, ranges: Ranges, data: Dataset | None, inputs: Any, dataset: Any
    ) -> tuple[list[Feeds], dict[str, Any]]:
        """The inputs that are judged, and what the report says of them."""
        source = (
            self._dataset(inputs) if inputs is not None else self._dataset(dataset) if dataset is not None else data
        )
        if source is None:
            raise BadInput(
                "There is no input to judge on: the ranges do not come from data.",
                "Give --input with an input on which INT8 looks bad, or --dataset to search for one.",
            )
        if inputs is not None:
            feeds = list(source)
            if self.request.samples is None or len(feeds) <= self.request.samples:
                return feeds, {"source": source.source, "judged": len(feeds)}
        return self._worst_of(engine, ranges, source)

    def _worst_of(self, engine: str, ranges: Ranges, source: Dataset) -> tuple[list[Feeds], dict[str, Any]]:
        self.progress.stage("Searching for the worst inputs", source.length)
        count = self.request.samples or 1
        key = ""
        if self.folder is not None:
            metric = find_metric(self.request.metric, self.request.direction)
            parts = {"model": self.network.digest(), "ranges": ranges.digest(), "data": source.digest()}
            key = fingerprint(
                {
                    **parts,
                    "count": count,
                    "metric": (metric.name, metric.code),
                    "engine": engine,
                    "outputs": self.request.outputs,
                }
            )
            kept = load_inputs(self.folder, key)
            if kept is not None:
                return kept
        found = self.find_worst(engine, ranges, source, count)
        about = {
            "source": source.source,
            "judged": len(found.inputs),
            "searched": len(found.similarities),
            "places": list(found.places),
            "similarities": [None if np.isnan(value) else value for value in found.similarities],
            "median": None if np.isnan(found.median) else found.median,
            "faint": list(found.faint),
        }
        if self.folder is not None:
            save_inputs(self.folder, key, found.inputs, about)
        return list(found.inputs), about

    def find_worst(
        self, engine: str, ranges: Ranges, samples: Dataset, count: int, high: Sequence[int] = (), keep: bool = False
    ) -> WorstInputs:
        """The worst of a data set in INT8, the layers ``high`` left out; ``keep`` what was found at Ctrl-C."""
        builder = self._builder(engine, ranges, samples)
        chosen = [k for k in self.network.quantizable if k not in high]
        plan = int8_set(len(self.network.layers), chosen, self.request.options.high)

        def rule(reference: Outputs) -> Rule:
            self._choose_outputs(reference)
            return self._rule([reference])

        def tell(number: int) -> None:
            self.progress.step(f"sample {number}")

        try:
            with builder.reference() as fp32, builder.build(plan) as int8:
                return worst_inputs(samples, fp32, int8, rule, count, tell, keep_when_stopped=keep)
        except TrialFailed as failure:
            raise BadInput(
                f"The worst input cannot be searched for, FP32 or full INT8 does not run: {failure.message}",
                "Give --input with the input to judge on.",
            ) from failure

    def _builder(self, engine: str, ranges: Ranges, feeds: Iterable[Feeds]) -> Builder:
        typing = choose_typing(engine, self.request.typing)
        return open_builder(engine, typing, self.network, ranges.scales, self._options(), self._profile(engine, feeds))

    def _whole(
        self, builder: Builder, ranges: Ranges, feeds: list[Feeds], compare: Compare, store: TrialStore
    ) -> RebuildEvaluator:
        """Measures on whole engines, by a crew of the fleet where there is one."""
        shapes, options = self._profile(builder.engine, feeds), self._options()
        make = partial(make_builder, builder.engine, builder.typing, self.network, ranges.scales, profile_shapes=shapes)
        subject = Subject(builder.engine, builder.versions, make, options, feeds)
        crew = self._fleet.crew(subject, builder)
        return RebuildEvaluator(self.network, builder, feeds, compare, store, self.request.options.high, crew)

    def _profile(self, engine: str, feeds: Iterable[Feeds]) -> Profile:
        return {} if engine == ONNXRUNTIME or self.network.is_static else profile_shapes(feeds)

    def _evaluator(
        self,
        whole: RebuildEvaluator,
        builder: Builder,
        ranges: Ranges,
        feeds: Sequence[Feeds],
        compare: Compare,
        store: TrialStore,
    ) -> RebuildEvaluator | BranchEvaluator:
        if self.request.way.strategy != BRANCH:
            return whole
        options, workshop = self._options(), Workshop()

        def make(part: Network, profile: Profile) -> Builder:
            return open_builder(builder.engine, builder.typing, part, ranges.scales, options, profile, workshop)

        way = self.request.way
        return branch_evaluator(self.network, builder, make, ranges.scales, options, feeds, compare, store, whole, way)

    def _options(self) -> BuildOptions:
        """The build options, with a timing cache where the run has a folder."""
        options = self.request.options
        return options if self.folder is None else replace(options, timing_cache=self.folder / "timing.cache")

    def _reference(self, builder: Builder, feeds: Sequence[Feeds]) -> list[Outputs]:
        self.progress.stage("FP32 reference", len(feeds))
        try:
            with builder.reference() as engine:
                reference = []
                for place, sample in enumerate(feeds):
                    self.progress.step(f"input {place}")
                    reference.append(engine.infer(sample))
        except TrialFailed as failure:
            raise NothingMeasured(
                f"The FP32 network cannot be run: {failure.message}",
                f"Check '{self.network.source}' with its engine alone.",
            ) from failure
        self.notes += nonfinite_in_reference(reference).values()
        self._choose_outputs(reference[0])
        self._leave_out_hopeless(reference)
        aside = [repr(name) for name in reference[0] if name not in self.request.outputs]
        if aside and not self.outputs_named:
            self.notes.append(
                f"outputs without floating-point numbers are not judged unless --outputs names them: {', '.join(aside)}"
            )
        return reference

    def _choose_outputs(self, outputs: Outputs) -> None:
        """Judges the outputs that the user names, else those that floats come out of."""
        judged = list(self.request.outputs) or outputs_to_judge(outputs)
        useless = [name for name in judged if name not in numeric_outputs(outputs)]
        if useless or not judged:
            raise BadInput(
                f"'{self.network.source}' has no output that can be judged: they are texts, sequences or maps.",
                "Cut the network before the nodes that make them.",
            )
        self.request = replace(self.request, outputs=tuple(judged))

    def _leave_out_hopeless(self, reference: Sequence[Outputs]) -> None:
        """Takes outputs without a single finite value in FP32 out of the judgement."""
        hopeless = [
            name
            for name in self.request.outputs
            if all(found[name].size and not np.isfinite(found[name]).any() for found in reference)
        ]
        if len(hopeless) == len(self.request.outputs):
            raise NothingMeasured(
                f"The FP32 reference of '{self.network.source}' holds nothing but NaN or infinite values.",
                "Give --input with an input on which FP32 itself works.",
            )
        judged = tuple(name for name in self.request.outputs if name not in hopeless)
        self.request = replace(self.request, outputs=judged)

    def _rule(self, reference: Sequence[Outputs]) -> Rule:
        metric = self._metric(reference)
        return make_rule(metric, self.request.threshold, self.request.share, self.request.outputs)

    def _metric(self, reference: Sequence[Outputs]) -> Metric:
        """The metric, knowing the figure of equal outputs."""
        metric = find_metric(self.request.metric, self.request.direction)
        if metric.perfect is not None or not reference[0]:
            return metric
        name = next(iter(self.request.outputs or reference[0]))
        array = np.asarray(reference[0][name], np.float64)
        return metric.knowing_perfect(array.reshape(-1, array.shape[-1] if array.ndim else 1))

    def _fingerprint_parts(self, builder: Builder, ranges: Ranges, feeds: Sequence[Feeds]) -> dict[str, Any]:
        options = self.request.options
        return {
            "model": self.network.digest(),
            "ranges": ranges.digest(),
            "inputs": [digest_of_feeds(sample) for sample in feeds],
            "engine": builder.engine,
            "typing": builder.typing,
            "versions": {**versions(), **builder.versions},
            "high": str(options.high),
            "workspace": options.workspace_bytes,
            "optimization_level": options.optimization_level,
            "force_int8": options.force_int8,
            "tactic_sources": options.tactic_sources,
            "metric": find_metric(self.request.metric, self.request.direction).code,
        }
