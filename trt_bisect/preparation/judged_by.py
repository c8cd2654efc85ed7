"""The reference that a network is judged by where that is not itself in FP32: saved outputs, or another network."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trt_bisect.builder.base import Outputs
from trt_bisect.data.array_files import inferences, match_names
from trt_bisect.data.datasets import Dataset, digest_of_feeds, open_dataset
from trt_bisect.data.feeds import Feeds
from trt_bisect.data.named import code_digest
from trt_bisect.errors import BadInput
from trt_bisect.model.file import ONNX_TYPES, saved_model
from trt_bisect.model.matching import match_inputs, match_layers
from trt_bisect.model.network import Network
from trt_bisect.model.observe import Observer
from trt_bisect.model.shapes import facts_for
from trt_bisect.options.commands import MeasuringOptions
from trt_bisect.preparation.as_it_runs import AsItRuns, as_it_runs
from trt_bisect.preparation.asked_network import read_network
from trt_bisect.preparation.two_networks import AsInFile, renamed_feeds

if TYPE_CHECKING:
    from typing_extensions import Self


_SAME = "Give a reference with the same names of outputs."
_BOTH = "Give with --reference what the network gave for the samples of --input, in their order."


class Reference:
    """The base of engines whose outputs other networks are judged by: they report nothing on layers, and stay open."""

    ran: Mapping[int, str] = MappingProxyType({})
    messages: tuple[str, ...] = ()

    def latency(self, feeds: Feeds) -> None:
        """Returns None: a reference is not timed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
                f"'{self._path}' has outputs for '{self._source}' only, but other data is judged too.",
                "Give the calibration data as a cache, which 'trt-bisect calibrate' makes, or --reference.",
            )
        return dict(found)


def other_reference(
    options: MeasuringOptions, network: Network, inputs: Any, on_notes: Callable[[list[str]], None]
) -> ReferenceNetwork | ReferenceAsItRuns | SavedOutputs | None:
    """Returns the outputs that a network is judged by, from ``--reference``; None without it.

    Raises:
        BadInput: a file cannot be used, or does not fit the network or the ``inputs``.
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
    runs = as_it_runs(options.reference)
    if runs is not None:
        on_notes([f"judged by the outputs of '{runs.source}', which runs as it is, not by the network's own in FP32"])
        return ReferenceAsItRuns(network, runs, options.reference)
    return ReferenceNetwork(network, read_network(options, options.reference, None), on_notes)


class ReferenceAsItRuns(Reference):
    """An integer network, a session or a function, whose outputs are the reference that a network is judged by.

    Args:
        network: the network that is judged.
        runs: gives the outputs.
        given: what the user gave.

    Attributes:
        digest: the digest of the reference; another one in each process, where its code does not say what it does.
    """

    def __init__(self, network: Network, runs: AsItRuns, given: Any) -> None:
        self._names, self._runs = [spec.name for spec in network.outputs], runs
        is_file = isinstance(given, ONNX_TYPES)
        self.digest = hashlib.sha256(saved_model(given).read_bytes()).hexdigest() if is_file else code_digest(given)

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs for a sample, by the names that they have in the judged network.

        Raises:
            BadInput: the reference cannot be run, or has none of the outputs.
        """
        found = self._runs.tensors(feeds)
        outputs = {one: found[other] for one, other in match_names(self._names, found).items()}
        if not outputs:
            own, theirs = (", ".join(map(repr, each)) for each in (self._names, found))
            raise BadInput(f"'{self._runs.source}' has none of the network's outputs ({own}): it has {theirs}.", _SAME)
        return outputs


class ReferenceNetwork(Reference):
    """An engine of another network, whose outputs are the reference that a network is judged by.

    It runs as its file says, on ONNX Runtime. Layers are matched on the first sample.

    Args:
        network: the network that is judged; the samples have the names of its inputs.
        reference: the other network.
        on_notes: is called once with notes on the layers that were matched, and on outputs that were not.

    Attributes:
        digest: the digest of the reference.

    Raises:
        BadInput: their inputs cannot be matched.
    """

    def __init__(self, network: Network, reference: Network, on_notes: Callable[[list[str]], None]) -> None:
        self._network, self._reference, self._on_notes = network, reference, on_notes
        self._inputs = match_inputs(network, reference)
        self._specs = {spec.name: spec for spec in reference.inputs}
        self._outputs: dict[str, str] = {}
        self._observer: Observer | None = None
        self.digest = reference.digest()

    def _opened(self, feeds: Feeds, theirs: Feeds) -> Observer:
        network, reference = self._network, self._reference
        shapes, others = facts_for(network, feeds).shapes, facts_for(reference, theirs).shapes
        matching = match_layers(network.with_shapes(shapes), reference.with_shapes(others))
        found = {spec.name: matching.tensors.get(spec.name, "") for spec in network.outputs}
        self._outputs = {one: other for one, other in found.items() if other and shapes.get(one) == others.get(other)}
        missing = ", ".join(repr(name) for name in found if name not in self._outputs)
        if not self._outputs:
            raise BadInput(
                f"No output of '{network.source}' ({missing}) is one of '{reference.source}'.",
                "Give a reference with the same outputs, of the same shapes.",
            )
        self._on_notes(
            [
                f"judged by the outputs of '{reference.source}', not by the network's own outputs in FP32",
                *matching.notes(network.source, reference.source),
                *([f"not judged, because the reference has no such outputs: {missing}"] if missing else []),
            ]
        )
        as_is = AsInFile.of(reference)
        return Observer(as_is.writer.write(as_is.plan), [list(self._outputs.values())], reference.source)

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the reference's outputs for a sample, by the names that they have in the judged network.

        Raises:
            BadInput: no output can be matched, or ONNX Runtime refuses the sample.
        """
        theirs = renamed_feeds(feeds, self._inputs, self._specs)
        if self._observer is None:
            self._observer = self._opened(feeds, theirs)
        seen = next(self._observer.run(theirs, 0))
        return {name: seen[other] for name, other in self._outputs.items() if other in seen}
