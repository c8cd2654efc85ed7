"""Two networks of the same inputs, each run as its file says: in INT8 where it has Q/DQ pairs, else in float."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from trt_bisect.analyzer.origins import Origin, Tensors, activation_origins, plan_observer, weight_origins
from trt_bisect.data.feeds import Feeds, TensorSpec
from trt_bisect.model.matching import Match, Matching, match_inputs, match_layers
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.reading import as_in_file
from trt_bisect.model.shapes import facts_for, groups_within
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.comparison import MatchedLayer


@dataclass(frozen=True)
class AsInFile:
    """A network as its file says.

    Attributes:
        plan: full INT8 with the pairs of the file, or nothing low if it has none.
    """

    network: Network
    writer: PlanWriter
    plan: PrecisionPlan

    @classmethod
    def of(cls, network: Network) -> AsInFile:
        """Returns ``network`` with all pairs of its file, asymmetric ones too."""
        own = as_in_file(network)
        plan = own.free_plan(own.quantizable if own.has_pairs else ())
        return cls(own, PlanWriter(own, {}, GraphTarget.ONNXRUNTIME), plan)

    def origins(self) -> dict[str, Origin]:
        """Returns its floating-point tensors by name, with their roundings."""
        return activation_origins(self.network, self.writer, self.plan.lowered)

    def weights(self) -> list[Origin]:
        """Returns its weights, with their roundings."""
        return weight_origins(self.network, self.writer, self.plan.lowered)


class TwoNetworks:
    """Two networks, their layers matched on one sample.

    Args:
        first: the samples have the names of its inputs; found tensors have its names.
        second: the other one.
        feeds: a sample.
        memory: the bytes for the tensors of one sample that are held.

    Attributes:
        matching: the pairs of their layers.
        origins: by name in the first network, each tensor that both have, with its roundings in the second network.

    Raises:
        BadInput: their inputs cannot be matched, or ONNX Runtime refuses a network.
    """

    def __init__(self, first: Network, second: Network, feeds: Feeds, memory: int) -> None:
        self._inputs = match_inputs(first, second)
        self._specs = {spec.name: spec for spec in second.inputs}
        first = first.with_shapes(facts_for(first, feeds).shapes)
        second = second.with_shapes(facts_for(second, self.feeds_of_second(feeds)).shapes)
        self.matching = match_layers(first, second)
        self._first, self._second = AsInFile.of(first), AsInFile.of(second)
        here, there = self._first.origins(), self._second.origins()
        both = {one: other for one, other in self.matching.tensors.items() if one in here and other in there}
        self._back = {other: one for one, other in both.items()}
        self._layers = {each.second.name: each for each in self.matching.pairs.values() if each.second}
        self.origins = {name: self._origin(here[name], there[both[name]]) for name in here if name in both}
        groups = groups_within(first, self.origins, feeds, memory, runs=2)
        theirs = [tuple(both[name] for name in names) for names in groups]
        self._runs = (
            plan_observer(self._first.writer, self._first.plan, {name: here[name] for name in both}, groups),
            plan_observer(self._second.writer, self._second.plan, {n: there[n] for n in self._back}, theirs),
        )
        self.groups = len(groups)

    def feeds_of_second(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Returns a sample with the names and dtypes of the second network's inputs."""
        return renamed_feeds(feeds, self._inputs, self._specs)

    def _origin(self, first: Origin, second: Origin) -> Origin:
        """The place of the first network's tensor, and the roundings that it has in the second network."""
        return replace(
            first,
            int8_op_type=second.int8_op_type,
            quantizers=second.quantizers,
            float_type=second.float_type,
            readers=tuple(self._name_here(name) for name in second.readers),
            rounded_as_result=second.rounded_as_result,
        )

    def _name_here(self, layer: str) -> str:
        match = self._layers.get(layer)
        return match.first.name if match and match.first else layer

    def on(self, feeds: Feeds, position: int) -> Iterator[tuple[Tensors, Tensors]]:
        """Yields, group by group, the tensors of both networks on a sample, by their names in the first one.

        Raises:
            BadInput: ONNX Runtime refuses the sample.
        """
        second = self._runs[1](self.feeds_of_second(feeds), position)
        for first in self._runs[0](feeds, position):
            yield first, {self._back[name]: values for name, values in next(second).items()}
            del first

    def weights(self) -> Iterator[tuple[Origin, np.ndarray, np.ndarray]]:
        """Yields each weight of a matched layer as the first network has it and, rounded, as the second one has it.

        A layer whose output is matched with that of another one, which was folded into it, is left out.
        """
        second = self._second.network
        for origin in weight_origins(second, self._second.writer, self._second.plan.lowered):
            match = self.matching.pairs.get(-1 if origin.index is None else origin.index)
            if match is None or match.first is None or match.second is None or not self._same_output(match):
                continue
            slot = list(second.skeleton.graph.node[match.second.index].input).index(origin.tensor)
            mine = self._first.network.skeleton.graph.node[match.first.index].input[slot]
            try:
                values = self._first.network.constant(mine)
            except KeyError:
                continue
            theirs = origin.rounded(second.constant(origin.tensor))
            if values.shape == theirs.shape:
                named = replace(origin, tensor=mine, index=match.first.index, layer=match.first.name)
                yield replace(named, readers=tuple(map(self._name_here, origin.readers))), values, theirs

    def _same_output(self, match: Match) -> bool:
        assert match.first is not None
        assert match.second is not None
        return self.matching.tensors.get(match.first.outputs[0]) == match.second.outputs[0]


def renamed_feeds(feeds: Feeds, names: Mapping[str, str], specs: Mapping[str, TensorSpec]) -> dict[str, np.ndarray]:
    """Returns a sample under other names, with the dtypes of ``specs``."""
    return {other: feeds[one].astype(specs[other].dtype, copy=False) for one, other in names.items() if one in feeds}


def matched_layers(matching: Matching) -> tuple[MatchedLayer, ...]:
    """Returns the layers of two networks as rows of a table."""
    return tuple(
        MatchedLayer(
            each.first.name if each.first else "",
            each.first.op_type if each.first else "",
            each.second.name if each.second else "",
            each.second.op_type if each.second else "",
            each.by,
        )
        for each in matching.matches
    )
