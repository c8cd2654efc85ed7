"""TensorBoard's log folder: the names of runs and tags, the folder itself, and the event file of a run.

The folder is checked before anything is measured, and cleared of the logs of earlier commands. Events are written by
the package's ``RecordWriter``, the part of its ``EventFileWriter`` that knows the format. The other part is a thread
that loads TensorFlow if it is installed, and prints a traceback if the disk is full. Scalars and histograms are
``simple_value`` and ``HistogramProto``, as PyTorch's SummaryWriter writes them: every reader knows them, and
TensorBoard converts them when it loads them (its ``data_compat.py``).
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from trt_bisect.analyzer.histograms import Histogram
from trt_bisect.analyzer.origins import INPUT, Origin
from trt_bisect.errors import BadInput, first_line, install
from trt_bisect.support.files import make_folder, unwritable

FP32, INT8, ROUNDED = "fp32", "int8", "int8_rounded"
CURVE = "curve"
"""The run of the curve, which belongs to no plan."""
PLANS = "plans"
"""The run with the figures of all plans that were measured."""
RUN = re.compile(r"(baseline|tune_\d+)(_[a-z0-9_]+_.+)?|curve|plans")


def run_name(number: int, metric: str = "", score: float | None = None, accuracy: float | None = None) -> str:
    """Returns the name of the run of a plan, such as ``tune_2_acc_0.973000`` or ``tune_3_cosine_0.998700``.

    It ends in the accuracy where one was measured, else in the metric and its value, else in neither: a similarity is
    never called an accuracy. Six digits tell 0.9999 from 0.99999.

    Args:
        number: the number of the plan, from 1 on; 0 for the baseline, FP32.
        metric: the name of the metric.
        score: its value; None where it was not measured, and for the baseline, whose similarity says nothing.
        accuracy: on labelled data, or of the user's function; None where it was not measured.
    """
    name = f"tune_{number}" if number else "baseline"
    if accuracy is not None:
        return f"{name}_acc_{accuracy:#.6g}"
    word = re.sub(r"[^a-z0-9_]", "_", metric.lower())
    return name if score is None else f"{name}_{word}_{score:#.6g}"


def layer_tags(names: Iterable[str]) -> dict[str, str]:
    """Returns the beginning of each layer's tags, by layer name; all differ.

    TensorBoard groups cards by the text before a tag's first slash. A name's leading slashes are removed, since a group
    needs a name.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        short = name.lstrip("/") or "_"
        tag, number = short, 1
        while tag in taken:
            tag, number = f"{short}_{number}", number + 1
        taken.add(tag)
        found[name] = tag
    return found


def output_tags(origins: Iterable[Origin], layers: Mapping[str, str]) -> dict[str, str]:
    """Returns the tag of each tensor: ``<layer>/output``, ``<layer>/output_1`` for the second, ``<input>/input``.

    Args:
        origins: the origins of the tensors; one without a layer is named by the tensor.
        layers: the beginnings of the layers' tags.
    """
    found, counts = {}, dict.fromkeys(layers, 0)
    for origin in origins:
        if origin.kind == INPUT:
            found[origin.tensor] = f"{origin.tensor.lstrip('/')}/input"
            continue
        name = origin.layer or origin.tensor
        number = counts[name]
        counts[name] += 1
        found[origin.tensor] = numbered(f"{layers[name]}/output", number)
    return found


def input_tags(origins: Iterable[Origin], layers: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Returns by tensor each layer that reads it, with its tag there: ``<layer>/input``, ``<layer>/input_1``.

    Args:
        origins: the origins of all tensors.
        layers: the beginnings of the layers' tags; other layers are ignored.
    """
    known = {origin.tensor: origin for origin in origins}
    taken = {f"{name.lstrip('/')}/input" for name, origin in known.items() if origin.kind == INPUT}
    found: dict[str, list[tuple[str, str]]] = {}
    for layer, read in {origin.layer: origin.inputs for origin in known.values() if origin.layer in layers}.items():
        tags = (tag for tag in (numbered(f"{layers[layer]}/input", k) for k in count()) if tag not in taken)
        for tensor in read:
            if tensor in known:
                found.setdefault(tensor, []).append((layer, next(tags)))
    return found


def numbered(tag: str, number: int) -> str:
    """Returns the tag of item ``number`` of a layer: ``tag``, ``tag_1``, ``tag_2``."""
    return f"{tag}_{number}" if number else tag


OPTION = "--tensorboard"
SUFFIX = ".trt-bisect"
"""The end of an event file's name that marks it as written by trt-bisect, which may remove it."""


@dataclass(frozen=True)
class Board:
    """The log folder and its options.

    Attributes:
        folder: TensorBoard's ``--logdir``; each run is a folder in it.
        channels: the number of channels of a tensor that get histograms.
        samples: the number of samples that get histograms of their own.
        plans: the number of plans of a run.
    """

    folder: Path
    channels: int = 0
    samples: int = 0
    plans: int = 20

    def clear(self) -> None:
        """Removes the runs that earlier commands wrote here; other files stay.

        Raises:
            BadInput: they cannot be removed.
        """
        try:
            for run in [path for path in self.folder.iterdir() if path.is_dir() and RUN.fullmatch(path.name)]:
                for file in run.glob(f"events.out.tfevents.*{SUFFIX}"):
                    file.unlink()
                if not any(run.iterdir()):
                    run.rmdir()
        except OSError as error:
            raise unwritable(self.folder, error, OPTION) from error


def open_board(folder: str | Path | None, detail: Mapping[str, int] | None = None) -> Board | None:
    """Returns the board, None without a folder.

    Args:
        folder: the folder for the logs; it is made if it is missing.
        detail: the numbers of ``Board``.

    Raises:
        BadInput: the package is not installed, or the folder is missing or cannot be written.
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
"""The version in the first event of a file."""


class LogRun:
    """Writes a run's scalars, histograms, texts and graph; raises BadInput if the folder cannot be written."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder = make_folder(folder, OPTION)
        try:
            file = (folder / f"events.out.tfevents.{int(time.time()):010d}.{os.getpid()}{SUFFIX}").open("wb")
        except OSError as error:
            raise unwritable(folder, error, OPTION) from error
        self._writer = RecordWriter(file)
        self._add(0, file_version=_VERSION)

    def __enter__(self) -> LogRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._writer.close()
        except OSError as failure:
            raise unwritable(self._folder, failure, OPTION) from failure

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Writes a figure at a step, as float32."""
        self._add_value(step, tag=tag, simple_value=value)

    def text(self, tag: str, markdown: str) -> None:
        """Writes a text in Markdown; text from strangers must be escaped by ``markdown.literal``."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add(0, summary=text_pb(tag, markdown))

    def texts(self, **texts: str) -> None:
        """Writes the texts that are not empty, each under its name."""
        for tag, text in texts.items():
            if text:
                self.text(tag, text)

    def histogram(self, tag: str, seen: Histogram, step: int = 0) -> None:
        """Writes a histogram at a step; one without values stays empty."""
        from tensorboard.compat.proto.summary_pb2 import HistogramProto

        histogram = HistogramProto(bucket_limit=seen.edges[1:], bucket=seen.counts)
        if seen.edges.size:
            histogram.min, histogram.max = seen.edges[0], seen.edges[-1]
            histogram.num, histogram.sum, histogram.sum_squares = seen.counts.sum(), seen.sum, seen.squares
        self._add_value(step, tag=tag, histo=histogram)

    def graph(self, graph: Any) -> None:
        """Writes the network, a GraphDef."""
        self._add(0, graph_def=graph.SerializeToString())

    def _add_value(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, summary=Summary(value=[Summary.Value(**content)]))

    def _add(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        try:
            self._writer.write(Event(wall_time=time.time(), step=step, **content).SerializeToString())
        except OSError as error:
            raise unwritable(self._folder, error, OPTION) from error
