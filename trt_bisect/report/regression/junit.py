"""A nightly run as JUnit XML, in the form that Jenkins' schema ``junit-10.xsd`` allows and GitLab reads.

Each network is a suite. It has the same few cases every time, and one more for each layer that fails, so that the file
of a network with thousands of layers stays small.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from trt_bisect.analyzer import changes
from trt_bisect.analyzer.changes import Change
from trt_bisect.report.regression.result import NetworkResult, Regression, of_kinds
from trt_bisect.report.regression.text import made_of_text, sentence, sentences

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CASES = {
    "similarity": (changes.SIMILARITY, changes.RECIPE_LAYERS, changes.PART),
    "target": (changes.TARGET,),
    "latency": (changes.LATENCY,),
    "culprits": (changes.CULPRIT,),
    "precision obeyed": (changes.OBEYED,),
    "trials": (changes.OUTCOME,),
}
"""The kinds of changes that fail each case."""
_OF_LAYERS = (changes.CULPRIT, changes.OBEYED, changes.OUTCOME)
_MOST_LAYERS = 200
_LONGEST = 2000
"""Characters of an attribute."""


def junit_xml(regression: Regression) -> bytes:
    """Returns the document, in UTF-8."""
    root = Element("testsuites", name="trt-bisect")
    for result in regression.networks:
        root.append(_suite(result, regression.began))
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _suite(result: NetworkResult, began: str) -> Element:
    cases = list(_cases(result))
    suite = Element(
        "testsuite",
        name=_attribute(result.name),
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors=str(sum(case.find("error") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
        time=f"{result.seconds:.3f}",
        timestamp=began[:19],
    )
    suite.extend(cases)
    SubElement(suite, "system-out").text = _text("\n".join(_lines(result)))
    return suite


def _lines(result: NetworkResult) -> list[str]:
    if result.figures is None or result.baseline is None:
        return sentences(result)
    return [*sentences(result), f"What differs from the baseline: {made_of_text(result.differs)}."]


def _cases(result: NetworkResult) -> Iterator[Element]:
    if result.figures is None:
        yield _failing(_case(result, "measured"), "error", [result.message])
        return
    metric = result.figures.judge.name
    failures = result.failures
    yield _case(result, "measured", result.seconds)
    for name, kinds in _CASES.items():
        case = _case(result, name)
        failing = of_kinds(failures, *kinds)
        if failing:
            _failing(case, "failure", [sentence(change, metric) for change in failing])
        elif not _is_judged(name, result):
            SubElement(case, "skipped")
        yield case
    for change in of_kinds(failures, *_OF_LAYERS)[:_MOST_LAYERS]:
        yield _failing(_case(result, _layer_case(change)), "failure", [sentence(change, metric)])


def _is_judged(case: str, result: NetworkResult) -> bool:
    """Returns true if the case could have failed: there was a target, a latency or a baseline to compare with."""
    if case == "target":
        return bool(result.targets)
    if case == "latency" and (result.figures is None or result.figures.latency is None):
        return False
    return result.baseline is not None and not result.accepted


def _layer_case(change: Change) -> str:
    return f"layer {change.what}: {change.kind}"


def _case(result: NetworkResult, name: str, seconds: float = 0.0) -> Element:
    return Element(
        "testcase", classname=_attribute(f"trt-bisect.{result.name}"), name=_attribute(name), time=f"{seconds:.3f}"
    )


def _failing(case: Element, tag: str, messages: list[str]) -> Element:
    problem = SubElement(
        case, tag, message=_attribute(messages[0]), type="regression" if tag == "failure" else "not measured"
    )
    problem.text = _text("\n".join(messages))
    return case


def _attribute(text: str) -> str:
    return _text(text)[:_LONGEST]


def _text(text: str) -> str:
    """Returns a text without the characters that XML 1.0 cannot hold, even escaped."""
    return _NOT_XML.sub("\ufffd", text)
