"""One run in TensorBoard's log folder: an event file.

Events are written by the package's ``RecordWriter``, the part of its ``EventFileWriter`` that knows the format. The
other part is a thread that loads TensorFlow if it is installed, and prints a traceback if the disk is full. Scalars and
histograms are ``simple_value`` and ``HistogramProto``, as PyTorch's SummaryWriter writes them: every reader knows them,
and TensorBoard converts them when it loads them (its ``data_compat.py``).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from trt_bisect.analyzer.histograms import Histogram
from trt_bisect.report.tensorboard.board import OPTION, SUFFIX
from trt_bisect.support.files import make_folder, unwritable

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
