"""What a run asks, written as ``run.json`` before it measures, so that others can tell what its trials mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.metrics import metric_of_facts
from trt_bisect.driver.culprits.search import Question
from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.precision import Precision
from trt_bisect.results.run_report import Report
from trt_bisect.support.files import write_whole
from trt_bisect.support.type_checks import checked

ASKED = "run.json"
_SCHEMA = 1


@dataclass(frozen=True)
class RunManifest:
    """A run that begins to measure.

    Attributes:
        blank: the report, nothing measured yet.
        rule: judges the trials.
        every_boundary: the driver asks every boundary, not only those that the verdict needs.
        measured_in: the engines that passes ran on: ``PIECES`` where pieces are other engines than the whole.
        started: when, in seconds since the epoch.
    """

    blank: Report
    rule: Rule
    every_boundary: bool
    measured_in: str
    started: float

    @property
    def question(self) -> Question:
        """The question, as the drivers take it."""
        quantizable = tuple(row.index for row in self.blank.layers if row.quantizable)
        high = Precision(self.blank.precision)
        return Question(len(self.blank.layers), quantizable, self.rule.budget, self.rule.step, high)

    def answered_by(self, report: Report) -> bool:
        """Whether a report is that of this run, or of one that asked the same."""
        same = ("fingerprint", "metric", "threshold", "share", "strategy")
        return all(getattr(report, name) == getattr(self.blank, name) for name in same)

    def to_json(self) -> dict[str, Any]:
        """The content of ``run.json``."""
        return {
            "schema": _SCHEMA,
            "started": self.started,
            "every_boundary": self.every_boundary,
            "mark": TrialKey("", self.measured_in).text,
            "metric": self.rule.metric.facts(),
            "outputs": list(self.rule.outputs),
            "report": self.blank.to_json(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RunManifest:
        """What ``to_json`` wrote.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: the record is none, or of another schema.
        """
        if record["schema"] != _SCHEMA:
            raise ValueError(f"a run of schema {record['schema']}, this version reads {_SCHEMA}")
        blank = Report.from_json(record["report"])
        metric = metric_of_facts(record["metric"])
        rule = Rule(metric, blank.threshold, blank.share, tuple(record["outputs"]))
        measured_in = TrialKey.from_text(record["mark"]).measured_in
        return checked(cls(blank, rule, record["every_boundary"], measured_in, record["started"]))

    def save(self, folder: Path) -> None:
        """Writes ``run.json``; raises BadInput where it cannot be written."""
        write_whole(folder / ASKED, json.dumps(self.to_json(), allow_nan=False).encode())
