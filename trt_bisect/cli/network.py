"""The commands on a network without a run: what it is, what it loses, and where; and ``engines``."""

from __future__ import annotations

import inspect
import sys
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from trt_bisect.cli.app import WIDE, Annotations, Columns, Configured, Model, Top, console, listed, run_folder
from trt_bisect.errors import BadInput, Interrupted
from trt_bisect.options.commands import (
    CalibrateOptions,
    CompareOptions,
    LayersOptions,
    MigrateOptions,
    ProfileOptions,
    SensitivityOptions,
    VerifyOptions,
    WorstOptions,
)
from trt_bisect.options.concerns import INT8, INT16
from trt_bisect.options.declare import Option
from trt_bisect.options.kinds import TEXT, GpuName, InFile, Shapes

# the facts on a layer in the JSON of ``layers``
_IN_JSON = ("index", "name", "op_type", "shape", "quantizable", "why_not", "module", "code")


def layers_command(
    model: Model,
    *,
    options: LayersOptions = LayersOptions(),
    everything: Annotated[bool, Option("--all")] = False,
    display: Configured = Configured(),
) -> None:
    """List the layers in execution order with operator and output shape, and whether TensorRT can quantize them.

    Below the layers are the inputs and outputs of the network, with dtype and shape.

    Args:
        everything: List the file's other nodes too: constants, Q/DQ pairs, and operators that trt-bisect leaves out.
    """
    from trt_bisect.analyzer.structure.graph import FileGraph, dropped_nodes
    from trt_bisect.model.file import read_model
    from trt_bisect.preparation.asked_network import asked_network
    from trt_bisect.report.screen.tables import print_layers

    network = asked_network(options, model, options.shapes)
    file, weights = read_model(model) if everything else (None, {})
    dropped = [*dropped_nodes(FileGraph.of(file, str(model), weights), network)] if file else []
    if display.json:
        layers = [{name: getattr(layer, name) for name in _IN_JSON} for layer in network.layers]
        others: list[dict[str, Any]] = [
            {"index": None, "name": node.node, "op_type": node.op_type, "shape": None, "quantizable": False}
            | {"why_not": node.why, "after": node.after, "calls": node.calls}
            for node in dropped
        ]
        display.print_json([*layers, *others])
    else:
        print_layers(network, console(160), dropped)


def check_command(
    model: Model,
    *,
    output: Annotated[Path | None, Option("--output -o")] = None,
    engine: Annotated[Literal["", "tensorrt-rtx"], TEXT, Option(panel="TensorRT")] = "",
    shapes: Annotated[Shapes | None, Option("--shape --shapes")] = None,
    gpu: Annotated[GpuName | None, Option(panel="Goal")] = None,
    all_layers: Annotated[bool, Option(panel="Display")] = False,
    annotations: Annotations = None,
    display: Configured = Configured(),
) -> int:
    """Check a network, with or without Q/DQ, for what costs accuracy or speed in INT8, or what TensorRT refuses.

    Exit codes: 0 no errors; 1 at least one error; 2 bad use or input.

    Args:
        output: Write check.json, check.csv, check.txt and check.html to this folder.
        engine: Also build an engine (tensorrt-rtx, without a GPU), and list what its kernels do with the Q/DQ pairs.
            Default: no engine is built.
        shapes: Set the shape of a dynamic input for --engine and --gpu: images:1x3x640x640. Repeatable. Default: 1 for
            each dynamic axis.
        gpu: Predict the times of FP16 and full INT8 on this GPU, or on that of a TOML file with its peaks.
        all_layers: Print all layers of each finding, and the quantization of each layer.
    """
    from trt_bisect.commands.check import check
    from trt_bisect.report.annotations import of_check
    from trt_bisect.report.screen.tables import print_check
    from trt_bisect.report.structure import CheckReport

    report: CheckReport = inspect.unwrap(check)(model, output=output, engine=engine, shapes=shapes, gpu=gpu)
    printed = partial(print_check, every_layer=all_layers)
    display.show(report, printed, 160, "Report", output)
    if annotations is not None:
        display.annotate(of_check(report))
    return report.exit_code


def migrate_command(
    model: Model, *, options: MigrateOptions = MigrateOptions(), display: Configured = Configured()
) -> int:
    """Convert an INT8 engine of TensorRT 7 to 10 for TensorRT 11, which has no calibration caches and no INT8 flag.

    The scales of the cache, bit for bit, and the precisions of the layers become one strongly typed network with Q/DQ
    pairs. What weak typing decided by itself is listed with the choice made.

    Exit codes: 0 written, and with --input measured and passed; 1 measured, and it fails; 2 bad use or input.
    """
    from trt_bisect.commands.migrate import migrate
    from trt_bisect.report.screen.tables import print_migration

    report = migrate.job(model, replace(options, progress=display.progress()))
    display.show(report, print_migration, 160, "Report", Path(report.network).parent)
    return report.exit_code


def calibrate_command(
    model: Model, *, options: CalibrateOptions = CalibrateOptions(), display: Configured = Configured()
) -> None:
    """Calibrate, and write a TensorRT calibration cache with the scale of every activation."""
    from trt_bisect.calibration.cache import DEFAULT_VERSION, format_cache, parse_version
    from trt_bisect.calibration.ranges import notes_on_unusable
    from trt_bisect.data.datasets import open_dataset
    from trt_bisect.preparation.asked_network import asked_network
    from trt_bisect.preparation.given_data import ranges_from_data
    from trt_bisect.support.files import write_whole

    if options.calibration is None:
        raise BadInput("There is no data to calibrate with.", "Give --calibration.")
    version = parse_version(options.trt_version) if options.trt_version else DEFAULT_VERSION
    if not version.weak:
        remedy = "Give --trt-version 5.0 to 10.x, or leave it out."
        raise BadInput(f"{version.title} reads no calibration cache.", remedy)
    network = asked_network(options, model, options.shapes)
    samples = open_dataset(options.calibration, network.inputs, pictures=options.preprocessing())
    with closing(display.progress()) as progress:
        ranges = ranges_from_data(network, samples, options, progress)
    write_whole(Path(options.output), format_cache(ranges.scales, version.header).encode())
    if display.json:
        facts = {"output": str(options.output), "origin": ranges.origin, "trt_version": str(version)}
        scales = {name: float(scale) for name, scale in ranges.scales.items()}
        display.print_json({**facts, "scales": scales, "unusable": dict(ranges.unusable)})
    count = f"{len(ranges.scales)} scales ({ranges.origin})"
    display.say(f"{count} for TensorRT {version} (--trt-version), written to\n{options.output}")
    for sentence in notes_on_unusable(ranges.unusable.items()):
        print(f"{sentence}.", file=sys.stderr)


def engines_command(*, display: Configured = Configured()) -> None:
    """List the inference engines with version, typing and device, and why an engine cannot be used."""
    from trt_bisect.builder.engines import EngineStatus, list_engines
    from trt_bisect.report.screen.layout import fitted

    engines, screen = list_engines(), console(160)
    if display.json:
        display.print_json([{**asdict(engine), "usable": engine.usable} for engine in engines])
    else:
        screen.print(fitted(EngineStatus, engines, screen, style=lambda engine: "green" if engine.usable else ""))


def sensitivity_command(
    model: Model,
    *,
    options: SensitivityOptions = SensitivityOptions(),
    top: Top = 20,
    way: Literal["all", "weight", "activation", "both"] = "all",
    sort: Annotated[str, Option(panel="Display")] = "loss",
    order: Literal["worst", "descending", "ascending"] = "worst",
    display: Configured = Configured(),
) -> None:
    """Rank layers by the accuracy each loses when only it runs in INT8: its weights, its activations, and both.

    loss: the loss with only this layer in INT8. alone: what full INT8 wins back with only this layer in high
    precision. worth: alone per share of the multiply-adds.

    Args:
        way: Print only the rows with these parts of a layer in INT8.
        sort: Sort by loss, alone, worth, macs, or a metric.
        order: Sort the most sensitive layers first (worst), or by value.
    """
    from trt_bisect.analyzer.metrics import AGREEMENT, BUILT_IN
    from trt_bisect.commands.losses import sensitivity
    from trt_bisect.report.losses import OWN
    from trt_bisect.report.screen.tables import print_sensitivity

    columns = (*OWN, AGREEMENT.name) if options.task else (*OWN, *BUILT_IN)
    if sort not in columns and (options.task or sort != options.metric):
        raise BadInput(f"There is no column '{sort}' to sort by.", f"Use one of {', '.join(columns)}.")
    if way in ("weight", "activation") and options.low not in (INT8, INT16):
        problem = f"Only INT8 has separate rows for weights and activations, {options.low} has none."
        raise BadInput(problem, "Give --way all.")
    options = replace(options, output=run_folder(options.output, model), progress=display.progress())
    result = sensitivity.job(model, options)
    descending = None if order == "worst" else order == "descending"
    chosen = None if way == "all" else way
    rows = result.sorted_by(sort, descending=descending, way=chosen)
    printed = partial(print_sensitivity, rows=rows, sort=sort, top=top)
    display.show(result, printed, 140, "All rows", options.output)


def compare_command(
    model: InFile | None = None,
    *,
    options: CompareOptions = CompareOptions(),
    top: Top = 50,
    columns: Columns = "",
    weight_scales: bool = False,
    display: Configured = Configured(),
) -> None:
    """Compare every tensor and weight of a network in FP32 and low precision, of two networks, or of two saved runs.

    Args:
        model: The ONNX network; not needed for two saved runs.
        weight_scales: Print only the scales of the weights: what chose each, its type, axis and channel.
    """
    from trt_bisect.commands.compare import compare
    from trt_bisect.report.screen.tables import print_comparison

    if weight_scales and columns:
        raise BadInput("--weight-scales has columns of its own.", "Leave out --columns, or --weight-scales.")
    result = compare.job(model, replace(options, progress=display.progress()))
    printed = partial(print_comparison, top=top, columns=listed(columns), weight_scales=weight_scales)
    display.show(result, printed, WIDE)


def verify_command(
    model: Model, *, options: VerifyOptions = VerifyOptions(), display: Configured = Configured()
) -> int:
    """Check by an engine's outputs that it computes what its file says, and find out why not. No GPU is needed.

    Each suspicion is emulated until one reproduces the outputs: other preprocessing, batches, outputs, types, scales,
    layers in other precisions, a wrong kernel.

    Exit codes: 0 the engine computes its file; 1 it differs; 2 bad use or input; 3 it cannot be told.
    """
    from trt_bisect.commands.verify.verify import verify
    from trt_bisect.report.screen.tables import print_verification

    result = verify.job(model, replace(options, progress=display.progress()))
    display.show(result, print_verification, 120, "Report", options.output)
    return result.exit_code


def profile_command(
    model: Model,
    *,
    options: ProfileOptions = ProfileOptions(),
    top: Top = 0,
    columns: Columns = "",
    display: Configured = Configured(),
) -> None:
    """List the inputs, outputs, weights and biases of each layer: dtype, INT8 scale, shape, moments."""
    from trt_bisect.commands.compare import profile
    from trt_bisect.report.screen.tables import print_profile

    result = profile.job(model, replace(options, progress=display.progress()))
    display.show(result, partial(print_profile, top=top, columns=listed(columns)), WIDE)


def worst_command(
    model: Model,
    *,
    options: WorstOptions = WorstOptions(),
    display: Configured = Configured(),
) -> None:
    """Find the inputs that lose most in low precision, and say whether a few inputs or the network is bad.

    Exit codes: 0 searched; 2 bad use or input; 130 interrupted, the result covers the samples until then.
    """
    from trt_bisect.commands.losses import worst
    from trt_bisect.report.screen.tables import print_worst

    report = worst.job(model, replace(options, progress=display.progress()))
    display.show(report, print_worst, 120, "Report and inputs", options.output)
    if report.stopped:
        raise Interrupted("interrupted.", "The result above covers the samples until then.")
