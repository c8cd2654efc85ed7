"""Evaluators: a precision plan becomes a trial."""
