"""Holds samples of a data set out, so that a result can be judged on data that neither calibration nor search saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

import numpy as np

from trt_bisect.data.datasets import Dataset
from trt_bisect.errors import BadInput

FEWEST = 20
"""With fewer samples none are held out: all are needed for calibration and search."""
_FINEST = 1000
"""The largest denominator of a share."""


@dataclass(frozen=True)
class Holdout:
    """Calibration data, and the samples that neither calibration nor the search sees.

    Attributes:
        whole: the calibration data as it was named.
        kept: the samples of it that calibration and the search see.
        unseen: the samples that they do not see; None if there are none.
        named: the user named other data as unseen, so that all of the calibration data is kept.
    """

    whole: Dataset
    kept: Dataset
    unseen: Dataset | None
    named: bool = False

    def notes(self) -> list[str]:
        """Returns a sentence on the samples held out, for the report."""
        if self.unseen is None or self.kept.length is None or self.unseen.length is None or self.named:
            return []
        return [
            f"{self.unseen.length} of {self.kept.length + self.unseen.length} samples of {self.whole.source} are held "
            "out: neither calibration nor the search sees them (--holdout)"
        ]

    def without_unseen(self, data: Dataset) -> Dataset:
        """Returns ``data``, or the kept samples if it is the calibration data again.

        Raises:
            BadInput: ``data`` is the data that the user named as unseen.
        """
        if self.unseen is None:
            return data
        if self.named and _is_same(data, self.unseen):
            raise BadInput(
                f"The validation data '{self.unseen.source}' is used for calibration or for the search too.",
                "Give --validation other data, or leave it out: then a share of the calibration data is held out.",
            )
        return data if self.named or not _is_same(data, self.whole) else self.kept


def _is_same(one: Dataset, other: Dataset) -> bool:
    known = one.length is not None and other.length is not None
    return (not known or one.length == other.length) and one.digest() == other.digest()


def hold_out(data: Dataset, share: float, validation: Dataset | None) -> Holdout:
    """Holds out a share of the calibration data (see ``split``), or nothing if there is validation data.

    Raises:
        BadInput: the validation data is the calibration data.
    """
    if validation is None:
        return Holdout(data, *split(data, share))
    held_out = Holdout(data, data, validation, named=True)
    held_out.without_unseen(data)
    return held_out


def split(dataset: Dataset, share: float) -> tuple[Dataset, Dataset | None]:
    """Splits a data set into the samples that are kept and those that are held out.

    The samples held out are spread evenly: of a share of 0.2 every fifth one, number 4 first. The choice depends on the
    share and on nothing else.

    Args:
        dataset: the samples. If their number is not known, they are counted.
        share: the share of the samples held out, from 0 to 0.9, taken as a fraction with a denominator of up to 1000.

    Returns:
        The kept samples and those held out. All and None, if there are fewer than ``FEWEST`` or the share is too small.
    """
    fraction = Fraction(share).limit_denominator(_FINEST)
    length = dataset.length
    if fraction and length is None:
        length = sum(1 for _ in dataset.samples())
    held = 0 if length is None or length < FEWEST else int(length * fraction)
    if length is None or not held:
        return dataset, None

    def is_held(position: int) -> bool:
        return int((position + 1) * fraction) > int(position * fraction)

    def part(held_out: bool) -> Callable[[], Iterator[Mapping[str, np.ndarray]]]:
        return lambda: (sample for place, sample in enumerate(dataset.samples()) if is_held(place) is held_out)

    def place_of_kept(position: int) -> int:
        return dataset.place(int(position / (1 - fraction)))

    def place_of_held(position: int) -> int:
        return dataset.place(ceil((position + 1) / fraction) - 1)

    kept = replace(dataset, samples=part(False), length=length - held, place=place_of_kept)
    return kept, replace(dataset, samples=part(True), length=held, place=place_of_held)
