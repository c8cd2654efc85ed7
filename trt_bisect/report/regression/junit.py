"""A nightly run as JUnit XML, in the form that Jenkins' schema ``junit-10.xsd`` allows and GitLab reads.

Each network is a suite. It has the same few cases every time, and one more for each layer that fails, so that the file
of a network with thousands of layers stays small.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from trt_bisect.report import changes
from trt_bisect.report.nightly import made_of_text, sentence, sentences
from trt_bisect.report.regression.result import NetworkResult, Regression

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
    lines = sentences(result)
    if result.tonight is not None and result.baseline is not None:
        lines.append(f"What differs from the baseline: {made_of_text(result.differs)}.")
    SubElement(suite, "system-out").text = _text("\n".join(lines))
    return suite


def _cases(result: NetworkResult) -> Iterator[Element]:
    report = result.tonight
    if report is None:
        yield _failing(_case(result, "measured"), "error", [result.message])
        return
    is_compared = result.baseline is not None and not result.accepted
    judged = {"target": bool(result.targets), "latency": is_compared and report.latency is not None}
    yield _case(result, "measured", result.seconds)
    for name, kinds in _CASES.items():
        case = _case(result, name)
        failing = [sentence(change, report.metric) for change in result.failures if change.kind in kinds]
        if failing:
            _failing(case, "failure", failing)
        elif not judged.get(name, is_compared):
            SubElement(case, "skipped")
        yield case
    for change in [change for change in result.failures if change.kind in _OF_LAYERS][:_MOST_LAYERS]:
        case = _case(result, f"layer {change.what}: {change.kind}")
        yield _failing(case, "failure", [sentence(change, report.metric)])


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
