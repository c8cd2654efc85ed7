"""The report of a search for the worst inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.distribution import Distribution, distribution_of, verdict
from trt_bisect.data.feeds import Feeds
from trt_bisect.data.sample_files import load_samples, save_samples
from trt_bisect.precision import Precision
from trt_bisect.report.saving import SCHEMA, WithTablePage

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

WORST_JSON, WORST_CSV, WORST = "worst.json", "worst.csv", "worst"


@dataclass(frozen=True)
class WorstReport(WithTablePage):
    """The worst inputs of a data set, and the distribution of the metric over it.

    Attributes:
        arithmetic: ``emulated`` or ``measured``.
        metric: its name.
        order: the order of the metric's values from the worst to the best: ``ascending`` or ``descending``.
        threshold: the worst value that is still good; None where the metric has none.
        allowed: the loss that the threshold allows.
        high: the layers that were left in high precision.
        source: the data set.
        values: the metric on each sample; None where the low precision gave no finite output.
        losses: the losses of these values; None for infinite.
        faint: samples left out because FP32's output on them is almost zero.
        places: indices of the worst samples, worst first.
        stopped: the search was stopped before the end of the data set.
        notes: further remarks, a sentence each.
        low: the low precision.
        inputs: the worst samples, worst first.
    """

    JSON = WORST_JSON
    CSV = WORST_CSV
    COLUMNS = ("rank", "sample", "value", "loss", "faint")

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
    notes: tuple[str, ...] = ()
    low: str = str(Precision.INT8)
    inputs: tuple[Feeds, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def distribution(self) -> Distribution:
        """The distribution over the samples that are not faint; over all samples if all are faint."""
        faint = frozenset(self.faint)
        counted = [place for place in range(len(self.values)) if place not in faint] or list(range(len(self.values)))
        values = [math.nan if (value := self.values[place]) is None else value for place in counted]
        losses = [math.inf if (loss := self.losses[place]) is None else loss for place in counted]
        return distribution_of(values, losses, self.allowed)

    @property
    def verdict(self) -> str:
        """A sentence that says if the inputs or the network cause the loss."""
        return verdict(self.distribution)

    def table(self) -> pd.DataFrame:
        """Returns the samples as a pandas table, in the order of the data set; ``rank`` 1 is the worst one."""
        table: pd.DataFrame = super().table().set_index("sample")
        return table

    def to_json(self) -> dict[str, Any]:
        """Returns the content of ``worst.json``: JSON types, no NaN and no infinity."""
        names = [name for name in self.__dataclass_fields__ if name != "inputs"]
        record = {"schema": SCHEMA, **{name: getattr(self, name) for name in names}}
        return {**record, "distribution": asdict(self.distribution), "verdict": self.verdict}

    def records(self) -> list[dict[str, Any]]:
        """Returns the samples, one a row, in the order of the data set."""
        ranks = {place: rank for rank, place in enumerate(self.places, 1)}
        faint = frozenset(self.faint)
        return [
            {"rank": ranks.get(place), "sample": place, "value": value, "loss": loss, "faint": place in faint}
            for place, (value, loss) in enumerate(zip(self.values, self.losses, strict=True))
        ]

    def save(self, folder: str | Path) -> Path:
        """Writes ``worst.json``, ``worst.csv`` and the worst samples into a folder.

        Returns:
            The samples, ``worst.npz``, or a folder ``worst`` where their shapes differ: ``run`` takes it as inputs.

        Raises:
            BadInput: it cannot be written.
        """
        return save_samples(super().save(folder), WORST, self.inputs)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Returns the report that ``save`` wrote, with its samples.

        Raises:
            BadInput: the folder holds none, or one that this version cannot read.
        """
        return replace(super().load(folder), inputs=tuple(load_samples(Path(folder), WORST)))


def without_infinities(values: tuple[float, ...]) -> tuple[float | None, ...]:
    """Returns ``values`` with None in place of values that are not finite."""
    return tuple(value if math.isfinite(value) else None for value in values)


def description(report: WorstReport) -> Mapping[str, str]:
    """Returns the data, the network in low precision and the metric of a search, as text by title."""
    left = ", ".join(report.high)
    return {
        "Data": f"{report.source}, {len(report.values)} samples{', stopped there' if report.stopped else ''}",
        report.low.upper(): f"{report.engine} ({report.arithmetic})" + (f", high: {left}" if left else ""),
        "Metric": f"{report.metric}, worst first: {report.order}",
    }
