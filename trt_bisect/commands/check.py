from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from trt_bisect.analyzer.structure.check import in_order, structure_findings
from trt_bisect.analyzer.structure.findings import found
from trt_bisect.analyzer.structure.graph import DroppedNode, FileGraph, dropped_nodes
from trt_bisect.analyzer.structure.kernels import engine_facts, engine_findings
from trt_bisect.analyzer.structure.qdq import TensorRounding, pairs_of, tensor_roundings
from trt_bisect.analyzer.structure.refusals import settled
from trt_bisect.answer.costs import foreseen_times
from trt_bisect.builder.base import DEFAULT_TIMEOUT
from trt_bisect.builder.engines import engine_version
from trt_bisect.builder.inspector import EngineLayer
from trt_bisect.builder.isolation import WorkerProcess
from trt_bisect.builder.tensorrt_build import RTX
from trt_bisect.builder.tensorrt_rtx import layers_of_file
from trt_bisect.errors import BadInput, TrialFailed, TrtBisectError
from trt_bisect.model.cost import TimeCosts
from trt_bisect.model.file import read_model, save_model, saved_model
from trt_bisect.model.network import GivenModel, Network, load_network
from trt_bisect.model.observe import facts_of_shapes
from trt_bisect.model.operators import refusing_invalid
from trt_bisect.model.prepare import Shapes, refuse_shapes
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.options.declare import asked_gpu, naming_keywords
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.pytorch import exported
from trt_bisect.report.structure import CheckReport
from trt_bisect.support.files import ScratchFolder

_LARGEST_SCALE = 0.02


@naming_keywords()
def check(
    model: GivenModel,
    *,
    output: str | Path | None = None,
    engine: Literal["", "tensorrt-rtx"] = "",
    shapes: Shapes | None = None,
    gpu: str | None = None,
) -> CheckReport:
    """Checks the structure of an ONNX file, before any measurement.

    Args:
        model: an ONNX file, with or without Q/DQ pairs, an ``onnx.ModelProto``, or a loaded network, whose file is
            checked.
        output: a folder for ``check.json``, ``check.csv`` and ``check.html``; None: no files.
        engine: ``tensorrt-rtx``: also build an engine (without a GPU) and check how its kernels treat the Q/DQ pairs. A
            file without pairs is built with every layer in INT8 and stand-in scales.
        shapes: sizes of dynamic inputs, by name, for ``engine`` and ``gpu``; a dynamic axis without a size is 1.
        gpu: predict the times of FP16 and full INT8 on this GPU: a name, or a TOML file with its peaks.

    Raises:
        BadInput: the file cannot be read, an input does not take its shape, or the folder cannot be written.
        EngineUnavailable: the engine is not installed.
    """
    if engine not in ("", RTX):
        raise BadInput(f"check does not build with the engine '{engine}'.", f"Use '{RTX}': it needs no GPU.")
    module = exported(model, (), shapes or {}, output)
    model = model if module is None else module.path
    path = Path(model.source) if isinstance(model, Network) else saved_model(model)
    with refusing_invalid(path):
        calls = module.calls or None if module else None
        report = _report_on(path, engine, shapes or {}, gpu, calls)
    if output is not None:
        report.save(output)
    return report


def _report_on(
    path: Path, engine: str, shapes: Shapes, gpu: str | None, calls: Mapping[str, int] | None
) -> CheckReport:
    source, (model, weights) = str(path), read_model(path)
    refuse_shapes(model.graph, shapes, source)
    graph = FileGraph.of(model, source, weights)
    peaks = None if gpu is None else asked_gpu(gpu)
    network, unread, predicted = None, "", ""
    tensors: tuple[TensorRounding, ...] = ()
    dropped: tuple[DroppedNode, ...] = ()
    try:
        network = load_network(source)
        tensors, dropped = tuple(tensor_roundings(network)), tuple(dropped_nodes(graph, network))
    except TrtBisectError as error:
        unread = error.problem
    if peaks is not None and network is not None:
        predicted = foreseen_times(TimeCosts(network, facts_of_shapes(network, shapes), peaks))
    report = CheckReport(
        model=source,
        opset=graph.opset,
        nodes=len(graph.model.graph.node),
        pairs=len(pairs_of(graph)),
        findings=in_order(settled(structure_findings(graph, calls), graph)),
        tensors=tensors,
        dropped=dropped,
        unread=unread,
        predicted=predicted,
    )
    return _with_engine(report, graph, network, engine, shapes) if engine else report


def _with_engine(
    report: CheckReport, graph: FileGraph, network: Network | None, engine: str, shapes: Shapes
) -> CheckReport:
    process, version = WorkerProcess(), engine_version(engine)
    if not report.pairs and network is not None:
        scales = np.linspace(_LARGEST_SCALE / 2, _LARGEST_SCALE, len(network.activations), dtype=np.float32)
        written = PlanWriter(network, dict(zip(network.activations, scales, strict=True)), GraphTarget.TENSORRT)
        graph = _written(written, network.full(Precision.FP32))
    try:
        layers, without = _layers(process, graph, shapes), None
        if network is not None:
            writer = PlanWriter(network, {}, GraphTarget.TENSORRT)
            without = _layers(process, _written(writer, network.free_plan()), shapes)
    except TrialFailed as failure:
        findings = [found("engine not built", "", f"{engine} {version}: {failure.message}")]
        return replace(report, findings=in_order([*report.findings, *findings]))
    finally:
        process.stop()
    facts = engine_facts(f"{engine} {version}", graph, layers, without)
    return replace(report, findings=in_order([*report.findings, *engine_findings(facts)]), engine=facts)


def _written(writer: PlanWriter, plan: PrecisionPlan) -> FileGraph:
    written = writer.write(plan)
    return FileGraph.of(written.model, writer.network.source, written.weights)


def _layers(process: WorkerProcess, graph: FileGraph, shapes: Shapes) -> Sequence[EngineLayer]:
    with ScratchFolder() as folder:
        path = folder / "network.onnx"
        save_model(graph.model, graph.weights, path)
        layers: Sequence[EngineLayer] = process.worker().ask(
            ("call", partial(layers_of_file, path, shapes)), DEFAULT_TIMEOUT
        )
        return layers
