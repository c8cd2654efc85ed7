"""``trt-bisect recover``: the best recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trt_bisect.cli.options import (
    CacheVersion,
    Calibration,
    Calibrator,
    ClassAxis,
    ClusterAddress,
    ClusterCpus,
    Direction,
    Engine,
    Inputs,
    KeepMasks,
    KeptIn,
    Memory,
    Model,
    Output,
    Outputs,
    Percentile,
    Retries,
    Samples,
    Shape,
    Typing,
    parse_shapes,
)


def recover_command(
    model: Model,
    calibration: Calibration = None,
    inputs: Inputs = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Data to search for the worst inputs; the samples of --labels.", show_default=False),
    ] = None,
    output: Output = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="The worst similarity that is still good. [default: the metric's own]", show_default=False),
    ] = None,
    accuracy: Annotated[
        str | None,
        typer.Option(
            help="module:function of yours, called with infer(feeds) -> outputs; returns a number, higher for better.",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Or the right classes of the samples of --dataset, .npy or text.", show_default=False),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="The least accuracy that is still good.", show_default=False)
    ] = None,
    drop: Annotated[
        str | None,
        typer.Option(help="Or how much of FP32's accuracy may be lost: 0.01, or 1% of it.", show_default=False),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="The most accurate plan that gives up at most this share of INT8's gain in speed, such as 5%.",
            show_default=False,
        ),
    ] = None,
    cost: Annotated[str, typer.Option(help="macs, measured, auto, or a CSV with layer, int8, fp16, fp32.")] = "auto",
    precision: Annotated[str, typer.Option(help="Of the layers not in INT8: fp32, fp16, or mixed.")] = "fp32",
    together: Annotated[str, typer.Option(help="layers, or fused: what TensorRT fuses moves together.")] = "layers",
    blocks: Annotated[str, typer.Option(help="Blocks of layers first: auto, always or never.")] = "auto",
    plans: Annotated[
        int | None,
        typer.Option(help="How many are tried before it stops looking for cheaper ones.", show_default=False),
    ] = None,
    remedies: Annotated[bool, typer.Option(help="Try other calibrators for single tensors first.")] = True,
    engine: Engine = "auto",
    typing: Typing = "auto",
    metric: Annotated[str, typer.Option(help="Of the similarity, or module:function.")] = "cosine",
    direction: Direction = "higher",
    outputs: Outputs = None,
    cluster: ClusterAddress = "",
    cluster_cpus: ClusterCpus = 1,
    retries: Retries = 2,
    samples: Samples = None,
    class_axis: ClassAxis = None,
    calibrator: Calibrator = "entropy",
    percentile: Percentile = 99.99,
    keep_mask_ranges: KeepMasks = False,
    trt_version: CacheVersion = "",
    shape: Shape = None,
    memory: Memory = 512,
    history: KeptIn = "beside",
) -> None:
    """Find the plan that meets the threshold, or an accuracy, at the least cost in speed, and the front it lies on.

    Exit codes: 0 the recipe meets the target; 1 no plan does; 2 bad use or input; 3 nothing could be measured.
    """
    from rich.console import Console

    from trt_bisect.jobs.recover.recover import recover
    from trt_bisect.report.screen.recovery import print_recovery
    from trt_bisect.support.progress import RichProgress

    folder = output or Path(f"trt-bisect-{model.stem}")
    found = recover(
        model,
        calibration,
        inputs,
        dataset=dataset,
        engine=engine,
        typing=typing,
        metric=metric,
        direction=direction,
        threshold=threshold,
        accuracy=accuracy,
        labels=labels,
        target=target,
        drop=drop,
        budget=budget,
        cost=cost,
        precision=precision,
        together=together,
        blocks=blocks,
        plans=plans,
        remedies=remedies,
        outputs=tuple(outputs or ()),
        samples=samples,
        class_axis=class_axis,
        calibrator=calibrator,
        percentile=percentile,
        keep_mask_ranges=keep_mask_ranges,
        trt_version=trt_version,
        shapes=parse_shapes(shape),
        memory=memory << 20,
        cluster=cluster,
        cluster_cpus=cluster_cpus,
        retries=retries,
        output=folder,
        history=history,
        progress=RichProgress(),
    )
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=140, highlight=False)
    print_recovery(found, console)
    console.print(f"\nThe recipe, the front and all figures: {folder}", markup=False, soft_wrap=True)
    if not found.meets:
        raise typer.Exit(1)
