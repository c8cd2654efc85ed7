"""Holds samples of a data set out, so that a result can be judged on data that neither calibration nor search saw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from trt_bisect.data.datasets import Dataset
from trt_bisect.errors import BadInput

FEWEST = 20
"""With fewer different samples none are held out: all are needed for calibration and search."""
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
        count = self.kept.length + self.unseen.length
        copies = len(self.whole.digests) - count
        equal = f"{copies} samples of {self.whole.source} are equal to others and left out; " if copies else ""
        return [
            f"{equal}{self.unseen.length} of {count} samples of {self.whole.source} are held out: neither calibration "
            "nor the search sees them (--holdout)"
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

    Of equal samples the first one counts, and the others are left out: what is held out has no copy in what is kept.
    The samples held out are spread evenly: of a share of 0.2 every fifth one, number 4 first. The choice depends on the
    share and on which samples are equal, and on nothing else.

    Args:
        dataset: the samples, which are read once.
        share: the share of the samples held out, from 0 to 0.9, taken as a fraction with a denominator of up to 1000.

    Returns:
        The kept samples and those held out. All and None, if fewer than ``FEWEST`` differ or the share is too small.
    """
    fraction = Fraction(share).limit_denominator(_FINEST)
    if not fraction or (dataset.length is not None and dataset.length < FEWEST):
        return dataset, None
    first = {digest: position for position, digest in reversed([*enumerate(dataset.digests)])}
    different = sorted(first.values())
    held = {
        position for number, position in enumerate(different) if int((number + 1) * fraction) > int(number * fraction)
    }
    if len(different) < FEWEST or not held:
        return dataset, None
    kept = [position for position in different if position not in held]
    return _part(dataset, kept), _part(dataset, sorted(held))


def _part(dataset: Dataset, positions: Sequence[int]) -> Dataset:
    """Returns the samples at some positions of a data set."""
    chosen = frozenset(positions)

    def samples() -> Iterator[Mapping[str, np.ndarray]]:
        return (sample for position, sample in enumerate(dataset.samples()) if position in chosen)

    return replace(
        dataset, samples=samples, length=len(positions), place=lambda number: dataset.place(positions[number])
    )
