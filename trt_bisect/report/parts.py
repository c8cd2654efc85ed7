"""The parts of a report. A float that is not finite or not known is None."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar

from trt_bisect.builder.base import IN_REGION, ON_DLA
from trt_bisect.data.statistics import Drift, FedInput
from trt_bisect.evaluator.trial import MEASURED
from trt_bisect.model.layers import MODULE, SOURCE_LINE
from trt_bisect.precision import Precision
from trt_bisect.support.table import DECIBELS, DECIDING, FIGURE, INDEX, LOSS, NAME, Column

PASSES, WITH_DOUBTS, FAILS = "passes", "passes with doubts", "fails"
UNMEASURED = "not measured"
STYLES = {PASSES: "bold green", WITH_DOUBTS: "bold yellow", FAILS: "bold red", UNMEASURED: "bold yellow"}
TONES = {PASSES: "good", WITH_DOUBTS: "doubted", FAILS: "bad", UNMEASURED: ""}
COLOURS = {PASSES: "green", WITH_DOUBTS: "darkgoldenrod", FAILS: "crimson", UNMEASURED: "grey"}


def spoken(verdict: str) -> str:
    """Returns a verdict as the screen says it, such as ``passes, but doubtful``."""
    return "passes, but doubtful" if verdict == WITH_DOUBTS else verdict


def with_low(figure: str, low: str) -> str:
    """Returns a figure for a column titled INT8; if another precision is low, with its name in brackets."""
    return figure if low == str(Precision.INT8) else f"{figure} ({low.upper()})"


def verdict_of(*, meets: bool, doubted: bool) -> str:
    """Returns the verdict on a plan; ``doubted``: there is a doubt that the user has not accepted."""
    if not meets:
        return FAILS
    return WITH_DOUBTS if doubted else PASSES


SCHEMA = 4
REPORT, SO_FAR, LAYERS, FRONT = "report.json", "run.json", "layers.csv", "front.csv"
"""``SO_FAR`` is the report of a run under way."""
FOLLOWS, NOT_TRIED, NOT_JUDGED = "follows", "not tried", "not judged"
UNPROVEN = {IN_REGION: "in a region, unproven", ON_DLA: "on the DLA, unproven"}

Value = TypeVar("Value")
Shape = tuple[int | str | None, ...]
Part = str | int | float | bool | tuple[str, ...] | Mapping[str, str | int | float | bool | None] | None
"""The content of a part of a fingerprint."""


@dataclass(frozen=True)
class ByPlan(Generic[Value]):
    """A value for each of two plans.

    Attributes:
        int8: the value of full INT8, or of the low precision in its place.
        recipe: the value of the recipe.
    """

    int8: Value
    recipe: Value

    def items(self) -> Iterator[tuple[str, Value]]:
        """Yields each plan's name and value."""
        yield from (("int8", self.int8), ("recipe", self.recipe))


@dataclass(frozen=True)
class RoundedTensor:
    """A tensor or weight that a culprit rounds.

    Attributes:
        kind: ``activation``, ``weight`` or ``output``.
        scale: the scale, the largest of a per-channel scale; None for FP16 and BF16.
        also_for: other INT8 layers that read the same rounded tensor.
    """

    tensor: str
    kind: str
    producer: str
    consumer: str
    scale: float | None
    also_for: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.tensor


@dataclass(frozen=True)
class LayerRow:
    """A layer in the report, or a constant that TensorRT has as a layer. What is not known is None or empty.

    Attributes:
        index: the position in execution order; of a constant, that of its first reader.
        loss: the loss that the layer adds on the curve; for cosine a fraction of 1.
        culprit: with this layer back in INT8, the recipe was measured to miss the threshold.
        outcome: ``measured``, ``build failed``, ``inference failed``, ``out of memory``, ``timed out``, ``lost`` with
            its worker, ``not finite``, ``follows`` (it does not change the engine, or the user fixed it), ``not tried``
            (the strategy did not need it).
        ran: the precision to which the layer's inputs were rounded; ``region`` or ``dla`` in a region that TensorRT
            compiled as one.
        obeyed: ``ran`` is the requested precision.
        why_not: the reason why the layer is not quantizable.
        message: the message of a failed trial.
        rounds: the tensors that a culprit rounds.
        put_back: the recipe's similarity on the worst input, or its accuracy if that decides, with this culprit in INT8
            too and without changes of the network.
        put_back_on: the number of inputs run for ``put_back``; if not all, the figure may be worse.
        put_back_in: the setting in which ``put_back`` was measured.
        fixed: the precision that the user fixed.
        output: the final output, or part of one, that is worst with the layer in INT8.
        title: the layer's name in a PyTorch program, shown in place of ``name``.
    """

    index: Annotated[int, Column("#", "Place in execution order", INDEX, rank=1)]
    name: Annotated[str, Column("Layer", "Name in the network", NAME, rank=0)]
    op_type: Annotated[str, Column("Op", "Operator", rank=4)]
    shape: Annotated[
        Shape | None, Column("Layer shape", "Shape of the layer's first output; sorted by the number of values", rank=3)
    ]
    quantizable: bool
    similarity: Annotated[
        float | None,
        Column(
            "{metric}",
            "Final output with this layer and all before it in {low}, suspects in high precision, against FP32",
            FIGURE,
            rank=1,
        ),
    ]
    loss: Annotated[float | None, Column("Loss", "Loss that this layer adds on the curve", LOSS, rank=0)]
    culprit: bool
    outcome: str
    asked: Annotated[str, Column("Requested", "Precision that the trial requested")]
    ran: Annotated[str, Column("Ran", "Precision that the engine reports; unproven where it reports none")]
    obeyed: bool | None = None
    sqnr: Annotated[float | None, Column("SQNR", "SQNR of the same trial, dB", DECIBELS, rank=5)] = None
    output: Annotated[str, Column("Output", "The final output that was compared: the worst one", rank=7)] = ""
    recipe: Annotated[str, Column("Recipe", "Precision in the recipe")] = ""
    why_not: str = ""
    message: str = ""
    rounds: Annotated[tuple[RoundedTensor, ...], Column("")] = ()
    alone: Annotated[
        float | None, Column("Alone", "Loss that full {low} wins back if only this layer is high", LOSS, rank=4)
    ] = None
    put_back: Annotated[
        float | None,
        Column("If put back", "What the recipe measures with this layer put back in {low}", DECIDING, rank=2),
    ] = None
    put_back_on: int | None = None
    put_back_in: str = ""
    suspect: Annotated[str, Column("Why suspect only", "Why a layer with a large loss is no culprit, or not yet")] = ""
    fixed: str = ""
    output_shape: Annotated[
        Shape | None, Column("Output shape", "Shape of the final output that was compared", rank=6)
    ] = None
    node: Annotated[str, Column("Node", "Name in the network's file, where the layer is called otherwise", rank=8)] = ""
    module: Annotated[str, Column(*MODULE, rank=8)] = ""
    code: Annotated[str, Column(*SOURCE_LINE, rank=9)] = ""
    title: str = ""
    reference: Annotated[str, Column("In the reference", "Name in the network given as reference", rank=8)] = ""

    @property
    def verdict(
        self,
    ) -> Annotated[
        str, Column("Verdict", "Culprit, suspect or failure; sorted by importance, then by the loss", rank=0)
    ]:
        """The standing of the layer in a few words, such as ``culprit``."""
        standing = "" if self.outcome in (MEASURED, FOLLOWS) else self.outcome
        if self.culprit:
            standing = "culprit"
        elif self.fixed:
            standing = f"fixed {self.fixed}"
        ran = f"ran in {self.ran}" if self.obeyed is False else UNPROVEN.get(self.ran, "")
        return f"{standing} {ran}".strip()


@dataclass(frozen=True)
class NetworkRow:
    """A network of a pipeline.

    Attributes:
        file: the path of the file.
        similarity: the pipeline's figure on the worst input with only this network in low precision.
        meets: with only this network in low precision, the pipeline meets the threshold on all given inputs.
        culprits: the culprits in this network.
    """

    name: Annotated[str, Column("Network", "Name in the pipeline", NAME, rank=0)]
    file: Annotated[str, Column("File", rank=3)]
    similarity: Annotated[
        float | None, Column("Alone in {low}", "The pipeline with this network alone in {low}", FIGURE, rank=0)
    ]
    meets: bool
    culprits: Annotated[tuple[str, ...], Column("Culprits", rank=1)]
    high: Annotated[int, Column("Layers high", "Layers that the recipe leaves high", rank=1)]
    layers: Annotated[int, Column("Layers", "Layers that can be low", rank=2)]
    calls: Annotated[float, Column("Calls", "Calls a sample in FP32, on average", rank=2)]

    @property
    def passes(self) -> Annotated[str, Column("Passes", "The pipeline meets the threshold then", rank=0)]:
        """``meets`` as ``yes`` or ``no``."""
        return "yes" if self.meets else "no"


@dataclass(frozen=True)
class RangesFacts:
    """The ranges of a run.

    Attributes:
        origin: the calibrator, or the file of the ranges.
        tensors: the number of tensors with a range.
        unusable: by tensor, the reason why its range cannot be used.
        curve: the origin of the curve's ranges; empty if they are the same.
    """

    origin: str = ""
    tensors: int = 0
    unusable: Mapping[str, str] = field(default_factory=dict)
    curve: str = ""


@dataclass(frozen=True)
class JudgedInputs:
    """The inputs that the curve was judged on.

    Attributes:
        source: the name of the data.
        judged: the number of inputs.
        searched: the number of samples of which the judged inputs are the worst; 0 if all were judged.
        places: the positions of the judged inputs in the data, from 0.
        similarities: the similarity of each searched sample in full INT8; None if not finite.
        median: the median of ``similarities``.
        faint: the indices of samples on which FP32's output is almost zero.
        fed: for ``calibration`` and ``judged``, the statistics of each input.
        pictures: by source, the conversion of its pictures, in words.
        shapes: by dynamic input, its shape, or the smallest and the largest.
        drift: by input, how far its values are from the calibration data's.
        drift_of_validation: the same for the inputs of ``--validation``.
        warnings: sentences on data that cannot be right.
        part: a sentence on the judged part of the network; empty for all of it.
        random: a sentence on FP32 outputs that vary on the same input.
    """

    source: str = ""
    judged: int = 0
    searched: int = 0
    places: tuple[int, ...] = ()
    similarities: tuple[float | None, ...] = ()
    median: float | None = None
    faint: tuple[int, ...] = ()
    fed: Mapping[str, Mapping[str, FedInput]] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, str] = field(default_factory=dict)
    drift: Mapping[str, Drift] = field(default_factory=dict)
    drift_of_validation: Mapping[str, Drift] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    part: str = ""
    random: str = ""


@dataclass(frozen=True)
class Seconds:
    """Times of a run in seconds.

    Attributes:
        calibrate: the pass over the calibration data.
        build: building engines, the sum over plans.
        infer: running engines, the sum over plans.
        total: the whole run, earlier parts of a continued run included.
        explain: making ``explanation.json``.
    """

    calibrate: float = 0.0
    build: float = 0.0
    infer: float = 0.0
    total: float = 0.0
    explain: float = 0.0


@dataclass(frozen=True)
class NextStep:
    """The step that a run recommends next.

    Attributes:
        kind: the kind, such as ``build`` or ``search``.
        what: an imperative clause.
        command: the command that does the step, or comes after it; empty without one.
    """

    kind: str
    what: str
    command: str
