"""The reference that a network is judged by, where it is not the network itself in FP32."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

from trt_bisect.builder.base import Outputs
from trt_bisect.data.array_files import inferences, match_names
from trt_bisect.data.datasets import Dataset, digest_of_feeds, open_dataset
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.measuring import MeasuringOptions
from trt_bisect.model.network import Network

if TYPE_CHECKING:
    from typing_extensions import Self

    from trt_bisect.jobs.reference_network import ReferenceNetwork

_BOTH = "Give with --load-outputs what the network gave for the samples of --input, in their order."


class Reference:
    """The base of engines whose outputs other networks are judged by: they report nothing on layers, and stay open."""

    ran: Mapping[int, str] = MappingProxyType({})
    messages: tuple[str, ...] = ()

    def latency(self, feeds: Feeds) -> None:
        """Returns None: a reference is not timed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keeps everything for the next use."""


class SavedOutputs(Reference):
    """Saved outputs in place of an engine, for the samples that they were saved for.

    Args:
        network: the network that is judged.
        samples: the samples in the order of the outputs.
        path: the path of the saved run.

    Attributes:
        digest: the digest of samples and outputs.

    Raises:
        BadInput: the run cannot be read, has another number of inferences, or none of the network's outputs.
    """

    def __init__(self, network: Network, samples: Dataset, path: Path) -> None:
        self._path, self._source = path, samples.source
        self._outputs: dict[str, Outputs] = {}
        sha, wanted = hashlib.sha256(), [spec.name for spec in network.outputs]
        for feeds, saved in zip_longest(samples, inferences(path)):
            if feeds is None or saved is None:
                fewer = f"'{path}'" if saved is None else f"'{samples.source}'"
                raise BadInput(f"{fewer} has too few samples: inputs and saved outputs differ in number.", _BOTH)
            names = match_names(wanted, saved)
            if not names:
                found, own = ", ".join(map(repr, saved)), ", ".join(map(repr, wanted))
                raise BadInput(f"'{path}' has none of the network's outputs ({own}): it has {found}.", _BOTH)
            outputs, key = {one: saved[other] for one, other in names.items()}, digest_of_feeds(feeds)
            self._outputs[key] = outputs
            sha.update(f"{key} {digest_of_feeds(outputs)}".encode())
        self.digest = sha.hexdigest()

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs that were saved for a sample.

        Raises:
            BadInput: there are none.
        """
        found = self._outputs.get(digest_of_feeds(feeds))
        if found is None:
            raise BadInput(
                f"'{self._path}' has outputs for '{self._source}' only, and other data is judged too.",
                "Give the calibration data as a cache, which 'trt-bisect calibrate' makes, or --reference.",
            )
        return dict(found)


def other_reference(
    options: MeasuringOptions, network: Network, inputs: Any, on_notes: Callable[[list[str]], None]
) -> ReferenceNetwork | SavedOutputs | None:
    """Returns the outputs that a network is judged by, from ``--reference`` or ``--load-outputs``; None without them.

    Raises:
        BadInput: a file cannot be used, or does not fit the network or the ``inputs``.
    """
    if options.load_outputs is not None:
        if inputs is None:
            raise BadInput("There are saved outputs, and no inputs that they belong to.", "Give --input.")
        on_notes([f"judged by the outputs in '{options.load_outputs}', not by those of the network in FP32"])
        samples = open_dataset(inputs, network.inputs, pictures=options.preprocessing())
        return SavedOutputs(network, samples, Path(options.load_outputs))
    if options.reference is None:
        return None
    from trt_bisect.jobs.reference_network import ReferenceNetwork

    return ReferenceNetwork(network, options.read(options.reference, None), on_notes)
