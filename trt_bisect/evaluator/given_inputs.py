"""The inputs that a plan is judged on one by one, with FP32's outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from trt_bisect.builder.base import Outputs
from trt_bisect.data.datasets import digest_of_feeds
from trt_bisect.data.feeds import Feeds


@dataclass(frozen=True)
class GivenInputs:
    """Inputs, with FP32's outputs for each.

    Attributes:
        feeds: the arrays of each input.
        references: FP32's outputs for each input.
        labels: the name of each input in messages, such as ``calibration.npz 3`` or ``photos/cat.png``.
        sources: the name of the data set of each input.
    """

    feeds: Sequence[Feeds]
    references: Sequence[Outputs]
    labels: Sequence[str]
    sources: Sequence[str]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all inputs, in their order."""
        return hashlib.sha256("".join(map(digest_of_feeds, self.feeds)).encode()).hexdigest()

    def __len__(self) -> int:
        """Returns the number of inputs."""
        return len(self.feeds)
