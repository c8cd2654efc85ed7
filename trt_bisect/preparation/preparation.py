"""The stages before plans are measured: ranges, inputs, builder, reference, journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter, time
from typing import Any

import msgspec
import numpy as np

from trt_bisect._version import versions
from trt_bisect.analyzer.classes import Classes, classes_of
from trt_bisect.analyzer.compare_output import judging_notes
from trt_bisect.analyzer.judge import Rule, comparison, nonfinite_in_reference
from trt_bisect.analyzer.slices import Slices
from trt_bisect.analyzer.worst import WorstInputs, worst_inputs
from trt_bisect.builder.base import Builder, BuildOptions, Engine, Outputs, ProfileShapes
from trt_bisect.builder.engines import (
    ONNXRUNTIME,
    choose_engine,
    choose_typing,
    make_builder,
    open_builder,
    typing_to_ask,
)
from trt_bisect.builder.isolation import WorkerProcess
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.ranges import Ranges, keeping_unusable_high, non_finite_weight, refuse_without_low
from trt_bisect.cluster.ray_cluster import open_cluster
from trt_bisect.data.datasets import Dataset, digest_of_feeds, may_be_sizes, profile_shapes, profile_sizes
from trt_bisect.data.feeds import Feeds, size_remedy
from trt_bisect.driver.suspects.curves import FULL
from trt_bisect.errors import BadInput, NothingMeasured, TrialFailed
from trt_bisect.evaluator.branch import branch_evaluator
from trt_bisect.evaluator.rebuild import Compare, RebuildEvaluator, TrialStore
from trt_bisect.evaluator.trial import Cost, Trial
from trt_bisect.evaluator.workers import Cluster, TrialSpec
from trt_bisect.model.low import FLOAT_TYPES, FP8
from trt_bisect.model.network import Network
from trt_bisect.model.reading import compare_with_file
from trt_bisect.model.shapes import facts_for
from trt_bisect.options.commands import MeasuringOptions
from trt_bisect.options.concerns import AUTO, BRANCH, EXHAUSTIVE, FOLLOWERS_INT8, JudgeOptions
from trt_bisect.precision import Precision
from trt_bisect.preparation.experiment import Experiment
from trt_bisect.preparation.fixed_layers import refuse_emulated_only
from trt_bisect.preparation.forecast import Forecast
from trt_bisect.preparation.given_data import GivenData, faint_note
from trt_bisect.preparation.judged_by import other_reference
from trt_bisect.preparation.judgement import Judgement
from trt_bisect.preparation.workspace import TIMING_CACHE, refuse_another_network
from trt_bisect.report.model import JudgedInputs
from trt_bisect.runs.cached_inputs import fingerprint, load_inputs, save_inputs
from trt_bisect.runs.journal import Journal, MemoryStore
from trt_bisect.support.memory import give_back_memory
from trt_bisect.support.notes import FILE, JUDGED_BY, NETWORK, OUTPUTS, RANGES, SHAPES, TASK, Note, noted
from trt_bisect.support.progress import Progress

STAYS_HERE = (
    "The passes of 'branch' run on this machine: the cluster gets only its few plans of whole engines. It gets all "
    "plans of 'exhaustive' and 'bisect'."
)


class Preparation:
    """Prepares the measuring: each method is a stage, in the order in which they are called."""

    def __init__(
        self,
        options: MeasuringOptions,
        network: Network,
        folder: Path | None,
        progress: Progress,
        judgement: Callable[[JudgeOptions, str, Precision], Judgement] = Judgement,
    ) -> None:
        refuse_another_network(folder, network)
        self.options = options
        self.network, self.digest = network, network.digest()
        self.folder = folder
        self.progress = progress
        self.forecast = Forecast(progress)
        self.began, self.started = perf_counter(), time()
        self.notes: list[Note] = noted(NETWORK, network.notes)
        self.data = GivenData(options, network, folder, progress, self.notes)
        self._cluster: Cluster
        self.judgement = judgement(options, network.source, network.low.precision)
        self._judged_by = other_reference(
            options, network, options.inputs, lambda texts: self.notes.extend(noted(JUDGED_BY, texts))
        )

    @contextmanager
    def opened(self, calibration: Any, inputs: Any, dataset: Any) -> Iterator[Experiment]:
        """All that plans are measured with, as long as the journal and the cluster are open."""
        with open_cluster(self.options.cluster, self.progress.say) as self._cluster:
            yield from self._open(calibration, inputs, dataset)

    def _open(self, calibration: Any, inputs: Any, dataset: Any) -> Iterator[Experiment]:
        self._check_outputs()
        refuse_without_low(self.network)
        engine = choose_engine(self.options.engine)
        refuse_emulated_only(self.network, engine)
        strategy = strategy_for(self.options, engine)
        if self.options.cluster and strategy == BRANCH:
            self.progress.say(STAYS_HERE)
        ranges, data = self.data.ranges(calibration)
        self._say_engine(engine)
        self.network, kept_high = keeping_unusable_high(self.network, ranges)
        self.notes += noted(RANGES, kept_high)
        feeds, about = self._judged_inputs(engine, ranges, data, inputs, dataset)
        own = inputs is None and dataset is None
        about = self.data.fed.judged(about, feeds, ranges, of_calibration=own)
        self.notes += [*noted(SHAPES, self.data.fed.notes(feeds)), *faint_note(about)]
        self.network = self.network.with_shapes(facts_for(self.network, feeds[0]).shapes)
        builder = self.builder_for(engine, ranges, feeds)
        reference = self._reference(builder, feeds)
        prepared = reference[0] if engine == ONNXRUNTIME and self._judged_by is None else None
        outputs = self._judged_outputs(reference)
        self.notes += noted(FILE, compare_with_file(self.network, feeds[0], outputs, prepared))
        slices = self.judgement.slices(outputs, reference)
        self.notes += noted(OUTPUTS, slices.notes())
        with_groups = [slices.with_groups(found) for found in reference]
        rule = self.judgement.rule(slices.names(outputs), with_groups)
        classes = self._classes(with_groups, slices.names(outputs), rule)
        task, said = self.judgement.checked_task(reference)
        self.notes += noted(TASK, said)
        parts = self._fingerprint_parts(builder, ranges, feeds)
        key = fingerprint(parts)
        with ExitStack() as open_files:
            store = self._store(open_files, key, parts)
            compare = comparison(reference, rule.metric, classes, slices, task)
            of_file = file_figure_noted(self.network, feeds, compare, rule, self._build_options())
            self.notes[1:1] = noted(FILE, of_file)
            whole = self._whole(builder, ranges, feeds, compare, store)
            experiment = Experiment(
                network=self.network,
                ranges=ranges,
                feeds=feeds,
                references=reference,
                about=about,
                builder=builder,
                rule=rule,
                store=store,
                whole=whole,
                evaluator=whole,
                key=key,
                data=data,
                more=self._given(data, inputs, dataset),
                compare=compare,
                parts=parts,
                strategy=strategy,
                classes=classes,
                slices=slices,
                task=task,
            )
            yield self.in_pieces(experiment)

    def _store(self, open_files: ExitStack, key: str, parts: dict[str, Any]) -> Journal | MemoryStore:
        """The journal in the run's folder, as long as ``open_files`` is open; without a folder a store in memory."""
        if self.folder is None:
            return MemoryStore()
        store = open_files.enter_context(Journal(self.folder, key, parts))
        if store.resumed:
            self.progress.say(f"Continuing with {store.resumed} trials already measured in {self.folder}")
        return store

    def with_ranges(self, experiment: Experiment, ranges: Ranges) -> Experiment:
        """An experiment on whole engines with other ranges, its trials journaled under a key of their own."""
        builder = self.builder_for(experiment.builder.engine, ranges, experiment.feeds)
        parts = self._fingerprint_parts(builder, ranges, experiment.feeds)
        if self.network is not experiment.network:
            parts["reference"] = experiment.network.digest()
        key = fingerprint(parts)
        store = experiment.store.under(key, parts)
        whole = self._whole(builder, ranges, experiment.feeds, experiment.compare, store)
        own = replace(experiment, ranges=ranges, builder=builder, store=store, whole=whole, evaluator=whole)
        return replace(own, network=self.network, key=key, parts=parts)

    def with_network(self, experiment: Experiment, network: Network, ranges: Ranges) -> Experiment:
        """The same with another network of the same inputs and outputs, judged by the FP32 outputs of the first one.

        Raises:
            BadInput: none of its layers can be in INT8.
        """
        other = copy(self)
        other.network, _ = keeping_unusable_high(network, ranges)
        return other.with_ranges(experiment, ranges)

    def in_pieces(self, experiment: Experiment) -> Experiment:
        """An experiment on whole engines with the evaluator that its strategy needs."""
        if experiment.strategy != BRANCH:
            return experiment
        builder, scales = experiment.builder, experiment.ranges.scales
        options, worker = self._build_options(), WorkerProcess()

        def make(part: Network, profile: ProfileShapes) -> Builder:
            return open_builder(builder.engine, builder.typing, part, scales, options, profile, worker)

        evaluator = branch_evaluator(
            self.network,
            builder,
            make,
            scales,
            options,
            experiment.feeds,
            experiment.compare,
            experiment.store,
            experiment.whole,
            memory=self.options.memory_bytes,
            few_boundaries=self.options.curve_of(BRANCH, len(self.network.movable)) != FULL,
        )
        return replace(experiment, evaluator=evaluator)

    def _say_engine(self, engine: str) -> None:
        """Says the engine where ``auto`` chose it; after the data was read, whose errors come first."""
        if self.options.engine == AUTO:
            self.progress.say(f"Engine: {engine} (chosen by 'auto'; 'trt-bisect engines' says why)")

    def _check_outputs(self) -> None:
        known = [spec.name for spec in self.network.outputs]
        for name in self.options.outputs:
            if name not in known:
                raise BadInput(
                    f"'{self.network.source}' has no output '{name}'.",
                    "Its outputs are " + ", ".join(f"'{n}'" for n in known) + ".",
                )

    def _judged_inputs(
        self, engine: str, ranges: Ranges, data: Dataset | None, inputs: Any, dataset: Any
    ) -> tuple[list[Feeds], JudgedInputs]:
        """The inputs that are judged, and what the report says of them."""
        named = dataset if inputs is None else inputs
        source = data if named is None else self.data.without_unseen(self.data.open(named))
        if source is None:
            raise BadInput(
                "No data was given to run the network on.",
                f"Give --input with an input on which {self.network.low.title} looks bad, or --dataset to find it.",
            )
        if inputs is not None:
            feeds = list(source)
            if self.options.samples is None or len(feeds) <= self.options.samples:
                return feeds, JudgedInputs(source.source, len(feeds))
        return self._worst_of(engine, ranges, source)

    def _given(self, data: Dataset | None, inputs: Any, dataset: Any) -> tuple[Dataset, ...]:
        """The data that a recipe has to hold on."""
        named = [self.data.without_unseen(self.data.open(each)) for each in (inputs, dataset) if each is not None]
        return (*named, *([data] if data is not None and dataset is None else []))

    def _worst_of(self, engine: str, ranges: Ranges, source: Dataset) -> tuple[list[Feeds], JudgedInputs]:
        self.progress.stage("Searching for the worst inputs", source.length)
        count = self.options.samples or 1
        builder, key = self.builder_for(engine, ranges, source), ""
        if self.folder is not None:
            key = self._worst_key(builder, ranges, source, count)
            kept = load_inputs(self.folder, key)
            if kept is not None:
                return kept[0], msgspec.convert(kept[1], JudgedInputs)
        found = self.find_worst(builder, source, count)
        about = JudgedInputs(
            source=source.source,
            judged=len(found.inputs),
            searched=len(found.similarities),
            places=tuple(source.place(position) for position in found.places),
            similarities=tuple(None if np.isnan(value) else float(value) for value in found.similarities),
            median=None if np.isnan(found.median) else float(found.median),
            faint=tuple(source.place(position) for position in found.faint),
        )
        if self.folder is not None:
            save_inputs(self.folder, key, found.inputs, msgspec.to_builtins(about))
        return list(found.inputs), about

    def _worst_key(self, builder: Builder, ranges: Ranges, source: Dataset, count: int) -> str:
        """The key under which the worst inputs are stored: a digest of everything that their search depends on."""
        parts = self._fingerprint_parts(builder, ranges, ())
        name = self.judgement.asked_metric.name
        plan = self.network.full(self.options.high_precision).key()
        chosen = {"data": source.digest(), "count": count, "metric name": name, "plan": plan}
        return fingerprint({**parts, **chosen})

    def find_worst(self, builder: Builder, samples: Dataset, count: int, keep: bool = False) -> WorstInputs:
        """The worst of a data set in full INT8; ``keep`` what was found at Ctrl-C."""
        plan = self.network.full(self.options.high_precision)

        def rule(reference: Outputs) -> Rule:
            return self.judgement.rule(self.judgement.outputs(reference), [reference])

        def slices(reference: Outputs) -> Slices:
            return self.judgement.slices(self.judgement.outputs(reference), [reference])

        def tell(number: int) -> None:
            self.progress.step(f"sample {number}")

        try:
            with self.reference_engine(builder) as fp32, builder.build(plan) as int8:
                axis, task = self.options.class_axis, self.judgement.task
                given = (samples, fp32, int8, rule, count, tell)
                return worst_inputs(*given, keep_when_stopped=keep, class_axis=axis, slices=slices, task=task)
        except TrialFailed as failure:
            raise BadInput(
                f"The search for the worst input failed, because FP32 or full {self.network.low.title} does not run: "
                f"{failure.message}",
                self._remedy("Give --input with the input to judge on."),
            ) from failure
        finally:
            give_back_memory()

    def builder_for(self, engine: str, ranges: Ranges, feeds: Iterable[Feeds]) -> Builder:
        """The builder of an engine for inputs of the shapes of ``feeds``."""
        typing = choose_typing(engine, typing_to_ask(self.options.typing, self.network.low))
        options, shapes = self._profiled(engine, feeds)
        return open_builder(engine, typing, self.network, ranges.scales, options, shapes)

    def _whole(
        self, builder: Builder, ranges: Ranges, feeds: list[Feeds], compare: Compare, store: TrialStore
    ) -> RebuildEvaluator:
        """Measures on whole engines, by workers of the cluster where there is one."""
        options, shapes = self._profiled(builder.engine, feeds)
        make = partial(make_builder, builder.engine, builder.typing, self.network, ranges.scales, profile_shapes=shapes)
        trial_spec = TrialSpec(builder.engine, builder.versions, make, options, feeds)
        workers = self._cluster.pool(trial_spec, builder)
        return RebuildEvaluator(self.network, builder, feeds, compare, store, self.options.high_precision, workers)

    def _profiled(self, engine: str, feeds: Iterable[Feeds]) -> tuple[BuildOptions, ProfileShapes]:
        """The build options and the profile shapes for inputs like ``feeds``; ONNX Runtime needs neither of them."""
        options = self._build_options()
        if engine == ONNXRUNTIME:
            return options, {}
        if any(may_be_sizes(spec.dtype, spec.shape) for spec in self.network.inputs):
            options = replace(options, sizes=profile_sizes(feeds))
        return options, {} if self.network.is_static else profile_shapes(feeds)

    def _build_options(self) -> BuildOptions:
        """The build options, with a timing cache where the run has a folder."""
        options = self.options.build_options()
        return options if self.folder is None else replace(options, timing_cache=self.folder / TIMING_CACHE)

    def reference_engine(self, builder: Builder) -> Engine:
        """Opens the reference that outputs are judged by: the network in FP32, or another network."""
        return builder.reference() if self._judged_by is None else self._judged_by

    def _reference(self, builder: Builder, feeds: Sequence[Feeds]) -> list[Outputs]:
        reference = []
        self.progress.stage("FP32 reference", len(feeds))
        give_back_memory()
        try:
            with self.reference_engine(builder) as engine:
                for place, sample in enumerate(feeds):
                    self.progress.step(f"input {place}")
                    reference.append({name: copy(value) for name, value in engine.infer(sample).items()})
        except TrialFailed as failure:
            raise NothingMeasured(
                f"The FP32 network cannot be run: {failure.message}",
                self._remedy(f"Run '{self.network.source}' with the engine alone."),
            ) from failure
        self.notes += noted(OUTPUTS, nonfinite_in_reference(reference).values())
        return reference

    def _remedy(self, otherwise: str) -> str:
        return size_remedy([spec.shape for spec in self.network.inputs], otherwise)

    def _judged_outputs(self, reference: Sequence[Outputs]) -> tuple[str, ...]:
        """The outputs that are judged; those left out are noted."""
        try:
            judged = self.judgement.finite_outputs(reference)
        except NothingMeasured as error:
            why = non_finite_weight(self.network)
            raise NothingMeasured(f"{why}: {error.problem}" if why else error.problem, error.remedy) from error
        aside = [repr(name) for name in reference[0] if name not in judged]
        if aside and not self.options.outputs:
            text = "outputs of integers are not judged unless --outputs names them"
            self.notes.append(Note(OUTPUTS, f"{text}: {', '.join(aside)}"))
        return judged

    def _classes(self, reference: Sequence[Outputs], outputs: tuple[str, ...], rule: Rule) -> dict[str, Classes]:
        """The class axis of each judged output; the notes gain a line on each that is not plain."""
        classes, notes = classes_of(reference, outputs, rule.metric.name, self.options.class_axis)
        self.notes += noted(OUTPUTS, [*notes, *judging_notes(reference, outputs, rule.metric)])
        return classes

    def _fingerprint_parts(self, builder: Builder, ranges: Ranges, feeds: Sequence[Feeds]) -> dict[str, Any]:
        options, base = self.options.build_options(), self.options.base_precision
        typed = ""
        if self.network.low is FP8:
            typed = "by the operators' schemas, no Relu removed before FP8, reductions in parts"
        elif not {self.network.low.precision, options.high, base}.isdisjoint(FLOAT_TYPES):
            typed = "by the operators' schemas, reductions in parts"
        return {
            "model": replace(self.network, base=Precision.FP32).digest(),
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
            "metric": self.judgement.asked_metric.code,
            "class_axis": self.options.class_axis,
            "judged": "each input by itself",
            "slice_factor": repr(float(self.options.slice_factor)),
            **({"outputs": sorted(self.options.outputs)} if self.options.outputs else {}),
            **({"followers": "int8"} if options.followers_round else {}),
            **({} if base is options.high is Precision.FP32 else {"base": str(base)}),
            **({"typed": typed} if typed else {}),
            **({} if self._judged_by is None else {"judged_by": self._judged_by.digest}),
            **self.options.task_facts(),
        }


def file_figure_noted(
    network: Network, feeds: Sequence[Feeds], compare: Compare, rule: Rule, options: BuildOptions
) -> list[str]:
    """A sentence with the figure of the file as it is, all its pairs in place, in ONNX Runtime.

    Returns:
        Nothing where no pair is asymmetric, or the file's cannot be run.
    """
    if not network.asymmetric:
        return []
    plan = network.free_plan(network.quantizable)
    try:
        with OnnxRuntimeBuilder(network.as_in_file(), {}, options).build(plan) as engine:
            figures = compare([engine.infer(sample) for sample in feeds])
    except TrialFailed:
        return []
    value = rule.similarity(Trial.judged(plan.key(), figures, {}, Cost(0.0, 0.0, len(feeds))))
    figure = "no figure (not finite)" if value is None else rule.text(value)
    return [f"the file with its asymmetric pairs measures {figure} ({rule.metric.name}) in ONNX Runtime"]


def strategy_for(options: MeasuringOptions, engine: str) -> str:
    """Returns the strategy of a run; with rounded followers ``auto`` is ``exhaustive``.

    A layer that goes to INT8 changes what the followers before it round, so that pieces do not add up to the whole.

    Raises:
        BadInput: the engine, or the strategy asked for, does not go together with rounded followers.
    """
    if options.followers != FOLLOWERS_INT8:
        return options.strategy_on(engine)
    if engine != ONNXRUNTIME:
        raise BadInput(
            f"'--followers int8' is an emulation; on the engine '{engine}' TensorRT decides.",
            "Leave it out, or add --engine onnxruntime.",
        )
    if options.strategy == BRANCH:
        raise BadInput(
            "'--followers int8' cannot be measured in pieces: what is rounded depends on the layers after them.",
            "Leave out --strategy branch; exhaustive and bisect work.",
        )
    return EXHAUSTIVE if options.strategy == AUTO else options.strategy
