"""The main job: a network and data in, named culprits and a recipe out. The command line calls this too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trt_bisect.analyzer.judge import DEFAULT_SHARE, make_rule
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.builder.base import DEFAULT_TIMEOUT, BuildOptions
from trt_bisect.carried import Carried, content_of
from trt_bisect.explaining import explained
from trt_bisect.fleet.cluster import RETRIES, Cluster
from trt_bisect.job import Job
from trt_bisect.machine import MEMORY
from trt_bisect.model.network import Network, load_network
from trt_bisect.progress import Progress, default_progress
from trt_bisect.report.page.graph import NETWORK, network_facts
from trt_bisect.report.plain import write_json
from trt_bisect.report.report import Report
from trt_bisect.report.tensorboard.board import open_board
from trt_bisect.report.tensorboard.run_logs import write_run
from trt_bisect.request import EXPLAIN_TENSORS, Request, high_precision
from trt_bisect.runs.folder import make_folder
from trt_bisect.runs.keeping import BESIDE
from trt_bisect.runs.working import working_in
from trt_bisect.strategy import BRANCH, FULL, Way
from trt_bisect.verdict import verdict


def run(
    model: str | Path | Network,
    calibration: Any = None,
    inputs: Any = None,
    *,
    dataset: Any = None,
    engine: str = "auto",
    typing: str = "auto",
    strategy: str = BRANCH,
    curve: str = FULL,
    memory: int = MEMORY,
    metric: str | Callable[..., Any] = "cosine",
    direction: str = "higher",
    threshold: float | None = None,
    share: float = DEFAULT_SHARE,
    precision: str = "fp32",
    outputs: Sequence[str] = (),
    samples: int | None = None,
    calibrator: str = "entropy",
    percentile: float = 99.99,
    keep_mask_ranges: bool = False,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    workspace: int | None = None,
    optimization_level: int | None = None,
    force_int8: bool = False,
    tactic_sources: Sequence[str] = (),
    build_timeout: float | None = DEFAULT_TIMEOUT,
    explain: str = EXPLAIN_TENSORS,
    try_remedies: bool = False,
    cluster: str = "",
    cluster_cpus: int = 1,
    retries: int = RETRIES,
    output: str | Path | Carried | None = None,
    history: str | Path = BESIDE,
    tensorboard: str | Path | None = None,
    tensorboard_channels: int = 0,
    progress: Progress | None = None,
    command: str = "",
) -> Report:
    """Finds the layers that lose the network's accuracy in INT8, and a plan that restores it.

    Args:
        model: an FP32 ONNX file of opset 11 or later, or a loaded network.
        calibration: data to calibrate with (see ``open_dataset``), or a TensorRT calibration cache. Not needed for a
            network that holds Q/DQ pairs.
        inputs: the inputs to judge on, all together, or the worst ``samples`` of them. Without it the worst ``samples``
            of ``dataset``, or of the calibration data, are found.
        dataset: data to search for the worst inputs.
        engine: ``auto``, ``onnxruntime``, ``tensorrt`` or ``tensorrt-rtx``.
        typing: ``auto``, ``weak`` or ``strong``, TensorRT's.
        strategy: ``branch`` (the whole curve in one pass through pieces of the network), ``exhaustive`` (one engine a
            layer) or ``bisect`` (about log2 N engines a culprit).
        curve: of ``branch``: ``full`` for every point, or ``culprits`` for those that the verdict needs.
        memory: of ``branch``: bytes of tensors that are held at once for all points of the curve.
        metric: a built-in's name, ``module:function``, or a function of reference and output.
        direction: for a function, which values are better, ``higher`` or ``lower``.
        threshold: the worst value that is still good; each built-in metric but the plain errors has its own.
        share: a culprit costs at least this share of what the threshold allows.
        precision: of layers not in INT8, ``fp32`` or ``fp16``.
        outputs: the final outputs that count; all of them if empty. The worst decides.
        samples: how many of the worst inputs are judged together.
        calibrator: ``entropy``, ``minmax`` or ``percentile``.
        percentile: for that calibrator, of |x|, in per cent.
        keep_mask_ranges: quantize tensors with mask-like ranges too.
        shapes: sizes of dynamic inputs, by name.
        workspace: TensorRT's workspace limit in bytes.
        optimization_level: TensorRT's, 0..5.
        force_int8: weak typing: force the INT8 layers instead of leaving them to TensorRT.
        tactic_sources: the only ones that TensorRT may take kernels from, by their names in ``TacticSource``; its own
            choice if empty.
        build_timeout: seconds that TensorRT may take to build an engine, or to run it; then that trial is
            ``timed out``, and the search goes on. None sets no limit.
        explain: ``tensors`` (every tensor in FP32 and INT8, and what is to blame in each culprit), ``full`` (what every
            layer costs alone, too) or ``none``.
        try_remedies: whether other calibrators, and each culprit alone in high precision, are tried as well.
        cluster: where whole engines are tried: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT`` for a Ray cluster, a GPU
            or some processors each; ``local:N`` for N processes of this machine; without it here. The pieces of
            ``branch`` stay here.
        cluster_cpus: of a Ray task that has no GPU.
        retries: how often a plan whose worker was lost is tried again, before its trial is ``lost``.
        output: the run folder; with it the run is journaled, and goes on from there after any stop. The report is saved
            there.
        history: where the run is recorded when it ends, however it ends: ``beside`` for ``HISTORY`` beside the run
            folder, ``none``, or a file. Trouble with it is said, and the run goes on.
        tensorboard: a folder for TensorBoard's logs of FP32, full INT8, both sides of each culprit, and the recipe.
        tensorboard_channels: of how many channels of a tensor, the loudest, logs have histograms as well.
        progress: where progress is shown; tqdm in a notebook by default.
        command: the command line that asks for this, for the report.

    Raises:
        BadInput: something given cannot be used.
        EngineUnavailable: the engine cannot be used here.
        NothingMeasured: the FP32 network itself could not be run.
    """
    request = Request(
        engine=engine,
        typing=typing,
        way=Way(strategy, curve, memory),
        metric=metric,
        direction=direction,
        threshold=threshold,
        share=share,
        outputs=tuple(outputs),
        samples=samples,
        calibrator=calibrator,
        percentile=percentile,
        keep_mask_ranges=keep_mask_ranges,
        options=BuildOptions(
            high=high_precision(precision),
            workspace_bytes=workspace,
            optimization_level=optimization_level,
            force_int8=force_int8,
            tactic_sources=tuple(tactic_sources) or None,
            timeout=build_timeout,
        ),
        explain=explain,
        try_remedies=try_remedies,
        cluster=Cluster(cluster, cluster_cpus, retries),
    )
    make_rule(find_metric(metric, direction), threshold, share)
    output = Path(output) if isinstance(output, str) else output
    folder = None if output is None else make_folder(content_of(output))
    board = open_board(tensorboard, tensorboard_channels)
    with working_in(folder, progress or default_progress(), history) as shown:
        network = model if isinstance(model, Network) else load_network(model, shapes)
        job = Job(request, network, folder, shown)
        with job.opened(calibration, inputs, dataset) as bench:
            graph = network_facts(bench.network, bench.ranges.scales)
            if folder is not None:
                write_json(folder / NETWORK, graph)
            found, measured = verdict(job, bench, command)
            report = replace(found, graph=graph)
            if folder is not None:
                report.save(folder)
            report = explained(job, bench, report, calibration, inputs, output)
        if folder is not None:
            replace(report, files=None, graph=None).save(folder)
        if board is not None:
            write_run(board, bench.network, bench.ranges.scales, bench.feeds, bench.rule, measured, report, shown)
    return report
