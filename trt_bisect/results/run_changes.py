"""The changes from one report to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.changes import BETTER, WORSE, Change
from trt_bisect.analyzer.differences import Difference
from trt_bisect.results.presentable import Presentable
from trt_bisect.support.plain_json import plain

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RunChanges(Presentable):
    """The changes from one report to another; as text, a sentence each.

    Attributes:
        before, now: the folders' networks, as the reports name them.
        metric: the metric that judged both.
        changes: the changes of figures, culprits, recipe, latency and layers, larger than the tolerances.
        differs: the parts of the runs that are not the same: network, data, engine, versions, options; None if one of
            the reports is too old to tell.
    """

    PRESENTER = "run_changes"

    before: str
    now: str
    metric: str
    changes: tuple[Change, ...]
    differs: tuple[Difference, ...] | None

    @property
    def worse(self) -> tuple[Change, ...]:
        """The changes for the worse."""
        return tuple(change for change in self.changes if change.effect == WORSE)

    @property
    def better(self) -> tuple[Change, ...]:
        """The changes for the better."""
        return tuple(change for change in self.changes if change.effect == BETTER)

    def to_json(self) -> dict[str, Any]:
        """Returns the content as JSON types."""
        differs = None if self.differs is None else [vars(each) for each in self.differs]
        record = {"before": self.before, "now": self.now, "metric": self.metric, "differs": differs}
        types = plain({**record, "changes": [vars(change) for change in self.changes]})
        assert isinstance(types, dict)
        return types

    def table(self) -> pd.DataFrame:
        """Returns the changes as a pandas table: kind, effect, what, before, now."""
        import pandas as pd

        columns = ("kind", "effect", "what", "before", "now")
        rows = [{**vars(change), "before": change.before[0] if change.before else None} for change in self.changes]
        table: pd.DataFrame = pd.DataFrame(rows, columns=list(columns))
        return table

    def __str__(self) -> str:
        text: str = self._present("text")
        return text
