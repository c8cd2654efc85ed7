"""``to_markdown`` and ``compare`` of a report in Python."""

from dataclasses import replace

import pytest

from tests.support import pages
from tests.support.records import record_of
from trt_bisect import BadInput
from trt_bisect.report.answer import RecipeLayers
from trt_bisect.report.parts import ByPlan


@pytest.fixture(scope="module")
def report(finished):
    return pages.read(finished)


def test_what_changed_is_named(report):
    sound = {"culprit": False, "loss": 0.0, "similarity": 1.0}
    layers = tuple(replace(row, **sound) if row.name == "ip2" else row for row in report.layers)
    better = {"similarity": ByPlan(0.9999, 0.9999), "recipe": RecipeLayers(meets=True), "threshold": 0.98}
    good = replace(report, layers=layers, culprits=(), **better)
    worse = report.compare(good)
    keys = {change.key for change in worse.changes}
    assert keys >= {("culprit", "worse", "ip2"), ("similarity", "worse", "int8")}
    assert [each.what for each in worse.differs] == ["option threshold"]
    assert ("culprit", "better", "ip2") in {change.key for change in good.compare(report).changes}
    assert "new culprit 'ip2'" in str(worse)
    assert record_of(worse)["metric"] == "cosine"


def test_reports_of_two_metrics_are_not_compared(report):
    with pytest.raises(BadInput, match="sqnr"):
        report.compare(replace(report, metric="sqnr"))
