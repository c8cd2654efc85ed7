"""The data that a job is given: what the ranges come from, and the samples held out of it."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

from trt_bisect.analyzer.data_warnings import on_growing_ranges
from trt_bisect.calibration.cache import is_cache_path, read_cache
from trt_bisect.calibration.collect import Magnitudes
from trt_bisect.calibration.ranges import Ranges, no_ranges, with_scales_given
from trt_bisect.data.datasets import Dataset, Holdout, hold_out, open_dataset
from trt_bisect.data.named import content_of
from trt_bisect.errors import BadInput
from trt_bisect.jobs.data_calibration import DataCalibration
from trt_bisect.jobs.fed_data import FedData
from trt_bisect.jobs.options.measuring import MeasuringOptions
from trt_bisect.model.network import Network
from trt_bisect.support.notes import DATA, RANGES, Note, noted
from trt_bisect.support.progress import Progress


class GivenData:
    """Opens data, takes the ranges from it, and holds samples out.

    Args:
        options: the calibrator, the share to hold out, the memory limit.
        network: the network as it was read.
        folder: the run folder; None to keep nothing.
        progress: shows the pass over the data.
        notes: the notes of the report, to which lines are added.

    Attributes:
        calibration: the calibration with data; None if the ranges do not come from data.
        holdout: the calibration data and the samples held out; None without calibration data.
        calibrated: the seconds that calibration took.
        fed: statistics of the inputs, of the calibration data and of those that are judged.
    """

    def __init__(
        self,
        options: MeasuringOptions,
        network: Network,
        folder: Path | None,
        progress: Progress,
        notes: list[Note],
    ) -> None:
        self._options, self._network, self._folder = options, network, folder
        self._progress, self._notes = progress, notes
        self.calibration: DataCalibration | None = None
        self.holdout: Holdout | None = None
        self.calibrated = 0.0
        self.fed = FedData(network, progress.say)

    def ranges(self, calibration: Any) -> tuple[Ranges, Dataset | None]:
        """The scales, those that the user fixed among them, and the data they came from if they came from data."""
        ranges, data = self._ranges(calibration)
        return with_scales_given(ranges, self._network.scales), data

    def _ranges(self, calibration: Any) -> tuple[Ranges, Dataset | None]:
        calibration = content_of(calibration)
        if self._network.has_pairs:
            if calibration is not None:
                text = "the network holds Q/DQ pairs: their scales are used, the calibration data only as inputs"
                self._notes.append(Note(RANGES, text))
            no_data = calibration is None or isinstance(calibration, Ranges) or is_cache_path(calibration)
            data = None if no_data else self._calibration_data(calibration)
            return Ranges({}, {}, "the network's own Q/DQ"), data
        if not self._network.low.needs_ranges:
            given = calibration is not None and not isinstance(calibration, Ranges) and not is_cache_path(calibration)
            return no_ranges(self._network.low.title), self._calibration_data(calibration) if given else None
        if calibration is None:
            raise BadInput(
                "There are no ranges: no calibration data and no calibration cache were given.",
                "Give --calibration with data (.npz, folder of pictures, module:function), or a TensorRT calibration "
                "cache.",
            )
        if isinstance(calibration, Ranges):
            return calibration, None
        if is_cache_path(calibration):
            return read_cache(
                Path(calibration), self._network.rounded_activations, keep_masks=self._options.keep_mask_ranges
            ), None
        data = self._calibration_data(calibration)
        began = perf_counter()
        self.calibration = DataCalibration(self._network, data, self._options, self._folder, self._progress)
        ranges = self.calibration.ranges
        self.calibrated = perf_counter() - began
        seen = self.calibration.known_magnitudes()
        if seen is not None:
            self._notes += noted(DATA, on_growing_ranges(seen, data.length))
        return ranges, data

    @property
    def candidates(self) -> tuple[Ranges, ...]:
        """The ranges of each calibrator; empty if the ranges do not come from data."""
        found = () if self.calibration is None else self.calibration.candidates
        return tuple(with_scales_given(ranges, self._network.scales) for ranges in found)

    @property
    def magnitudes(self) -> Magnitudes | None:
        """The magnitudes of the activations over the calibration data; None if the ranges do not come from data."""
        return None if self.calibration is None else self.calibration.magnitudes

    @property
    def unseen(self) -> Dataset | None:
        """The samples that neither calibration nor the search sees; None if there are none."""
        return None if self.holdout is None else self.holdout.unseen

    def without_unseen(self, data: Dataset) -> Dataset:
        """The samples of ``data`` that may be judged: see ``Holdout.without_unseen``."""
        return data if self.holdout is None else self.holdout.without_unseen(data)

    def _calibration_data(self, source: Any) -> Dataset:
        """The samples to calibrate with, without those that stay unseen."""
        validation = None if self._options.validation is None else self.open(self._options.validation)
        self.holdout = hold_out(self.open(source), self._options.holdout, validation)
        self._notes += noted(DATA, self.holdout.notes())
        self.fed.calibrated_with(self.holdout.kept)
        return self.holdout.kept

    def open(self, source: Any) -> Dataset:
        """The samples of a source, for the inputs of the network."""
        opened = open_dataset(content_of(source), self._network.inputs, pictures=self._options.preprocessing())
        self.fed.opened(opened)
        self._notes += [note for note in noted(DATA, opened.notes) if note not in self._notes]
        return opened
