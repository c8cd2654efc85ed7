"""The commands on a network alone: ``layers``, ``check``, ``calibrate``, ``migrate``; and ``engines``."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from trt_bisect.cli.display import DISPLAY, Configured, Display, Model, console
from trt_bisect.errors import BadInput
from trt_bisect.options.commands import CalibrateOptions, LayersOptions, MigrateOptions
from trt_bisect.options.concerns import DATA, RESULTS, TENSORRT
from trt_bisect.options.declare import FLAT
from trt_bisect.options.kinds import PLACE, SHAPES, SWITCH, Shapes

_IN_JSON = ("index", "name", "op_type", "shape", "quantizable", "why_not", "module", "code")
"""The facts on a layer in the JSON of ``layers``."""


def layers_command(
    model: Model,
    /,
    *,
    options: Annotated[LayersOptions, FLAT] = LayersOptions(),
    everything: Annotated[bool, DISPLAY(SWITCH, "--all")] = False,
    display: Display = Configured(),
) -> None:
    """List the layers in execution order with operator and output shape, and whether TensorRT can quantize them.

    Below the layers are the inputs and outputs of the network, with dtype and shape.

    Args:
        everything: List the file's other nodes too: constants, Q/DQ pairs, and operators that preparing drops.
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
            {"index": None, "name": each.node, "op_type": each.op_type, "shape": None, "quantizable": False}
            | {"why_not": each.why, "after": each.after, "calls": each.calls}
            for each in dropped
        ]
        display.print_json([*layers, *others])
    else:
        print_layers(network, console(160), dropped)


def check_command(
    model: Model,
    /,
    *,
    output: Annotated[Path | None, RESULTS(PLACE, "--output", "-o")] = None,
    engine: Annotated[str, TENSORRT(without="no engine is built", expert=False)] = "",
    shapes: Annotated[Shapes | None, DATA(SHAPES, *("--shape", "--shapes"), without="1 for each dynamic axis")] = None,
    all_layers: Annotated[bool, DISPLAY(SWITCH)] = False,
    display: Display = Configured(),
) -> int:
    """Check a network, with or without Q/DQ, for what costs accuracy or speed in INT8, or what TensorRT refuses.

    Exit codes: 0 no errors; 1 at least one error; 2 bad use or input.

    Args:
        output: Write check.json, check.csv and check.html to this folder.
        engine: Also build an engine (tensorrt-rtx, without a GPU), and list what its kernels do with the Q/DQ pairs.
        shapes: Set the shape of a dynamic input for --engine: images:1x3x640x640. Repeatable.
        all_layers: Print all layers of each finding, and the quantization of each layer.
    """
    from trt_bisect.commands.check import check
    from trt_bisect.report.screen.tables import print_check

    report = check(model, output=output, engine=engine, shapes=shapes)
    printed = partial(print_check, every_layer=all_layers)
    display.show(report, printed, 160, f"Report: {output}" if output else "")
    return report.exit_code


def migrate_command(
    model: Model,
    /,
    *,
    options: Annotated[MigrateOptions, FLAT] = MigrateOptions(),
    display: Display = Configured(),
) -> int:
    """Take an INT8 engine of TensorRT 7 to 10 along to TensorRT 11, which has no calibration caches and no INT8 flag.

    The scales of the cache, bit for bit, and the precisions of the layers become one strongly typed network with Q/DQ
    pairs. What weak typing decided by itself is listed with the choice made.

    Exit codes: 0 written, and with --input measured and passed; 1 measured, and it fails; 2 bad use or input.
    """
    from trt_bisect.commands.migrate import migrate_with
    from trt_bisect.report.screen.tables import print_migration

    report = migrate_with(model, replace(options, progress=display.progress()))
    display.show(report, print_migration, 160, f"Report: {Path(report.network).parent}")
    return report.exit_code


def calibrate_command(
    model: Model,
    /,
    *,
    options: Annotated[CalibrateOptions, FLAT] = CalibrateOptions(),
    display: Display = Configured(),
) -> None:
    """Calibrate, and write a TensorRT calibration cache with the scale of every activation."""
    from trt_bisect.calibration.cache import DEFAULT_VERSION, format_cache, parse_version
    from trt_bisect.calibration.collect import Calibrating, ranges_from_data
    from trt_bisect.calibration.ranges import notes_on_unusable
    from trt_bisect.data.datasets import open_dataset
    from trt_bisect.preparation.asked_network import asked_network
    from trt_bisect.support.files import write_whole

    if options.calibration is None:
        raise BadInput("There is no data to calibrate with.", "Give --calibration.")
    version = parse_version(options.trt_version) if options.trt_version else DEFAULT_VERSION
    if not version.weak:
        remedy = "Give --trt-version 5.0 to 10.x, or leave it out."
        raise BadInput(f"{version.title} reads no calibration cache.", remedy)
    network = asked_network(options, model, options.shapes)
    samples = open_dataset(options.calibration, network.inputs, pictures=options.preprocessing())
    how = Calibrating(options.calibrator_method, options.percentile, options.memory_bytes)
    with closing(display.progress()) as progress:
        ranges = ranges_from_data(network, samples, how, progress)
    write_whole(Path(options.output), format_cache(ranges.scales, version.header).encode())
    if display.json:
        facts = {"output": str(options.output), "origin": ranges.origin, "trt_version": str(version)}
        scales = {name: float(scale) for name, scale in ranges.scales.items()}
        display.print_json({**facts, "scales": scales, "unusable": dict(ranges.unusable)})
    count = f"{len(ranges.scales)} scales ({ranges.origin})"
    display.say(f"{count} for TensorRT {version} (--trt-version), written to\n{options.output}")
    for sentence in notes_on_unusable(ranges.unusable.items()):
        print(f"{sentence}.", file=sys.stderr)


def engines_command(*, display: Display = Configured()) -> None:
    """List the inference engines with version, typing and device, and why an engine cannot be used."""
    from trt_bisect.builder.engines import EngineStatus, list_engines
    from trt_bisect.report.screen.layout import fitted

    engines, screen = list_engines(), console(160)
    if display.json:
        display.print_json([{**asdict(engine), "usable": engine.usable} for engine in engines])
    else:
        screen.print(fitted(EngineStatus, engines, screen, style=lambda engine: "green" if engine.usable else ""))
