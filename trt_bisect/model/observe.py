"""The tensors inside the FP32 network, seen while it runs over samples."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from trt_bisect.data import Feeds
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.file import INLINE_UNTIL_BYTES
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import Written
from trt_bisect.model.segments import Segments
from trt_bisect.model.session import CPU, make_session

_FLOAT_NOISE = 1e-3
_ANOTHER_NETWORK = 0.5


def observe(network: Network, names: Sequence[str], samples: Iterable[Feeds]) -> Iterator[dict[str, np.ndarray]]:
    """The tensors ``names`` of the FP32 network, inputs among them, a sample at a time. What is no tensor is left out.

    Raises:
        BadInput: ONNX Runtime refuses the network or a sample.
    """
    for parts in observe_in_parts(network, [names], samples):
        yield next(parts)


def observe_in_parts(
    network: Network, groups: Sequence[Sequence[str]], samples: Iterable[Feeds]
) -> Iterator[Iterator[dict[str, np.ndarray]]]:
    """As ``observe``, the tensors of a sample one group after another; no more than one group's are held at once.

    Raises:
        BadInput: ONNX Runtime refuses the network or, while its groups are asked for, a sample.
    """
    inside = [[name for name in names if name in network.producers] for names in groups]
    observer = Observer(Written(network.skeleton, dict(network.weights)), inside, network.source)

    def parts(feeds: Feeds, position: int) -> Iterator[dict[str, np.ndarray]]:
        seen = observer.see(feeds, position)
        for names in groups:
            yield {**next(seen), **{name: feeds[name] for name in names if name in feeds}}

    for position, feeds in enumerate(samples):
        yield parts(feeds, position)


class Observer:
    """A written graph with tensors inside it as outputs, in one session or in segments.

    Raises BadInput where a session cannot be made.

    Args:
        written: the graph.
        groups: the tensors, in groups that are seen one after another; they must be made in the graph.
        source: the network's file, for messages.

    Attributes:
        types: by tensor, ONNX Runtime's word for its type; empty in segments.
    """

    def __init__(self, written: Written, groups: Sequence[Sequence[str]], source: str) -> None:
        self._groups, self._source = [list(names) for names in groups], source
        self._segments = Segments(written, groups) if len(groups) > 1 else None
        self.types: dict[str, str] = {}
        if self._segments is None:
            outputs = _with_outputs(written.model, self._groups[0])
            with self._refusals(""):
                self._session = make_session(Written(outputs, written.weights))
            self.types = {output.name: output.type for output in self._session.get_outputs()}

    def see(self, feeds: Feeds, position: int) -> Iterator[dict[str, np.ndarray]]:
        """The tensors of each group on sample number ``position``. What is no tensor is left out.

        Raises:
            BadInput: ONNX Runtime refuses the sample.
        """
        seen = self._at_once(feeds) if self._segments is None else self._segments.run(feeds)
        while True:
            with self._refusals(f" on sample {position}"):
                values = next(seen, None)
            if values is None:
                return
            yield {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
            del values

    def _at_once(self, feeds: Feeds) -> Iterator[dict[str, Any]]:
        (names,) = self._groups
        yield dict(zip(names, self._session.run(names, feeds), strict=True)) if names else {}

    @contextmanager
    def _refusals(self, where: str) -> Iterator[None]:
        try:
            yield
        except TrialFailed as error:
            raise BadInput(
                f"ONNX Runtime cannot run '{self._source}': {error.message}",
                "Check the network with ONNX Runtime alone.",
            ) from error
        except Exception as error:
            raise BadInput(
                f"ONNX Runtime cannot run '{self._source}'{where}: {first_line(error)}",
                "Check the sample's shapes and values.",
            ) from error


def difference_noted(
    network: Network, feeds: Feeds, outputs: Sequence[str], prepared: Mapping[str, np.ndarray] | None = None
) -> list[str]:
    """The safety net under the preparation: what is to be said of ``difference_from_file``, whose arguments these are.

    Raises:
        BadInput: what is measured would not be the network in the file.
    """
    difference = difference_from_file(network, feeds, outputs, prepared)
    if difference > _ANOTHER_NETWORK:
        raise BadInput(
            f"'{network.source}' as prepared for measuring gives another output than the file, "
            f"{difference:.0%} off: trt-bisect would judge another network.",
            "Please report it with the network; simplifying it first (onnx-simplifier, Polygraphy) may help.",
        )
    if difference <= _FLOAT_NOISE:
        return []
    return [
        f"the prepared network and the file differ by {difference:.2g} of the output's norm on the first "
        "input: the output is almost zero there, or cancels, and figures closer than that mean nothing"
    ]


def difference_from_file(
    network: Network, feeds: Feeds, outputs: Sequence[str], prepared: Mapping[str, np.ndarray] | None = None
) -> float:
    """How far the FP32 network is from the file it came from: the largest |difference| / |output|, in norms.

    0 where there is nothing to compare: Q/DQ pairs were taken out, the file is too large to be loaded twice or is on
    another machine, ONNX Runtime cannot run it, or the output's length depends on the values (a detector's boxes),
    where float noise may change it.

    Args:
        network: as it was prepared.
        feeds: one sample.
        outputs: those that are compared.
        prepared: its FP32 outputs, where ONNX Runtime has run it already.
    """
    weights = sum(array.nbytes for array in network.weights.values())
    beside = network.has_file and Path(network.source).is_file()
    if network.has_pairs or weights > INLINE_UNTIL_BYTES or not beside:
        return 0.0
    try:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        file = ort.InferenceSession(network.source, options, providers=[CPU])
        names = [name for name in outputs if name in {output.name for output in file.get_outputs()}]
        originals = file.run(names, feeds)
    except Exception as error:
        logging.getLogger(__name__).debug("the file alone does not run: %s", error)
        return 0.0
    if prepared is None:
        session = make_session(Written(network.skeleton, dict(network.weights)))
        prepared = dict(zip(names, session.run(names, feeds), strict=True))
    pairs = zip(originals, (prepared[name] for name in names), strict=True)
    return max((_relative_difference(*pair) for pair in pairs), default=0.0)


def _relative_difference(original: np.ndarray, prepared: np.ndarray) -> float:
    if original.shape != prepared.shape:
        return 0.0 if original.ndim == prepared.ndim else 1.0
    finite = np.isfinite(original) & np.isfinite(prepared)
    if np.mean(np.isfinite(original) != np.isfinite(prepared)) > 0.5:
        return 1.0
    one, other = original[finite].astype(np.float64), prepared[finite].astype(np.float64)
    norm = float(np.linalg.norm(one))
    return float(np.linalg.norm(one - other)) / norm if norm else float(np.any(other))


def _with_outputs(skeleton: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    known = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return model
