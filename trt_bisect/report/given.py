"""Lines of the verdict on what the user gave: the network, its fixed layers and scales, and the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.structure.findings import KINDS
from trt_bisect.calibration.ranges import unusable_scales
from trt_bisect.evaluator.trial import Trial
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision
from trt_bisect.support.text import Line, counted, listed

if TYPE_CHECKING:
    from trt_bisect.report.model import Report

DOUBTED, DATA, PART, RANDOM = "doubted", "data", "part", "random"
DOUBTING = (DOUBTED, DATA, PART, RANDOM)
EXPERIMENT, FIXED, NO_KERNEL = "experiment", "fixed", "no kernel"
NAMED = 4
"""The most layers that a line names."""
_SIDES = {Precision.INT8_WEIGHT: "INT8 (weight alone)", Precision.INT8_ACTIVATION: "INT8 (activation alone)"}


def line_of(kind: str, text: str, layers: Sequence[str] = ()) -> Line:
    """Returns a line that begins with its kind in capitals."""
    return Line(kind, f"{kind.upper()}: {text}", tuple(layers))


def above_verdict(report: Report) -> list[Line]:
    """Returns the lines that doubt any pass: random outputs, TensorRT's refusal, a part judged alone, wrong data."""
    random = [line_of(RANDOM, report.inputs.random)] if report.inputs.random else []
    refused = [Line(DOUBTED, f"DOUBT: {line.text}", line.layers) for line in report.refused]
    part = [line_of(PART, report.inputs.part)] if report.inputs.part else []
    return [*random, *refused, *part, *(line_of(DATA, warning) for warning in report.inputs.warnings)]


def fixed_text(network: Network) -> str:
    """Returns the layers and the number of scales that the user fixed, as text; empty without any."""
    by_precision: dict[str, list[str]] = {}
    for layer in network.layers:
        if layer.fixed is not None and not layer.refused:
            by_precision.setdefault(_SIDES.get(layer.fixed, str(layer.fixed).upper()), []).append(layer.name)
    parts = [f"{listed(names, NAMED)} in {precision}" for precision, names in sorted(by_precision.items())]
    return "; ".join([*parts, *([counted(len(network.scales), "scale")] if network.scales else [])])


def fixed_lines(network: Network) -> Iterator[Line]:
    """Yields lines on precisions that only the emulation has, and on layers that the user fixed."""
    fixed, low = fixed_text(network), network.low.title
    if network.low.wide:
        yield line_of(EXPERIMENT, f"{low}, emulated only: TensorRT has no 16-bit activations.")
    elif wide := [layer.name for layer in network.layers if layer.fixed is Precision.INT16]:
        text = f"{listed(wide, NAMED)} with activations in INT16, emulated only: TensorRT has no 16-bit activations."
        yield line_of(EXPERIMENT, text, wide)
    elif sides := [layer.name for layer in network.layers if layer.fixed in _SIDES]:
        text = f"{listed(sides, NAMED)} with one side alone in {low}, emulated only: no engine is asked for that."
        yield line_of(EXPERIMENT, text, sides)
    others = f"'Full {low}' means all other layers in {low}."
    if fixed:
        layers = [layer.name for layer in network.layers if layer.fixed is not None and not layer.refused]
        text = f"you fixed {fixed}."
        if layers:
            text += f" {others}"
        yield line_of(FIXED, text, layers)
    refused = [layer for layer in network.layers if layer.refused]
    if refused:
        names = [layer.name for layer in refused]
        text = f"{listed(names, NAMED)} in {str(refused[0].fixed).upper()}: {refused[0].refused}. {others}"
        yield line_of(NO_KERNEL, text, names)


def scale_lines(network: Network) -> Iterator[Line]:
    """Yields a line for each kind of scale in the file that TensorRT cannot use."""
    for kind, layers in unusable_scales(network).items():
        pairs = f"{counted(len(layers), 'layer')} with such a Q/DQ pair in the file: {listed(layers, NAMED)}"
        yield line_of(kind, f"{pairs}. {KINDS[kind].why} {KINDS[kind].remedy}", layers)


def base_misses(network: Network, rule: Rule, nothing: Trial) -> bool:
    """Returns true if the network misses the threshold with all layers in its base, FP16 or BF16.

    False if that trial, ``nothing``, failed, or the user fixed layers in the low precision.
    """
    low = network.low.precision
    if network.base_type is None or nothing.failed or any(layer.fixed is low for layer in network.layers):
        return False
    loss = rule.loss(nothing)
    return loss is None or loss > rule.budget
