"""The figures of one run of a network that nightly runs compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import NoneType
from typing import Any

from trt_bisect.analyzer.metrics import Metric, metric_of_facts

INT8, RECIPE = "int8", "recipe"
"""The plans of which the similarity is compared."""


@dataclass(frozen=True)
class LayerFigures:
    """The figures of one quantizable layer, as in ``report.json``."""

    similarity: float | None
    drop: float | None
    culprit: bool
    outcome: str
    obeyed: bool | None

    def __post_init__(self) -> None:
        _refuse_other((self.similarity, self.drop), int, float, NoneType)
        _refuse_other((self.culprit,), bool)
        _refuse_other((self.outcome,), str)
        _refuse_other((self.obeyed,), bool, NoneType)


def _refuse_other(values: Iterable[Any], *types: type) -> None:
    for value in values:
        if not isinstance(value, types):
            raise TypeError(f"{value!r} is not of type {' or '.join(one.__name__ for one in types)}")


@dataclass(frozen=True)
class Figures:
    """One run of one network.

    Attributes:
        metric: ``Metric.facts`` of the deciding metric.
        threshold: the worst value of the metric that is still good.
        similarity: the similarity of full INT8 and of the recipe; None where not measured.
        high: the layers that the recipe leaves high.
        meets: the recipe meets the threshold.
        latency: median milliseconds of one inference by plan, None for a plan that could not be built. None as a whole
            if nothing was timed.
        layers: the quantizable layers by name.
        part: a sentence on the part of the network that was judged; empty if it was all of it.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: a part has another type, as can happen when it comes from a
            file.
    """

    metric: Mapping[str, Any]
    threshold: float
    similarity: Mapping[str, float | None]
    high: tuple[str, ...]
    meets: bool
    latency: Mapping[str, float | None] | None
    layers: Mapping[str, LayerFigures]
    part: str = ""

    def __post_init__(self) -> None:
        self.judge.loss(self.threshold)
        _refuse_other((*self.high, self.part), str)
        _refuse_other((self.meets,), bool)
        _refuse_other((*self.similarity.values(), *(self.latency or {}).values()), int, float, NoneType)

    @property
    def judge(self) -> Metric:
        """The metric that judges these figures."""
        return metric_of_facts(self.metric)

    @property
    def culprits(self) -> tuple[str, ...]:
        """The names of the culprits in the network's order."""
        return tuple(name for name, layer in self.layers.items() if layer.culprit)

    def to_json(self) -> dict[str, Any]:
        """Returns the figures in JSON types. Each layer is a list: its name, then the fields of ``LayerFigures``."""
        layers = [[name, *asdict(layer).values()] for name, layer in self.layers.items()]
        return {**vars(self), "high": list(self.high), "layers": layers}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Figures:
        """Returns the figures in a record that ``to_json`` made.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: the record is not one of ``to_json``.
        """
        layers = {name: LayerFigures(*figures) for name, *figures in record["layers"]}
        return cls(**{**record, "high": tuple(record["high"]), "layers": layers})
