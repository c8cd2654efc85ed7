"""Warnings on the data: of the wrong scale, constant, or unlike those of the calibration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from trt_bisect.calibration.collect import Magnitudes
from trt_bisect.data.drift import Drift
from trt_bisect.data.feeds import Feeds
from trt_bisect.data.statistics import FedInput
from trt_bisect.model.first_layer import feeds_state, first_layer, first_outputs, has_large_weights
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import INT8_MAX
from trt_bisect.support.figures import counted, percent

_NEARLY_CONSTANT = 0.02
"""Data whose range is at most this share of their largest magnitude are nearly constant."""
_NO_EFFECT = 0.1
"""Data have no effect if they move the first layer's outputs by less than this share of their mean. Trained networks
have 0.39 to 5 with their own data, and at most 0.075 with a 58th of it (ten networks)."""
_NORMALISED_TO = 300.0
"""A network that scales its input itself brings pixels of 0 to 255 below this, subtracted means included."""
_OTHER_UNITS = 10.0
"""Data whose largest magnitude differs from the calibration's by this factor are taken to be in other units."""
_OUTSIDE = 0.05
"""Data have drifted if more than this share of their values lies outside the range of the calibration data."""
_APART, _BY_CHANCE = 0.3, 0.001
"""Data have drifted if their distribution is so far from the calibration's, and chance is as far apart this rarely."""
_GROWS, _MANY = 0.05, 0.1
"""A range grows if the last quarter of the data adds more than the first number, a share, to it. There is a warning if
more than the second number, a share of all ranges, grow."""
_LEAST_SAMPLES = 4
_GIVE_MORE = "Give a few hundred samples like the data in production"


def on_values(network: Network, fed: Sequence[FedInput], samples: Iterable[Feeds], source: str) -> Iterator[str]:
    """Yields a warning for each input with data of the wrong scale, or with one value everywhere or nearly so.

    Args:
        network: the network that reads the data.
        fed: the statistics of its inputs.
        samples: the samples; a few are run through the first layer.
        source: the name of the data.
    """
    states = zero_states(network, fed)
    for each in fed:
        if each.std == 0.0 and each.samples > 1:
            if each.name not in states:
                yield f"'{each.name}' holds {each.least:g} everywhere in {source}: this is not real data."
        elif each.samples > 1 and each.most - each.least <= _NEARLY_CONSTANT * each.absmax:
            yield f"'{each.name}' is nearly constant in {source}: {each}. Prepare the data as in training."
        else:
            yield from _of_wrong_scale(network, each, samples, source)


def zero_states(network: Network, fed: Sequence[FedInput]) -> list[str]:
    """Returns the inputs that are 0 everywhere because they are recurrent states at the start of a sequence.

    If every input is constant, they are no such states, but missing data.

    Args:
        network: the network that reads the data.
        fed: the statistics of its inputs of floating-point numbers.
    """
    zero = [each.name for each in fed if each.absmax == 0.0]
    all_constant = len(fed) == len(network.inputs) and all(each.std == 0.0 for each in fed)
    return [] if all_constant else [name for name in zero if feeds_state(network, name)]


def _of_wrong_scale(network: Network, each: FedInput, samples: Iterable[Feeds], source: str) -> Iterator[str]:
    """Yields a warning if the first convolution that reads an input expects far smaller or far larger values."""
    layer = first_layer(network, each.name)
    if layer is None:
        return
    seen = first_outputs(network, layer, samples)
    pixels = each.looks_like_pixels and has_large_weights(network, layer)
    if pixels and (not layer.scaled or (seen is not None and seen.reach > _NORMALISED_TO)):
        yield (
            f"'{each.name}' is fed pixels of 0 to 255 ({source}: {each}), but the weights of the first layer fit "
            "values of about 0 to 1. Scale the data as in training: pictures with --scale 255, arrays with "
            "array / 255."
        )
    elif seen is not None and each.samples > 1 and seen.spread < _NO_EFFECT:
        yield (
            f"'{each.name}' ({source}: {each}) moves the outputs of the first layer by only {percent(seen.spread)} "
            "of their mean: the network expects other values, probably larger. Prepare the data as in training: pixels "
            "of 0 to 255 with --scale 1, or other --mean and --std."
        )


def on_units(seen: Mapping[str, float], fed: Sequence[FedInput], calibration: str, source: str) -> Iterator[str]:
    """Yields a warning for each input whose magnitudes differ tenfold from those of the calibration.

    Args:
        seen: the largest magnitude by input during calibration.
        fed: the statistics of the data that are judged.
        calibration: the name of the calibration's data or cache.
        source: the name of the judged data.
    """
    for each in fed:
        before, now = seen.get(each.name, 0.0), each.absmax
        if before > 0.0 and now > 0.0 and not 1 / _OTHER_UNITS < now / before < _OTHER_UNITS:
            yield (
                f"'{each.name}' reaches {now:.4g} in {source}, but {before:.4g} in the calibration ({calibration}): "
                "the scaling differs. Prepare both data sets in the same way."
            )


def on_drift(drifts: Mapping[str, Drift], calibration: str, source: str) -> Iterator[str]:
    """Yields a warning for each input whose values lie elsewhere than in the calibration data.

    Args:
        drifts: by input.
        calibration: the name of the calibration's data.
        source: the name of the judged data.
    """
    for name, found in drifts.items():
        apart = found.distance >= _APART and found.chance <= _BY_CHANCE
        if apart or found.outside > _OUTSIDE:
            yield (
                f"'{name}' has drifted from the calibration data ({calibration}): {percent(found.outside)} of its "
                f"values in {source} lie outside {found.least:.4g} to {found.most:.4g}, and the distributions are "
                f"{found.distance:.2f} apart (Kolmogorov-Smirnov). Calibrate with samples like those in production."
            )


def reach_of_scales(scales: Mapping[str, np.float32]) -> dict[str, float]:
    """Returns by tensor the largest magnitude that its INT8 scale represents."""
    return {name: float(scale) * INT8_MAX for name, scale in scales.items()}


def on_growing_ranges(seen: Magnitudes, samples: int | None) -> Iterator[str]:
    """Yields a sentence if many ranges still grow when the last quarter of the calibration data is added.

    Args:
        seen: the magnitudes of the activations over the calibration data.
        samples: the number of samples; None if it is not known.
    """
    if samples is not None and samples < _LEAST_SAMPLES:
        yield f"calibrated with {counted(samples, 'sample')}: too few for the range of activations. {_GIVE_MORE}"
        return
    growth = seen.growth()
    growing = {name: share for name, share in growth.items() if share > _GROWS}
    if growth and len(growing) > _MANY * len(growth):
        most = max(growing, key=lambda name: growing[name])
        yield (
            f"calibrated with too few samples ({samples}): the last quarter of the samples makes {len(growing)} of "
            f"{len(growth)} ranges more than {percent(_GROWS)} larger ('{most}' {percent(growing[most])}). "
            f"{_GIVE_MORE}"
        )
