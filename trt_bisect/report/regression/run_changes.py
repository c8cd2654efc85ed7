"""The changes from one report to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.changes import BETTER, NEUTRAL, WORSE, Change, Tolerances, changes
from trt_bisect.analyzer.differences import SCHEMA as SCHEMA_PART
from trt_bisect.analyzer.differences import Difference, differences, origin
from trt_bisect.analyzer.figures import Figures, LayerFigures
from trt_bisect.analyzer.metrics import JUDGING
from trt_bisect.errors import BadInput
from trt_bisect.report.model import Report
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


def compared(before: Report, now: Report, direction: str = "higher") -> RunChanges:
    """Returns the changes from one report to another; see ``Report.compare``."""
    if before.metric != now.metric:
        raise BadInput(
            f"The reports were judged by '{before.metric}' and by '{now.metric}': their figures cannot be compared.",
            "Run one of them again with the other one's --metric.",
        )
    found = changes(figures_of(now, direction), [figures_of(before, direction)], Tolerances())
    return RunChanges(before.model, now.model, now.metric, found, differences(origin_of(before), origin_of(now)))


def figures_of(report: Report, direction: str = "higher") -> Figures:
    """Returns the figures that nightly runs compare. Values that are not finite count as not measured.

    Args:
        report: the report.
        direction: for the user's own metric, which values are better, ``higher`` or ``lower``.

    Raises:
        BadInput: the metric is the user's own, and an older version wrote the report, which lacks the metric's
            budget.
    """
    medians = None
    if report.latency is not None:
        medians = {plan: None if timed is None else plain(timed.median_ms) for plan, timed in report.latency.items()}
    return Figures(
        metric=_metric_facts(report, direction),
        threshold=report.threshold,
        similarity=dict(report.similarity.items()),
        high=report.recipe.high,
        meets=report.recipe.meets,
        latency=medians,
        layers={
            row.name: LayerFigures(plain(row.similarity), plain(row.drop), row.culprit, row.outcome, row.obeyed)
            for row in report.layers
            if row.quantizable
        },
        part=report.inputs.part,
    )


def origin_of(report: Report) -> dict[str, Any]:
    """Returns the parts of the fingerprint and the options in JSON types; see ``differences.origin``."""
    parts: dict[str, Any] = origin(
        plain(report.made_of),
        metric=report.metric,
        threshold=report.threshold,
        share=report.share,
        strategy=report.strategy,
        **{SCHEMA_PART: report.schema},
    )
    return parts


def _metric_facts(report: Report, direction: str) -> dict[str, Any]:
    if report.metric in JUDGING:
        return JUDGING[report.metric].facts()
    if report.budget is None:
        raise BadInput(
            f"The report on '{report.model}' does not have the loss that the threshold of '{report.metric}' allows.",
            "An older trt-bisect wrote it: run it again.",
        )
    higher = direction == "higher"
    perfect = report.threshold + report.budget if higher else report.threshold - report.budget
    return {"name": report.metric, "perfect": repr(perfect), "higher": higher, "own": True}
