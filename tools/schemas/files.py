"""The files that have a schema, and their shapes.

Names, types and descriptions are those of the dataclasses that the files are made of, and of their docstrings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.schemas.extra import (
    ByInputFacts,
    Graph,
    InputsFacts,
    JournalLine,
    Ran,
    RangesFacts,
    RecipeLayers,
    Schema,
    TargetFacts,
)
from tools.schemas.shapes import ListOf, Shape, shape_of
from trt_bisect.builder.timing import Latency
from trt_bisect.evaluator.trial import Trial
from trt_bisect.report.check import CheckReport
from trt_bisect.report.comparison import Comparison
from trt_bisect.report.explanation import Explanation
from trt_bisect.report.model import Report
from trt_bisect.report.profile import Profile
from trt_bisect.report.recovery import Recovery
from trt_bisect.report.regression.result import NetworkResult, Regression
from trt_bisect.report.sensitivity import Sensitivity
from trt_bisect.report.worst import WorstReport

SCHEMA = shape_of(Schema)
_BY_PLAN = {
    "by_input": ListOf(shape_of(ByInputFacts), named=True),
    "latency": Mapping[str, Latency | None] | None,
}
_NETWORK = shape_of(NetworkResult).plus(tonight=Any, baseline=Any)

FILES: Mapping[str, Shape] = {
    "report.json": shape_of(Report)
    .without("files", "graph", "explanation", "remedy_files")
    .plus(recipe=shape_of(RecipeLayers), ranges=shape_of(RangesFacts), inputs=shape_of(InputsFacts), **_BY_PLAN),
    "recovery.json": shape_of(Recovery).without("files", "graph").plus(target=shape_of(TargetFacts), **_BY_PLAN),
    "sensitivity.json": shape_of(Sensitivity),
    "worst.json": shape_of(WorstReport),
    "compare.json": shape_of(Comparison),
    "profile.json": shape_of(Profile),
    "check.json": shape_of(CheckReport),
    "explanation.json": shape_of(Explanation),
    "regression.json": shape_of(Regression).plus(networks=ListOf(_NETWORK)),
    "network.json": shape_of(Graph),
    "journal.jsonl": shape_of(JournalLine).plus(trial=shape_of(Trial).plus(shape_of(Ran))),
}
"""By the name of the file; of the journal the shape of a line."""
