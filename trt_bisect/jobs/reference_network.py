"""Another network as the reference that a network is judged by; ``jobs.judged_by`` imports it where one is given."""

from __future__ import annotations

from collections.abc import Callable

from trt_bisect.builder.base import Outputs
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.jobs.judged_by import Reference
from trt_bisect.jobs.two_networks import AsInFile, renamed_feeds
from trt_bisect.model.matching import match_inputs, match_layers
from trt_bisect.model.network import Network
from trt_bisect.model.observe import Observer
from trt_bisect.model.shapes import facts_for


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
                f"judged by the outputs of '{reference.source}', not by those of the network itself in FP32",
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
