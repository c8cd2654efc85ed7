"""Reasons why TensorRT cannot build a network: from an installed parser, else as a table predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx

from trt_bisect.analyzer.structure.check import opset_findings, type_findings
from trt_bisect.analyzer.structure.findings import ERROR, Finding, found
from trt_bisect.analyzer.structure.graph import PAIR, FileGraph, in_scope
from trt_bisect.analyzer.structure.operators import FROM_PLUGINS, operator_findings
from trt_bisect.builder.parser import Refusal, ask_parser
from trt_bisect.model.file import Written
from trt_bisect.support.text import Line, counted, listed

REFUSED = "refused"
# The kinds that predict the parser's answer, and are dropped if a parser accepts the file.
_STANDING_FOR_THE_PARSER = ("operator refused", "operator restricted", "type restricted", "plugin needed")


def refusals(graph: FileGraph, plugins: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Returns the reasons why TensorRT cannot build a network. With the user's plugin libraries (``plugins``), no
    plugin counts as missing.
    """
    findings = (*opset_findings(graph), *type_findings(graph), *operator_findings(graph))
    return settled([finding for finding in findings if finding.severity == ERROR], graph, plugins)


def settled(findings: Iterable[Finding], graph: FileGraph, plugins: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Returns findings corrected by TensorRT's parser, if installed: if the parser accepts the file, predicted refusals
    are dropped; else the parser's own are added. With the user's plugin libraries (``plugins``), no plugin counts as
    missing.
    """
    kept = [finding for finding in findings if not (plugins and finding.kind == "plugin needed")]
    answer = ask_parser(Written(graph.model, graph.weights))
    if answer is None:
        return tuple(kept)
    parser, refused = answer
    if not refused:
        return tuple(finding for finding in kept if finding.kind not in _STANDING_FOR_THE_PARSER)
    return (*kept, *_of_parser(parser, refused, [finding for finding in kept if finding.severity == ERROR], graph))


def in_lines(findings: Sequence[Finding], cannot: str = "build this network") -> tuple[Line, ...]:
    """Returns a line for each kind of finding: what TensorRT ``cannot`` do, the first node, the number of others, and
    the remedy.
    """
    lines = []
    for kind in dict.fromkeys(finding.kind for finding in findings):
        first, *others = [finding for finding in findings if finding.kind == kind]
        where = f" (node {listed(first.layers)})" if first.layers else ""
        more = f" and {counted(len(others), 'other node')}" if others else ""
        layers = tuple(dict.fromkeys(name for finding in (first, *others) for name in finding.layers))
        text = f"TensorRT cannot {cannot}: {first.what}{where}{more}. {first.remedy}"
        lines.append(Line(REFUSED, text, layers))
    return tuple(lines)


def _of_parser(
    parser: str, refused: Sequence[Refusal], errors: Sequence[Finding], graph: FileGraph
) -> Iterator[Finding]:
    # Leaves out refusals that another error explains, or that a missing plugin causes.
    explained = {name for error in errors for name in error.layers}
    operators = {node.name: node for node, _ in in_scope(graph.nodes, graph)}
    for refusal in refused:
        nodes = [refusal.node] if refusal.node else [k for k, v in operators.items() if v.op_type == refusal.operator]
        if explained.intersection(nodes) or _is_plugin(refusal, operators) or (errors and refusal.operator in PAIR):
            continue
        operator = f"{refusal.operator}: " if refusal.operator else ""
        what = f"{operator}{parser} says: {refusal.reason}"
        yield found("refused by the parser", nodes if len(nodes) == 1 else "", what)


def _is_plugin(refusal: Refusal, nodes: dict[str, onnx.NodeProto]) -> bool:
    if refusal.operator in FROM_PLUGINS or (refusal.node in nodes and nodes[refusal.node].domain):
        return True
    return bool(refusal.operator) and not onnx.defs.has(refusal.operator)
