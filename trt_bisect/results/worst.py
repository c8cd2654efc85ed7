"""The report of a search for the worst inputs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.distribution import Distribution, distribution_of, verdict
from trt_bisect.data.datasets import Feeds
from trt_bisect.data.sample_files import load_samples, save_samples
from trt_bisect.errors import BadInput
from trt_bisect.results.saving import Tabular

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
WORST_JSON, WORST_CSV, WORST = "worst.json", "worst.csv", "worst"


@dataclass(frozen=True)
class WorstReport(Tabular):
    """The worst inputs of a data set, and how the metric is spread over it.

    Attributes:
        arithmetic: ``emulated`` or ``measured``.
        metric: its name, and in ``order`` how it goes from the worst to the best: ``ascending`` or ``descending``.
        threshold: the worst value that is still good; None where the metric has none.
        allowed: the loss that the threshold allows.
        high: the layers that were left in high precision.
        source: the data set.
        values: the metric on each sample; None where INT8 gave no finite output.
        losses: how far each is from perfect; None for infinite.
        faint: samples passed over because FP32's output is almost zero there.
        places: of the worst samples, worst first.
        stopped: the search was stopped before the end of the data set.
        notes: what else is to be said, a sentence each.
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
    inputs: tuple[Feeds, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def distribution(self) -> Distribution:
        """Over all samples but the faint ones; over all where there are no others."""
        aside = frozenset(self.faint)
        told = [place for place in range(len(self.values)) if place not in aside] or list(range(len(self.values)))
        values = [math.nan if (value := self.values[place]) is None else value for place in told]
        losses = [math.inf if (loss := self.losses[place]) is None else loss for place in told]
        return distribution_of(values, losses, self.allowed)

    @property
    def verdict(self) -> str:
        """Whether it is the inputs or the network, in words."""
        return verdict(self.distribution)

    def table(self) -> pd.DataFrame:
        """Every sample, one row each, in the order of the data set; ``rank`` 1 is the worst that was kept."""
        table: pd.DataFrame = super().table().set_index("sample")
        return table

    def to_json(self) -> dict[str, Any]:
        """JSON types only, no NaN and no infinity."""
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
    def load(cls, folder: str | Path) -> WorstReport:
        """The report that ``save`` wrote, its samples included.

        Raises:
            BadInput: there is none in the folder, or it cannot be read.
        """
        path = Path(folder) / WORST_JSON
        try:
            record = json.loads(path.read_bytes())
            if record["schema"] != SCHEMA:
                raise ValueError(f"schema {record['schema']}, this version reads {SCHEMA}")
            fields = {name: _tupled(record[name]) for name in cls.__dataclass_fields__ if name != "inputs"}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadInput(
                f"'{path}' is no report of 'trt-bisect worst': {type(error).__name__}: {error}",
                "Give the folder that was its --output.",
            ) from error
        return cls(**fields, inputs=tuple(load_samples(Path(folder), WORST)))


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def without_infinities(values: tuple[float, ...]) -> tuple[float | None, ...]:
    """``values`` with None for what is not finite."""
    return tuple(value if math.isfinite(value) else None for value in values)


def description(report: WorstReport) -> Mapping[str, str]:
    """What was searched and how, by title."""
    left = ", ".join(report.high)
    return {
        "Data": f"{report.source}, {len(report.values)} samples{', stopped there' if report.stopped else ''}",
        "INT8": f"{report.engine} ({report.arithmetic})" + (f", high: {left}" if left else ""),
        "Metric": f"{report.metric}, worst first: {report.order}",
    }
