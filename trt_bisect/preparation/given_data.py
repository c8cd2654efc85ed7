"""The data given to a command: ranges, held-out samples, statistics and warnings."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

from trt_bisect._version import versions
from trt_bisect.analyzer import data_warnings
from trt_bisect.builder.engines import choose_engine, typing_of
from trt_bisect.calibration.cache import is_data, ranges_of_cache
from trt_bisect.calibration.collect import Magnitudes, calibrate, candidates, magnitudes
from trt_bisect.calibration.histogram import THRESHOLDS, Calibrator
from trt_bisect.calibration.ranges import Ranges, no_ranges, with_scales_given
from trt_bisect.data.datasets import Dataset, Holdout, Profile, hold_out, open_dataset, profile_of
from trt_bisect.data.feeds import Feeds
from trt_bisect.data.statistics import MOST_SAMPLES, Drift, FedInput, Sketch, drift, statistics
from trt_bisect.errors import BadInput
from trt_bisect.model.merged import SAMPLE
from trt_bisect.model.network import Network, tensors_in_low
from trt_bisect.model.quantizer import INT8_MAX
from trt_bisect.options.commands import CalibrateOptions, TensorOptions
from trt_bisect.options.concerns import MeasuringOptions
from trt_bisect.report.parts import JudgedInputs
from trt_bisect.runs import cached_inputs
from trt_bisect.runs.cached_inputs import Form, Value, fingerprint, kept
from trt_bisect.support.progress import Progress
from trt_bisect.support.text import DATA, RANGES, SHAPES, Note, noted, shape_text


class GivenData:
    """Opens the data given to a command, computes ranges and statistics from it, and holds samples out.

    Attributes:
        calibration: computes the ranges; None if they do not come from data.
        holdout: the calibration data and the held-out samples; None without data.
        calibrated: the seconds that calibration took.
    """

    def __init__(
        self, options: MeasuringOptions, network: Network, folder: Path | None, progress: Progress, notes: list[Note]
    ) -> None:
        self._options, self._network, self._folder = options, network, folder
        self._progress, self._notes = progress, notes
        self.calibration: DataCalibration | None = None
        self.holdout: Holdout | None = None
        self._opened: list[tuple[Any, Dataset]] = []
        self.calibrated = 0.0
        self._calibration: tuple[FedInput, ...] = ()
        self._sketch, self._validation = Sketch(), Sketch()
        self._validated_with: Dataset | None = None
        self._pictures: dict[str, str] = {}
        self._warnings: list[str] = []
        self._states: list[str] = []
        if network.part:
            progress.say(f"PART: {network.part}")

    def ranges(self, calibration: Any) -> tuple[Ranges, Dataset | None]:
        """Returns the ranges, with the scales that the user fixed, and the calibration data set (None without data).

        ``calibration`` is data, a TensorRT calibration cache, or ranges. Raises BadInput if ``calibration`` cannot be
        used, or is None and the network needs ranges.
        """
        network, data = self._network, None
        if network.has_scales and calibration is not None:
            text = "trt-bisect uses their scales, and the calibration data only as inputs"
            self._notes.append(Note(RANGES, f"the network has Q/DQ pairs: {text}"))
        if network.has_scales or not network.low.needs_ranges:
            ranges = no_ranges(network.low.title)
            if network.has_scales:
                ranges = Ranges({}, {}, "the network's own Q/DQ")
            if is_data(calibration):
                data = self._calibration_data(calibration)
        elif calibration is None:
            raise BadInput(
                "There are no scales: neither calibration data nor a calibration cache was given.",
                "Give --calibration with data (.npz, folder of pictures, module:function), or a TensorRT calibration "
                "cache.",
            )
        elif isinstance(calibration, Ranges):
            ranges = calibration
        elif not is_data(calibration):
            ranges = ranges_of_cache(Path(calibration), network)
        else:
            data = self._calibration_data(calibration)
            began = perf_counter()
            self.calibration = DataCalibration(network, data.inferences, self._options, self._folder, self._progress)
            ranges = self.calibration.ranges
            self.calibrated = perf_counter() - began
            seen = self.calibration.known_magnitudes()
            if seen is not None:
                self._notes += noted(DATA, data_warnings.on_growing_ranges(seen, data.length))
        return with_scales_given(ranges, network.scales), data

    @property
    def candidates(self) -> tuple[Ranges, ...]:
        """The ranges of each calibrator; empty if ranges do not come from data."""
        return () if self.calibration is None else self.calibration.candidates

    def of_network(self, network: Network) -> GivenData:
        """Returns the same data for another network with the same inputs."""
        assert self.holdout is not None
        data = copy(self)
        data._network = network
        data.calibration = DataCalibration(network, self.holdout.kept.inferences, self._options, None, self._progress)
        return data

    @property
    def first_ranges(self) -> Ranges:
        """The ranges from the data, by the calibrator that the options name."""
        assert self.calibration is not None
        return self.calibration.ranges

    @property
    def magnitudes(self) -> Magnitudes | None:
        """The magnitudes of the activations over the calibration data; None without data."""
        return None if self.calibration is None else self.calibration.magnitudes

    @property
    def held_out(self) -> Dataset | None:
        """The held-out samples; None without any."""
        return None if self.holdout is None else self.holdout.held_out

    def without_held_out(self, data: Dataset) -> Dataset:
        """Returns the samples of ``data`` that are not held out."""
        return data if self.holdout is None else self.holdout.without_held_out(data)

    def _calibration_data(self, source: Any) -> Dataset:
        validation, share = self._options.validation, 0.0
        if validation is None or isinstance(validation, (int, float)):
            share = float(validation or 0.0)
        else:
            self._validated_with = self._validation.watching(self.open(validation))
        holdout = hold_out(self.open(source), share, self._validated_with)
        self._notes += noted(DATA, holdout.notes())
        data = self._sketch.watching(holdout.kept)
        self._calibration = self._looked_at(data.inferences.first(MOST_SAMPLES), data.source)
        self.holdout = replace(holdout, kept=data)
        return data

    def profile(self, feeds: Iterable[Feeds]) -> Profile:
        """Returns the smallest and the largest shapes of all samples given, and the first of ``feeds`` as the usual."""
        return profile_of(feeds).covering(opened.inferences.profile for _, opened in self._opened)

    def open(self, source: Any) -> Dataset:
        """Returns a path, function or object as a data set for the network; opens each source once."""
        for given, opened in self._opened:
            if given is source:
                return opened
        opened = open_dataset(source, self._network.inputs, pictures=self._options.preprocessing())
        self._opened.append((source, opened))
        if opened.pictures:
            self._pictures[opened.source] = opened.pictures
        self._notes += [note for note in noted(DATA, opened.notes) if note not in self._notes]
        return opened

    def judged(
        self, about: JudgedInputs, feeds: Sequence[Feeds], ranges: Ranges, data: Sketch, *, of_calibration: bool
    ) -> JudgedInputs:
        """Checks the judged inputs and the validation data, and adds notes; returns ``about`` with the findings.

        Args:
            ranges: compared with the inputs if there are no calibration data.
            data: a few values of the data set that the inputs come from.
            of_calibration: true if the inputs are calibration samples.
        """
        first, drifts, drift_of_validation = feeds[:MOST_SAMPLES], dict[str, Drift](), dict[str, Drift]()
        fed = statistics(first) if of_calibration else self._looked_at(first, about.source)
        calibrated_with = "" if self.holdout is None else self.holdout.kept.source
        seen = {entry.name: entry.absmax for entry in self._calibration}
        seen = seen or {name: float(scale) * INT8_MAX for name, scale in ranges.scales.items()}
        if not of_calibration:
            drifts = drift(self._sketch, data)
            units = [*data_warnings.on_units(seen, fed, calibrated_with or ranges.origin, about.source)]
            self._warn(units or data_warnings.on_drift(drifts, calibrated_with, about.source))
        validation = self._validated_with
        if validation is not None and self._sketch.values:
            if not self._validation.values:
                deque(validation, maxlen=0)
            drift_of_validation = drift(self._sketch, self._validation)
            self._warn(data_warnings.on_drift(drift_of_validation, calibrated_with, validation.source))
        self._notes += self._notes_on(about, feeds)
        by_use = {name: inputs for name, inputs in (("calibration", self._calibration), ("judged", fed)) if inputs}
        return replace(
            about,
            fed={name: {entry.name: entry for entry in inputs} for name, inputs in by_use.items()},
            pictures=dict(self._pictures),
            shapes={} if self._network.is_static else _shapes(profile_of(feeds)),
            part=self._network.part,
            drift=drifts,
            drift_of_validation=drift_of_validation,
            warnings=tuple(self._warnings),
        )

    def _notes_on(self, about: JudgedInputs, feeds: Sequence[Feeds]) -> Iterator[Note]:
        for name in self._states:
            text = "is 0 in every sample: as a recurrent state, so only the start of a sequence is measured"
            yield Note(SHAPES, f"'{name}' {text}")
        if not self._network.is_static:
            shapes = _shapes(self.profile(feeds))
            fixed = shlex.join(word for name, shape in shapes.items() for word in ("--shape", f"{name}:{shape}"))
            is_free = self._network.pipeline is not None or any(" to " in shape for shape in shapes.values())
            fixes = "" if is_free else f"; to fix them: {fixed}"
            measured = ", ".join(f"'{name}' {shape}" for name, shape in shapes.items())
            text = f"the inputs are dynamic, and measured at the shapes of the data: {measured}{fixes}"
            yield Note(SHAPES, text)
        if about.faint:
            # The search for the worst inputs skipped them.
            text = (
                f"{len(about.faint)} of {about.searched} samples cannot be worst inputs (first: number "
                f"{about.faint[0]}): FP32's output is almost zero there, and float noise would decide"
            )
            yield Note(DATA, text)

    def _looked_at(self, samples: Iterable[Feeds], source: str) -> tuple[FedInput, ...]:
        fed, preprocessing = statistics(samples), self._pictures.get(source)
        self._states = self._states or data_warnings.zero_states(self._network, fed)
        if not self._warnings:
            title = f"{source}, fed as {preprocessing}" if preprocessing else source
            self._warn(data_warnings.on_values(self._network, fed, samples, title))
        return fed

    def _warn(self, warnings: Any) -> None:
        for warning in warnings:
            self._warnings.append(warning)
            self._progress.say(f"DATA: {warning}")


class DataCalibration:
    """Ranges from data, with the user's scales, computed at their first use or read from the run folder."""

    def __init__(
        self, network: Network, data: Dataset, options: MeasuringOptions, folder: Path | None, progress: Progress
    ) -> None:
        self._network, self._data, self._options, self._folder = network, data, options, folder
        self._progress = progress

    @cached_property
    def ranges(self) -> Ranges:
        """The ranges by the calibrator that the options name; by entropy for ``auto``."""
        calibrator = Calibrator(self._options.calibrator_method, self._options.percentile)
        ranges = self._kept(cached_inputs.RANGES, str(calibrator), lambda: self.magnitudes.ranges(calibrator))
        return with_scales_given(ranges, self._network.scales)

    @cached_property
    def candidates(self) -> tuple[Ranges, ...]:
        """The ranges of each calibrator: entropy, min-max, percentiles and mse."""
        all_ranges = self._kept(cached_inputs.CANDIDATES, "candidates", lambda: candidates(self.magnitudes))
        return tuple(with_scales_given(ranges, self._network.scales) for ranges in all_ranges)

    @cached_property
    def magnitudes(self) -> Magnitudes:
        """The magnitudes of all activations over the data."""

        def counted_magnitudes() -> Magnitudes:
            self._progress.stage("Calibrating", self._data.length)
            return magnitudes(
                self._network,
                self._data,
                counted=self._counted,
                on_sample=lambda done: self._progress.step(f"sample {done}"),
                memory=self._options.memory_bytes,
                total=self._data.length,
            )

        return self._kept(cached_inputs.MAGNITUDES, "", counted_magnitudes)

    def known_magnitudes(self) -> Magnitudes | None:
        """Returns the magnitudes if they are known without a pass over the data; else None."""
        if "magnitudes" in self.__dict__:
            return self.magnitudes
        return None if self._folder is None else cached_inputs.MAGNITUDES.load(self._folder, self._key(""))

    @cached_property
    def _counted(self) -> frozenset[str] | None:
        # the tensors that some plan holds in INT8; None for all
        typing = typing_of(choose_engine(self._options.engine), self._options.asked_typing, self._network.low)
        # TensorRT decides which tensors' scales it uses.
        return None if typing == "weak" else tensors_in_low(self._network)

    def _kept(self, form: Form[Value], how: str, compute: Callable[[], Value]) -> Value:
        return kept(self._folder, form, self._key(how), compute)

    def _key(self, how: str) -> str:
        if self._folder is None:
            return ""
        rule = THRESHOLDS if how else None
        parts = {"model": self._network.digest(), "data": self._data.digest(), "how": [how, rule], "v": versions()}
        counted = None if self._counted is None else sorted(self._counted)
        return fingerprint({**parts, "counted": counted})


def ranges_of(
    network: Network, calibration: Any, options: TensorOptions, progress: Progress
) -> tuple[Ranges, Dataset | None]:
    """Returns the ranges, with the scales that the user fixed, and the calibration data set (None without data).

    ``calibration`` is data, a TensorRT calibration cache, or ranges; unless it is ranges, a network with Q/DQ pairs
    uses its own. Raises BadInput if there are no ranges.
    """
    data = None
    if is_data(calibration):
        data = open_dataset(calibration, network.inputs, pictures=options.preprocessing())
    if isinstance(calibration, Ranges):
        ranges = calibration
    elif network.has_pairs:
        ranges = Ranges({}, {}, "the network's own Q/DQ")
    elif data is not None:
        ranges = ranges_from_data(network, data, options, progress)
    elif calibration is not None:
        ranges = ranges_of_cache(Path(calibration), network)
    elif network.scales and not network.unscaled:
        ranges = Ranges({}, {}, "the plan given")
    else:
        remedy = "Give --calibration with data (.npz, .npy, folder, module:function) or a TensorRT calibration cache."
        raise BadInput("There are no ranges: no calibration data and no calibration cache were given.", remedy)
    return with_scales_given(ranges, network.scales), data


def ranges_from_data(
    network: Network, data: Dataset, options: TensorOptions | CalibrateOptions, progress: Progress
) -> Ranges:
    """Returns the ranges of a network's activations over a data set."""
    progress.stage("Calibrating", data.length)
    return calibrate(
        network,
        data,
        options.calibrator_method,
        options.percentile,
        on_sample=lambda done: progress.step(f"sample {done}"),
        memory=options.memory_bytes,
    )


def _shapes(profile: Profile) -> dict[str, str]:
    return {
        name: shape_text(least) if least == most else f"{shape_text(least)} to {shape_text(most)}"
        for name, (least, _, most) in profile.shapes.items()
        if name != SAMPLE
    }
