"""Ranges from data: the float network run over the samples, every activation's magnitudes counted as they pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper

from trt_bisect.calibration.histogram import (
    AbsHistogram,
    entropy_threshold,
    minmax_threshold,
    percentile_threshold,
)
from trt_bisect.calibration.ranges import Ranges, ranges_from_scales
from trt_bisect.data import Feeds
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import Written
from trt_bisect.model.quantizer import INT8_MAX
from trt_bisect.model.session import make_session

METHODS = ("entropy", "minmax", "percentile")


def calibrate(
    network: Network,
    samples: Iterable[Feeds],
    method: str = "entropy",
    percentile: float = 99.99,
    *,
    keep_masks: bool = False,
    on_sample: Callable[[int], None] | None = None,
) -> Ranges:
    """The INT8 scales of every activation of ``network`` over ``samples``.

    Memory holds one sample's tensors and one histogram a tensor, whatever the number of samples.

    Args:
        method: ``entropy`` (TensorRT's, 2048 bins and 128 levels), ``minmax`` or ``percentile``.
        percentile: for that method, of |x|, in per cent.
        keep_masks: see ``ranges_from_scales``.
        on_sample: told the number of samples done.

    Raises:
        BadInput: an unknown method, a percentile outside (0, 100], no samples, or samples that the network refuses.
    """
    if method not in METHODS:
        raise BadInput(f"There is no calibration method '{method}'.", f"Use one of {', '.join(METHODS)}.")
    if not 0 < percentile <= 100:
        raise BadInput(f"Percentile {percentile} is out of range.", "Give a value above 0, at most 100.")
    histograms = {name: AbsHistogram() for name in network.activations}
    done = 0
    for tensors in activations_of(network, samples):
        for name, array in tensors.items():
            histograms[name].add(array, histogram=method != "minmax")
        done += 1
        if on_sample is not None:
            on_sample(done)
    if not done:
        raise BadInput("There are no samples to calibrate with.", "Give a few hundred that look like production.")
    thresholds: dict[str, Callable[[AbsHistogram], float]] = {
        "entropy": entropy_threshold,
        "minmax": minmax_threshold,
        "percentile": lambda histogram: percentile_threshold(histogram, percentile),
    }
    scales = {
        name: np.float32(np.float32(thresholds[method](histogram)) / np.float32(INT8_MAX))
        for name, histogram in histograms.items()
        if histogram.values or histogram.nonfinite
    }
    nonfinite = {
        name: f"it held {histogram.nonfinite} NaN or infinite values during calibration"
        for name, histogram in histograms.items()
        if histogram.nonfinite
    }
    origin = f"percentile {percentile:g}" if method == "percentile" else method
    return ranges_from_scales(scales, origin, keep_masks=keep_masks, nonfinite=nonfinite)


def activations_of(network: Network, samples: Iterable[Feeds]) -> Iterable[dict[str, np.ndarray]]:
    """Every float32 activation of the FP32 network, by name, a sample at a time.

    Raises:
        BadInput: ONNX Runtime refuses the network or a sample.
    """
    names = list(network.activations)
    inside = [name for name in names if name in network.producers]
    model = _with_outputs(network.skeleton, inside)
    try:
        session = make_session(Written(model, dict(network.weights)))
    except TrialFailed as error:
        raise BadInput(
            f"ONNX Runtime cannot run '{network.source}': {error.message}", "Check the network with ONNX Runtime alone."
        ) from error
    for position, feeds in enumerate(samples):
        try:
            found = dict(zip(inside, session.run(inside, feeds), strict=True))
        except Exception as error:
            raise BadInput(
                f"ONNX Runtime cannot run '{network.source}' on sample {position}: {first_line(error)}",
                "Check the sample's shapes and values.",
            ) from error
        found.update({name: feeds[name] for name in names if name in feeds})
        yield found


def _with_outputs(skeleton: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    known = {value.name for value in model.graph.output}
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names if name not in known
    )
    return model
