"""Arranges plans in passes: the plans of a pass are measured together, in one run through the pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trt_bisect.model.pieces import Piece
from trt_bisect.precision import PrecisionPlan


@dataclass(frozen=True)
class Pass:
    """Plans that leave one trunk, each in a piece of its own choice, and follow the same plan after that piece.

    Attributes:
        trunk: the plan that runs through all pieces.
        after: the plan that a branch follows in the pieces after its own.
        branches: each plan with the number of the piece in which it leaves the trunk, in the order of pieces.
        trunk_wanted: true if the trunk itself is one of the plans.
    """

    trunk: PrecisionPlan
    after: PrecisionPlan
    branches: tuple[tuple[int, PrecisionPlan], ...]
    trunk_wanted: bool


def arrange(plans: Sequence[PrecisionPlan], pieces: Sequence[Piece], nothing: PrecisionPlan) -> list[Pass]:
    """Returns the passes that measure ``plans``, those that measure most plans first.

    The trunk is the plan with most layers in INT8, or the one with none. *prefix(k)* leaves an INT8 trunk for high
    precision; *only(k)* leaves a high trunk for one piece; *all but k* leaves an INT8 trunk for one piece.

    Args:
        plans: the plans to measure.
        pieces: all layers, cut at boundaries.
        nothing: the plan with no layer in INT8.
    """
    left = list(dict.fromkeys(plans))
    passes: list[Pass] = []
    while left:
        fullest = max(left, key=lambda plan: len(plan.lowered))
        tried = [_pass(left, pieces, *pair) for pair in ((fullest, nothing), (fullest, fullest), (nothing, nothing))]
        best = max(tried, key=_size)
        passes.append(best)
        done = {plan for _, plan in best.branches} | ({best.trunk} if best.trunk_wanted else set())
        left = [plan for plan in left if plan not in done]
    return passes


def _size(found: Pass) -> int:
    return len(found.branches) + found.trunk_wanted


def _pass(plans: Sequence[PrecisionPlan], pieces: Sequence[Piece], trunk: PrecisionPlan, after: PrecisionPlan) -> Pass:
    branches = []
    for plan in plans:
        parting = next((number for number, piece in enumerate(pieces) if not _alike(plan, trunk, piece)), None)
        if parting is not None and all(_alike(plan, after, piece) for piece in pieces[parting + 1 :]):
            branches.append((parting, plan))
    return Pass(trunk, after, tuple(sorted(branches, key=lambda branch: branch[0])), trunk in plans)


def _alike(one: PrecisionPlan, other: PrecisionPlan, piece: Piece) -> bool:
    return one.precisions[piece.start : piece.stop] == other.precisions[piece.start : piece.stop]
