"""Calibration with data: one pass over it, of which the run folder keeps the results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from trt_bisect._version import versions
from trt_bisect.builder.engines import choose_engine, choose_typing, typing_to_ask
from trt_bisect.calibration.collect import Magnitudes, candidates, magnitudes
from trt_bisect.calibration.histogram import THRESHOLDS, Calibrator
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import Dataset
from trt_bisect.jobs.options.measuring import MeasuringOptions
from trt_bisect.model.fusions import tensors_in_low
from trt_bisect.model.network import Network
from trt_bisect.runs.cached_inputs import CANDIDATES, MAGNITUDES, RANGES, Form, Value, fingerprint, kept
from trt_bisect.support.progress import Progress


class DataCalibration:
    """Ranges from data. Each result is computed when it is first asked for, or read from the run folder.

    Args:
        network: the network.
        data: the samples to calibrate with.
        options: the calibrator and the memory limit.
        folder: the run folder; None to keep nothing.
        progress: shows the pass over the data.
    """

    def __init__(
        self, network: Network, data: Dataset, options: MeasuringOptions, folder: Path | None, progress: Progress
    ) -> None:
        self._network, self._data, self._options, self._folder = network, data, options, folder
        self._progress = progress

    @cached_property
    def ranges(self) -> Ranges:
        """The ranges of the calibrator that was asked for; of ``auto``, those of entropy."""
        calibrator = Calibrator(self._options.calibrator_method, self._options.percentile)
        keep_masks = self._options.keep_mask_ranges
        return self._kept(RANGES, str(calibrator), lambda: self.magnitudes.ranges(calibrator, keep_masks=keep_masks))

    @cached_property
    def candidates(self) -> tuple[Ranges, ...]:
        """The ranges of each calibrator that a run chooses from (see ``candidates.CANDIDATES``)."""
        keep_masks = self._options.keep_mask_ranges
        return self._kept(CANDIDATES, "candidates", lambda: candidates(self.magnitudes, keep_masks=keep_masks))

    @cached_property
    def magnitudes(self) -> Magnitudes:
        """The magnitudes of all activations over the data (see ``_counted``)."""
        return self._kept(MAGNITUDES, "", self._counted_magnitudes)

    def _counted_magnitudes(self) -> Magnitudes:
        self._progress.stage("Calibrating", self._data.length)
        return magnitudes(
            self._network,
            self._data,
            counted=self._counted,
            on_sample=lambda done: self._progress.step(f"sample {done}"),
            memory=self._options.memory_bytes,
            total=self._data.length,
        )

    def known_magnitudes(self) -> Magnitudes | None:
        """The magnitudes where no pass over the data is needed for them; else None."""
        if "magnitudes" in self.__dict__:
            return self.magnitudes
        return None if self._folder is None else MAGNITUDES.load(self._folder, self._key(""))

    @cached_property
    def _counted(self) -> frozenset[str] | None:
        """The tensors whose values are counted: those that some plan holds in INT8; None for all.

        Weak typing takes the scales of all tensors, and TensorRT alone decides which of them it uses.
        """
        asked = typing_to_ask(self._options.typing, self._network.low)
        typing = choose_typing(choose_engine(self._options.engine), asked)
        return None if typing == "weak" else tensors_in_low(self._network)

    def _kept(self, form: Form[Value], how: str, compute: Callable[[], Value]) -> Value:
        return kept(self._folder, form, self._key(how), compute)

    def _key(self, how: str) -> str:
        """The key of a result in the run folder: a digest of everything that it depends on; empty without a folder."""
        if self._folder is None:
            return ""
        rules = [self._options.keep_mask_ranges, THRESHOLDS] if how else [None]
        parts = {"model": self._network.digest(), "data": self._data.digest(), "how": [how, *rules], "v": versions()}
        return fingerprint({**parts, "counted": None if self._counted is None else sorted(self._counted)})
