"""The manifest of a run, ``run.json``: its question, written before it measures, so that its trials can be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.metrics import metric_of_facts
from trt_bisect.driver.suspects.curves import CULPRITS, FULL
from trt_bisect.driver.suspects.search import Question
from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.precision import Precision
from trt_bisect.report.model import Report
from trt_bisect.support.files import write_whole
from trt_bisect.support.type_checks import checked

MANIFEST = "run.json"
_SCHEMA = 1


@dataclass(frozen=True)
class RunManifest:
    """The question of a run, known before it measures.

    Attributes:
        blank: the report, with nothing measured.
        rule: the rule that judges the trials.
        curve: the boundaries that the driver measures; see ``search_for``.
        measured_in: the engines of the passes: ``PIECES`` if pieces are other engines than the whole network.
        started: the time of its start, in seconds since the epoch.
        accept: a pass that is doubted counts as a pass.
        network: the digest of the network as it was read; empty in files of version 0.2.
    """

    blank: Report
    rule: Rule
    curve: str
    measured_in: str
    started: float
    accept: bool = False
    network: str = ""

    @property
    def question(self) -> Question:
        """The question for the drivers."""
        rows = self.blank.layers
        movable = tuple(row.index for row in rows if row.quantizable and not row.fixed)
        fixed = {row.index: Precision(row.fixed) for row in rows if row.fixed}
        high, low = Precision(self.blank.precision), Precision(self.blank.low)
        base = Precision(self.blank.made_of.get("base", high))
        return Question(len(rows), movable, self.rule.budget, self.rule.step, high, low, fixed, base)

    def answered_by(self, report: Report) -> bool:
        """Returns true if a report is of this run or of one with the same question."""
        same = ("fingerprint", "metric", "threshold", "share", "strategy")
        return all(getattr(report, name) == getattr(self.blank, name) for name in same)

    def to_json(self) -> dict[str, Any]:
        """Returns the content of ``run.json``."""
        return {
            "schema": _SCHEMA,
            "started": self.started,
            "accept": self.accept,
            "network": self.network,
            "curve": self.curve,
            "mark": TrialKey("", self.measured_in).text,
            "metric": self.rule.metric.facts(),
            "outputs": list(self.rule.outputs),
            "report": self.blank.to_json(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RunManifest:
        """Returns the manifest of a ``run.json``.

        Raises:
            KeyError, TypeError, ValueError: the record is not one of this schema.
        """
        if record["schema"] != _SCHEMA:
            raise ValueError(f"a run of schema {record['schema']}, this version reads {_SCHEMA}")
        blank = Report.from_json(record["report"])
        metric = metric_of_facts(record["metric"])
        rule = Rule(metric, blank.threshold, blank.share, tuple(record["outputs"]))
        measured_in = TrialKey.from_text(record["mark"]).measured_in
        curve = record.get("curve") or (FULL if record["every_boundary"] else CULPRITS)
        accept, network = record.get("accept", False), record.get("network", "")
        return checked(cls(blank, rule, curve, measured_in, record["started"], accept, network))

    def save(self, folder: Path) -> None:
        """Writes ``run.json``; raises BadInput if it cannot be written."""
        write_whole(folder / MANIFEST, json.dumps(self.to_json(), allow_nan=False).encode())
