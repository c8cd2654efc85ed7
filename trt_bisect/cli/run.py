"""``trt-bisect run``: the main job."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from trt_bisect.cli.options import (
    CacheVersion,
    Calibrator,
    ClassAxis,
    ClusterAddress,
    ClusterCpus,
    KeepMasks,
    KeptIn,
    Model,
    Percentile,
    Retries,
    Shape,
    Tensorboard,
    TensorboardChannels,
    parse_shapes,
)


def run_command(
    model: Model,
    calibration: Annotated[
        str | None,
        typer.Option(
            help="Data to calibrate with (.npz, .npy, .json, folder, module:function) or a TensorRT calibration cache.",
            show_default=False,
        ),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option("--input", help="The inputs to judge on; without it the worst are found.", show_default=False),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Data to search for the worst inputs instead of the calibration data.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The run folder. [default: trt-bisect-<model>]", show_default=False),
    ] = None,
    engine: Annotated[str, typer.Option(help="auto, onnxruntime, tensorrt or tensorrt-rtx.")] = "auto",
    typing: Annotated[str, typer.Option(help="TensorRT's typing: auto, weak or strong.")] = "auto",
    strategy: Annotated[
        str,
        typer.Option(
            help="branch (the whole curve in one pass), exhaustive (an engine a layer), bisect (few engines), or auto: "
            "branch on ONNX Runtime, bisect on an NVIDIA engine."
        ),
    ] = "auto",
    curve: Annotated[
        str, typer.Option(help="With branch: full (every point) or culprits (only what the verdict needs).")
    ] = "full",
    memory: Annotated[
        int, typer.Option(help="With branch: MiB of tensors held at once for all points of the curve.")
    ] = 512,
    metric: Annotated[
        str,
        typer.Option(help="cosine, sqnr, centered_sqnr, mse, l1, kl, max_abs, max_rel, top1, or module:function."),
    ] = "cosine",
    direction: Annotated[str, typer.Option(help="For module:function: are higher or lower values better.")] = "higher",
    threshold: Annotated[
        float | None,
        typer.Option(help="The worst value that is still good. [default: 0.99 for cosine]", show_default=False),
    ] = None,
    share: Annotated[
        float, typer.Option(help="A culprit costs at least this share of what the threshold allows.")
    ] = 0.5,
    precision: Annotated[str, typer.Option(help="Of the layers not in INT8: fp32 or fp16.")] = "fp32",
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--outputs", help="A final output that counts; may be repeated. [default: all]", show_default=False
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="How many of the worst inputs are judged, each by itself; the worst decides. [default: 1]",
            show_default=False,
        ),
    ] = None,
    class_axis: ClassAxis = None,
    calibrator: Calibrator = "entropy",
    percentile: Percentile = 99.99,
    keep_mask_ranges: KeepMasks = False,
    trt_version: CacheVersion = "",
    shape: Shape = None,
    workspace: Annotated[
        int | None, typer.Option(help="TensorRT's workspace limit in MiB.", show_default=False)
    ] = None,
    optimization_level: Annotated[
        int | None, typer.Option(help="TensorRT's builder optimisation level, 0 to 5.", show_default=False)
    ] = None,
    force_int8: Annotated[
        bool, typer.Option("--force-int8", help="Weak typing: force INT8 instead of leaving the choice to TensorRT.")
    ] = False,
    tactic_source: Annotated[
        list[str] | None,
        typer.Option(help="The only sources that TensorRT may take kernels from; may be repeated.", show_default=False),
    ] = None,
    build_timeout: Annotated[
        float, typer.Option(help="Seconds that TensorRT may take to build an engine, or to run it.")
    ] = 1800.0,
    explain: Annotated[
        str, typer.Option(help="Why: tensors (compared, and each culprit's sides measured), full (all layers), none.")
    ] = "tensors",
    try_remedies: Annotated[
        bool, typer.Option("--try-remedies", help="Try other calibrators, and each culprit alone in high precision.")
    ] = False,
    cluster: ClusterAddress = "",
    cluster_cpus: ClusterCpus = 1,
    retries: Retries = 2,
    history: KeptIn = "beside",
    tensorboard: Tensorboard = None,
    tensorboard_channels: TensorboardChannels = 0,
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Print every layer, also those that only follow.")
    ] = False,
) -> None:
    """Find the layers that lose the accuracy, print them, and write the plan that restores it.

    Exit codes: 0 full INT8 meets the threshold; 1 it does not, the culprits are named; 2 bad use or input; 3 nothing
    could be measured, or full INT8 ran out of memory or time; 130 interrupted, the same command goes on.
    """
    from rich.console import Console

    from trt_bisect.jobs.run.run import run
    from trt_bisect.report.page.render import PAGE
    from trt_bisect.report.screen.advice import print_advice
    from trt_bisect.report.screen.run import print_report
    from trt_bisect.support.progress import RichProgress

    folder = output or Path(f"trt-bisect-{model.stem}")
    report = run(
        model,
        calibration,
        inputs,
        dataset=dataset,
        engine=engine,
        typing=typing,
        strategy=strategy,
        curve=curve,
        memory=memory << 20,
        metric=metric,
        direction=direction,
        threshold=threshold,
        share=share,
        precision=precision,
        outputs=tuple(outputs or ()),
        samples=samples,
        class_axis=class_axis,
        calibrator=calibrator,
        percentile=percentile,
        keep_mask_ranges=keep_mask_ranges,
        trt_version=trt_version,
        shapes=parse_shapes(shape),
        workspace=None if workspace is None else workspace << 20,
        optimization_level=optimization_level,
        force_int8=force_int8,
        tactic_sources=tuple(tactic_source or ()),
        build_timeout=build_timeout,
        explain=explain,
        try_remedies=try_remedies,
        cluster=cluster,
        cluster_cpus=cluster_cpus,
        retries=retries,
        output=folder,
        history=history,
        tensorboard=tensorboard,
        tensorboard_channels=tensorboard_channels,
        progress=RichProgress(),
        command=shlex.join(["trt-bisect", *sys.argv[1:]]),
    )
    console = Console(highlight=False)
    wide = console if console.is_terminal else Console(width=140, highlight=False)
    print_report(report, wide, every_layer=all_layers)
    if report.explanation is not None:
        console.print()
        print_advice(report.explanation, report.metric, wide)
    console.print(
        f"\nPlans: {report.plans}; engines: {report.builds}, {report.engine} ({report.arithmetic}); "
        f"{report.seconds['total']:.1f} s, at most {report.peak_bytes >> 20} MiB. Report and recipe: {folder}\n"
        f"The page to look at: {folder / PAGE}",
        markup=False,
        soft_wrap=True,
    )
    raise typer.Exit(report.exit_code)
