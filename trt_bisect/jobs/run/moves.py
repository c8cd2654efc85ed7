"""Networks made from the user's by moves that cost no speed: equalised channels, corrected biases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trt_bisect.calibration.bias_correction import correct_biases
from trt_bisect.calibration.collect import calibrate
from trt_bisect.calibration.ranges import Ranges, with_scales_given
from trt_bisect.calibration.usable import keeping_unusable_high
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.model.equalise import equalise
from trt_bisect.model.network import Network
from trt_bisect.model.observe import observe
from trt_bisect.model.reading import FLOAT_NOISE, relative_difference

EQUALISED, CORRECTED = "equalised", "corrected"
BOTH = f"{EQUALISED}-{CORRECTED}"


@dataclass(frozen=True, eq=False)
class Move:
    """A network made from the user's, to be measured in INT8.

    Attributes:
        name: ``equalised``, ``corrected``, or ``equalised-corrected``.
        network: the network in FP32 equal to the user's; with corrected biases near to it.
        ranges: calibrated on this network.
        changed: the names of the layers with other weights or biases.
    """

    name: str
    network: Network
    ranges: Ranges
    changed: tuple[str, ...]


def moved_networks(preparation: Preparation, experiment: Experiment) -> tuple[tuple[Move, ...], tuple[str, ...]]:
    """Makes the networks that moves give, each calibrated anew with the run's calibrator.

    They are the equalised network, the network with biases corrected for full INT8, and both. The equalised network is
    compared with the user's in FP32, on the first judged input.

    Args:
        preparation: the preparation of ``experiment``.
        experiment: has the calibration data, and no Q/DQ pairs of its own.

    Returns:
        The moves that change the network, and a note on each move that changes nothing or fails.
    """
    maker = _Maker(preparation, experiment)
    preparation.progress.stage("Equalising channels, correcting biases", 3)
    return tuple(maker.moves()), tuple(maker.notes)


class _Maker:
    def __init__(self, preparation: Preparation, experiment: Experiment) -> None:
        assert experiment.data is not None
        self._options, self._progress = preparation.options, preparation.progress
        self._experiment, self._data = experiment, experiment.data
        self.notes: list[str] = []

    def moves(self) -> Iterator[Move]:
        """Yields the moves one after another."""
        own = self._experiment.network
        equalised = self._equalised(own)
        if equalised is not None:
            yield equalised
        for before in (Move("", own, self._experiment.ranges, ()), equalised):
            corrected = None if before is None else self._corrected(before)
            if corrected is not None:
                yield corrected

    def _equalised(self, network: Network) -> Move | None:
        self._progress.step(EQUALISED)
        found = equalise(network)
        changed = dict.fromkeys(name for pair in found.pairs for name in (pair.first, pair.second))
        if not changed:
            self._not_tried("equalisation", "no two convolutions or Gemms follow each other in a way that allows it")
            return None
        apart = self._apart(found.network)
        if apart > FLOAT_NOISE:
            self._not_tried("equalisation", f"float noise is too large in FP32, {apart:.2g} of the output's norm")
            return None
        return self._calibrated(EQUALISED, found.network, tuple(changed))

    def _apart(self, other: Network) -> float:
        """The largest relative difference of a judged output in FP32 between a network and the user's."""
        names, feeds = list(self._experiment.rule.outputs), self._experiment.feeds[:1]
        (ours,), (theirs,) = (list(observe(each, names, feeds)) for each in (other, self._experiment.network))
        return max((relative_difference(theirs[name], ours[name]) for name in theirs), default=0.0)

    def _corrected(self, before: Move) -> Move | None:
        name = BOTH if before.name else CORRECTED
        self._progress.step(name)
        try:
            network, _ = keeping_unusable_high(before.network, before.ranges)
            plan = network.full(self._experiment.whole.high)
            found = correct_biases(network, before.ranges.scales, plan, self._data, memory=self._options.memory_bytes)
            if found.layers:
                changed = dict.fromkeys([*before.changed, *(each.layer for each in found.layers)])
                return self._calibrated(name, found.network, tuple(changed))
            self._not_tried("bias correction", "no layer in INT8 has a bias")
        except (BadInput, TrialFailed) as error:
            self._not_tried("bias correction", first_line(error))
        return None

    def _calibrated(self, name: str, network: Network, changed: tuple[str, ...]) -> Move:
        options = self._options
        ranges = calibrate(
            network,
            self._data,
            options.calibrator_method,
            options.percentile,
            keep_masks=options.keep_mask_ranges,
            memory=options.memory_bytes,
        )
        return Move(name, network, with_scales_given(ranges, network.scales), changed)

    def _not_tried(self, what: str, why: str) -> None:
        note = f"{what} was not tried: {why}"
        if note not in self.notes:
            self.notes.append(note)
