"""The result of ``compare``: tensors, weights and their channels in FP32 and INT8, and the advice."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.advisor import Advice
from trt_bisect.analyzer.compared import Compared
from trt_bisect.analyzer.tensors import Figures, RoundingFigures, Spread
from trt_bisect.errors import BadInput
from trt_bisect.precision import Precision
from trt_bisect.report.saving import SCHEMA, WithTablePage, pictures
from trt_bisect.support.plain_json import csv_text

if TYPE_CHECKING:
    from typing_extensions import Self

COMPARISON = "compare.json"
TENSORS, WEIGHTS, CHANNELS, ADVICE = "tensors.csv", "weights.csv", "channels.csv", "advice.csv"
MATCHED = "matched.csv"
INDEX = "index"
SORTED_BY = (
    INDEX,
    "scale",
    *Figures.__dataclass_fields__,
    *(f"{run}_{name}" for run in ("fp32", "int8") for name in Spread.__dataclass_fields__),
    *(f"rounding_{name}" for name in RoundingFigures.__dataclass_fields__),
    "loud_channel_times",
    "loud_input_channel_times",
)
"""The columns that rows can be sorted by."""
_HIGHER_IS_BETTER = ("cosine", "sqnr", "rounding_sqnr", "rounding_levels", "rounding_levels_90")


@dataclass(frozen=True)
class MatchedLayer:
    """A layer of two networks that are compared.

    Attributes:
        layer: its name in the first network; empty if it is only in the second one.
        other: its name in the second network; empty if it is only in the first one.
        other_op_type: its operator there.
        by: the way it was found: by ``name``, ``output`` or ``structure``; empty if it is in one network only.
    """

    layer: str
    op_type: str
    other: str
    other_op_type: str
    by: str


@dataclass(frozen=True)
class Comparison(WithTablePage):
    """The tensors of an FP32 run and of one in low precision.

    Attributes:
        model: the network's file; empty where two saved runs were compared without it.
        arithmetic: the arithmetic of the run in low precision: ``emulated`` or ``saved``.
        source: a description of where the samples come from.
        samples: their number.
        tensors: the tensors in execution order.
        weights: as a whole.
        channels: the channels of the weights, one a row.
        notes: further remarks, a sentence each.
        low: the low precision; ``int8`` in the names of columns stands for it.
        other: the file of the second network, if two were compared: ``fp32`` in the names of columns stands for the
            first network, and ``int8`` for the second one.
        matched: the layers of both networks.
    """

    JSON = COMPARISON
    CSV = TENSORS

    model: str
    arithmetic: str
    source: str
    samples: int
    tensors: tuple[Compared, ...]
    weights: tuple[Compared, ...]
    advice: tuple[Advice, ...]
    channels: tuple[Compared, ...] = ()
    notes: tuple[str, ...] = ()
    low: str = str(Precision.INT8)
    other: str = ""
    matched: tuple[MatchedLayer, ...] = ()

    def sorted_by(self, column: str = INDEX, *, weights: bool = False) -> tuple[Compared, ...]:
        """Returns the tensors, or the weights, the worst by a column first; by ``index`` in execution order.

        Raises:
            BadInput: there is no such column of numbers.
        """
        return sorted_rows(self.weights if weights else self.tensors, column)

    def records(self) -> list[dict[str, Any]]:
        """Returns the tensors, one a row."""
        return [each.record() for each in self.tensors]

    def csv_files(self) -> Mapping[str, str]:
        """Returns the tables by their file names: tensors, weights, channels, advice, and layers of two networks."""
        matched = {MATCHED: csv_text(asdict(each) for each in self.matched)} if self.other else {}
        return {
            **super().csv_files(),
            WEIGHTS: csv_text(each.record() for each in self.weights),
            CHANNELS: csv_text(each.record() for each in self.channels),
            ADVICE: csv_text((asdict(each) for each in self.advice), Advice.__dataclass_fields__),
            **matched,
        }

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Returns the comparison that ``save`` wrote, with its channels; the origins of its rows have no quantizers.

        Raises:
            BadInput: the folder holds none, or one that this version cannot read.
        """
        try:
            text = (Path(folder) / CHANNELS).read_text(encoding="utf-8")
        except OSError:
            text = ""
        channels = tuple(Compared.from_record(row) for row in csv.DictReader(io.StringIO(text)))
        return replace(super().load(folder), channels=channels)

    def to_json(self) -> dict[str, Any]:
        """Returns the content of ``compare.json``; the channels are in ``channels.csv`` only."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "arithmetic": self.arithmetic,
            "low": self.low,
            "source": self.source,
            "samples": self.samples,
            "tensors": [{**each.record(), **pictures(each)} for each in self.tensors],
            "weights": [{**each.record(), **pictures(each)} for each in self.weights],
            "advice": [asdict(each) for each in self.advice],
            "notes": list(self.notes),
            "other": self.other,
            "matched": [asdict(each) for each in self.matched],
        }


def check_sort(column: str) -> None:
    """Raises BadInput if rows cannot be sorted by a column."""
    if column not in SORTED_BY:
        raise BadInput(f"Nothing can be sorted by '{column}'.", f"Use one of {', '.join(SORTED_BY)}.")


def sorted_rows(rows: Sequence[Compared], column: str) -> tuple[Compared, ...]:
    """Returns rows with the worst by a column first, those without a figure last; ``index`` keeps their order.

    Raises:
        BadInput: there is no such column of numbers.
    """
    check_sort(column)
    if column == INDEX:
        return tuple(rows)
    sign = 1.0 if column in _HIGHER_IS_BETTER else -1.0

    def place(row: Compared) -> tuple[bool, float]:
        value = row.record()[column]
        missing = value is None or math.isnan(value)
        return missing, 0.0 if missing else sign * value

    return tuple(sorted(rows, key=place))
