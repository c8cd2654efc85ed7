"""Statistics of the inputs that a job feeds, for the report, and warnings that stand above its verdict."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from trt_bisect.analyzer.data_warnings import on_units, on_values, reach_of_scales, zero_states
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import Dataset, profile_shapes
from trt_bisect.data.feeds import Feeds
from trt_bisect.data.statistics import MOST_SAMPLES, FedInput, statistics
from trt_bisect.model.network import Network
from trt_bisect.report.model import JudgedInputs
from trt_bisect.support.figures import shape_text
from trt_bisect.support.notes import DATA, Note


class FedData:
    """Collects what a network is fed.

    Args:
        network: the network that reads the data.
        say: shows a warning at once, so that a long run can be stopped.
    """

    def __init__(self, network: Network, say: Callable[[str], None]) -> None:
        self._network, self._say = network, say
        self._calibration: tuple[FedInput, ...] = ()
        self._calibrated_with = ""
        self._pictures: dict[str, str] = {}
        self._warnings: list[str] = []
        self._states: list[str] = []
        if network.part:
            say(f"PART: {network.part}")

    def opened(self, data: Dataset) -> None:
        """Keeps how pictures become inputs, if the data are pictures."""
        if data.pictures:
            self._pictures[data.source] = data.pictures

    def calibrated_with(self, data: Dataset) -> None:
        """Looks at the calibration data, at most 100 samples of them."""
        self._calibrated_with = data.source
        self._calibration = self._looked_at(data.first(MOST_SAMPLES), data.source)

    def judged(
        self, about: JudgedInputs, feeds: Sequence[Feeds], ranges: Ranges, *, of_calibration: bool
    ) -> JudgedInputs:
        """Looks at the judged inputs.

        Args:
            about: what is known of them.
            feeds: the inputs.
            ranges: the ranges of the activations; where they do not come from data, they tell what the calibration saw.
            of_calibration: the inputs are samples of the calibration data, which may be quiet ones.

        Returns:
            ``about`` with the statistics, the way pictures are fed, dynamic shapes, warnings, and the part that is
            judged alone.
        """
        first = feeds[:MOST_SAMPLES]
        fed = statistics(first) if of_calibration else self._looked_at(first, about.source)
        seen = {each.name: each.absmax for each in self._calibration} or reach_of_scales(ranges.scales)
        if not of_calibration:
            self._warn(on_units(seen, fed, self._calibrated_with or ranges.origin, about.source))
        by = {name: each for name, each in (("calibration", self._calibration), ("judged", fed)) if each}
        return replace(
            about,
            fed={name: {each.name: each for each in inputs} for name, inputs in by.items()},
            pictures=dict(self._pictures),
            shapes={} if self._network.is_static else _shapes(feeds),
            part=self._network.part,
            warnings=tuple(self._warnings),
        )

    def notes(self, feeds: Sequence[Feeds]) -> list[str]:
        """Returns sentences on states that are 0 in all samples, and on the shapes of dynamic inputs."""
        states = [
            f"'{name}' is 0 in every sample: it is a recurrent state, so only the start of a sequence is measured"
            for name in self._states
        ]
        return states if self._network.is_static else [*states, self._on_shapes(feeds)]

    def _on_shapes(self, feeds: Sequence[Feeds]) -> str:
        shapes = _shapes(feeds)
        fixed = shlex.join(word for name, shape in shapes.items() for word in ("--shape", f"{name}:{shape}"))
        one_shape = not any(" to " in shape for shape in shapes.values())
        fixes = f"; to fix them: {fixed}" if one_shape else ""
        measured = ", ".join(f"'{name}' {shape}" for name, shape in shapes.items())
        return f"the inputs are dynamic and measured at the shapes of the data, {measured}{fixes}"

    def _looked_at(self, samples: Iterable[Feeds], source: str) -> tuple[FedInput, ...]:
        """The statistics of samples, which are read twice. Warns of them if nothing was warned of before."""
        fed, way = statistics(samples), self._pictures.get(source)
        self._states = self._states or zero_states(self._network, fed)
        if not self._warnings:
            named = f"{source}, fed as {way}" if way else source
            self._warn(on_values(self._network, fed, samples, named))
        return fed

    def _warn(self, warnings: Any) -> None:
        for warning in warnings:
            self._warnings.append(warning)
            self._say(f"DATA: {warning}")


def faint_note(about: JudgedInputs) -> list[Note]:
    """Returns a note on samples that the search for the worst inputs passed over, if it did."""
    if not about.faint:
        return []
    text = (
        f"{len(about.faint)} of {about.searched} samples were passed over as worst inputs, number {about.faint[0]} "
        "first: FP32's output on them is almost zero, so that float noise decides"
    )
    return [Note(DATA, text)]


def _shapes(feeds: Sequence[Feeds]) -> dict[str, str]:
    """The shape of each input, or its smallest and its largest one."""
    found = {}
    for name, (least, _, most) in profile_shapes(feeds).items():
        found[name] = shape_text(least) if least == most else f"{shape_text(least)} to {shape_text(most)}"
    return found
