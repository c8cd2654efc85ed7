"""The reasons for the culprits: every tensor in FP32 and in full INT8, each layer's loss alone, and the advice."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.analyzer.advisor import LOUD, Advice
from trt_bisect.analyzer.blame import LossAlone
from trt_bisect.analyzer.compared import Compared
from trt_bisect.analyzer.compared_weights import channel_spreads, input_axis
from trt_bisect.analyzer.origins import RESULT
from trt_bisect.analyzer.tensor_histogram import TensorHistogram
from trt_bisect.analyzer.tensors import Spread
from trt_bisect.calibration.cache import DEFAULT_HEADER, format_cache
from trt_bisect.recipe.files import write_network
from trt_bisect.report.advice import CulpritAdvice, Remedy, Tried
from trt_bisect.report.causes import Cause
from trt_bisect.support.files import make_folder, write_whole

EXPLANATION = "explanation.json"
SCHEMA = 1
_DIGITS = 6
_NEAR_ONE = ("cosine", "similarity")


@dataclass(frozen=True)
class Channels:
    """The channels of a weight in FP32.

    Attributes:
        axis: the axis of the output channels, or of the input channels where the outlier is one of these.
        min: the least value of each channel; so are ``max`` and ``std``.
        outlier: the channel that reaches at least ``LOUD`` times the median of the others; None without one.
        times: the outlier's largest magnitude divided by that median.
    """

    axis: int
    min: tuple[float, ...]
    max: tuple[float, ...]
    std: tuple[float, ...]
    outlier: int | None
    times: float | None


def channels_of(values: np.ndarray, compared: Compared) -> Channels | None:
    """Returns the channels of a weight, None if it has none.

    Args:
        values: the weight, float, of any shape.
        compared: its comparison.
    """
    axis, loud = compared.origin.channel_axis, compared.loud
    if axis is None:
        return None
    if not (loud and loud.times >= LOUD) and compared.loud_input and compared.loud_input.times >= LOUD:
        axis, loud = input_axis(axis), compared.loud_input
    assert axis is not None
    spreads = channel_spreads(values, axis)
    stands_out = loud is not None and loud.times >= LOUD
    return Channels(
        axis=axis % values.ndim,
        min=tuple(spread.min for spread in spreads),
        max=tuple(spread.max for spread in spreads),
        std=tuple(spread.std for spread in spreads),
        outlier=loud.channel if loud and stands_out else None,
        times=loud.times if loud and stands_out else None,
    )


@dataclass(frozen=True)
class ExplainedTensor:
    """A tensor or a weight in FP32 and in full INT8.

    Attributes:
        compared: the values that its layer makes; of a weight those after its rounding.
        histogram: the histogram of the values that the INT8 layers read; None where no value is finite.
        channels: the channels of a weight.
    """

    compared: Compared
    histogram: TensorHistogram | None
    channels: Channels | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the entry of ``explanation.json``."""
        compared = self.compared
        origin = compared.origin
        first = origin.quantizers[0] if origin.quantizers else None
        per_channel = first is not None and first.axis is not None
        return {
            "tensor": origin.tensor,
            "kind": "activation" if origin.kind == RESULT else origin.kind,
            "shape": compared.shape,
            "dtype": compared.dtype,
            "quantized_dtype": origin.quantized_dtype,
            "scale": compared.scale,
            "scales": first.scale.reshape(-1).tolist() if first is not None and per_channel else None,
            "axis": first.axis if first is not None else None,
            **vars(compared.figures),
            "fp32": _spread(compared.fp32),
            "int8": _spread(compared.int8),
            "clipped": compared.rounding.clipped if compared.rounding else None,
            "histogram": vars(self.histogram) if self.histogram else None,
            "channels": vars(self.channels) if self.channels else None,
            "map": vars(compared.map) if compared.map else None,
        }


def _spread(spread: Spread) -> dict[str, float]:
    return {
        "min": spread.min,
        "max": spread.max,
        "mean": spread.mean,
        "std": spread.std,
        "var": spread.variance,
    }


@dataclass(frozen=True)
class ExplainedLayer:
    """A layer.

    Attributes:
        macs: its multiply-adds for one inference.
        share: its fraction of the network's multiply-adds.
        sensitivity: its losses alone; None where they were not measured.
        outputs: the floating-point tensors that it makes.
        weights: those that INT8 would round.
        biases: its constant biases, which are not rounded.
    """

    macs: int
    share: float
    sensitivity: LossAlone | None
    outputs: tuple[ExplainedTensor, ...]
    weights: tuple[ExplainedTensor, ...]
    biases: tuple[ExplainedTensor, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the entry of ``explanation.json``."""
        return {
            "macs": self.macs,
            "share": self.share,
            "sensitivity": vars(self.sensitivity) if self.sensitivity else None,
            "outputs": [tensor.to_json() for tensor in self.outputs],
            "weights": [tensor.to_json() for tensor in self.weights],
            "biases": [tensor.to_json() for tensor in self.biases],
        }


@dataclass(frozen=True)
class Explanation:
    """The reasons why the network loses accuracy in INT8, and the remedies.

    Attributes:
        samples: the number of inputs observed.
        layers: by name, those that make a floating-point tensor or have a weight.
        inputs: the network's.
        findings: the advisor's, in execution order.
        advice: the advice on each culprit, in the report's order.
        tried: the remedies that were measured, for culprits or for the whole network.
        causes: the culprits grouped by cause, with what was measured against each.
        cache_header: the first line of the calibration caches of these remedies.
    """

    samples: int
    layers: Mapping[str, ExplainedLayer]
    inputs: tuple[ExplainedTensor, ...]
    findings: tuple[Advice, ...]
    advice: tuple[CulpritAdvice, ...]
    tried: tuple[Tried, ...] = ()
    cache_header: str = DEFAULT_HEADER
    causes: tuple[Cause, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the content of ``explanation.json``: JSON types, no NaN and no infinity, floats of 6 digits."""
        record = {
            "schema": SCHEMA,
            "samples": self.samples,
            "layers": {name: layer.to_json() for name, layer in self.layers.items()},
            "inputs": [tensor.to_json() for tensor in self.inputs],
            "findings": [
                {"layer": layer, "tensor": found.tensor, "reason": found.reason, "words": found.words}
                for found in self.findings
                for layer in found.layers or (None,)
            ],
            "advice": [
                {**vars(each), "remedies": [_remedy(remedy) for remedy in each.remedies]} for each in self.advice
            ],
            "tried": [{"cache": each.cache, "network": each.network, **_tried(each)} for each in self.tried],
            "causes": [
                {
                    **vars(each),
                    "measured": [_tried(one) for one in each.measured],
                    "remedies": [_remedy(one) for one in each.remedies],
                }
                for each in self.causes
            ],
        }
        types = _short(record)
        assert isinstance(types, dict)
        return types

    def save(self, folder: Path) -> None:
        """Writes ``explanation.json``, and the caches and networks of the remedies; raises BadInput if it cannot."""
        for each in self.tried:
            if each.ranges is not None:
                path = folder / each.cache
                make_folder(path.parent)
                write_whole(path, format_cache(each.ranges.scales, self.cache_header).encode())
            if each.moved is not None:
                write_network(folder / each.network, each.moved.skeleton, each.moved.weights)
        text = json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False)
        write_whole(folder / EXPLANATION, f"{text}\n".encode())


def _remedy(remedy: Remedy) -> dict[str, Any]:
    commands = [vars(command) for command in remedy.commands]
    return {**vars(remedy), "commands": commands, "tried": _tried(remedy.tried) if remedy.tried else None}


def _tried(tried: Tried) -> dict[str, Any]:
    names = ("remedy", "culprits", "what", "similarity", "meets", "high", "cost")
    return {name: getattr(tried, name) for name in names}


def _short(value: Any, name: str = "") -> Any:
    """Returns ``value`` in JSON's types with rounded floats: a cosine to 12 decimals, since it is near 1."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return round(value, 12) if name in _NEAR_ONE else float(f"{value:.{_DIGITS}g}")
    if isinstance(value, (list, tuple)):
        return [_short(inner) for inner in value]
    if isinstance(value, dict):
        return {str(key): _short(inner, str(key)) for key, inner in value.items()}
    return value
