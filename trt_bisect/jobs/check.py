"""The structure check of a file. The command line calls this too."""

from __future__ import annotations

from pathlib import Path

import onnx

from trt_bisect.analyzer.structure.check import structure_findings
from trt_bisect.analyzer.structure.graph import FileGraph
from trt_bisect.analyzer.structure.qdq import pairs_of
from trt_bisect.analyzer.structure.roundings import TensorRounding, tensor_roundings
from trt_bisect.errors import TrtBisectError
from trt_bisect.model.fault import refusing_invalid
from trt_bisect.model.file import Weights, read_model
from trt_bisect.model.network import load_network
from trt_bisect.results.check import CheckReport


def check(model: str | Path, *, output: str | Path | None = None) -> CheckReport:
    """Looks at an ONNX file as it is, before anything is measured.

    Found are weights and layers that several consumers share, patterns that TensorRT would fuse and the graph prevents,
    Q/DQ pairs where TensorRT does not want them, odd scales, layers that are never quantized, and opsets, operators and
    types that TensorRT refuses.

    Args:
        model: an ONNX file, with or without Q/DQ pairs.
        output: a folder for ``check.json``, ``check.csv`` and ``check.html``.

    Raises:
        BadInput: the file cannot be read, or the folder cannot be written.
    """
    path = Path(model)
    with refusing_invalid(path):
        report = _report_on(*read_model(path), str(path))
    if output is not None:
        report.save(output)
    return report


def _tensors(source: str) -> tuple[tuple[TensorRounding, ...], str]:
    """The quantization of every layer; none, and the reason, if ``run`` cannot read the file."""
    try:
        return tuple(tensor_roundings(load_network(source))), ""
    except TrtBisectError as error:
        return (), error.problem


def _report_on(model: onnx.ModelProto, weights: Weights, source: str) -> CheckReport:
    graph = FileGraph.of(model, source, weights)
    tensors, unread = _tensors(source)
    return CheckReport(
        model=source,
        opset=graph.opset,
        nodes=len(graph.model.graph.node),
        pairs=len(pairs_of(graph)),
        findings=structure_findings(graph),
        tensors=tensors,
        unread=unread,
    )
