"""Objects of ``regression.json`` that no dataclass of the package is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RegressionMore:
    """A nightly run.

    Attributes:
        night: the name of its folder.
        status: `failed` if a network failed, else `error` if one could not be measured, else `passed`.
        exit_code: the exit code of the command.
    """

    night: str
    status: str
    exit_code: int


@dataclass(frozen=True)
class NetworkOfNight:
    """A network of a nightly run.

    Attributes:
        status: `passed`, `failed`, or `error` where nothing could be measured.
        tonight: the figures; null where nothing could be measured.
        baseline: the figures of each of its runs; null for a new network.
        repeats: the number of these runs.
    """

    status: str
    tonight: Any
    baseline: Any
    repeats: int | None


@dataclass(frozen=True)
class OverallFigures:
    """The figures of one run.

    Attributes:
        metric: its name.
        threshold: the worst value that is still good.
        similarity: the similarity of full INT8 and of the recipe.
        high: the layers that the recipe leaves high.
        meets: the recipe meets the threshold.
        latency: median milliseconds by plan; null if nothing was timed.
        part: a sentence on the part of the network that was judged; empty if it was all of it.
        culprits: their names.
    """

    metric: str
    threshold: float
    similarity: Mapping[str, float | None]
    high: tuple[str, ...]
    meets: bool
    latency: Mapping[str, float | None] | None
    part: str
    culprits: tuple[str, ...]


@dataclass(frozen=True)
class Fails:
    """Of a change.

    Attributes:
        fails: it fails the nightly run.
    """

    fails: bool
