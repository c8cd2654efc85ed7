"""The page of each result that is shown as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trt_bisect.report.check import CheckReport
from trt_bisect.report.comparison import Comparison
from trt_bisect.report.page.tables import check, comparison, profile, sensitivity, worst
from trt_bisect.report.page.tables.shape import TablePage
from trt_bisect.report.profile import Profile
from trt_bisect.report.saving import WithTablePage
from trt_bisect.report.sensitivity import Sensitivity
from trt_bisect.report.worst import WorstReport

_MAKERS: Mapping[type[WithTablePage], Callable[[Any], TablePage]] = {
    Comparison: comparison.page,
    Sensitivity: sensitivity.page,
    WorstReport: worst.page,
    Profile: profile.page,
    CheckReport: check.page,
}
RESULTS = tuple(_MAKERS)
"""The kinds of results that have such a page."""


def page_of(found: WithTablePage) -> TablePage:
    """Returns the page of a result."""
    return _MAKERS[type(found)](found)
