"""The changes from one report to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.changes import BETTER, NEUTRAL, WORSE, Change
from trt_bisect.analyzer.differences import Difference
from trt_bisect.support.plain_json import plain

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RunChanges:
    """The changes from one report to another; as text, a sentence each.

    Attributes:
        before, now: the folders' networks, as the reports name them.
        metric: the metric that judged both.
        changes: the changes of figures, culprits, recipe, latency and layers, larger than the tolerances.
        differs: the parts of the runs that are not the same: network, data, engine, versions, options; None if one of
            the reports is too old to tell.
    """

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
        """Returns a sentence for each change, the worse ones first, and what else is different."""
        from trt_bisect.report.regression.text import made_of_text, sentence

        others = [change for change in self.changes if change not in self.worse]
        words = {NEUTRAL: "changed"}
        said = [
            f"{words.get(change.effect, change.effect)}: {sentence(change, self.metric)}"
            for change in (*self.worse, *others)
        ]
        return "\n".join([*(said or ["Nothing changed."]), f"different: {made_of_text(self.differs)}"])
