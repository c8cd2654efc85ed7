"""JUnit XML as Jenkins' schema allows it, read back by a library that knows it; Markdown as GitHub shows it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped
from lxml import etree
from markdown_it import MarkdownIt

from tests.support.records import EMPTY
from trt_bisect.builder.base import Latency
from trt_bisect.report.answer import RecipeLayers
from trt_bisect.report.changes import Change
from trt_bisect.report.nightly import Baseline, NetworkResult, Regression, junit_xml, markdown, sentences
from trt_bisect.report.parts import ByPlan

# Jenkins' own (jenkinsci/xunit-plugin, MIT, the licence is in the file), as pytest ships it with its sources.
BROKEN = "The file is broken."
A_AND_B, A_OR_NONE = "'a' and 'b'", "'a' or no layer"
SCHEMA = etree.XMLSchema(etree.parse(str(Path(__file__).parents[1] / "files/junit-10.xsd")))

FOUND = {"culprits": ("a",), "similarity": ByPlan(0.98, 0.999), "recipe": RecipeLayers(("a",), meets=True)}
REPORT = replace(EMPTY, latency={"int8": Latency.of([1.0])}, **FOUND)
BASELINE = Baseline("net", 1, "", (REPORT,))


def result(name="net", *changes, **more):
    failures = tuple(change for change in changes if change.fails())
    others = tuple(change for change in changes if not change.fails())
    status = "failed" if failures else "passed"
    told = {"status": status, "tonight": REPORT, "baseline": BASELINE, "differs": (), **more}
    return NetworkResult(name, f"runs/{name}", seconds=12.3456, failures=failures, changes=others, **told)


def night(*results):
    began = "2026-03-01T01:30:00+00:00"
    return Regression("suite.toml", Path("nightly/1"), 1, began, "night 1", False, "failed", 1, results)


def read_back(regression):
    written = junit_xml(regression)
    document = etree.fromstring(written)
    SCHEMA.assertValid(document)
    return JUnitXml.fromstring(written)


CULPRIT = Change("culprit", "worse", "a", (0.001,), 0.02)
SLOW = Change("latency", "worse", "int8", (1.0, 1.05), 1.5)


def test_a_passed_night():
    (suite,) = read_back(night(result()))
    assert (suite.name, suite.tests, suite.failures, suite.errors, suite.skipped) == ("net", 7, 0, 0, 1)
    assert suite.time == 12.346
    assert suite.timestamp == "2026-03-01T01:30:00"
    assert [case.name for case in suite if any(isinstance(r, Skipped) for r in case.result)] == ["target"]
    said = etree.fromstring(junit_xml(night(result()))).findtext(".//system-out")
    assert said.startswith("What differs from the baseline: nothing")


def test_failures_stand_in_their_cases_and_one_for_each_layer():
    suites = read_back(night(result("bad", CULPRIT, SLOW), result("good")))
    assert (suites.tests, suites.failures, suites.errors) == (15, 3, 0)
    cases = [case for case in next(iter(suites)) if case.result and type(case.result[0]) is Failure]
    failed = {case.name: case.result[0].message for case in cases}
    assert failed == {
        "latency": "latency of int8 is slower: 1.500 ms, was 1.000 ms to 1.050 ms",
        "culprits": "new culprit 'a', costs 2%, was 0.1%",
        "layer a: culprit": "new culprit 'a', costs 2%, was 0.1%",
    }


def test_a_network_that_could_not_be_measured_is_an_error():
    (suite,) = read_back(night(result(tonight=None, message=BROKEN)))
    (case,) = suite
    assert (suite.tests, suite.errors, type(case.result[0])) == (1, 1, Error)
    assert case.result[0].message == BROKEN


def test_what_is_not_judged_is_skipped():
    (suite,) = read_back(night(result(baseline=None, differs=None, targets={"int8": 0.9})))
    judged = [case.name for case in suite if not case.result]
    assert judged == ["measured", "target"]


@given(st.text(st.characters(exclude_categories=()), min_size=1))
@example("x" * 100_000)
def test_any_name_is_valid_xml(text):
    change = replace(CULPRIT, what=text)
    changed, unmeasured = read_back(night(result(text, change), result(tonight=None, message=text)))
    assert changed.failures == 2
    assert unmeasured.errors == 1


def test_a_network_of_many_layers_stays_small():
    """GitLab reads up to 30 MB; of thousands of layers that fail the first 200 have a case of their own."""
    changes = [replace(CULPRIT, what=f"layer{k}") for k in range(5000)]
    moved = [Change("loss", "worse", f"l{k}", (0.0,), 0.5) for k in range(5000)]
    regression = night(*(result(f"net{n}", *changes, *moved) for n in range(3)))
    assert sum(suite.tests for suite in read_back(regression)) == 3 * (7 + 200)
    assert len(junit_xml(regression)) < 5_000_000
    assert len(markdown(regression)) < 1 << 20


def test_sentences_put_failures_first_and_count_the_rest():
    moved = [Change("loss", "worse", f"l{k}", (0.0,), 0.5) for k in range(8)]
    new = [Change("layer", "told", name, (), "new") for name in "xy"]
    assert sentences(result("net", *moved, *new, CULPRIT)) == [
        "new culprit 'a', costs 2%, was 0.1%",
        *(f"'l{k}' costs more: 50%, was 0%" for k in range(5)),
        "3 more layers changed in the same way (regression.json has all)",
        "layers new: 'x' and 'y'",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Change("similarity", "worse", "int8", (0.999, 0.998), 0.9), "full INT8 is worse: 90%, was 99.8% to 99.9%"),
        (Change("similarity", "better", "recipe", (None,), 0.9), "the recipe is better: 90%, was not measured"),
        (Change("culprit", "better", "a", (0.02,), None), "no longer a culprit: 'a', costs not measured, was 2%"),
        (Change("obeyed", "worse", "a", (True,), False), "'a' no longer runs in the requested precision"),
        (Change("outcome", "worse", "a", ("measured",), "build failed"), "'a': build failed, was measured"),
        (
            Change("recipe", "worse", "recipe", (("a",), ()), ("a", "b")),
            f"the recipe keeps {A_AND_B} in high precision, was {A_OR_NONE}, and no longer meets the threshold",
        ),
        (Change("target", "worse", "int8", (0.999,), None), "full INT8 is not measured, the target is 99.9%"),
        (Change("curve", "better", "a", (0.9,), 0.95), "the curve at 'a' is better: 95%, was 90%"),
    ],
)
def test_each_change_in_words(change, said):
    assert sentences(result("net", change)) == [said]


HOSTILE = "a|b `c` <img src=x> [l](http://x) **d** ~~e~~ $f$ @me #1 :smile: www.x.org\n# h"


def test_markdown_of_hostile_names_is_text():
    text = markdown(night(result(HOSTILE, replace(CULPRIT, what=HOSTILE))))
    parser = MarkdownIt("gfm-like", {"linkify": False}).enable("table")
    html = parser.render(text)
    assert html.count("<table>") == 1
    for tag in ("<img", "<a ", "<strong", "<s>", "<h1", "<em"):
        assert tag not in html
    assert html.count("&lt;img src=x&gt;") == 3  # the table, the heading, the sentence
    assert html.count("<td>") == 7
    for sign in ("~~", "$f$", "@me", ":smile:", "http://", "www."):
        assert sign not in text
