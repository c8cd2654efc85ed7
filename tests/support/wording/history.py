"""Sentences of the history and of its command."""

from __future__ import annotations

NO_HISTORY = "There is no history"
NOT_RECORDED = "Not recorded in the history: "
NOTHING_RECORDED = "Nothing of that kind is recorded"
THE_HISTORY_ITSELF = "the history itself"


def no_run(folder: str) -> str:
    """Returns the problem of a folder without a run."""
    return f"There is no run in '{folder}'"


def option_changed(option: str, before: str, after: str) -> str:
    """Returns the change of an option between two runs."""
    return f"option {option} {before} → {after}"
