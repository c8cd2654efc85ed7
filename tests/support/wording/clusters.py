"""Sentences on clusters: tasks that were lost, nodes that are not used."""

from __future__ import annotations

NOTHING_ANSWERS = "Nothing answers at"
NOT_USED = "is not used"
NO_ROOM = "has had room for a task"
FIGURES_WOULD_DIFFER = "its figures would differ: "
NO_NODE_CAN_BE_USED = "No node of '.*' can be used: "
"""A regular expression."""
RAY_HEAD = "'GRPC_ENABLE_FORK_SUPPORT=0 ray start --head'"
CANNOT_BE_SENT = "cannot be sent to"


def lost(attempt: int, of: int, what: str) -> str:
    """Returns the beginning of the sentence on a task that ended with its worker."""
    return f"Try {attempt} of {of} of {what} was lost"


def lost_each_time(attempts: int) -> str:
    """Returns the beginning of the message of a plan that is given up."""
    return f"a plan was tried {attempts} times, and each time the worker or its node was lost: "
