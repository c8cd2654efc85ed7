"""The reference and the rule that a network is judged by: the network in FP32, saved outputs, or another network."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from trt_bisect.analyzer.compare_output import finite_rows
from trt_bisect.analyzer.integers import integers_of
from trt_bisect.analyzer.judge import DEFAULT_SHARE, Rule, make_rule, numeric_outputs, outputs_to_judge
from trt_bisect.analyzer.metrics import AGREEMENT, EQUAL, FRACTIONS, RELATIVE, Metric, find_metric
from trt_bisect.analyzer.slices import Slices, find_slices, output_of
from trt_bisect.analyzer.tasks.find import find_task, suggestion
from trt_bisect.analyzer.tasks.task import Task
from trt_bisect.builder.base import Outputs
from trt_bisect.data.datasets import Dataset, digest_of_feeds, open_dataset
from trt_bisect.data.feeds import Feeds, match_names
from trt_bisect.data.saved import inferences_for
from trt_bisect.errors import BadInput
from trt_bisect.model.matching import match_layers
from trt_bisect.model.network import Network
from trt_bisect.model.observe import Observer, facts_for
from trt_bisect.options.concerns import COSINE, JudgeOptions, MeasuringOptions, NetworkOptions
from trt_bisect.preparation.asked_network import read_network
from trt_bisect.preparation.two_networks import AsItRuns, Planned, as_it_runs, feeds_between

_SAME = "Give a reference with the same names of outputs."
_BOTH = "Give with --reference what the network gave for the samples of --input, in their order."


class Reference(AbstractContextManager["Reference"]):
    """An engine whose outputs a network is judged by.

    Attributes:
        digest: the digest of the reference and, with saved outputs, of the samples.
        names: by layer index in the judged network, the matching layer of the reference; empty if unknown.
    """

    digest: str
    names: Mapping[int, str] = MappingProxyType({})
    ran: Mapping[int, str] = MappingProxyType({})
    messages: tuple[str, ...] = ()

    @abstractmethod
    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs for a sample, by the names of the judged network's outputs."""

    def latency(self, feeds: Feeds) -> None:
        """Returns None: a reference is not timed."""

    def __exit__(self, *_: object) -> None:
        """Stays open for the next use."""


class SavedOutputs(Reference):
    """Saved outputs as the reference, for the samples that they were saved for.

    Raises:
        BadInput: the file cannot be read, or does not fit the samples or the network's outputs.
    """

    def __init__(self, network: Network, samples: Dataset, path: Path) -> None:
        self._path, self._source = path, samples.source
        self._outputs: dict[str, Outputs] = {}
        sha, judged = hashlib.sha256(), [spec.name for spec in network.outputs]
        keys = samples.digests
        for key, saved in zip(keys, inferences_for(path, len(keys), network.outputs), strict=True):
            outputs = _under_their_names(judged, saved, str(path), _BOTH)
            self._outputs[key] = outputs
            sha.update(f"{key} {digest_of_feeds(outputs)}".encode())
        self.digest = sha.hexdigest()

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs that were saved for a sample; raises BadInput if there are none."""
        outputs = self._outputs.get(digest_of_feeds(feeds))
        if outputs is None:
            raise BadInput(
                f"'{self._path}' has outputs for '{self._source}' only, but other data is judged too.",
                "Give the calibration data as a cache, which 'trt-bisect calibrate' makes, or --reference.",
            )
        return dict(outputs)


def other_reference(
    options: MeasuringOptions, network: Network, inputs: Any, on_notes: Callable[[list[str]], None]
) -> Reference | None:
    """Returns the reference that ``--reference`` names, saved outputs or a network; None without ``--reference``.

    ``inputs`` are the samples that saved outputs belong to; ``on_notes`` gets notes for the report. Raises BadInput if
    a file cannot be used, or does not fit.
    """
    saved = options.saved_outputs
    if saved is not None:
        if inputs is None:
            raise BadInput("The saved outputs need the inputs that they belong to.", "Give --input.")
        on_notes([f"judged by the outputs in '{saved}', not by those of the network in FP32"])
        samples = open_dataset(inputs, network.inputs, pictures=options.preprocessing())
        return SavedOutputs(network, samples, saved)
    if options.reference is None:
        return None
    reference = outputs_of(options.reference, network, options, on_notes)
    how = "which runs as it is, " if isinstance(reference, ReferenceAsItRuns) else ""
    on_notes([f"judged by the outputs of '{reference.source}', {how}not by the network's own outputs in FP32"])
    return reference


def outputs_of(
    other: Any, network: Network, options: NetworkOptions, on_notes: Callable[[list[str]], None]
) -> ReferenceAsItRuns | ReferenceNetwork:
    """Returns an engine that runs another network unchanged, with its outputs under the names of ``network``'s.

    Raises BadInput if the other network cannot be read, or its inputs cannot be matched.
    """
    runs = as_it_runs(other, options)
    if runs is not None:
        return ReferenceAsItRuns(network, runs)
    return ReferenceNetwork(network, read_network(options, other, None), on_notes)


class ReferenceAsItRuns(Reference):
    """A dynamically quantized network, a session, a function or a PyTorch module as the reference."""

    def __init__(self, network: Network, runs: AsItRuns) -> None:
        self._names, self._runs = [spec.name for spec in network.outputs], runs
        self.source, self.digest = runs.source, runs.digest

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs for a sample; raises BadInput if the run fails, or gives none of the network's
        outputs.
        """
        tensors = self._runs.tensors(feeds)
        results = [tensor for place, tensor in self._runs.modules() if not place.path and tensor in tensors]
        if len(results) == len(self._names) and not match_names(self._names, tensors):
            tensors = {name: tensors[result] for name, result in zip(self._names, results, strict=True)}
        return _under_their_names(self._names, tensors, self._runs.source, _SAME)


def _under_their_names(names: Sequence[str], tensors: Outputs, source: str, remedy: str) -> Outputs:
    outputs = {name: tensors[other] for name, other in match_names(names, tensors).items()}
    if not outputs:
        ours, theirs = ", ".join(map(repr, names)), ", ".join(map(repr, tensors))
        raise BadInput(f"'{source}' has none of the network's outputs ({ours}): it has {theirs}.", remedy)
    return outputs


class ReferenceNetwork(Reference):
    """Another network, run unchanged on ONNX Runtime, as the reference for ``network``.

    Layers are matched on the first sample; ``on_notes`` gets notes on the matching.

    Raises:
        BadInput: the inputs of the networks cannot be matched.
    """

    def __init__(self, network: Network, reference: Network, on_notes: Callable[[list[str]], None]) -> None:
        self._network, self._reference, self._on_notes = network, reference, on_notes
        self._theirs = feeds_between(network, reference)
        self.source = reference.source
        self._outputs: dict[str, str] = {}
        self._observer: Observer | None = None
        self.digest = reference.digest()

    def _opened(self, feeds: Feeds, theirs: Feeds) -> Observer:
        network, reference = self._network, self._reference
        shapes, other_shapes = facts_for(network, feeds).shapes, facts_for(reference, theirs).shapes
        matching = match_layers(network.with_shapes(shapes), reference.with_shapes(other_shapes))
        pairs = [(match.first, match.second) for match in matching.pairs.values()]
        self.names = {mine.index: theirs.title or theirs.name for mine, theirs in pairs if mine and theirs}
        for spec in network.outputs:
            other = matching.tensors.get(spec.name, "")
            if other and shapes.get(spec.name) == other_shapes.get(other):
                self._outputs[spec.name] = other
        missing = ", ".join(repr(spec.name) for spec in network.outputs if spec.name not in self._outputs)
        if not self._outputs:
            problem = f"No output of '{network.source}' ({missing}) is one of '{reference.source}'."
            raise BadInput(problem, "Give a reference with the same outputs, of the same shapes.")
        notes = matching.notes(network.source, reference.source)
        if missing:
            notes.append(f"not judged, because the reference has no such outputs: {missing}")
        self._on_notes(notes)
        as_is = Planned.as_in_file(reference)
        return Observer(as_is.writer.write(as_is.plan), [list(self._outputs.values())], reference.source)

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs for a sample; raises BadInput if no output matches, or ONNX Runtime refuses the
        sample.
        """
        theirs = self._theirs(feeds)
        if self._observer is None:
            self._observer = self._opened(feeds, theirs)
        seen = next(self._observer.run(theirs, 0))
        return {name: seen[other] for name, other in self._outputs.items() if other in seen}


class Judgement:
    """The metric, the task and the rule that a network's outputs are judged by.

    Attributes:
        told: FP32's outputs for more inputs than the judged ones, to recognize a detector's outputs by; else empty.
        integers: the outputs to compare in special ways, such as indices in any order.
    """

    def __init__(self, options: JudgeOptions, network: Network) -> None:
        self.options = options
        self.told: list[Outputs] = []
        self.integers = integers_of(network)
        self._source, self._low = network.source, network.low.precision

    @cached_property
    def asked_metric(self) -> Metric:
        """The metric that the options name; with a task, the agreement of the task's results with FP32's."""
        return AGREEMENT if self.options.task is not None else find_metric(self.options.metric)

    @property
    def threshold(self) -> float | None:
        """The worst acceptable value that the user gives; None for the metric's default."""
        return None if self.options.threshold is None else float(self.options.threshold)

    def outputs(self, outputs: Outputs) -> tuple[str, ...]:
        """Returns the names of the judged outputs: those that the user names, else all arrays of numbers.

        A user's own metric judges only floats if there are any. Raises BadInput if no output is left, or one that the
        user names is no array of numbers.
        """
        own_metric = bool(self.asked_metric.code)
        judged = list(self.options.outputs) or outputs_to_judge(outputs, self.integers, own_metric=own_metric)
        useless = [name for name in judged if name not in numeric_outputs(outputs)]
        if useless or not judged:
            problem = f"'{self._source}' has no output that can be judged: all outputs are texts, sequences or maps."
            raise BadInput(problem, "Cut the network before the nodes that make these outputs.")
        return tuple(judged)

    def slices(self, outputs: tuple[str, ...], reference: Sequence[Outputs]) -> Slices:
        """Returns the outputs' parts, each judged by itself under a relative metric; none for a user's own metric."""
        metric = self.asked_metric
        return Slices() if metric.code else find_slices(reference, outputs, apart=metric.name in RELATIVE)

    def rule(self, outputs: tuple[str, ...], reference: Sequence[Outputs]) -> Rule:
        """Returns the metric and its threshold for the named outputs; raises BadInput if the threshold does not fit."""
        metric, entries = self.metric(outputs, reference), self.entries(outputs)
        threshold = self.threshold
        if metric is EQUAL and self.asked_metric.name not in FRACTIONS:
            threshold = None  # in decibels or of an error, it is none for a share of equal elements
        return make_rule(metric, threshold, DEFAULT_SHARE, entries, self._low)

    def entries(self, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the names of the figures that decide a trial: those of the judged outputs, or that of the task."""
        asked_task = self.options.asked_task()
        return outputs if asked_task is None else (asked_task.entry,)

    def task(self, reference: Sequence[Outputs]) -> Task | None:
        """Returns the task that the options name, None without one; raises BadInput if FP32's outputs do not fit it."""
        asked_task = self.options.asked_task()
        return None if asked_task is None else find_task(asked_task, self._numbers([*self.told, *reference]))

    def checked_task(self, reference: Sequence[Outputs]) -> tuple[Task | None, list[str]]:
        """Returns the task and a note on how it reads the outputs; or None and a note on the task, if any, that the
        outputs would fit.

        Raises BadInput if the outputs do not fit the task, or FP32 gives nothing to judge.
        """
        task = self.task(reference)
        if task is not None:
            task.check(reference)
            return task, [task.note]
        hint = suggestion(self._numbers([*self.told, *reference])) if self.options.metric == COSINE else ""
        return None, [hint] if hint else []

    def _numbers(self, reference: Sequence[Outputs]) -> list[Outputs]:
        names = [n for n in numeric_outputs(reference[0]) if n in (self.options.outputs or reference[0])]
        return [{name: outputs[name] for name in names} for outputs in reference]

    def metric(self, outputs: tuple[str, ...], reference: Sequence[Outputs]) -> Metric:
        """Returns the options' metric, or if all outputs are integers, the share of equal elements."""
        metric = self.asked_metric
        by_equality = self.integers.of(reference[0])
        if metric is not AGREEMENT and not metric.code and all(output_of(name) in by_equality for name in outputs):
            return EQUAL
        if metric.perfect is not None:
            return metric
        judged = [sample[name] for name in outputs for sample in reference]
        return metric.knowing_perfect(*filter(np.size, map(finite_rows, judged)))
