"""The loss that each layer causes alone, and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from trt_bisect.analyzer.metrics import FRACTIONS, JUDGING
from trt_bisect.errors import BadInput
from trt_bisect.precision import Precision
from trt_bisect.report.figure_text import loss_text
from trt_bisect.report.page.tables import Bars, Panels, TablePage, section_of
from trt_bisect.report.result import Result
from trt_bisect.support.table import INDEX, LOSS, NAME, PERCENT, Column, Part

WAYS = {"both": Precision.INT8, "weight": Precision.INT8_WEIGHT, "activation": Precision.INT8_ACTIVATION}
"""The rounded parts of a layer, and the precision of each."""
LAYERS = "sensitivity.csv"
OWN = ("loss", "gain", "worth", "macs")
"""The figures that rows can be sorted by, beside the metrics."""


@dataclass(frozen=True)
class SensitiveOp:
    """The sensitivity of one layer, with one of its parts rounded.

    Attributes:
        op_name: the layer.
        sensitive_type: ``both``, ``weight`` or ``activation``: the part that is rounded, while all else is high.
        loss: the loss by the metric of the run; None where it could not be measured.
        gain: for ``both``: the loss with all layers low minus the loss with this layer alone high.
        worth: the gain divided by ``share``; None if one of them is not known.
        macs: the layer's multiply-adds for one inference.
        share: its fraction of the network's multiply-adds.
        metrics: by name, each metric on the worst final output.
    """

    index: Annotated[int, Column("#", "Place in execution order", INDEX, rank=1)]
    op_name: Annotated[str, Column("Layer", kind=NAME, rank=0)]
    sensitive_type: Annotated[str, Column("Rounded", "The part that is rounded", rank=0)]
    op_type: Annotated[str, Column("Op", "Operator", rank=4)]
    loss: Annotated[float | None, Column("Loss", "Loss with this layer alone in {low}, by {metric}", LOSS, rank=0)]
    gain: Annotated[
        float | None, Column("Fixed alone", "Loss that full {low} wins back if only this layer is high", LOSS, rank=1)
    ]
    worth: Annotated[float | None, Column("Worth", "Fixed alone, divided by the share of the multiply-adds", rank=2)]
    macs: Annotated[int, Column("MACs", "Multiply-adds for one inference")]
    share: Annotated[float, Column("Cost", "Share of the network's multiply-adds", PERCENT, rank=3)]
    metrics: Annotated[Mapping[str, float | None], Part(help="On the worst final output", shares=FRACTIONS)]

    def figure(self, name: str) -> float | None:
        """Returns ``loss``, ``gain``, ``worth``, ``macs``, or a metric by its name; None if there is none."""
        if name in OWN:
            value: float | None = getattr(self, name)
            return value
        return self.metrics.get(name)


@dataclass(frozen=True, repr=False)
class Sensitivity(Result):
    """The layers of a network, ordered by their losses in a low precision.

    Attributes:
        ops: one row for each layer and rounded part, the worst first.
        full: the loss with every layer in question low.
        low: the low precision.
    """

    COMMAND = "sensitivity"

    model: str
    metric: str
    arithmetic: str
    full: float | None
    ops: tuple[SensitiveOp, ...]
    low: str = str(Precision.INT8)

    def sorted_by(
        self, figure: str, *, descending: bool | None = None, way: str | None = None
    ) -> tuple[SensitiveOp, ...]:
        """Returns the rows sorted by ``loss``, ``gain``, ``worth``, ``macs`` or a metric, rows without it last.

        Args:
            figure: one of these.
            descending: the largest first; None for the most sensitive first.
            way: only the rows of this rounded part: ``both``, ``weight`` or ``activation``.

        Raises:
            BadInput: no row has such a figure.
        """
        rows = [op for op in self.ops if way in (None, op.sensitive_type)]
        if not any(op.figure(figure) is not None for op in rows):
            known = [*OWN, *dict.fromkeys(name for op in self.ops for name in op.metrics)]
            raise BadInput(f"There is no column '{figure}' to sort by.", f"Use one of {', '.join(known)}.")
        if descending is None and figure == self.metric:
            figure = "loss"
        higher = figure in JUDGING and JUDGING[figure].higher
        sign = -1.0 if (not higher if descending is None else descending) else 1.0
        return tuple(sorted(rows, key=lambda op: _place(op.figure(figure), sign)))

    @property
    def names(self) -> Mapping[str, str]:
        """The names of the low precision and of the metric."""
        return {"low": self.low.upper(), "metric": self.metric}

    def tables(self) -> Mapping[str, tuple[type, Sequence[Any]]]:
        """Returns the rows; each metric is a column."""
        return {LAYERS: (SensitiveOp, self.ops)}

    def page(self) -> TablePage:
        """Returns the page."""
        full = "not measured" if self.full is None else loss_text(self.metric, self.full)
        plots = (
            Panels("Loss, fixed alone and worth over the layers", OWN[:3], log=("loss",), split="sensitive_type"),
            Bars("Distribution of the rows", "loss"),
        )
        return TablePage(
            command=self.COMMAND,
            model=self.model,
            headline=self._headline(),
            low=self.low,
            metric=self.metric,
            facts={
                "Metric": self.metric,
                "Arithmetic": self.arithmetic,
                f"Loss of full {self.low.upper()}": full,
            },
            sections=section_of(
                "layers",
                "Layers",
                LAYERS,
                SensitiveOp,
                self.ops,
                self.names,
                filters=("sensitive_type", "op_type"),
                raised=(self.metric,),
                plots=plots,
                sort="loss",
                descending=True,
            ),
        )

    def _headline(self) -> str:
        known = [op for op in self.ops if op.loss is not None]
        if not known:
            return "No layer could be measured."
        worst = max(known, key=lambda op: op.loss or 0.0)
        part = "" if worst.sensitive_type == "both" else f" ({worst.sensitive_type} alone)"
        return (
            f"'{worst.op_name}'{part} is the most sensitive layer: alone in {self.low.upper()} it loses "
            f"{loss_text(self.metric, worst.loss)}."
        )


def _place(value: float | None, sign: float) -> tuple[bool, float]:
    return value is None, 0.0 if value is None else sign * value
