"""The files that have a schema, and their shapes.

Names, types and descriptions are those of the dataclasses that the files are made of, and of their docstrings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tools.schemas.extra import (
    ByInputFacts,
    CheckMore,
    Graph,
    InputsFacts,
    JournalLine,
    Ran,
    RangesFacts,
    RecipeLayers,
    Schema,
    TargetFacts,
    TensorColumns,
    TensorRemarks,
    WorstMore,
    Worth,
)
from tools.schemas.shapes import ListOf, Shape, shape_of
from trt_bisect.analyzer.tensors import Figures, RoundingFigures, Spread
from trt_bisect.builder.timing import Latency
from trt_bisect.evaluator.trial import Trial
from trt_bisect.report.check import CheckReport
from trt_bisect.report.comparison import Comparison
from trt_bisect.report.explanation import Explanation
from trt_bisect.report.model import Report
from trt_bisect.report.profile import Profile, ProfiledTensor
from trt_bisect.report.recovery import Recovery
from trt_bisect.report.regression.result import NetworkResult, Regression
from trt_bisect.report.sensitivity import SensitiveOp, Sensitivity
from trt_bisect.report.worst import WorstReport

SCHEMA = shape_of(Schema)
_BY_PLAN = {
    "by_input": ListOf(shape_of(ByInputFacts), named=True),
    "latency": Mapping[str, Latency | None] | None,
}
_COMPARED = replace(shape_of(TensorColumns), name="ComparedTensor").plus(
    shape_of(Figures),
    shape_of(Spread).named("fp32_", "in FP32"),
    shape_of(Spread).named("int8_", "in INT8"),
    shape_of(RoundingFigures).named("rounding_", "of its own rounding").optional(),
    shape_of(TensorRemarks),
)
_NETWORK = shape_of(NetworkResult).plus(tonight=Any, baseline=Any)

FILES: Mapping[str, Shape] = {
    "report.json": shape_of(Report)
    .without("files", "graph", "explanation", "remedy_files")
    .plus(recipe=shape_of(RecipeLayers), ranges=shape_of(RangesFacts), inputs=shape_of(InputsFacts), **_BY_PLAN),
    "recovery.json": shape_of(Recovery).without("files", "graph").plus(target=shape_of(TargetFacts), **_BY_PLAN),
    "sensitivity.json": SCHEMA.plus(shape_of(Sensitivity), ops=ListOf(shape_of(SensitiveOp).plus(shape_of(Worth)))),
    "worst.json": SCHEMA.plus(shape_of(WorstReport).without("inputs"), shape_of(WorstMore)),
    "compare.json": SCHEMA.plus(
        shape_of(Comparison).without("channels"), tensors=ListOf(_COMPARED), weights=ListOf(_COMPARED)
    ),
    "profile.json": SCHEMA.plus(
        shape_of(Profile),
        tensors=ListOf(
            shape_of(ProfiledTensor)
            .without("spread", "rounded", "rounding")
            .plus(
                shape_of(Spread).optional(),
                shape_of(Spread).named("rounded_", "after the Q/DQ pair").optional(),
                shape_of(RoundingFigures).named("rounding_", "of the pair").optional(),
            )
        ),
    ),
    "check.json": SCHEMA.plus(shape_of(CheckReport).without("findings"), shape_of(CheckMore), shape_of(CheckReport)),
    "explanation.json": shape_of(Explanation),
    "regression.json": shape_of(Regression).plus(networks=ListOf(_NETWORK)),
    "network.json": shape_of(Graph),
    "journal.jsonl": shape_of(JournalLine).plus(trial=shape_of(Trial).plus(shape_of(Ran))),
}
"""By the name of the file; of the journal the shape of a line."""
