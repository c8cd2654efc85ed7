"""The three verdicts on a plan, each with its word, its colours and its exit code."""

from __future__ import annotations

from collections.abc import Mapping

from trt_bisect.errors import NothingMeasured

PASSES, WITH_DOUBTS, FAILS = "passes", "passes with doubts", "fails"
UNMEASURED = "not measured"
"""No verdict: nothing could be measured."""
STYLES: Mapping[str, str] = {
    PASSES: "bold green",
    WITH_DOUBTS: "bold yellow",
    FAILS: "bold red",
    UNMEASURED: "bold yellow",
}
"""The styles on the screen."""
TONES: Mapping[str, str] = {PASSES: "good", WITH_DOUBTS: "doubted", FAILS: "bad", UNMEASURED: ""}
"""The CSS classes on the pages."""
COLOURS: Mapping[str, str] = {PASSES: "green", WITH_DOUBTS: "darkgoldenrod", FAILS: "crimson", UNMEASURED: "grey"}
"""The colours in a notebook, which has no styles of its own."""


def spoken(verdict: str) -> str:
    """Returns a verdict as people read it; the word itself stands in files."""
    return "passes, but doubtful" if verdict == WITH_DOUBTS else verdict


def verdict_of(*, meets: bool, doubted: bool) -> str:
    """Returns the verdict on a plan.

    Args:
        meets: the plan meets the threshold on all inputs given.
        doubted: something speaks against it that the user has not accepted.
    """
    return FAILS if not meets else WITH_DOUBTS if doubted else PASSES


def code_of(verdict: str) -> int:
    """Returns the exit code of a verdict: 0 for a pass without doubts, 1 for any other, 3 if nothing was measured."""
    return {PASSES: 0, UNMEASURED: NothingMeasured.exit_code}.get(verdict, 1)


def verdict_in(exit_code: int | None, *, meets: bool) -> str:
    """Returns the verdict that a saved exit code stands for.

    Args:
        exit_code: of a finished run; None for a run that is not finished.
        meets: the plan that was asked for meets the threshold: full INT8.
    """
    if exit_code not in (0, 1):
        return UNMEASURED
    return verdict_of(meets=meets or exit_code == 0, doubted=exit_code == 1)
