"""Objects of JSON files that no dataclass of the package is, as dataclasses of the same kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Schema:
    """The version of a file's form.

    Attributes:
        schema: the version of the form of this file; keys may be added without a new number.
    """

    schema: int


@dataclass(frozen=True)
class RecipeLayers:
    """The layers that a recipe leaves high.

    Attributes:
        high: the layers left high.
        added: those of them that are no culprits.
        meets: the recipe meets the threshold.
    """

    high: tuple[str, ...]
    added: tuple[str, ...]
    meets: bool


@dataclass(frozen=True)
class RangesFacts:
    """The ranges of a run.

    Attributes:
        origin: the calibrator, or the file.
        tensors: the number of tensors with a range.
        unusable: by reason, the tensors without a usable range.
    """

    origin: str
    tensors: int
    unusable: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class FedFacts:
    """The values that one input was fed.

    Attributes:
        least: the smallest value.
        most: the largest value.
        mean: the mean of all values.
        std: their standard deviation.
        samples: the number of samples.
    """

    least: float
    most: float
    mean: float
    std: float
    samples: int


@dataclass(frozen=True)
class InputsFacts:
    """The inputs that the curve was judged on.

    Attributes:
        source: the data.
        judged: their number.
        searched: the number of samples that they are the worst of.
        places: their positions in the data, from 0.
        similarities: the similarity of each sample searched, in full INT8.
        median: the median of these.
        faint: samples that were left out because FP32's output on them is almost zero.
        fed: by ``calibration`` and ``judged``, the statistics of each input that the network was fed.
        pictures: by source of pictures, the way they become inputs: size, colours, scale, mean, standard deviation.
        shapes: by dynamic input, its shape, or the smallest and the largest one.
        warnings: sentences on data that cannot be right.
        part: a sentence on the part of the network that was judged; missing if it was all of it.
    """

    source: str = ""
    judged: int = 0
    searched: int = 0
    places: tuple[int, ...] = ()
    similarities: tuple[float | None, ...] = ()
    median: float | None = None
    faint: tuple[int, ...] = ()
    fed: Mapping[str, Mapping[str, FedFacts]] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    part: str = ""


@dataclass(frozen=True)
class ByInputFacts:
    """The figures of a plan for each input.

    Attributes:
        inputs: the number of inputs that count.
        misses: the number of these that miss the threshold.
        mean: the mean of the finite values.
        fifth: their 5th percentile by NumPy's definition; the 95th where lower values are better.
        worst: the place of the worst input, from 0.
        values: the value of each input; null where it does not count.
        faint: the places of inputs that do not count.
        together: the threshold is for all inputs together and not for the worst one.
    """

    inputs: int
    misses: int
    mean: float | None
    fifth: float | None
    worst: int | None
    values: tuple[float | None, ...]
    faint: tuple[int, ...]
    together: bool


@dataclass(frozen=True)
class TargetFacts:
    """The target of ``recover``.

    Attributes:
        kind: `similarity` or `accuracy`.
        least: the worst figure that is good.
        reference: the figure of FP32.
        most: the largest cost, where one was given.
    """

    kind: str
    least: float | None
    reference: float | None
    most: float | None = None


@dataclass(frozen=True)
class GraphLayer:
    """A layer of the graph.

    Attributes:
        inputs: the names of the tensors that it reads, constants too.
        outputs: the names of the tensors that it makes.
        attributes: as text, by name.
    """

    index: int
    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, str]


@dataclass(frozen=True)
class GraphTensor:
    """A tensor of the graph.

    Attributes:
        shape: the shape of a layer's first output on the judged input.
        dtype: empty where it is not known.
        scale: the scale of INT8, the largest of a per-channel scale; null where it is not rounded.
    """

    shape: tuple[int | str | None, ...] | None
    dtype: str
    scale: float | None


@dataclass(frozen=True)
class Graph:
    """The network's layers and tensors, as the page draws them.

    Attributes:
        layers: the layers in execution order.
        tensors: the tensors by name.
        inputs: the names of the network's inputs.
        outputs: the names of its outputs.
    """

    layers: tuple[GraphLayer, ...]
    tensors: Mapping[str, GraphTensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class JournalLine:
    """A line of the journal. The first line of a fingerprint has ``about`` and ``id``, the others have ``trial``.

    Attributes:
        run: the fingerprint.
        about: the content that the fingerprint is made of.
        id: the id of the journal; the history knows a run by it.
        trial: one plan tried.
    """

    run: str
    about: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    trial: Any = None


@dataclass(frozen=True)
class Ran:
    """The precisions that the layers ran in.

    Attributes:
        ran: `as asked`, or pairs of a precision (null if it is not known) and the number of layers in a row that ran in
            it.
    """

    ran: str | tuple[tuple[str | int | None, ...], ...]
