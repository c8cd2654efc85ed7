"""An experiment: a network and everything that measures its plans; and the setup that a command's experiments share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter, time
from typing import Any

from trt_bisect._version import versions
from trt_bisect.analyzer.classes import Classes
from trt_bisect.analyzer.integers import Integers
from trt_bisect.analyzer.judge import Comparer, Rule
from trt_bisect.analyzer.slices import Slices
from trt_bisect.analyzer.tasks.task import Task
from trt_bisect.builder.base import Builder, BuildOptions, Engine, Outputs, ProfileShapes
from trt_bisect.builder.engines import AUTO, ONNXRUNTIME, choose_engine, make_builder, open_builder, typing_of
from trt_bisect.builder.pipeline import AllPlans, EmulatedBuilder
from trt_bisect.calibration.cache import is_cache_path, is_data
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import Dataset, Profile, digest_of_feeds, may_be_sizes, profile_of
from trt_bisect.data.feeds import Feeds
from trt_bisect.driver.search import Question
from trt_bisect.evaluator.evaluators import Compare, Evaluator, RebuildEvaluator, SwitchEvaluator
from trt_bisect.evaluator.inferences import SHARE_KEPT
from trt_bisect.evaluator.trial import Trial, TrialStore
from trt_bisect.evaluator.workers import Cluster, TrialSpec, WorkerPool
from trt_bisect.model.network import Network
from trt_bisect.options.concerns import EMULATION, MeasuringOptions
from trt_bisect.precision import Precision
from trt_bisect.preparation.given_data import GivenData
from trt_bisect.preparation.judgement import Judgement, other_reference
from trt_bisect.preparation.workspace import TIMING_CACHE, refuse_another_network
from trt_bisect.report.parts import JudgedInputs
from trt_bisect.runs.cached_inputs import fingerprint
from trt_bisect.support.progress import Forecast, Progress
from trt_bisect.support.text import JUDGED_BY, NETWORK, RANGES, noted

# How figures are computed. It is part of the fingerprint: another text makes earlier trials those of another run.
_ARITHMETIC = (
    "each input by itself; integers and labels as floats by equality, those of NonMaxSuppression and NonZero at any "
    "place, rows by their number and on each input by whether there are any, floats by their variation too; types by "
    "the operators' schemas, no Relu removed before FP8, reductions in parts; float sums in the order of the file, "
    "also those of the curve"
)


@dataclass(frozen=True)
class Experiment:
    """A network on which plans can be measured.

    Attributes:
        network: the network, with the shapes of the first input; layers without usable ranges are in high precision.
        references: the reference's outputs for the judged inputs, ``feeds``.
        about: the report's facts on the judged inputs.
        data: the calibration data; None for given ranges.
        more: all data sets given; a recipe has to hold on their samples.
        parts: everything that the figures depend on, by name.
        strategy: ``emulation``; or on an engine, ``bisect`` (few points of the curve) or ``exhaustive`` (all).
        curve: the points of the curve to measure: ``full`` (all), ``adaptive`` (more where the loss rises) or
            ``culprits`` (a bisection).
        classes: by output name, the class axis, and if values are probabilities.
        task: the task that is judged instead of the metric; None without one.
    """

    network: Network
    ranges: Ranges
    feeds: list[Feeds]
    references: Sequence[Outputs]
    about: JudgedInputs
    builder: Builder
    rule: Rule
    store: TrialStore
    evaluator: Evaluator
    data: Dataset | None
    more: tuple[Dataset, ...]
    compare: Compare
    parts: Mapping[str, Any]
    strategy: str
    curve: str
    classes: Mapping[str, Classes]
    slices: Slices
    task: Task | None
    integers: Integers

    @property
    def key(self) -> str:
        """The fingerprint of everything that the figures depend on."""
        return fingerprint(self.parts)

    @property
    def whole(self) -> RebuildEvaluator:
        """The evaluator that builds an engine for each plan."""
        return self.evaluator.whole if isinstance(self.evaluator, SwitchEvaluator) else self.evaluator

    @property
    def question(self) -> Question:
        """The search problem: the number of layers, those that may move, their precisions, and the budget."""
        network, rule, high = self.network, self.rule, self.whole.high
        fixed = {layer.index: layer.fixed for layer in network.layers if layer.fixed is not None}
        low, base = network.low.precision, network.base
        return Question(len(network.layers), network.movable, rule.budget, rule.step, high, low, fixed, base)

    def comparison_with(
        self, references: Sequence[Outputs], inputs: Sequence[Feeds] = (), *, deciding: bool = False
    ) -> Comparer:
        """Returns a comparer of outputs with other ``references``, FP32's outputs for ``inputs``.

        Empty ``inputs`` leave out how far outputs vary with the input. ``deciding``: compute only the figures that
        decide a trial.
        """
        metric = self.rule.metric
        only = metric if deciding else None
        parts = self.classes, self.slices, self.task, self.integers
        return Comparer(references, metric, *parts, only=only, with_facts=not deciding, inputs=inputs)


def all_trials(*experiments: Experiment) -> list[Trial]:
    """Returns the trials of all experiments; experiments that share a store count once."""
    stores = dict.fromkeys(experiment.store for experiment in experiments)
    return [trial for store in stores for trial in tuple(store.trials.values())]


class Setup:
    """The facts and tools that all experiments of a command share.

    ``judgement`` makes the object that judges outputs. Raises BadInput if the folder has another network's run, or
    ``--reference`` cannot be used.

    Attributes:
        read: the network before layers without usable ranges are kept in high precision.
        folder: the run folder; None to keep nothing.
        judged_by: the reference that ``--reference`` names; None for the network in FP32.
        cluster: the machines that measure plans; open while an experiment is ``prepared``.
        began, started: the command's start in seconds, of ``perf_counter`` and since the epoch.
    """

    cluster: Cluster

    def __init__(
        self,
        options: MeasuringOptions,
        network: Network,
        folder: Path | None,
        progress: Progress,
        judgement: type[Judgement] = Judgement,
    ) -> None:
        refuse_another_network(folder, network)
        notes, calibration, scale = noted(NETWORK, network.notes), options.calibration, network.stand_in
        if scale is not None:
            text = f"the Q/DQ pairs on activations share the scale {scale:.4g}, as in files of ModelOpt's autotune"
            if is_data(calibration):
                network = network.without_scales()
                text += ": they keep their places, and get scales from the calibration data"
            else:
                text += ": with --calibration data they keep their places and get scales from the data"
            notes += noted(RANGES, [text])
        self.options, self.read, self.folder, self.progress, self.notes = options, network, folder, progress, notes
        self.forecast = Forecast(progress)
        self.judged_by = other_reference(
            options, network, options.saved_for, lambda texts: notes.extend(noted(JUDGED_BY, texts))
        )
        self.judgement = judgement(options, network)
        self.data = GivenData(options, network, folder, progress, notes)
        self.in_memory = TrialStore()
        self.began, self.started = perf_counter(), time()

    def build_options(self) -> BuildOptions:
        """Returns the options of builders, with the run's timing cache."""
        options = self.options.build_options()
        return options if self.folder is None else replace(options, timing_cache=self.folder / TIMING_CACHE)

    def builder_for(self, network: Network, engine: str, ranges: Ranges, feeds: Iterable[Feeds]) -> Builder:
        """Returns a builder of engines for the shapes of all data given; ``feeds`` begin with the usual shapes."""
        cached = is_cache_path(self.options.calibration)
        is_asked = choose_engine(self.options.engine) == engine
        asked = self.options.asked_typing if is_asked else AUTO
        typing = typing_of(engine, asked, network.low, cached=cached)
        options, shapes = self._profiled(network, engine, feeds)
        return open_builder(engine, typing, network, ranges.scales, options, shapes)

    def whole(
        self,
        network: Network,
        builder: Builder,
        ranges: Ranges,
        feeds: list[Feeds],
        compare: Compare,
        store: TrialStore,
    ) -> RebuildEvaluator:
        """Returns the evaluator that builds an engine for each plan, on the cluster's workers if there are any."""
        workers = self.workers(network, builder, ranges, feeds)
        return RebuildEvaluator(network, builder, feeds, compare, store, self.options.high_precision, workers)

    def workers(
        self, network: Network, builder: Builder, ranges: Ranges, feeds: Sequence[Feeds], *, timed: bool = False
    ) -> WorkerPool | None:
        """Returns the cluster's workers, to measure (if ``timed``, also time) plans on ``feeds``; None without
        workers.
        """
        if network.pipeline is not None:
            return None
        options, shapes = self._profiled(network, builder.engine, feeds)
        make = partial(make_builder, builder.engine, builder.typing, network, ranges.scales, profile_shapes=shapes)
        spec = TrialSpec(builder.engine, builder.versions, make, options, feeds, timed)
        return self.cluster.pool(spec, builder)

    def _profiled(self, network: Network, engine: str, feeds: Iterable[Feeds]) -> tuple[BuildOptions, ProfileShapes]:
        options = self.build_options()
        if engine == ONNXRUNTIME:
            return options, {}
        profile = self.profile(network, feeds)
        return replace(options, sizes=profile.sizes), profile.shapes

    def profile(self, network: Network, feeds: Iterable[Feeds]) -> Profile:
        """Returns the smallest, usual and largest shapes of all samples given; ``feeds`` begin with the usual ones."""
        has_sizes = any(may_be_sizes(spec.dtype, spec.shape) for spec in network.inputs)
        if network.is_static and not has_sizes:
            return profile_of(islice(feeds, 1))
        return self.data.profile(feeds)

    def reference_engine(self, builder: Builder) -> Engine:
        """Returns the engine whose outputs are the reference: the network in FP32, or that of ``--reference``."""
        return builder.reference() if self.judged_by is None else self.judged_by

    def with_ranges(self, experiment: Experiment, ranges: Ranges, network: Network | None = None) -> Experiment:
        """Returns the experiment with other ranges, an engine built for each plan, and a fingerprint of its own.

        ``network`` may be another network with the same inputs and outputs; the references of ``experiment`` judge it.
        """
        is_other = network is not None and network is not experiment.network
        network = network or experiment.network
        builder = self.builder_for(network, experiment.builder.engine, ranges, experiment.feeds)
        parts = self.fingerprint_parts(network, builder, ranges, experiment.feeds)
        judged_by = experiment.network.digest() if is_other else experiment.parts.get("reference")
        if judged_by:
            parts["reference"] = judged_by
        store = experiment.store.under(fingerprint(parts), parts)
        whole = self.whole(network, builder, ranges, experiment.feeds, experiment.compare, store)
        return replace(
            experiment,
            network=network,
            ranges=ranges,
            builder=builder,
            store=store,
            evaluator=whole,
            parts=parts,
        )

    def with_curve(self, experiment: Experiment, session: AllPlans | None = None) -> Experiment:
        """Returns the experiment for the curve; in the emulation, ``session`` (None: a new one) runs all its plans."""
        builder = experiment.builder
        if experiment.strategy != EMULATION or not isinstance(builder, EmulatedBuilder):
            return experiment
        memory = self.options.memory_bytes // SHARE_KEPT
        evaluator = SwitchEvaluator(experiment.whole, builder, experiment.ranges.scales, memory, session)
        return replace(experiment, evaluator=evaluator)

    def fingerprint_parts(
        self, network: Network, builder: Builder, ranges: Ranges, feeds: Sequence[Feeds]
    ) -> dict[str, Any]:
        """Returns everything that the figures of a trial depend on, by name."""
        options, base, asked_task = self.options.build_options(), self.options.base_precision, self.options.asked_task()
        parts: dict[str, Any] = {
            "model": replace(network, base=Precision.FP32).digest(),
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
            "arithmetic": _ARITHMETIC,
        }
        if network.pipeline is not None:
            parts["pipeline"] = network.pipeline.digest
        if self.options.outputs:
            parts["outputs"] = sorted(self.options.outputs)
        if options.unquantized_round:
            parts["unquantized"] = "int8"
        if not base is options.high is Precision.FP32:
            parts["base"] = str(base)
        if self.judged_by is not None:
            parts["judged_by"] = self.judged_by.digest
        if asked_task is not None:
            parts["task"] = asked_task.facts()
        return parts
