"""Reads tensors inside the FP32 network while it runs over samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx

from trt_bisect.data.feeds import Feeds, size_remedy
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import Written
from trt_bisect.model.segments import Segments
from trt_bisect.model.session import make_session
from trt_bisect.support.machine import ThreadsIfLong
from trt_bisect.support.plain_json import shape_text


def observe(network: Network, names: Sequence[str], samples: Iterable[Feeds]) -> Iterator[dict[str, np.ndarray]]:
    """Runs the FP32 network over samples and yields its tensors ``names``, which may include inputs, for each sample.

    Sequences and optional values are left out.

    Raises:
        BadInput: ONNX Runtime refuses the network or a sample.
    """
    for parts in observe_in_parts(network, [names], samples):
        yield next(parts)


def observe_in_parts(
    network: Network, groups: Sequence[Sequence[str]], samples: Iterable[Feeds]
) -> Iterator[Iterator[dict[str, np.ndarray]]]:
    """Does the same as ``observe``, but yields the tensors of each sample group by group.

    The tensors of one group are held at a time, and those that later groups need.

    Raises:
        BadInput: ONNX Runtime refuses the network or, while its groups are asked for, a sample.
    """
    inside = [[name for name in names if name in network.producers] for names in groups]
    observer = Observer(Written(network.skeleton, dict(network.weights)), inside, network.source)

    def parts(feeds: Feeds, position: int) -> Iterator[dict[str, np.ndarray]]:
        seen = observer.run(feeds, position)
        for names in groups:
            yield {**next(seen), **{name: feeds[name] for name in names if name in feeds}}

    for position, feeds in enumerate(samples):
        yield parts(feeds, position)


def observe_ahead(
    network: Network, groups: Sequence[Sequence[str]], samples: Iterable[Feeds]
) -> Iterator[dict[str, np.ndarray]]:
    """Yields what ``observe_in_parts`` does, one group after another, sample after sample.

    While the caller works on one group, another thread computes the next one, so that two are held. Samples are asked
    for in the caller's thread: they may come from a user's function.

    Raises:
        BadInput: as for ``observe_in_parts``.
    """
    with ThreadsIfLong(1) as other:
        coming: Future[dict[str, np.ndarray]] | None = None
        for parts in observe_in_parts(network, groups, samples):
            for _ in groups:
                following = other.submit(next, parts)
                if coming is not None:
                    yield coming.result()
                coming = following
        if coming is not None:
            yield coming.result()


class Observer:
    """Runs a written graph, in one session or in segments, and returns tensors inside it.

    Args:
        written: the graph.
        groups: the tensors, in groups that are read one after another; nodes of the graph must make them.
        source: the network's file, for messages.

    Attributes:
        types: by tensor, ONNX Runtime's name of its type; empty if the graph runs in segments.

    Raises:
        BadInput: ONNX Runtime refuses the graph.
    """

    def __init__(self, written: Written, groups: Sequence[Sequence[str]], source: str) -> None:
        self._groups, self._source = [list(names) for names in groups], source
        self._shapes = [[d.dim_value for d in each.type.tensor_type.shape.dim] for each in written.model.graph.input]
        self._segments = Segments(written, groups) if len(groups) > 1 else None
        self.types: dict[str, str] = {}
        if self._segments is None:
            outputs = with_outputs(written.model, self._groups[0])
            with self._errors_named(""):
                self._session = make_session(Written(outputs, written.weights))
            self.types = {output.name: output.type for output in self._session.get_outputs()}

    def run(self, feeds: Feeds, position: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields the tensors of each group by name for sample number ``position``.

        Sequences and optional values are left out.

        Raises:
            BadInput: ONNX Runtime refuses the sample.
        """
        shapes = ", ".join(f"'{name}' {shape_text(array.shape)}" for name, array in feeds.items())
        seen = self._at_once(feeds) if self._segments is None else self._segments.run(feeds)
        while True:
            with self._errors_named(f" on sample {position} ({shapes})"):
                values = next(seen, None)
            if values is None:
                return
            yield {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
            del values

    def _at_once(self, feeds: Feeds) -> Iterator[dict[str, Any]]:
        (names,) = self._groups
        yield dict(zip(names, self._session.run(names, feeds), strict=True)) if names else {}

    @contextmanager
    def _errors_named(self, where: str) -> Iterator[None]:
        try:
            yield
        except TrialFailed as error:
            raise BadInput(
                f"ONNX Runtime cannot run '{self._source}': {error.message}",
                "Check the network with ONNX Runtime itself.",
            ) from error
        except Exception as error:
            raise BadInput(
                f"ONNX Runtime cannot run '{self._source}'{where}: {first_line(error)}",
                size_remedy(self._shapes, "Check the sample's shapes and values."),
            ) from error


def with_outputs(skeleton: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Returns a copy of ``skeleton`` with the tensors ``names`` as outputs, too."""
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    known = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return model
