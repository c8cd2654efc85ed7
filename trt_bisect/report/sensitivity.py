"""The loss that each layer causes alone, and its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trt_bisect.analyzer.metrics import JUDGING
from trt_bisect.errors import BadInput
from trt_bisect.precision import Precision
from trt_bisect.report.saving import SCHEMA, WithTablePage

WAYS = {"both": Precision.INT8, "weight": Precision.INT8_WEIGHT, "activation": Precision.INT8_ACTIVATION}
"""The rounded parts of a layer, and the precision of each."""
SENSITIVITY, LAYERS = "sensitivity.json", "sensitivity.csv"


@dataclass(frozen=True)
class SensitiveOp:
    """The sensitivity of one layer, with one of its parts rounded.

    Attributes:
        op_name: the layer.
        sensitive_type: ``both``, ``weight`` or ``activation``: the part that is rounded, while all else is high.
        metrics: by name, each metric on the worst final output.
        loss: the loss by the metric of the run; None where it could not be measured.
        gain: for ``both``: the loss with all layers low minus the loss with this layer alone high.
        macs: the layer's multiply-adds for one inference.
        share: its fraction of the network's multiply-adds.
    """

    index: int
    op_name: str
    sensitive_type: str
    op_type: str
    metrics: Mapping[str, float]
    loss: float | None
    gain: float | None
    macs: int
    share: float

    def figure(self, name: str) -> float | None:
        """Returns ``loss``, ``gain``, ``worth``, ``macs``, or a metric by its name; None if there is none."""
        if name in ("loss", "gain", "worth", "macs"):
            value: float | None = getattr(self, name)
            return value
        return self.metrics.get(name)

    @property
    def worth(self) -> float | None:
        """The gain divided by ``share``; None if one of them is not known."""
        return None if self.gain is None or not self.share else self.gain / self.share


@dataclass(frozen=True)
class Sensitivity(WithTablePage):
    """The layers of a network, ordered by their losses in a low precision.

    Attributes:
        ops: one row for each layer and rounded part, the worst first.
        full: the loss with every layer in question low.
        low: the low precision.
    """

    JSON = SENSITIVITY
    CSV = LAYERS

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
            known = ["loss", "gain", "worth", "macs", *dict.fromkeys(name for op in self.ops for name in op.metrics)]
            raise BadInput(f"There is nothing to sort by '{figure}'.", f"Use one of {', '.join(known)}.")
        if descending is None and figure == self.metric:
            figure = "loss"
        higher = figure in JUDGING and JUDGING[figure].higher
        sign = -1.0 if (not higher if descending is None else descending) else 1.0
        return tuple(sorted(rows, key=lambda op: _place(op.figure(figure), sign)))

    def records(self) -> list[dict[str, Any]]:
        """Returns the rows; each metric is a column."""
        flat = []
        for op in self.ops:
            record = asdict(op)
            metrics = record.pop("metrics")
            flat.append({**record, **metrics, "worth": op.worth})
        return flat

    def to_json(self) -> dict[str, Any]:
        """Returns the content of ``sensitivity.json``."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "metric": self.metric,
            "arithmetic": self.arithmetic,
            "low": self.low,
            "full": self.full,
            "ops": [{**asdict(op), "worth": op.worth} for op in self.ops],
        }


def _place(value: float | None, sign: float) -> tuple[bool, float]:
    return value is None, 0.0 if value is None else sign * value
