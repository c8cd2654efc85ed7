"""The results of ``sensitivity`` (loss with one layer in INT8) and ``worst`` (loss on each input)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from trt_bisect.analyzer.metrics import FRACTIONS, JUDGING, figure_text, loss_text, threshold_text
from trt_bisect.analyzer.worst import MetricDistribution
from trt_bisect.data.feeds import WORST, Feeds, load_samples, save_samples
from trt_bisect.errors import BadInput
from trt_bisect.model.layers import MODULE, SOURCE_LINE
from trt_bisect.precision import Precision
from trt_bisect.report.result import DISTRIBUTION, PANELS, Plot, Result, TablePage, file_in
from trt_bisect.support.table import FIGURE, INDEX, LOSS, NAME, PERCENT, Column, NestedColumns, worst_first

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

WAYS = {"both": Precision.INT8, "weight": Precision.INT8_WEIGHT, "activation": Precision.INT8_ACTIVATION}
"""The rounded part of a layer, and the precision that rounds it."""
LAYERS = "sensitivity.csv"
OWN = ("loss", "alone", "worth", "macs")


@dataclass(frozen=True)
class SensitiveOp:
    """The sensitivity of a layer with one of its parts rounded.

    Attributes:
        op_name: the layer.
        sensitive_type: the rounded part, ``both``, ``weight`` or ``activation``; all else is in high precision.
        metrics: each metric on the worst final output.
        share: the layer's share of the network's multiply-adds.
        worth: ``alone`` divided by ``share``.
    """

    index: Annotated[int, Column("#", "Place in execution order", INDEX, rank=1)]
    op_name: Annotated[str, Column("Layer", kind=NAME, rank=0)]
    sensitive_type: Annotated[str, Column("Rounded", "The part that is rounded", rank=0)]
    op_type: Annotated[str, Column("Op", "Operator", rank=4)]
    loss: Annotated[float | None, Column("Loss", "Loss with this layer alone in {low}, by {metric}", LOSS, rank=0)]
    alone: Annotated[
        float | None, Column("Alone", "Loss that full {low} wins back if only this layer is high", LOSS, rank=1)
    ]
    worth: Annotated[float | None, Column("Worth", "Alone, divided by the share of the multiply-adds", rank=2)]
    macs: Annotated[int, Column("MACs", "Multiply-adds for one inference")]
    share: Annotated[float, Column("Cost", "Share of the network's multiply-adds", PERCENT, rank=3)]
    metrics: Annotated[Mapping[str, float | None], NestedColumns(help="On the worst final output", shares=FRACTIONS)]
    module: Annotated[str, Column(*MODULE, rank=5)] = ""
    code: Annotated[str, Column(*SOURCE_LINE, rank=6)] = ""

    def figure(self, name: str) -> float | None:
        """Returns ``loss``, ``alone``, ``worth``, ``macs`` or a metric, by name; None if not measured."""
        return getattr(self, name) if name in OWN else self.metrics.get(name)


@dataclass(frozen=True, repr=False)
class Sensitivity(Result):
    """The layers of a network, ordered by their losses in low precision.

    Attributes:
        ops: one for each layer and rounded part, the worst first.
        full: the loss with all layers of ``ops`` in low precision; None if not measured.
    """

    COMMAND = "sensitivity"

    model: str
    metric: str
    arithmetic: str
    full: float | None
    ops: tuple[SensitiveOp, ...]
    low: str = str(Precision.INT8)

    def sorted_by(
        self, figure: str = "loss", *, descending: bool | None = None, way: str | None = None
    ) -> tuple[SensitiveOp, ...]:
        """Returns the rows sorted by a figure, rows without it last.

        Args:
            figure: ``loss``, ``alone``, ``worth``, ``macs`` or a metric.
            descending: true: the largest first; false: the smallest; None: the most sensitive.
            way: only rows of this ``sensitive_type``; None for all.

        Raises:
            BadInput: no row has such a figure.
        """
        rows = [op for op in self.ops if way in (None, op.sensitive_type)]
        if not any(op.figure(figure) is not None for op in rows):
            names = [*OWN, *dict.fromkeys(name for op in self.ops for name in op.metrics)]
            raise BadInput(f"There is no column '{figure}' to sort by.", f"Use one of {', '.join(names)}.")
        if descending is None and figure == self.metric:
            figure = "loss"
        higher = figure in JUDGING and JUDGING[figure].higher if descending is None else not descending
        return worst_first(rows, lambda op: op.figure(figure), higher_is_better=higher)

    @property
    def names(self) -> Mapping[str, str]:
        """The texts for ``{low}`` and ``{metric}`` in the titles of columns."""
        return {"low": self.low.upper(), "metric": self.metric}

    def tables(self) -> Mapping[str, tuple[type, Sequence[Any]]]:
        """Returns the rows' class and the rows by CSV file name."""
        return {LAYERS: (SensitiveOp, self.ops)}

    def page(self) -> TablePage:
        """Returns the content of ``sensitivity.html``."""
        full = "not measured" if self.full is None else loss_text(self.metric, self.full)
        plots = (
            Plot(PANELS, "Loss, alone and worth over the layers", OWN[:3], log=("loss",), split="sensitive_type"),
            Plot(DISTRIBUTION, "Distribution of the rows", column="loss"),
        )
        return TablePage(
            command=self.COMMAND,
            model=self.model,
            headline=self._headline(),
            low=self.low,
            metric=self.metric,
            facts={"Metric": self.metric, "Arithmetic": self.arithmetic, f"Loss of full {self.low.upper()}": full},
            sections=self.section(
                "layers",
                "Layers",
                LAYERS,
                filters=("sensitive_type", "op_type"),
                raised=(self.metric,),
                plots=plots,
                sort="loss",
                descending=True,
            ),
        )

    def _headline(self) -> str:
        worst = max((op for op in self.ops if op.loss is not None), key=lambda op: op.loss or 0.0, default=None)
        if worst is None:
            return "No layer could be measured."
        part = "" if worst.sensitive_type == "both" else f" ({worst.sensitive_type} alone)"
        return (
            f"'{worst.op_name}'{part} is the most sensitive layer: alone in {self.low.upper()} it loses "
            f"{loss_text(self.metric, worst.loss)}."
        )


WORST_CSV = f"{WORST}.csv"
NO_INPUTS: tuple[Feeds, ...] = ()


@dataclass(frozen=True)
class JudgedSample:
    """A sample of the data set.

    Attributes:
        value: the metric; None if the output is not finite.
        loss: the loss of ``value``; None if infinite.
        misses: the sample misses the threshold; None without a threshold, or if FP32's output is unusable.
    """

    rank: Annotated[int | None, Column("Rank", "1 is the worst input; empty for a sample that does not count", rank=0)]
    sample: Annotated[int, Column("Sample", "Index of the sample in the data set", NAME, rank=0)]
    value: Annotated[float | None, Column("{metric}", "{low} against {high}", FIGURE, rank=0)]
    loss: Annotated[float | None, Column("Loss", kind=LOSS, rank=1)]
    misses: Annotated[bool | None, Column("Misses", "The threshold", rank=0)]
    faint: Annotated[
        bool, Column("Faint", "FP32's output on this sample is almost zero: the sample does not count", rank=1)
    ]


@dataclass(frozen=True, repr=False)
class WorstReport(Result):
    """The worst inputs of a data set, and the distribution of the metric over it.

    Attributes:
        order: the order from worst to best: ``ascending`` or ``descending``.
        threshold: the worst acceptable value; None if the metric has none.
        allowed: the loss that the threshold allows; None without a threshold.
        high: the layers kept in high precision.
        source: the data set.
        values: the metric on each sample; None if the low-precision output is not finite.
        losses: the losses of ``values``; None if infinite.
        faint: the indices of samples left out because FP32's output is almost zero.
        broken: the indices of samples left out because FP32's output has NaN or nothing finite.
        data: a sentence on ``broken``; empty without any.
        places: the indices of the worst samples, worst first.
        stopped: the search ended before the end of the data set.
        distribution: the distribution over the samples that are not faint.
        verdict: a sentence on the cause of the loss: the inputs or the network.
        other: the file of a second network, if compared; else empty.
        inputs: the worst samples, worst first; not in ``worst.json``.
    """

    COMMAND = "worst"
    inputs = NO_INPUTS

    model: str
    engine: str
    typing: str
    arithmetic: str
    metric: str
    order: str
    threshold: float | None
    allowed: float | None
    high: tuple[str, ...]
    source: str
    values: tuple[float | None, ...]
    losses: tuple[float | None, ...]
    faint: tuple[int, ...]
    places: tuple[int, ...]
    stopped: bool
    distribution: MetricDistribution
    verdict: str
    notes: tuple[str, ...] = ()
    low: str = str(Precision.INT8)
    broken: tuple[int, ...] = ()
    data: str = ""
    other: str = ""

    def holding(self, inputs: tuple[Feeds, ...]) -> Self:
        """Sets ``inputs``, the worst samples, and returns this report."""
        object.__setattr__(self, "inputs", inputs)
        return self

    @property
    def names(self) -> Mapping[str, str]:
        """The texts for ``{high}``, ``{low}`` and ``{metric}`` in the titles of columns."""
        runs = ("First", "Second") if self.other else ("FP32", self.low.upper())
        return {"high": runs[0], "low": runs[1], "metric": self.metric}

    @property
    def samples(self) -> tuple[JudgedSample, ...]:
        """The samples in the order of the data set."""
        faint, broken = frozenset(self.faint), frozenset(self.broken)
        kept = frozenset(self.places)
        others = (index for index in range(len(self.losses)) if index not in kept | faint | broken)
        ranked = sorted(others, key=self._loss, reverse=True)
        ranks = {index: rank for rank, index in enumerate((*self.places, *ranked), 1)}
        return tuple(
            JudgedSample(
                ranks.get(index),
                index,
                value,
                loss,
                None if self.allowed is None or index in broken else loss is None or loss > self.allowed,
                index in faint,
            )
            for index, (value, loss) in enumerate(zip(self.values, self.losses, strict=True))
        )

    def _loss(self, index: int) -> float:
        loss = self.losses[index]
        return math.inf if loss is None else loss

    def tables(self) -> Mapping[str, tuple[type, Sequence[Any]]]:
        """Returns the rows' class and the rows by CSV file name."""
        return {WORST_CSV: (JudgedSample, self.samples)}

    def table(self) -> pd.DataFrame:
        """Returns the samples as a pandas table in the order of the data set; ``rank`` 1 is the worst."""
        table: pd.DataFrame = super().table().set_index("sample")
        return table

    @property
    def quantiles(self) -> Mapping[str, str]:
        """The best value, median, percentiles and worst value as text, by title."""
        spread = self.distribution
        values = {"best": spread.best, "median": spread.median}
        values |= {f"{percent}% reach": value for percent, value in spread.percentiles.items()}
        values["worst"] = spread.worst
        return {title: figure_text(self.metric, value) for title, value in values.items()}

    def page(self) -> TablePage:
        """Returns the content of ``worst.html``."""
        least = "" if self.threshold is None else threshold_text(self.metric, self.threshold)
        quantiles = {f"{title[:1].upper()}{title[1:]}": text for title, text in self.quantiles.items()}
        plots = (
            Plot(DISTRIBUTION, "Distribution of the samples", column="value"),
            Plot(PANELS, "The samples in their order", ("value", "loss"), log=("loss",)),
        )
        return TablePage(
            command=self.COMMAND,
            model=self.model,
            headline=f"{self.data} {self.verdict}".strip(),
            low=self.low,
            metric=self.metric,
            facts={**description(self), **quantiles, "Threshold": least},
            notes=self.notes,
            sections=self.section(
                "samples",
                "Samples",
                WORST_CSV,
                filters=("misses", "faint"),
                plots=plots,
                sort="loss",
                descending=True,
                red=("misses", True),
            ),
        )

    def save(self, folder: str | Path) -> Path:
        """Writes the report and the worst samples into a folder.

        Returns:
            The path of the samples, for ``run``: ``worst.npz``, or the folder ``worst`` if their shapes differ.

        Raises:
            BadInput: the folder cannot be written.
        """
        return save_samples(super().save(folder), WORST, self.inputs)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Returns the saved report with its samples, from its folder or ``worst.json`` in it.

        Raises:
            BadInput: there is no such report, or this version cannot read it.
        """
        report = super().load(folder)
        return report.holding(tuple(load_samples(file_in(folder, f"{cls.COMMAND}.json").parent, WORST)))


def description(report: WorstReport) -> Mapping[str, str]:
    """Returns the data, the low-precision network and the metric, as text by title."""
    high = ", ".join(report.high)
    low = {report.low.upper(): f"{report.engine} ({report.arithmetic})" + (f", high: {high}" if high else "")}
    least = "" if report.threshold is None else f"; threshold {threshold_text(report.metric, report.threshold)}"
    return {
        "Data": f"{report.source}, {len(report.values)} samples{', stopped there' if report.stopped else ''}",
        **({"Second network": report.other} if report.other else low),
        "Metric": f"{report.metric}, worst first: {report.order}{least}",
    }
