"""The results of ``compare`` (the tensors of two runs) and ``profile`` (the tensors of one network)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from trt_bisect.analyzer.blame import Advice
from trt_bisect.analyzer.compared import ComparedChannel, ComparedTensor
from trt_bisect.analyzer.histograms import ChannelMap, TensorHistogram
from trt_bisect.analyzer.metrics import DEFAULT_THRESHOLDS, threshold_text
from trt_bisect.analyzer.tensors import RoundingFigures
from trt_bisect.builder.debug_tensors import EngineTensor
from trt_bisect.data.statistics import Spread
from trt_bisect.errors import BadInput
from trt_bisect.model.layers import MODULE, SOURCE_LINE
from trt_bisect.precision import Precision
from trt_bisect.report.result import DISTRIBUTION, PANELS, RANGES, Plot, Result, Section, TablePage
from trt_bisect.support.table import INDEX, NAME, Column, NestedColumns, TableColumn, columns_of, worst_first
from trt_bisect.support.text import counted, percent

TENSORS, WEIGHTS, CHANNELS, ADVICE = "tensors.csv", "weights.csv", "channels.csv", "advice.csv"
MATCHED, ENGINE_TENSORS = "matched.csv", "engine.csv"
_HIGHER_IS_BETTER = ("cosine", "sqnr", "rounding_sqnr", "rounding_levels", "rounding_levels_90", "worst_cosine")
_METRICS = ("cosine", "sqnr", "mse", "l1", "kl", "max_abs", "max_rel")
_IN_SHORT = ("op_type", "mse", "max_abs", "clipped")
_LOGARITHMIC = ("mse", "l1", "kl", "max_abs", "max_rel")
_MOST_CHANNELS = 4096


@dataclass(frozen=True)
class MatchedLayer:
    """A layer of two compared networks.

    Attributes:
        layer: the name in the first network; empty if it is not there.
        other: the name in the second network; empty if it is not there.
        other_op_type: the operator in the second network.
        by: what the two layers have in common: ``name``, ``output`` or ``structure``; empty for a layer of one network.
    """

    layer: Annotated[str, Column("Layer", "In the first network", NAME, rank=0, empty="(none)")]
    op_type: Annotated[str, Column("Op", rank=2)]
    other: Annotated[str, Column("Second network's layer", rank=0)]
    other_op_type: Annotated[str, Column("Op there", rank=2)]
    by: Annotated[str, Column("Matched by", "Empty for a layer of one network only", rank=0)]


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """The tensors of an FP32 run and of a run in low precision.

    Attributes:
        model: the network's file; empty for two saved runs without it.
        arithmetic: the arithmetic of the second run: ``emulated``, ``saved`` or ``as it runs``.
        source: the data of the samples.
        tensors: the compared activations, in execution order.
        weights: each weight as a whole.
        advice: the abnormal tensors, in execution order.
        channels: the channels of the weights.
        low: the low precision, called ``int8`` in the names of columns.
        other: the file of the second network, if two were compared; columns call the first ``fp32``, the second
            ``int8``.
        matched: the layers of both networks; empty if only one was given.
        sort: the column by which terminal and page sort, the worst first.
        engine_tensors: the tensors of a real engine with the same plan; empty without one.
        threshold: the cosine below which a tensor's similarity is called low.
    """

    COMMAND = "compare"

    model: str
    arithmetic: str
    source: str
    samples: int
    tensors: tuple[ComparedTensor, ...]
    weights: tuple[ComparedTensor, ...]
    advice: tuple[Advice, ...]
    channels: tuple[ComparedChannel, ...] = ()
    notes: tuple[str, ...] = ()
    low: str = str(Precision.INT8)
    other: str = ""
    matched: tuple[MatchedLayer, ...] = ()
    sort: str = INDEX
    engine_tensors: tuple[EngineTensor, ...] = ()
    threshold: float = DEFAULT_THRESHOLDS["cosine"]

    @property
    def names(self) -> Mapping[str, str]:
        """The names of the two runs, for ``{high}`` and ``{low}`` in the titles of columns."""
        return {"high": "First", "low": "Second"} if self.other else {"high": "FP32", "low": self.low.upper()}

    def sorted_by(
        self, column: str | None = None, *, descending: bool | None = None, weights: bool = False
    ) -> tuple[ComparedTensor, ...]:
        """Returns the tensors, or the weights, sorted by a column.

        Args:
            column: the name of the column (``index``: execution order); None for ``sort``.
            descending: true: the largest first; false: the smallest; None: the worst.

        Raises:
            BadInput: there is no such column of numbers.
        """
        return sorted_rows(self.weights if weights else self.tensors, column or self.sort, descending)

    def tables(self) -> Mapping[str, tuple[type, Sequence[Any]]]:
        """Returns the rows' class and the rows by CSV file name."""
        return {
            TENSORS: (ComparedTensor, self.tensors),
            WEIGHTS: (ComparedTensor, self.weights),
            CHANNELS: (ComparedChannel, self.channels),
            ADVICE: (Advice, self.advice),
            **({MATCHED: (MatchedLayer, self.matched)} if self.other else {}),
            **({ENGINE_TENSORS: (EngineTensor, self.engine_tensors)} if self.engine_tensors else {}),
        }

    def page(self) -> TablePage:
        """Returns the content of ``compare.html``."""
        names, low = self.names, self.low.upper()
        channels = sorted(self.channels, key=lambda row: (math.isnan(row.figures.sqnr), row.figures.sqnr))
        cut = len(channels) - _MOST_CHANNELS
        words = f"The {_MOST_CHANNELS} with the lowest SQNR; {cut} more are in {CHANNELS}."
        compared: Mapping[str, Any] = {
            "filters": ("kind", "op_type", "quantized_dtype"),
            "plots": (
                Plot(PANELS, f"All metrics, {names['low']} against {names['high']}", _METRICS, log=_LOGARITHMIC),
                Plot(RANGES, f"Range: {names['high']}, {names['low']}, and their difference"),
                Plot(DISTRIBUTION, "Distribution of the tensors", column="sqnr"),
            ),
            "sort": "" if self.sort == INDEX else sort_column(self.sort).key,
            "descending": self.sort not in _HIGHER_IS_BETTER,
        }
        return TablePage(
            command=self.COMMAND,
            model=self.model or "two saved runs",
            headline=self._headline(),
            low=self.low,
            facts={
                "Second network": self.other,
                "Arithmetic": self.arithmetic if self.other else f"{low} ({self.arithmetic})",
                "Samples": f"{self.samples} of {self.source}" if self.samples else "",
            },
            notes=self.notes,
            sections=[
                *self.section(
                    "advice",
                    "Abnormal layers",
                    ADVICE,
                    filters=("reason",),
                    words="A tensor inside the network explains a loss. Only 'trt-bisect run' proves the cause.",
                ),
                *self.section("tensors", "Tensors", TENSORS, **compared),
                *self.section("weights", "Weights", WEIGHTS, **compared),
                *self.section(
                    "channels",
                    "Channels of the weights",
                    CHANNELS,
                    channels[:_MOST_CHANNELS],
                    filters=("op_type",),
                    plots=(Plot(DISTRIBUTION, "Distribution of the channels", column="scale"),),
                    words=words if cut > 0 else "",
                    sort="sqnr",
                ),
                *self.section("matched", "Layers of both networks", MATCHED, filters=("by",)),
                *self.section("engine", "Tensors of the engine", ENGINE_TENSORS, filters=("cause",)),
            ],
        )

    def _headline(self) -> str:
        finite = (row for row in self.tensors if math.isfinite(row.figures.cosine))
        worst = min(finite, key=lambda row: row.figures.cosine, default=None)
        least = ""
        if worst is not None:
            cosine, limit = percent(worst.figures.cosine, self.threshold), threshold_text("cosine", self.threshold)
            least = f" The lowest cosine is {cosine}, of '{worst.origin.tensor}' (low: below {limit})."
        if not self.advice:
            return f"No layer is abnormal.{least}"
        layers = {name for advice in self.advice for name in advice.layers}
        reasons = Counter(advice.reason for advice in self.advice)
        are = f"{counted(len(layers), 'layer')} {'is' if len(layers) == 1 else 'are'} abnormal"
        return f"{are} ({', '.join(f'{count} {reason}' for reason, count in reasons.items())}).{least}"

    def in_short(self, page: TablePage) -> Section | None:
        """Returns the page's section of tensors, the lowest cosine first; without tensors the first section."""
        section = next((section for section in page.sections if section.id == "tensors"), None)
        if section is None:
            return super().in_short(page)
        columns = tuple(replace(column, phone=column.phone or column.key in _IN_SHORT) for column in section.columns)
        return replace(section, columns=columns, sort="cosine", descending=False)


def sort_column(name: str) -> TableColumn:
    """Returns a column of compared tensors by its name; ``atol`` and ``rtol`` are the largest absolute and relative
    difference.

    Raises BadInput if there is no such column of numbers.
    """
    columns = {column.key: column for column in columns_of(ComparedTensor) if column.is_number}
    key = {"atol": "max_abs", "rtol": "max_rel"}.get(name, name)
    if key not in columns:
        raise BadInput(f"There is no column '{name}' to sort by.", f"Use one of {', '.join(columns)}.")
    return columns[key]


def sorted_rows(rows: Sequence[Any], column: str, descending: bool | None = None) -> tuple[Any, ...]:
    """Returns compared rows sorted by a column of numbers, those without a figure last; ``index`` keeps their order.

    ``descending``: true: the largest first; false: the smallest; None: the worst. Raises BadInput if there is no such
    column.
    """
    about = sort_column(column)
    if about.key == INDEX and not descending:
        return tuple(rows)
    higher = about.key in _HIGHER_IS_BETTER if descending is None else not descending
    return worst_first(rows, about.value, higher_is_better=higher)


PROFILED = "profile.csv"


@dataclass(frozen=True)
class ProfiledTensor:
    """A tensor that a layer reads or makes, with the moments of its values.

    Attributes:
        quantized_dtype: the type that INT8 rounds the tensor to; empty if unrounded.
        zero_point: the zero point; None for FP8, and if channels differ.
        spread: the moments before the rounding; None without data.
        rounded: the moments after the Q/DQ pair; None without one.
        rounding: the error of the Q/DQ pair; None without one, and for FP8.
        histogram: the histogram before the rounding and, as ``int8``, after it; without NaN and infinite values.
        map: a histogram of each channel of a weight.
        shape: the shape on the first sample.
    """

    index: Annotated[int, Column("#", "Place in execution order", INDEX, rank=1)]
    layer: Annotated[str, Column("Layer", kind=NAME, rank=0)]
    op_type: Annotated[str, Column("Op", "Operator", rank=4)]
    role: Annotated[str, Column("Role", "Input, output, weight, bias or constant", rank=0)]
    slot: Annotated[int, Column("Slot", "Position among the layer's inputs or outputs")]
    tensor: Annotated[str, Column("Tensor", rank=8)]
    dtype: Annotated[str, Column("dtype", rank=4)]
    quantized_dtype: Annotated[str, Column("Rounded to", "By INT8", rank=3)]
    scale: Annotated[float | None, Column("Scale", "INT8 scale; the largest if each channel has its own", rank=3)]
    zero_point: Annotated[int | None, Column("Zero point", "INT8 zero point")]
    shape: Annotated[
        tuple[int | str | None, ...], Column("Shape", "On the first sample; sorted by the number of values", rank=5)
    ]
    spread: Annotated[Spread | None, NestedColumns()]
    rounded: Annotated[Spread | None, NestedColumns("rounded_", "Rounded", rank=9, shown=("min", "max"))] = None
    rounding: Annotated[RoundingFigures | None, NestedColumns("rounding_")] = None
    module: Annotated[str, Column(*MODULE, rank=10)] = ""
    code: Annotated[str, Column(*SOURCE_LINE, rank=11)] = ""
    histogram: TensorHistogram | None = None
    map: ChannelMap | None = None


@dataclass(frozen=True, repr=False)
class Profile(Result):
    """The tensors of the selected layers, in execution order.

    Attributes:
        source: the data of the samples.
    """

    COMMAND = "profile"

    model: str
    source: str
    samples: int
    tensors: tuple[ProfiledTensor, ...]
    notes: tuple[str, ...] = ()

    def tables(self) -> Mapping[str, tuple[type, Sequence[Any]]]:
        """Returns the rows' class and the rows by CSV file name."""
        return {PROFILED: (ProfiledTensor, self.tensors)}

    def page(self) -> TablePage:
        """Returns the content of ``profile.html``."""
        plots = (
            Plot(RANGES, "Range of each tensor"),
            Plot(PANELS, "Moments", ("mean", "std", "scale"), log=("scale",), split="role"),
            Plot(DISTRIBUTION, "Distribution of the tensors", column="std"),
        )
        filters = ("role", "op_type", "quantized_dtype")
        layers = len({row.index for row in self.tensors})
        return TablePage(
            command=self.COMMAND,
            model=self.model,
            headline=f"{len(self.tensors)} tensors of {counted(layers, 'layer')}.",
            facts={"Samples": f"{self.samples} of {self.source}" if self.samples else ""},
            notes=self.notes,
            sections=self.section("tensors", "Tensors", PROFILED, filters=filters, plots=plots),
        )
