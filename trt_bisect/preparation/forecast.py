"""The time that a run will still take: the inferences that are left, at the pace of those that were measured.

The stages before the first inference tell nothing, and take little. From then on each later stage is a number of
inferences: the search by its budget, or by what searches take as a rule, the others by the sizes of the network and of
the data.
"""

from __future__ import annotations

from dataclasses import dataclass

from trt_bisect.support.progress import Progress, grown

SEARCH, CHECKS, CURVE, EXPLANATION = STAGES = ("search", "checks", "curve", "explanation")
"""The stages that are foreseen, in their order; the curve comes first where an engine is built for each plan."""
_CURVE, _CHECKS, _EXPLANATION = 2.5, 5.0, 2.0
"""The inferences that a stage takes: the curve for each layer and judged input, as branches run in batches; the checks
for each input given, in several settings and by all metrics; the explanation for each layer and judged input, with
every tensor and its remedies. They are near those of the runs in ``docs/benchmarks.md``."""
_SWEEPS = {None: 1.0, True: 0.8, False: 5.0}
"""The sweeps that a search takes from the first inferences on; from the first recipe on, a cheap or a dear one."""
_STEADY = 16.0
"""After so many seconds of further inferences, one counts half for the pace: caches are warm, prefixes are shared."""


def other_stages(layers: int, given: int, judged: int, *, explains: bool) -> dict[str, float]:
    """Returns by stage the inferences that it is expected to take; not those of the search.

    Args:
        layers: that can be in the low precision.
        given: inputs given.
        judged: inputs that the curve is measured on.
        explains: the run looks for causes.
    """
    each = float(layers * judged)
    return {CURVE: _CURVE * each, CHECKS: _CHECKS * given, EXPLANATION: _EXPLANATION * each if explains else 0.0}


def usual_search(sweep: float, *, is_cheap: bool | None = None) -> float:
    """Returns the inferences that a search without a budget takes as a rule.

    Args:
        sweep: an inference for each layer on each input that it judges on.
        is_cheap: the first recipe is: there is little to search; None before it is known.
    """
    return sweep * _SWEEPS[is_cheap]


@dataclass
class Forecast:
    """Tells a display the time left of a run, each time that it becomes known better.

    Attributes:
        shown: the display.
        left: by stage, the inferences that it will still take; None for a job of which the other stages are not
            foreseen: then nothing is told.
    """

    shown: Progress
    left: dict[str, float] | None = None
    _done: float = 0.0
    _pace: tuple[float, float] = (0.0, 0.0)

    def search(self, inferences_left: float, seconds_each: float | None = None) -> None:
        """Takes what the search will still take, at its beginning or as that becomes known better.

        Args:
            inferences_left: of its budget, or until its end.
            seconds_each: the seconds of an inference; None for the pace of the last ones.
        """
        if self.left is None:
            return
        if seconds_each is not None:
            self._pace = (1.0, seconds_each)
        self.left[SEARCH] = inferences_left
        self._tell()

    def ran(self, inferences: int, seconds: float) -> None:
        """Counts inferences, of the search while there is one; a search that exceeds its number grows as a bar does.

        Args:
            inferences: measured just now.
            seconds: that they took together.
        """
        kept = 0.5 ** (seconds / _STEADY)
        self._pace = (kept * self._pace[0] + inferences, kept * self._pace[1] + seconds)
        if self.left and self.left.get(SEARCH):
            self._done += inferences
            total = self._done - inferences + self.left[SEARCH]
            self.search(float(grown(round(total), round(self._done) + 1) or 0) - self._done)

    def begins(self, stage: str) -> None:
        """Begins a stage: those before it have nothing left."""
        if self.left is not None:
            later = STAGES[STAGES.index(stage) :]
            self.left = {name: inferences for name, inferences in self.left.items() if name in later}
            self._tell()

    def ends(self, stage: str) -> None:
        """Ends a stage."""
        if self.left is not None:
            self.left = {name: inferences for name, inferences in self.left.items() if name != stage}
            self._tell()

    def seconds(self) -> float | None:
        """Returns the seconds left; None before the first inference."""
        inferences, seconds = self._pace
        return seconds / inferences * sum(self.left.values()) if inferences and self.left is not None else None

    def _tell(self) -> None:
        self.shown.left(self.seconds())
