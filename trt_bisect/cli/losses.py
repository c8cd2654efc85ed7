"""The commands that list what is lost, and where: ``sensitivity``, ``compare``, ``profile``, ``worst``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from trt_bisect.cli.display import DISPLAY, WIDE, Columns, Configured, Display, Model, Top, listed, run_folder
from trt_bisect.errors import BadInput, Interrupted
from trt_bisect.options.commands import CompareOptions, ProfileOptions, SensitivityOptions, WorstOptions
from trt_bisect.options.declare import FLAT
from trt_bisect.options.kinds import FILE, SWITCH, choice


def sensitivity_command(
    model: Model,
    /,
    *,
    options: Annotated[SensitivityOptions, FLAT] = SensitivityOptions(),
    top: Top = 20,
    way: Annotated[str, DISPLAY(choice("all", "weight", "activation", "both"))] = "all",
    sort: Annotated[str, DISPLAY()] = "loss",
    order: Annotated[str, DISPLAY(choice("worst", "descending", "ascending"))] = "worst",
    display: Display = Configured(),
) -> None:
    """Rank layers by the accuracy each loses when it alone runs in INT8: its weights, its activations, and both.

    loss: the loss with this layer alone in INT8. gain: what full INT8 wins back with this layer alone in high
    precision. worth: the gain per share of the multiply-adds.

    Args:
        way: Print only the rows with these parts of a layer in INT8.
        sort: Sort by loss, gain, worth, macs, or a metric.
        order: Sort the most sensitive layers first (worst), or by value.
    """
    from trt_bisect.analyzer.metrics import AGREEMENT, BUILT_IN
    from trt_bisect.commands.losses import sensitivity_with
    from trt_bisect.report.losses import OWN
    from trt_bisect.report.screen.tables import print_sensitivity

    columns = (*OWN, AGREEMENT.name) if options.task else (*OWN, *BUILT_IN)
    if sort not in columns and (options.task or sort != options.metric):
        raise BadInput(f"There is no column '{sort}' to sort by.", f"Use one of {', '.join(columns)}.")
    if way in ("weight", "activation") and options.low != "int8":
        problem = f"Only INT8 has separate rows for weights and activations, {options.low} has none."
        raise BadInput(problem, "Give --way all.")
    options = replace(options, output=run_folder(options.output, model), progress=display.progress())
    found = sensitivity_with(model, options)
    descending = None if order == "worst" else order == "descending"
    rows = found.sorted_by(sort, descending=descending, way=None if way == "all" else way)
    printed = partial(print_sensitivity, rows=rows, sort=sort, top=top)
    display.show(found, printed, 140, f"All rows: {options.output}")


def compare_command(
    model: Annotated[Path | None, DISPLAY(FILE)] = None,
    other: Annotated[Path | None, DISPLAY(FILE)] = None,
    /,
    *,
    options: Annotated[CompareOptions, FLAT] = CompareOptions(),
    top: Top = 50,
    columns: Columns = "",
    weight_scales: Annotated[bool, DISPLAY(SWITCH)] = False,
    display: Display = Configured(),
) -> None:
    """Compare every tensor and weight of a network in FP32 and low precision, of two networks, or of two saved runs.

    Args:
        model: The ONNX network; not needed for two saved runs.
        other: A second network, such as the quantized network or yesterday's export.
        weight_scales: Print the scales of the weights alone: what chose each, its type, axis and channel.
    """
    from trt_bisect.commands.compare import compare_with
    from trt_bisect.report.screen.tables import print_comparison

    if weight_scales and columns:
        raise BadInput("--weight-scales has columns of its own.", "Leave out --columns, or --weight-scales.")
    found = compare_with(model, replace(options, other=other, progress=display.progress()))
    printed = partial(print_comparison, top=top, columns=listed(columns), weight_scales=weight_scales)
    display.show(found, printed, WIDE)


def profile_command(
    model: Model,
    /,
    *,
    options: Annotated[ProfileOptions, FLAT] = ProfileOptions(),
    top: Top = 0,
    columns: Columns = "",
    display: Display = Configured(),
) -> None:
    """List the inputs, outputs, weights and biases of each layer in FP32: dtype, INT8 scale, shape, moments."""
    from trt_bisect.commands.profile import profile_with
    from trt_bisect.report.screen.tables import print_profile

    found = profile_with(model, replace(options, progress=display.progress()))
    display.show(found, partial(print_profile, top=top, columns=listed(columns)), WIDE)


def worst_command(
    model: Model,
    /,
    *,
    options: Annotated[WorstOptions, FLAT] = WorstOptions(),
    display: Display = Configured(),
) -> None:
    """Find the inputs that lose most in low precision, and say whether a few inputs or the network is bad.

    Exit codes: 0 searched; 2 bad use or input; 130 interrupted, the result covers the samples until then.
    """
    from trt_bisect.commands.losses import worst_with
    from trt_bisect.report.screen.tables import print_worst

    report = worst_with(model, replace(options, progress=display.progress()))
    display.show(report, print_worst, 120, f"Report and inputs: {options.output}" if options.output else "")
    if report.stopped:
        raise Interrupted("interrupted.", "The result above covers the samples until then.")
