"""Keys of trials: a plan, and the engines that it was measured on."""

from __future__ import annotations

from dataclasses import dataclass

WHOLE = ""
PIECES = "pieces"
_ROWS = "rows"


@dataclass(frozen=True)
class TrialKey:
    """Identifies a trial in a journal: the plan, and the engines that it was measured on.

    A trial on a whole engine has the plan's key as its text; any other has ``measured_in``, a space, and that key.

    Attributes:
        plan: the plan's key, or another word without a space.
        measured_in: ``WHOLE``: a whole engine, or pieces that compute exactly what a whole engine does. ``PIECES``:
            pieces that are built as engines of their own. Others: see ``in_rows``, ``evaluator.each_input`` and
            ``evaluator.accuracy``.
    """

    plan: str
    measured_in: str = WHOLE

    @property
    def text(self) -> str:
        """The key as journals hold it."""
        return f"{self.measured_in} {self.plan}" if self.measured_in else self.plan

    @classmethod
    def from_text(cls, text: str) -> TrialKey:
        """The key that has this text.

        >>> TrialKey.from_text("pieces rows 8*3.f*2")
        TrialKey(plan='8*3.f*2', measured_in='pieces rows')
        """
        measured_in, _, plan = text.rpartition(" ")
        return cls(plan, measured_in)

    @property
    def has_plan(self) -> bool:
        """True if the trial is of a plan; that of an accuracy in FP32 is of none."""
        return "*" in self.plan

    @property
    def in_rows(self) -> TrialKey:
        """The key of the same plan where its row ran on in INT8, stacked with the rows of other plans.

        Float sums are added in another order there than on a whole engine, so that values at the edge between two INT8
        levels fall to the other side. Such a trial is never used as that of a whole engine.
        """
        return TrialKey(self.plan, f"{self.measured_in} {_ROWS}" if self.measured_in else _ROWS)

    @property
    def in_pieces(self) -> bool:
        """True if the trial was measured on pieces that are other engines than a whole one."""
        return self.measured_in.split(" ")[0] == PIECES
