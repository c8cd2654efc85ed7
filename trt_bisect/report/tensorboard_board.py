"""TensorBoard's log folder, event files, and histograms of tensors and weights."""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.analyzer.histograms import GrowingHistogram, Histogram
from trt_bisect.analyzer.origins import INPUT, Origin, bias_names
from trt_bisect.errors import BadInput, first_line, install
from trt_bisect.model.layers import weight_axis
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import PlanWriter
from trt_bisect.model.quantizer import round_trips
from trt_bisect.support.files import make_folder, unwritable
from trt_bisect.support.machine import ThreadsIfLong, cores
from trt_bisect.support.memory import parts

FP32, INT8, ROUNDED = "fp32", "int8", "int8_rounded"
CURVE = "curve"
PLANS = "plans"
RUN = re.compile(r"(baseline|tune_\d+)(_[a-z0-9_]+_.+)?|curve|plans")


def run_name(number: int, metric: str = "", score: float | None = None, accuracy: float | None = None) -> str:
    """Returns the name of a plan's TensorBoard run: ``tune_2_acc_0.973000``, ``tune_3_cosine_0.998700``, ``tune_4``.

    Args:
        number: from 1; 0 for the baseline, FP32.
        accuracy: replaces the score in the name.
    """
    name = f"tune_{number}" if number else "baseline"
    if accuracy is not None:
        return f"{name}_acc_{accuracy:#.6g}"
    word = re.sub(r"[^a-z0-9_]", "_", metric.lower())
    return name if score is None else f"{name}_{word}_{score:#.6g}"


def layer_tags(names: Iterable[str], network: Network | None = None) -> dict[str, str]:
    """Returns by layer a unique prefix of its TensorBoard tags: the name in the user's program, if known."""
    tags: dict[str, str] = {}
    taken: set[str] = set()
    titles = {layer.name: layer.title for layer in network.layers if layer.title} if network is not None else {}
    for name in names:
        # TensorBoard groups cards by the text before a tag's first slash.
        tags[name] = unused(titles.get(name, name).lstrip("/") or "_", taken)
        taken.add(tags[name])
    return tags


def output_tags(origins: Iterable[Origin], layers: Mapping[str, str]) -> dict[str, str]:
    """Returns by tensor of ``origins`` its tag: ``<layer>/output``, ``<layer>/output_1``, ``<input>/input``.

    ``layers`` has prefixes of tags by layer, or by tensor if it has no layer.
    """
    tags, counts = {}, dict.fromkeys(layers, 0)
    for origin in origins:
        if origin.kind == INPUT:
            tags[origin.tensor] = f"{origin.tensor.lstrip('/')}/input"
            continue
        name = origin.layer or origin.tensor
        number = counts[name]
        counts[name] += 1
        tags[origin.tensor] = numbered(f"{layers[name]}/output", number)
    return tags


def input_tags(origins: Iterable[Origin], layers: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Returns by tensor of ``origins`` pairs: a layer of ``layers`` that reads it, and a tag such as
    ``<layer>/input_1``.
    """
    by_tensor = {origin.tensor: origin for origin in origins}
    taken = {f"{name.lstrip('/')}/input" for name, origin in by_tensor.items() if origin.kind == INPUT}
    readers: dict[str, list[tuple[str, str]]] = {}
    for layer, read in {origin.layer: origin.inputs for origin in by_tensor.values() if origin.layer in layers}.items():
        tags = (tag for tag in (numbered(f"{layers[layer]}/input", k) for k in count()) if tag not in taken)
        for tensor in read:
            if tensor in by_tensor:
                readers.setdefault(tensor, []).append((layer, next(tags)))
    return readers


def numbered(tag: str, number: int) -> str:
    """Returns ``tag``, ``tag_1``, ``tag_2`` for the numbers 0, 1, 2."""
    return f"{tag}_{number}" if number else tag


def unused(tag: str, taken: Container[str]) -> str:
    """Returns the tag with the smallest suffix that makes it differ from those taken."""
    return next(name for name in (numbered(tag, number) for number in count()) if name not in taken)


OPTION = "--tensorboard"
SUFFIX = ".trt-bisect"
"""The suffix of event files that trt-bisect wrote and may remove."""


@dataclass(frozen=True)
class Board:
    """TensorBoard's log folder, and the options of the logs.

    Attributes:
        folder: TensorBoard's ``--logdir``.
        channels: the number of channels of a tensor with histograms of their own.
        samples: the number of samples with histograms of their own.
        plans: the most plans with histograms.
        only, layers: patterns and names of the layers with histograms; empty or None for all.
    """

    folder: Path
    channels: int = 0
    samples: int = 0
    plans: int = 20
    only: Sequence[str] = ()
    layers: frozenset[str] | None = None

    def clear(self) -> None:
        """Removes the TensorBoard runs of earlier commands, and no other file; raises BadInput if this fails."""
        try:
            for run in [path for path in self.folder.iterdir() if path.is_dir() and RUN.fullmatch(path.name)]:
                for file in run.glob(f"events.out.tfevents.*{SUFFIX}"):
                    file.unlink()
                if not any(run.iterdir()):
                    run.rmdir()
        except OSError as error:
            raise unwritable(self.folder, error, OPTION) from error


def open_board(folder: str | Path | None, detail: Mapping[str, Any] | None = None) -> Board | None:
    """Returns the log folder with the options ``detail`` (fields of ``Board``); None if ``folder`` is None.

    Raises BadInput if TensorBoard is not installed, the folder is not writable, or ``detail`` has no folder.
    """
    if folder is None:
        if detail:
            raise BadInput("There is no folder for TensorBoard's logs.", "Give --tensorboard LOGDIR too.")
        return None
    try:
        importlib.import_module("tensorboard.summary.writer.record_writer")
    except ImportError as error:
        raise BadInput(
            f"TensorBoard's logs need the package 'tensorboard': {first_line(error)}",
            f"Install it: {install('tensorboard')}",
        ) from error
    return Board(make_folder(Path(folder), OPTION), **detail or {})


_VERSION = "brain.Event:2"


@contextmanager
def log_run(folder: Path) -> Iterator[LogRun]:
    """In this context, writes a TensorBoard run into a folder; raises BadInput if the folder cannot be written."""
    # A thread of EventFileWriter loads TensorFlow if installed, and prints a traceback if the disk is full.
    from tensorboard.summary.writer.record_writer import RecordWriter

    make_folder(folder, OPTION)
    try:
        name = f"events.out.tfevents.{int(time.time()):010d}.{os.getpid()}{SUFFIX}"
        with closing(RecordWriter((folder / name).open("wb"))) as writer:
            yield LogRun(writer)
    except OSError as error:
        raise unwritable(folder, error, OPTION) from error


class LogRun:
    """A TensorBoard run that is written (``log_run``)."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._add(0, file_version=_VERSION)

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Writes a figure at a step."""
        self._add_value(step, tag=tag, simple_value=value)

    def texts(self, **texts: str) -> None:
        """Writes by tag the texts that are not empty, as Markdown; users' text must be escaped by ``literal``."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        for tag, text in texts.items():
            if text:
                self._add(0, summary=text_pb(tag, text))

    def histogram(self, tag: str, histogram: Histogram, step: int = 0) -> None:
        """Writes a histogram at a step."""
        from tensorboard.compat.proto.summary_pb2 import HistogramProto

        proto = HistogramProto(bucket_limit=histogram.edges[1:], bucket=histogram.counts)
        if histogram.edges.size:
            proto.min, proto.max = histogram.edges[0], histogram.edges[-1]
            proto.num, proto.sum, proto.sum_squares = histogram.counts.sum(), histogram.sum, histogram.squares
        self._add_value(step, tag=tag, histo=proto)

    def graph(self, graph: Any) -> None:
        """Writes a network's graph, a TensorFlow GraphDef."""
        self._add(0, graph_def=graph.SerializeToString())

    def _add_value(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, summary=Summary(value=[Summary.Value(**content)]))

    def _add(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), step=step, **content).SerializeToString())


_BUCKETS, _CHANNEL_BINS, _CHANNEL_BUCKETS = 64, 128, 32


class LoudChannels:
    """Chooses at most ``most`` channels of a tensor: those with the largest magnitudes on the first sample."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._chosen: dict[str, tuple[int, np.ndarray]] = {}

    def of(self, tag: str, values: np.ndarray, axis: int | None) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the indices of the chosen channels, ascending, and their values ``[channels, values]``.

        None without channels, or if their number changed since the first sample.
        """
        if not self._most or axis is None or values.ndim < 2:
            return None
        rows = np.moveaxis(values, axis % values.ndim, 0)
        rows = rows.reshape(len(rows), -1)
        if tag not in self._chosen:
            peaks = np.max(np.abs(rows), axis=1, where=np.isfinite(rows), initial=0.0)
            self._chosen[tag] = len(rows), np.sort(np.argsort(-peaks, kind="stable")[: self._most])
        count, chosen = self._chosen[tag]
        return (chosen, rows[chosen]) if len(rows) == count else None


class ChannelHistograms:
    """Histograms of a tensor, its channels and its first ``samples`` samples."""

    def __init__(self, samples: int = 0) -> None:
        self._most, self._samples = samples, list[Histogram]()
        self.whole = GrowingHistogram()
        self._channels: GrowingHistogram | None = None
        self._numbers = np.zeros(0, np.int64)

    def add(self, values: np.ndarray, channels: tuple[np.ndarray, np.ndarray] | None) -> None:
        """Adds a sample's values; ``channels``: the indices and values of chosen channels."""
        flat = values.reshape(1, -1)
        of_sample = [GrowingHistogram()] if len(self._samples) < self._most else []
        for part in parts(values.size):
            for histogram in (self.whole, *of_sample):
                histogram.add(flat[:, part])
        self._samples += [histogram.seen(most=_BUCKETS) for histogram in of_sample]
        if channels is not None:
            self._numbers, rows = channels
            self._channels = self._channels or GrowingHistogram(len(rows), _CHANNEL_BINS)
            self._channels.add(rows)

    def write(self, run: LogRun, tag: str) -> None:
        """Writes the histograms to ``tag``, and as steps to ``<tag>/channels`` and ``<tag>/samples``."""
        run.histogram(tag, self.whole.seen(most=_BUCKETS))
        for step, histogram in enumerate(self._samples):
            run.histogram(f"{tag}/samples", histogram, step)
        if self._channels is not None:
            for group, number in enumerate(self._numbers):
                run.histogram(f"{tag}/channels", self._channels.seen(group, _CHANNEL_BUCKETS), int(number))


class TensorHistograms:
    """Histograms of float tensors, added sample by sample.

    Args:
        kind: ``fp32``: count the values as they are; ``int8``: also as rounded; ``int8_rounded``: only as rounded.
        origins: the tensors to count, by name.
        layers: by layer name, the prefix of its histograms' tags; other layers have no histograms.
        samples: the number of first samples with histograms of their own.
    """

    def __init__(
        self,
        kind: str,
        origins: Mapping[str, Origin],
        layers: Mapping[str, str],
        channels: LoudChannels,
        samples: int = 0,
    ) -> None:
        self.kind, self._origins, self._channels, self._samples = kind, origins, channels, samples
        named = [maker for maker in origins.values() if maker.kind == INPUT or (maker.layer or maker.tensor) in layers]
        self._tags, self._reads = output_tags(named, layers), input_tags(origins.values(), layers)
        self._seen: dict[tuple[str, str], ChannelHistograms] = {}
        self._pool = ThreadsIfLong(cores())

    def add(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Adds a sample's tensors by name."""
        wanted = (name for name in self._origins if name in self._tags or name in self._reads)
        names = [name for name in wanted if name in tensors and tensors[name].dtype.kind == "f"]
        list(self._pool.map(lambda name: self._take(name, tensors[name]), names))

    def _take(self, name: str, values: np.ndarray) -> None:
        if self.kind != ROUNDED:
            self._count(name, self.kind, values)
        quantizers = self._origins[name].quantizers
        if self.kind != FP32 and quantizers:
            self._count(name, ROUNDED, round_trips(values, quantizers))

    def _count(self, name: str, kind: str, values: np.ndarray) -> None:
        channels = self._channels.of(f"tensor {name}", values, self._origins[name].channel_axis)
        self._seen.setdefault((name, kind), ChannelHistograms(self._samples)).add(values, channels)

    def write(self, run: LogRun) -> None:
        """Writes the histograms."""
        for tag, histograms in sorted(self._tagged(), key=lambda tagged: tagged[0]):
            histograms.write(run, tag)

    def _tagged(self) -> Iterator[tuple[str, ChannelHistograms]]:
        for (name, kind), histograms in self._seen.items():
            if name in self._tags:
                yield f"{self._tags[name]}/{kind}", histograms
            readers = self._origins[name].readers if self.kind != FP32 else ()
            for layer, tag in self._reads.get(name, ()):
                if (kind == ROUNDED) == (layer in readers):
                    yield f"{tag}/{FP32 if kind == FP32 else INT8}", histograms

    def not_finite(self) -> list[str]:
        """Returns a sentence on each tensor with NaN or infinite values."""
        of_tensors = ((key, histograms.whole) for key, histograms in self._seen.items() if key[0] in self._tags)
        counts = {f"{self._tags[name]}/{kind}": whole.nonfinite for (name, kind), whole in of_tensors}
        return [
            f"{tag}: {count} values are NaN or infinite, and in no histogram"
            for tag, count in sorted(counts.items())
            if count
        ]


def weights_of(network: Network, writer: PlanWriter, layers: Mapping[str, str]) -> Iterator[tuple[str, Origin]]:
    """Yields the TensorBoard tag and the origin of each float constant of ``layers`` that INT8 can round or that has
    two axes or more, and of the layers' biases. The origins of rounded constants have the quantizers of full INT8.

    ``layers``: by layer, the prefix of its tags.
    """
    types = network.types
    for layer in [layer for layer in network.layers if layer.name in layers]:
        node, tag = network.skeleton.graph.node[layer.index], layers[layer.name]
        roundings = {rounding.slot: rounding for rounding in layer.roundings if rounding.is_weight}
        biases = bias_names(network, layer)
        for slot, name in enumerate(node.input):
            rounding = roundings.get(slot)
            if not network.has_constant(name) or types.dtypes[name].kind != "f":
                continue
            if rounding is None and (len(types.shapes[name]) < 2 or name in biases):
                continue
            quantizers = writer.quantizers(layer, rounding) if rounding and layer.quantizable else ()
            axis = rounding.axis if rounding and rounding.axis is not None else weight_axis(node, slot, types)
            yield f"{tag}/weights", Origin(tensor=name, index=layer.index, quantizers=quantizers, channel_axis=axis)
        for name in biases:
            if types.dtypes[name].kind == "f":
                yield f"{tag}/bias", Origin(tensor=name, index=layer.index)


class WeightHistograms:
    """Histograms of weights: in FP32 and rounded, or of two networks."""

    def __init__(self, channels: LoudChannels) -> None:
        self._channels = channels
        self._made: dict[str, tuple[int | None, dict[str, ChannelHistograms]]] = {}

    def add(self, tag: str, axis: int | None, sides: Mapping[str, np.ndarray], layer: int | None = None) -> None:
        """Adds a weight with channels along ``axis``; ``tag`` gets a number if there is a weight with this tag.

        Args:
            sides: the weight's values by kind; without ``int8`` if nothing rounds the weight.
            layer: the index of the layer that rounds the weight; None if every plan does.
        """
        tag = unused(tag, self._made)
        self._made[tag] = layer, {}
        for kind, values in sides.items():
            histograms = self._made[tag][1][kind] = ChannelHistograms()
            histograms.add(values, self._channels.of(tag, values, axis))

    def write(self, run: LogRun, int8: Collection[int] | None = None) -> None:
        """Writes the histograms of the rounded weights of the layers ``int8``; None: of all weights in FP32."""
        kind = FP32 if int8 is None else INT8
        for tag, (layer, sides) in self._made.items():
            if kind in sides and (int8 is None or layer is None or layer in int8):
                sides[kind].write(run, f"{tag}/{kind}")
