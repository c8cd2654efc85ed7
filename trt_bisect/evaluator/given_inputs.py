"""The inputs that a plan is judged on one by one, with FP32's outputs, and the judge of a single input."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trt_bisect.builder.base import Outputs
from trt_bisect.data.datasets import Feeds, digest_of_feeds
from trt_bisect.evaluator.rebuild import Compare
from trt_bisect.evaluator.trial import OutputFigures

_JUDGES_KEPT_VALUES = 1 << 22
"""The FP32 output values whose judges are kept; other judges are made again for each comparison."""

MakeCompare = Callable[[Sequence[Outputs]], Compare]
"""From FP32's outputs for some inputs to the function that compares other outputs with them."""


@dataclass(frozen=True)
class GivenInputs:
    """Inputs, with FP32's outputs for each.

    Attributes:
        feeds: of each input.
        references: FP32's outputs for each input.
        labels: the name of each input in messages, such as ``calibration.npz 3``.
    """

    feeds: Sequence[Feeds]
    references: Sequence[Outputs]
    labels: Sequence[str]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all inputs, in their order."""
        return hashlib.sha256("".join(map(digest_of_feeds, self.feeds)).encode()).hexdigest()

    def __len__(self) -> int:
        """Returns the number of inputs."""
        return len(self.feeds)


class InputJudge:
    """Compares outputs for single inputs with FP32's.

    Args:
        given: the inputs.
        compare: makes the comparison for one reference.
    """

    def __init__(self, given: GivenInputs, compare: MakeCompare) -> None:
        self._given = given
        self._make = compare
        self._kept: OrderedDict[int, Compare] = OrderedDict()
        values = max((sum(np.size(array) for array in one.values()) for one in given.references), default=1)
        self._most = max(1, _JUDGES_KEPT_VALUES // max(values, 1))

    def figures(self, place: int, outputs: Outputs) -> Mapping[str, OutputFigures]:
        """Returns the figures of the outputs for the input at ``place``."""
        judge = self._kept.pop(place, None) or self._make([self._given.references[place]])
        self._kept[place] = judge
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return judge([outputs])
