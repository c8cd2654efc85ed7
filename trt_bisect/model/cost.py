"""The cost of a layer, as its multiply-adds or its measured times, and the layers that change precision together."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from trt_bisect.errors import BadInput, first_line
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.low import FLOAT_TYPES
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision

Times = Mapping[int, Mapping[Precision, float]]
"""The time of each layer in each precision, by layer index, in any unit."""
Costs = Mapping[int, Mapping[Precision, float]]
"""By layer index and high precision, the share of the low precision's gain in speed that is given up."""
UNITS = {
    Precision.INT8: 1.0,
    Precision.FP8: 1.0,
    Precision.FP16: 2.0,
    Precision.BF16: 2.0,
    Precision.FP32: 4.0,
}
"""The time of a multiply-add in units of an INT8 one: dense tensor cores do twice as many in FP16 as in TF32, and twice
as many again in INT8. Source: NVIDIA A100 datasheet, 156 TFLOPS, 312 TFLOPS and 624 TOPS; for FP8 the H100 datasheet,
where it is as fast as INT8."""
_HIGHER = (Precision.FP16, Precision.BF16, Precision.FP32)
NEARLY_FREE = 1e-6
_COLUMNS = "CSV with the columns layer, int8, fp32 and, where layers may be in FP16 or BF16, fp16 or bf16"


def macs(network: Network, facts: TensorFacts) -> dict[int, int]:
    """The multiply-adds of each layer by index, for the shapes in ``facts``; 0 for layers that multiply nothing.

    Convolution: output values times the size of a filter, weight.shape[1:]. Transposed convolution: input values times
    weight.shape[1:]. Gemm and MatMul: output values times the length of the sums.
    """
    return {layer.index: _macs(network, layer.index, facts) for layer in network.layers}


def _macs(network: Network, index: int, facts: TensorFacts) -> int:
    node, shapes = network.skeleton.graph.node[index], facts.shapes
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return 0
    first, second, out = (shapes.get(name) for name in (node.input[0], node.input[1], node.output[0]))
    if first is None or second is None or out is None:
        return 0
    if node.op_type in ("Conv", "ConvTranspose"):
        return math.prod(out if node.op_type == "Conv" else first) * math.prod(second[1:])
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return math.prod(out) * first[-2 if transposed else -1]


def times_by_macs(network: Network, facts: TensorFacts) -> Times:
    """Times of quantizable layers from their multiply-adds; without any, a layer counts one for each output value."""
    counted = macs(network, facts)
    times = {}
    for k in network.quantizable:
        shape = facts.shapes.get(network.layers[k].outputs[0], ())
        work = counted[k] or max(math.prod(shape), 1)
        times[k] = {precision: work * units for precision, units in UNITS.items()}
    return times


def shares(
    times: Times, low: Precision = Precision.INT8, base: Precision | None = None
) -> dict[int, dict[Precision, float]]:
    """The share of a low precision's gain in speed that is lost in a higher one, by layer and higher precision.

    The gain is that over the base, FP32 where there is none: all layers in it lose 1, all low ones lose 0. On a base in
    FP16 all layers in FP32 lose 3, by multiply-adds. A layer that is no faster in the low one loses ``NEARLY_FREE``.
    """
    without = base or Precision.FP32
    gain = sum(max(by[without] - by[low], 0.0) for by in times.values()) or 1.0
    return {
        k: {
            precision: max((time - by[low]) / gain, NEARLY_FREE)
            for precision, time in by.items()
            if precision is not low
        }
        for k, by in times.items()
    }


def times_from_csv(path: Path, network: Network) -> Times:
    """Reads measured times: columns ``layer``, ``int8``, ``fp32`` and, if layers may have them, ``fp16`` and ``bf16``.

    Raises:
        BadInput: the file cannot be read, lacks a column or a quantizable layer, or a value is not a time.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"The costs '{path}' cannot be read: {first_line(error)}", f"Give {_COLUMNS}.") from error
    known = {row.get("layer"): row for row in rows}
    times: dict[int, dict[Precision, float]] = {}
    for k in network.quantizable:
        name = network.layers[k].name
        if name not in known:
            raise BadInput(f"'{path}' has no row for layer '{name}'.", f"Give {_COLUMNS}, a row for each layer.")
        times[k] = {
            p: _time(known[name], p, path)
            for p in (network.low.precision, *_HIGHER)
            if p not in FLOAT_TYPES or known[name].get(str(p))
        }
    return times


def _time(row: Mapping[str, str | None], precision: Precision, path: Path) -> float:
    text = row.get(str(precision))
    try:
        time = float(text or "")
    except ValueError:
        time = math.nan
    if not (math.isfinite(time) and time >= 0.0):
        raise BadInput(
            f"'{path}' has '{text or ''}' as the time of layer '{row['layer']}' in {precision}.", f"Give {_COLUMNS}."
        )
    return time
